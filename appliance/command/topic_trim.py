"""`millrace topic trim`: delete a topic's oldest records now, instead of when its retention says (Kafka's DeleteRecords).

What would go is shown first, and on a terminal asked about. Weak spot: what is shown counts offsets; in a topic with transactions or compaction some
of them hold no record.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

from appliance.base.model import Offset, TopicPartition
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.kafka import open_cluster, require_topic_name
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, YesOption, argument, option
from appliance.command.output import Column, count_text, plural, print_table, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.client.admin import DescribedTopic
    from appliance.client.cluster import ClusterClient

_AGE = re.compile(r"([0-9]+)(s|m|h|d)\Z")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Limit(NamedTuple):
    """What goes: everything before an offset, or before a time; with neither, all that can be read."""

    offset: int | None = None
    time_ms: int | None = None


class Trim(NamedTuple):
    """One partition: it begins at `start` and is to begin at `new_start`; `end` is its high watermark."""

    partition: int
    start: int
    new_start: int
    end: int


def trim(
    name: Annotated[str, argument("NAME", "The topic.")],
    before: Annotated[
        str | None,
        option("--before", metavar="OFFSET|TIME", help="Delete what is older: an offset, a time such as 2026-11-21T10:00Z, or an age such as 90m, 12h, 7d."),
    ] = None,
    to_high_watermark: Annotated[bool, option("--to-high-watermark", help="Delete all records that can be read now.")] = False,
    partition: Annotated[int | None, option("--partition", metavar="N", min=0, help="Only this partition.")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Show what would go, and leave it there.")] = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete a topic's oldest records for good.

    Example: millrace topic trim syslog --before 7d --dry-run
    """
    require_topic_name(name)
    limit = parse_limit(before, to_high_watermark, int(datetime.now(UTC).timestamp() * 1000))
    with open_cluster(bootstrap, data, config) as cluster:
        from appliance.client.admin import describe_topic

        described = describe_topic(cluster, name)
        found: Mapping[int, int] = {}
        if limit.time_ms is not None:
            found = _offsets_at(cluster, described, partition, limit.time_ms)
        trims = plan_trims(described, limit, partition, found)
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
    if (age := _AGE.match(before)) is not None:
        return Limit(time_ms=max(0, now_ms - int(age[1]) * _UNIT_MS[age[2]]))
    try:
        time = datetime.fromisoformat(before)
    except ValueError:
        raise UsageProblem(f"--before {before}: write an offset, a time such as 2026-11-21T10:00Z, or an age such as 90m, 12h, 7d") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Limit(time_ms=max(0, int(time.timestamp() * 1000)))


def plan_trims(described: DescribedTopic, limit: Limit, only: int | None, offset_at_time: Mapping[int, int]) -> list[Trim]:
    """Where each partition is to begin. `offset_at_time`: its first record that is not older than the limit; without one, all go. Raises UsageProblem."""
    name, parts = described.topic.name, described.partitions
    known = [part.metadata.partition for part in parts]
    if only is not None and only not in known:
        raise UsageProblem(f"--partition {only}: topic {name} has {plural(len(known), 'partition')}, counted from 0")
    if limit.offset is not None and only is None and len(known) > 1:
        raise UsageProblem(
            f"--before {limit.offset}: topic {name} has {len(known)} partitions, each with offsets of its own; add --partition N, or give a time"
        )
    trims = []
    for part in parts:
        number, start, end = part.metadata.partition, part.log_start_offset, part.end_offset
        if only is not None and number != only:
            continue
        if start is None or end is None:
            raise UsageProblem(f"partition {number} of topic {name} has no leader at the moment, so nothing was deleted; name others with --partition")
        if limit.offset is not None and limit.offset > end:
            raise UsageProblem(f"--before {limit.offset}: partition {number} of topic {name} ends at offset {end}")
        wanted = limit.offset if limit.offset is not None else offset_at_time.get(number, end)
        trims.append(Trim(number, start, max(start, min(wanted, end)), end))
    return trims


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


def confirm(question: str, instead: str) -> None:
    """Ask for confirmation. Raises UsageProblem without a yes; `instead` says what to do without a terminal."""
    if not sys.stdin.isatty():
        raise UsageProblem(f"nothing was deleted: no terminal to ask for confirmation; {instead}")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageProblem("nothing was deleted")


def _offsets_at(cluster: ClusterClient, described: DescribedTopic, only: int | None, time_ms: int) -> dict[int, int]:
    from appliance.client.admin import list_offsets

    wanted = [
        TopicPartition(described.topic.name, part.metadata.partition)
        for part in described.partitions
        if part.end_offset is not None and only in (None, part.metadata.partition)
    ]
    return {key.partition: found.offset for key, found in list_offsets(cluster, wanted, time_ms).items() if found.offset >= 0}


def _carry_out(cluster: ClusterClient, name: str, trims: list[Trim]) -> None:
    from appliance.client.admin import delete_records

    offsets = {TopicPartition(name, each.partition): Offset(each.new_start) for each in trims if each.new_start > each.start}
    refused = delete_records(cluster, offsets)
    if not refused:
        return
    for partition, error in sorted(refused.items()):
        say(f"millrace: {partition}: {error}")
    if len(refused) < len(offsets):
        raise PartlyDone(f"{len(offsets) - len(refused)} of {plural(len(offsets), 'partition')} were trimmed, the others were not")
    raise next(iter(refused.values()))
