"""`millrace topic elect`: leadership back to the first replicas, or to any replica where nobody in sync is left."""

from __future__ import annotations

from typing import Annotated

from appliance.base.errors import ErrorCode
from appliance.base.model import topic_name_problem
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import plural


def elect(
    topics: Annotated[list[str] | None, argument("TOPIC", "The topics. [default: all]")] = None,
    partition: Annotated[
        list[int] | None, option("--partition", metavar="P", min=0, help="This partition of one topic only; may be given several times. [default: all]")
    ] = None,
    unclean: Annotated[
        bool,
        option("--unclean", help="Where no replica in sync lives, let any other lead: what it lacks is LOST. Name the topics."),
    ] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Let the preferred leader (the first replica) lead each partition again, if it is in sync.

    Example: millrace topic elect; millrace topic elect orders --partition 3 --unclean
    """
    require_meaning(topics or [], partition or [], unclean)
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.boxes import elect_leaders

        found = cluster.metadata(topics or None).topics
        if absent := [name for name in topics or [] if name not in found or found[name].error != ErrorCode.NONE]:
            raise UsageProblem("\n".join(f"there is no topic {name}" for name in absent))
        wanted = [(name, each.partition) for name in sorted(found) for each in found[name].partitions if not partition or each.partition in partition]
        if missing := sorted(set(partition or []) - {number for _, number in wanted}):
            raise UsageProblem(f"topic {(topics or [''])[0]} has no partition {', '.join(map(str, missing))}")
        results = elect_leaders(cluster, wanted, unclean)
    elected = [key for key, refused in results.items() if refused is None]
    failed = [refused for refused in results.values() if refused is not None and refused.code is not ErrorCode.ELECTION_NOT_NEEDED]
    as_it_should = len(results) - len(elected) - len(failed)
    print(f"{plural(len(elected), 'leader')} elected, {as_it_should} {'led' if unclean else 'led by the preferred leader'} already")
    if failed:
        raise PartlyDone("\n".join(str(refused) for refused in failed))


def require_meaning(topics: list[str], partitions: list[int], unclean: bool) -> None:
    """Raises UsageProblem with everything that is wrong."""
    problems = [problem for name in topics if (problem := topic_name_problem(name))]
    if partitions and len(topics) != 1:
        problems.append("--partition is for one topic; name it")
    if unclean and not topics:
        problems.append("--unclean loses records; name the topics that may")
    if problems:
        raise UsageProblem("\n".join(problems))
