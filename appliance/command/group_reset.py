"""`millrace group reset-offsets`: where a group goes on reading. Shows what it would do, and asks.

The group must have no members: they would overwrite the commit. Weak spot: a member may join between check and commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.time_texts import moment_text, parse_moment
from appliance.command.failures import UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, DryRunOption, argument, confirm, option
from appliance.command.output import NOTHING, Column, plural, print_table, say

if TYPE_CHECKING:
    from appliance.base.model import TopicPartition
    from appliance.client.groups import PlannedReset


def reset_offsets(
    group: Annotated[str, argument("GROUP", "The group; it must have no members.")],
    topics: Annotated[
        list[str] | None,
        option("--topic", metavar="TOPIC[:N,N…]", help="Which partitions; may be given several times. [default: all that the group has offsets of]"),
    ] = None,
    to_earliest: Annotated[bool, option("--to-earliest", help="The first record that is there.")] = False,
    to_latest: Annotated[bool, option("--to-latest", help="The end: only what comes from now on.")] = False,
    to_time: Annotated[
        str | None,
        option(
            "--to-time",
            metavar="TIME",
            help="The first record of that time or later: 2026-11-21T14:00 (local unless it names a zone), 14:03, yesterday, or an age such as 2h.",
        ),
    ] = None,
    to_offset: Annotated[int | None, option("--to-offset", metavar="N", min=0, help="That offset, or the nearest that there is.")] = None,
    shift_by: Annotated[int | None, option("--shift-by", metavar="N", help="So many records on, or with a minus back, from where the group is.")] = None,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, option("--yes", "-y", "--execute", help="Do not ask. (--execute: as in Kafka's tool.)")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Let a group go on from somewhere else: the earliest record, the latest, a time, an offset, or some records on or back.

    Example: millrace group reset-offsets loader --topic syslog --to-time 2026-11-21T14:00 --dry-run
    """
    ways = {"--to-earliest": to_earliest, "--to-latest": to_latest, "--to-time": to_time is not None, "--to-offset": to_offset is not None}
    ways["--shift-by"] = shift_by is not None
    chosen = [name for name, given in ways.items() if given]
    if len(chosen) != 1:
        raise UsageProblem(f"give exactly one of {', '.join(ways)}" + (f", not {' and '.join(chosen)}" if chosen else ""))
    way, value = chosen[0].removeprefix("--to-"), to_offset or 0
    if to_time is not None:
        try:
            value = parse_moment(to_time, SystemClock.wall_ms())
        except ValueError as error:
            raise UsageProblem(f"--to-time: {error}") from None
        say(f"--to-time: {moment_text(value)}")
    elif shift_by is not None:
        way, value = "shift", shift_by
    wanted = [parse_partitions(text) for text in topics or []]
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.groups import ResetTo, committed_offsets, group_or_new, partitions_to_reset, plan_reset, require_no_members, set_offsets

        require_no_members(group_or_new(cluster, group))
        committed = committed_offsets(cluster, group)
        try:
            partitions = partitions_to_reset(cluster, wanted, committed)
            if not partitions:
                raise UsageProblem(f"group {group} has no offsets yet; name what it is to read with --topic")
            planned = plan_reset(cluster, ResetTo(way, value), partitions, committed)
        except RequestRefused as refused:
            if refused.code not in (ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REQUEST):
                raise
            raise UsageProblem(f"{'--topic' if refused.code == ErrorCode.INVALID_PARTITIONS else '--shift-by'}: {refused.message}") from refused
        targets = {partition: plan.target for partition, plan in planned.items()}
        _show(planned)
        if dry_run:
            say(f"nothing was changed: {plural(len(targets), 'offset')} of group {group} would be set")
            return
        if not yes:
            confirm(f"Set {plural(len(targets), 'offset')} of group {group}?", "add --yes, or --dry-run to look only")
        set_offsets(cluster, group, targets)
        print(f"set {plural(len(targets), 'offset')} of group {group}")


def parse_partitions(text: str) -> tuple[str, tuple[int, ...]]:
    """`TOPIC` or `TOPIC:0,3`."""
    topic, colon, numbers = text.partition(":")
    try:
        chosen = tuple(int(number) for number in numbers.split(",")) if colon else ()
    except ValueError as error:
        raise UsageProblem(f"--topic: {text!r} is not TOPIC or TOPIC:0,3") from error
    if not topic or any(number < 0 for number in chosen):
        raise UsageProblem(f"--topic: {text!r} is not TOPIC or TOPIC:0,3")
    return topic, chosen


def _show(planned: Mapping[TopicPartition, PlannedReset]) -> None:
    columns = [Column("topic"), Column("partition", is_number=True), Column("now", is_number=True), Column("new", is_number=True)]
    columns.append(Column("to read", is_number=True))
    rows = [
        [each.topic, str(each.partition), NOTHING if plan.committed is None else str(plan.committed), str(plan.target), str(plan.end - plan.target)]
        for each, plan in sorted(planned.items())
    ]
    print_table(columns, rows)
