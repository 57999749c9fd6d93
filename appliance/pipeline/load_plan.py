"""Decides which offsets the next commit of a load takes. Pure: no file, no cluster.

Everything between a partition's position and its end is to be loaded, in commits of limited size, so that a death costs one commit's work and not all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from appliance.base.model import TopicPartition
from appliance.pipeline.load_manifest import SkippedRange
from appliance.pipeline.load_problem import LoadProblem
from appliance.pipeline.offset_range import OffsetRange


class Extent(NamedTuple):
    """What the log of a partition holds: `start` inclusive, `end` exclusive (the last stable offset: what a read_committed reader may see)."""

    start: int
    end: int


class Due(NamedTuple):
    """What there is to load, and what was deleted before it could be."""

    ranges: tuple[OffsetRange, ...]
    lost: tuple[SkippedRange, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.ranges)

    @property
    def is_nothing(self) -> bool:
        return not self.ranges and not self.lost


def find_due(extents: Mapping[TopicPartition, Extent], positions: Mapping[TopicPartition, int]) -> Due:
    """From each partition's position (its log's start, where there is none yet) to its end."""
    ranges, lost = [], []
    for partition, extent in sorted(extents.items()):
        position = positions.get(partition, extent.start)
        if position < extent.start:
            lost.append(SkippedRange(*partition, position, extent.start, "lost"))
            position = extent.start
        if position > extent.end:
            raise LoadProblem(
                f"{partition} was loaded up to offset {position}, but its log ends at {extent.end}: it is not the log that was loaded "
                "(was the topic deleted and made anew?); load it into another place"
            )
        if position < extent.end:
            ranges.append(OffsetRange(*partition, position, extent.end))
    return Due(tuple(ranges), tuple(lost))


def next_ranges(due: Due, records_max: int) -> tuple[OffsetRange, ...]:
    """The beginnings of what is due that make one commit: of each partition in proportion, so that all of them go forward together.

    A partition that lost all it had has a range of nothing, which moves its position.
    """
    passed = {TopicPartition(each.topic, each.partition): each.end for each in due.lost}
    for each in due.ranges:
        passed.pop(each.topic_partition, None)
    moves = tuple(OffsetRange(*partition, end, end) for partition, end in sorted(passed.items()))
    share = due.ranges if due.size <= records_max else (each._replace(end=each.start + max(1, each.size * records_max // due.size)) for each in due.ranges)
    return (*moves, *share)
