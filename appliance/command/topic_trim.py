"""`millrace topic trim`: delete a topic's oldest records now, instead of when its retention says (Kafka's DeleteRecords).

What would go is shown first, and on a terminal asked about. Weak spot: what is shown counts offsets; in a topic with transactions or compaction some
of them hold no record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from appliance.base.clock import SystemClock
from appliance.base.errors import RequestRefused
from appliance.base.time_texts import moment_text, parse_moment
from appliance.client.trims import Limit, Trim
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.kafka import open_cluster, require_topic_name
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, DryRunOption, YesOption, argument, confirm, option
from appliance.command.output import Column, count_text, plural, print_table, say

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient


def trim(
    name: Annotated[str, argument("NAME", "The topic.")],
    before: Annotated[
        str | None,
        option(
            "--before",
            metavar="OFFSET|TIME",
            help="Delete what is older: an offset, a time such as 2026-11-21T10:00 (local unless it names a zone), or an age such as 7d.",
        ),
    ] = None,
    to_high_watermark: Annotated[bool, option("--to-high-watermark", help="Delete all records that can be read now.")] = False,
    partition: Annotated[int | None, option("--partition", metavar="N", min=0, help="Only this partition.")] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete a topic's oldest records for good.

    Example: millrace topic trim syslog --before 7d --dry-run
    """
    require_topic_name(name)
    limit = parse_limit(before, to_high_watermark, SystemClock.wall_ms())
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.admin import describe_topic
        from appliance.client.trims import find_trims

        described = describe_topic(cluster, name)
        try:
            trims = find_trims(cluster, described, limit, partition)
        except RequestRefused as refused:
            raise UsageProblem(refused.message) from refused
        if limit.time_ms is not None:
            say(f"records before {moment_text(limit.time_ms)} go")
        print_plan(trims)
        count = sum(each.new_start - each.start for each in trims)
        if not count or dry_run:
            print("nothing goes" if not count else f"{plural(count, 'record')} of topic {name} would go")
            return
        if not yes:
            confirm(f"Delete {plural(count, 'record')} of topic {name} for good?", "add --yes, or --dry-run to look only")
        _carry_out(cluster, name, trims)
        print(f"trimmed topic {name}: {plural(count, 'record')} deleted")


def parse_limit(before: str | None, to_high_watermark: bool, now_ms: int) -> Limit:
    """UsageProblem for both, for neither, and for what is neither an offset nor a time."""
    if (before is None) != to_high_watermark:
        raise UsageProblem("say what goes: either --before OFFSET|TIME or --to-high-watermark")
    if before is None:
        return Limit()
    if before.isascii() and before.isdigit():
        return Limit(offset=int(before))
    try:
        return Limit(time_ms=parse_moment(before, now_ms))
    except ValueError as error:
        raise UsageProblem(f"--before {before}: write an offset, or a time: {error}") from None


def print_plan(trims: list[Trim]) -> None:
    columns = [Column(name, is_number=True) for name in ("partition", "start offset", "new start", "end offset", "records that go", "that stay")]
    rows = [
        [
            str(each.partition),
            str(each.start),
            str(each.new_start),
            str(each.end),
            count_text(each.new_start - each.start),
            count_text(each.end - each.new_start),
        ]
        for each in trims
    ]
    print_table(columns, rows)


def _carry_out(cluster: ClusterClient, name: str, trims: list[Trim]) -> None:
    from appliance.client.trims import trim_records

    offsets = [each for each in trims if each.new_start > each.start]
    refused = trim_records(cluster, name, offsets)
    if not refused:
        return
    for partition, error in sorted(refused.items()):
        say(f"millrace: {partition}: {error}")
    if len(refused) < len(offsets):
        raise PartlyDone(f"{len(offsets) - len(refused)} of {plural(len(offsets), 'partition')} were trimmed, the others were not")
    raise next(iter(refused.values()))
