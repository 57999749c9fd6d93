"""`millrace group reset-offsets`: where a group goes on reading. Shows what it would do; does it with --execute.

The group must have no members: they would overwrite the commit. Weak spot: a member may join between check and commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from appliance.command.failures import UsageProblem
from appliance.command.kafka import open_cluster
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import NOTHING, Column, plural, print_table, say

if TYPE_CHECKING:
    from appliance.base.model import TopicPartition
    from appliance.client.cluster import ClusterClient
    from appliance.client.groups import GroupDescription

MILLISECONDS = 1000


def reset_offsets(
    group: Annotated[str, argument("GROUP", "The group; it must have no members.")],
    topics: Annotated[
        list[str] | None,
        option("--topic", metavar="TOPIC[:N,N…]", help="Which partitions; may be given several times. [default: all that the group has offsets of]"),
    ] = None,
    to_earliest: Annotated[bool, option("--to-earliest", help="The first record that is there.")] = False,
    to_latest: Annotated[bool, option("--to-latest", help="The end: only what comes from now on.")] = False,
    to_time: Annotated[
        str | None, option("--to-time", metavar="TIME", help="The first record of that time or later: 2026-11-21T14:00, with a zone if not the machine's own.")
    ] = None,
    to_offset: Annotated[int | None, option("--to-offset", metavar="N", min=0, help="That offset, or the nearest that there is.")] = None,
    shift_by: Annotated[int | None, option("--shift-by", metavar="N", help="So many records on, or with a minus back, from where the group is.")] = None,
    execute: Annotated[bool, option("--execute", help="Do it. Without this it is only shown.")] = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Let a group go on from somewhere else: the earliest record, the latest, a time, an offset, or some records on or back.

    Example: millrace group reset-offsets loader --topic syslog --to-time 2026-11-21T14:00 --execute
    """
    ways = {"--to-earliest": to_earliest, "--to-latest": to_latest, "--to-time": to_time is not None, "--to-offset": to_offset is not None}
    ways["--shift-by"] = shift_by is not None
    chosen = [name for name, given in ways.items() if given]
    if len(chosen) != 1:
        raise UsageProblem(f"give exactly one of {', '.join(ways)}" + (f", not {' and '.join(chosen)}" if chosen else ""))
    timestamp = parse_time(to_time) if to_time is not None else None
    wanted = [parse_partitions(text) for text in topics or []]
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.groups import committed_offsets, require_no_members, set_offsets

        require_no_members(_described_or_new(cluster, group))
        committed = {partition: known.offset for partition, known in committed_offsets(cluster, group).items()}
        partitions = _choose(cluster, wanted, committed)
        if not partitions:
            raise UsageProblem(f"group {group} has no offsets yet; name what it is to read with --topic")
        starts, ends = _ends(cluster, partitions)
        if timestamp is not None:
            targets = _at_time(cluster, partitions, timestamp, ends)
        elif shift_by is not None:
            targets = _shifted(committed, partitions, shift_by)
        else:
            targets = {each: starts[each] if to_earliest else ends[each] if to_latest else to_offset or 0 for each in partitions}
        targets = {each: min(max(target, starts[each]), ends[each]) for each, target in targets.items()}
        _show(committed, targets, ends)
        if not execute:
            say(f"nothing was changed; add --execute to set {plural(len(targets), 'offset')} of group {group}")
            return
        set_offsets(cluster, group, targets)
        print(f"set {plural(len(targets), 'offset')} of group {group}")


def _described_or_new(cluster: ClusterClient, group: str) -> GroupDescription:
    """An unknown group has no members; it starts with these offsets."""
    from appliance.base.errors import ErrorCode, RequestRefused
    from appliance.client.groups import GroupDescription, describe_group

    try:
        return describe_group(cluster, group)
    except RequestRefused as refused:
        if refused.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return GroupDescription(group, "", "", "", ())


def parse_time(text: str) -> int:
    """Wall time in ms of an ISO 8601 text; without a zone it is the machine's own."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * MILLISECONDS)
    except (ValueError, OverflowError) as error:
        raise UsageProblem(f"--to-time: {text!r} is not a time such as 2026-11-21T14:00 or 2026-11-21T14:00:00+01:00") from error


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


def _choose(cluster: ClusterClient, wanted: list[tuple[str, tuple[int, ...]]], committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    from appliance.base.model import TopicPartition

    if not wanted:
        return sorted(committed)
    chosen: set[TopicPartition] = set()
    for topic, numbers in wanted:
        there = {partition.partition for partition in cluster.topic(topic).partitions}
        if missing := sorted(set(numbers) - there):
            raise UsageProblem(f"--topic: topic {topic} has no partition {missing[0]}; it has {len(there)}, counted from 0")
        chosen |= {TopicPartition(topic, number) for number in numbers or there}
    return sorted(chosen)


def _ends(cluster: ClusterClient, partitions: list[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    from appliance.client.admin import list_offsets
    from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    starts, ends = (list_offsets(cluster, partitions, timestamp) for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    return {each: int(found.offset) for each, found in starts.items()}, {each: int(found.offset) for each, found in ends.items()}


def _at_time(cluster: ClusterClient, partitions: list[TopicPartition], timestamp: int, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The end where no record is that late."""
    from appliance.client.admin import list_offsets

    return {each: int(found.offset) if found.offset >= 0 else ends[each] for each, found in list_offsets(cluster, partitions, timestamp).items()}


def _shifted(committed: Mapping[TopicPartition, int], partitions: list[TopicPartition], by: int) -> dict[TopicPartition, int]:
    if missing := [each for each in partitions if each not in committed]:
        raise UsageProblem(f"--shift-by: the group has no offset of {missing[0]} to go on from")
    return {each: committed[each] + by for each in partitions}


def _show(committed: Mapping[TopicPartition, int], targets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    columns = [Column("topic"), Column("partition", is_number=True), Column("now", is_number=True), Column("new", is_number=True)]
    columns.append(Column("to read", is_number=True))
    rows = [
        [each.topic, str(each.partition), str(committed[each]) if each in committed else NOTHING, str(target), str(ends[each] - target)]
        for each, target in sorted(targets.items())
    ]
    print_table(columns, rows)
