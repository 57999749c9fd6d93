"""Lag of consumer groups: committed offsets against the high watermarks in the partition tables.
Pure; `console_groups` asks the coordinator.

Of several boxes, each reports the groups that it coordinates. Weak: commits and high watermarks are
read at slightly different times, so the lag of a busy partition is off by up to a second's records;
partitions without a replica on this box are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from appliance.protocol.group_offset_apis import NO_OFFSET, OffsetFetchGroupResult
from services.console.box_sample import BoxSample


class TopicLag(NamedTuple):
    """One group in one topic, over the partitions with a committed offset."""

    group: str
    topic: str
    records: int
    partitions: int


class GroupLag(NamedTuple):
    """One group; `topics` with the largest lag first."""

    group: str
    state: str
    topics: tuple[TopicLag, ...]

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def partitions(self) -> int:
        return sum(topic.partitions for topic in self.topics)


class GroupsSample(NamedTuple):
    """All groups of a round; `left_out` counts those beyond its limit. `monotonic_ns` 0: there was
    no answer yet."""

    groups: tuple[GroupLag, ...] = ()
    states: Mapping[str, int] = {}
    left_out: int = 0
    monotonic_ns: int = 0


NOT_LOOKED = GroupsSample()


def high_watermarks(sample: BoxSample) -> dict[str, dict[int, int]]:
    """Return topic → partition → high watermark, for the partitions on this box."""
    names = {bytes(topic.topic_id): name for name, topic in sample.image.topics.items()}
    found: dict[str, dict[int, int]] = {}
    for look in sample.disks.values():
        for held in look.partitions:
            name = names.get(held.row.topic_id)
            if name is not None:
                found.setdefault(name, {})[held.row.partition] = held.row.high_watermark
    return found


def group_lag(group: str, state: str, answer: OffsetFetchGroupResult, watermarks: Mapping[str, Mapping[int, int]]) -> GroupLag:
    """Return the lag of one group. Partitions without a commit, or without a replica on this box,
    do not count."""
    topics = []
    for topic in answer.topics:
        known = watermarks.get(topic.topic, {})
        behind = [
            max(known[partition.partition] - partition.offset, 0)
            for partition in topic.partitions
            if partition.offset != NO_OFFSET and not partition.error_code and partition.partition in known
        ]
        if behind:
            topics.append(TopicLag(group, topic.topic, sum(behind), len(behind)))
    return GroupLag(group, state, tuple(sorted(topics, key=lambda lag: (-lag.records, lag.topic))))
