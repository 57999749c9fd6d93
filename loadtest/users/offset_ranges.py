"""Which offsets of a partition have been seen, as ranges. Pure; one owner adds, others get copies.

A consumer that reads a log without gaps keeps one range for each time it was given the partition, however many records it reads. Weak spot: a log
with many gaps (compaction, markers of transactions) makes as many ranges; the load test writes none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """From `first`, inclusive, to `end`, exclusive."""

    first: int
    end: int


class OffsetRanges:
    """Grows by one offset at a time; ranges are in the order in which they were begun and may overlap."""

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []

    def add(self, offset: int) -> None:
        if self._ranges and self._ranges[-1][1] == offset:
            self._ranges[-1][1] = offset + 1
        else:
            self._ranges.append([offset, offset + 1])

    def begin_anew(self, offset: int) -> None:
        """The partition was given to this consumer (again): what comes next is a range of its own, even where it repeats an earlier one."""
        self._ranges.append([offset, offset])

    def document(self) -> list[list[int]]:
        return [list(known) for known in self._ranges if known[1] > known[0]]


class Coverage(NamedTuple):
    """How a set of ranges lies over the log that it should cover. All in records."""

    seen: int
    """different offsets inside"""
    missing: int
    repeated: int
    """offsets inside that were seen once more"""
    outside: int
    first_missing: int | None


def cover(ranges: Iterable[OffsetRange], wanted: OffsetRange) -> Coverage:
    """Compares what was seen with all offsets of `wanted`."""
    total = seen = 0
    at, first_missing = wanted.first, None
    for known in sorted(ranges):
        total += known.end - known.first
        first, end = max(known.first, wanted.first), min(known.end, wanted.end)
        if end <= first:
            continue
        if first > at and first_missing is None:
            first_missing = at
        seen += max(0, end - max(first, at))
        at = max(at, end)
    if at < wanted.end and first_missing is None:
        first_missing = at
    inside = sum(max(0, min(known.end, wanted.end) - max(known.first, wanted.first)) for known in ranges)
    return Coverage(seen, wanted.end - wanted.first - seen, inside - seen, total - inside, first_missing)
