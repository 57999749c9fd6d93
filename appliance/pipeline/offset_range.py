"""Part of a partition by its offsets, and how ranges are split for more or smaller tasks. Values only; the arithmetic is that of Spark's Kafka connector.

Weak spot: a range counts offsets, not records: compaction, aborted transactions and markers leave some without a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from appliance.base.model import TopicPartition


class OffsetRange(NamedTuple):
    """Offsets start <= offset < end of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def split_ranges(ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None) -> list[OffsetRange]:
    """Return the non-empty ranges, split at `max_records`; if they are fewer than `min_partitions`, long ones are split in proportion."""
    wanted = [each for each in ranges if each.size > 0]
    if max_records is not None:
        wanted = [piece for each in wanted for piece in _divide(each, -(-each.size // max_records))]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    return _spread(wanted, min_partitions)


def _spread(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Split long ranges in proportion; ranges that are too short for a share stay whole."""
    total = sum(each.size for each in ranges)
    whole = [each for each in ranges if _share(each.size, total, min_partitions) == 1]
    split_total = total - sum(each.size for each in whole)
    pieces = max(min_partitions - len(whole), 1)
    kept = set(whole)
    return [piece for each in ranges for piece in ([each] if each in kept else _divide(each, _share(each.size, split_total, pieces)))]


def _share(size: int, total: int, pieces: int) -> int:
    return max(int(size / total * pieces + 0.5), 1)


def _divide(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Split into neighbours of nearly the same size; the last ones take the remainder."""
    found = []
    start = whole.start
    for number in range(pieces):
        size = (whole.end - start) // (pieces - number)
        if size:
            found.append(whole._replace(start=start, end=start + size))
        start += size
    return found
