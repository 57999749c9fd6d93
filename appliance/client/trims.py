"""What deleting a topic's oldest records removes: planned first, then carried out (DeleteRecords).

One thread, through a ClusterClient. Weak: the plan counts offsets; in a topic with transactions or
compaction some of them hold no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import Offset, TopicPartition

if TYPE_CHECKING:
    from appliance.client.admin import DescribedTopic
    from appliance.client.cluster import ClusterClient


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


def find_trims(cluster: ClusterClient, described: DescribedTopic, limit: Limit, only: int | None) -> list[Trim]:
    """Plan, after asking for the offsets of a time. Raises RequestRefused."""
    from appliance.client.admin import list_offsets

    found: dict[int, int] = {}
    if limit.time_ms is not None:
        numbers = [part.metadata.partition for part in described.partitions if part.end_offset is not None]
        wanted = [TopicPartition(described.topic.name, number) for number in numbers if only in (None, number)]
        answers = list_offsets(cluster, wanted, limit.time_ms) if wanted else {}
        found = {key.partition: answer.offset for key, answer in answers.items() if answer.offset >= 0}
    return plan_trims(described, limit, only, found)


def plan_trims(described: DescribedTopic, limit: Limit, only: int | None, offset_at_time: Mapping[int, int]) -> list[Trim]:
    """Return where each partition is to begin. `offset_at_time`: its first record that is not older
    than the limit; without one, all go. Raises RequestRefused for what cannot be meant.
    """
    name, parts = described.topic.name, described.partitions
    if described.topic.is_internal:
        raise _wrong(f"topic {name} is internal, and its records are not deleted by hand; its retention and compaction delete them")
    known = [part.metadata.partition for part in parts]
    having = f"topic {name} has {len(known)} partition{'s' if len(known) > 1 else ''}"
    if only is not None and only not in known:
        raise _wrong(f"there is no partition {only}: {having}, counted from 0")
    if limit.offset is not None and only is None and len(known) > 1:
        raise _wrong(f"offset {limit.offset}: {having}, each with offsets of its own; name one (--partition N), or give a time")
    trims = []
    for part in parts:
        number, start, end = part.metadata.partition, part.log_start_offset, part.end_offset
        if only is not None and number != only:
            continue
        if start is None or end is None:
            raise _wrong(f"partition {number} of topic {name} has no leader at the moment, so nothing was deleted; name others (--partition N)")
        if limit.offset is not None and limit.offset > end:
            raise _wrong(f"offset {limit.offset}: partition {number} of topic {name} ends at offset {end}")
        wanted = limit.offset if limit.offset is not None else offset_at_time.get(number, end)
        trims.append(Trim(number, start, max(start, min(wanted, end)), end))
    return trims


def trim_records(cluster: ClusterClient, name: str, trims: Iterable[Trim]) -> dict[TopicPartition, RequestRefused]:
    """Let each partition begin at its new start, for good; return what was refused, and why."""
    from appliance.client.admin import delete_records

    offsets = {TopicPartition(name, each.partition): Offset(each.new_start) for each in trims if each.new_start > each.start}
    return delete_records(cluster, offsets)


def _wrong(words: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID_REQUEST, words)
