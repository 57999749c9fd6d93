"""The records around matches: those of the same partition whose offsets are at most so far from a match's.

Read when a match is passed on, so only for matches that are shown. What follows a match ends where another
match begins, and what precedes one begins where the last context ended, so each record comes once. Owned by
the search process; each partition is read by one thread at a time. Weak: offsets count, so markers of
transactions and records that compaction removed make a context shorter; where times are not in the order of
offsets, a record may come in two contexts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from appliance.pipeline.local_rows import LocalRow
from appliance.pipeline.local_segments import NotReadHere
from services.search.partition_scan import Match, PartitionScan, Wanted

CONTEXT_MAX = 100
"""Records on one side of a match."""
CHUNK_MATCHES = 64
"""Read together: their contexts are in memory at the same time."""
_WINDOW_BYTES = 256 << 10
_EVERYTHING = Wanted(lambda _document: True, None, 0, 1 << 62)


class ContextReader:
    """Reads up to `before` records in front of each match, and `after` behind it. `find` returns a
    partition, or why it cannot be read."""

    def __init__(self, find: Callable[[int], LocalRow | str], topic: str, wanted: Wanted, before: int, after: int) -> None:
        self._find = find
        self._topic = topic
        self._wanted = wanted
        self._before = before
        self._after = after
        self._shown_to: dict[int, int] = {}
        """By partition, the offset behind the last record that was passed on."""

    def surround(self, partition: int, matches: Sequence[Match]) -> list[Match]:
        """Return matches of one partition with their contexts, by offset. Raises `NotReadHere`, `MillraceError` or OSError."""
        ordered = sorted(matches, key=lambda match: match.offset)
        found: list[Match] = []
        begin = 0
        for end in range(1, len(ordered) + 1):
            if end == len(ordered) or ordered[end].offset - ordered[end - 1].offset > self._before + self._after + 1:
                found += self._neighbours(partition, ordered[begin:end])
                begin = end
        return found

    def _neighbours(self, partition: int, matches: Sequence[Match]) -> Iterator[Match]:
        """Yield matches whose contexts meet: they are read in one pass."""
        start = max(matches[0].offset - self._before, 0)
        if (shown_to := self._shown_to.get(partition, 0)) <= matches[0].offset:
            start = max(start, shown_to)
        left = deque(matches)
        match: Match | None = None
        before: list[Match] = []
        after: list[Match] = []
        for record in self._records(partition, start, matches[-1].offset + self._after):
            if left and record.offset >= left[0].offset:
                if match is not None:
                    yield match._replace(after=tuple(after))
                match, before, after = left.popleft()._replace(before=tuple(before)), [], []
            elif match is not None and record.offset <= match.offset + self._after:
                if not left and self._wanted.fulfils(record):
                    break  # it comes with its own context
                after.append(record)
            elif left and record.offset >= left[0].offset - self._before:
                before.append(record)
            self._shown_to[partition] = record.offset + 1
        if match is not None:
            yield match._replace(after=tuple(after))
        yield from left

    def _records(self, partition: int, start: int, last: int) -> Iterator[Match]:
        row = self._find(partition)
        if isinstance(row, str):
            raise NotReadHere(row)
        scan = PartitionScan(row, self._topic, partition, _EVERYTHING, _WINDOW_BYTES, start)
        with closing(scan.windows()) as windows:
            for window in windows:
                for record in sorted(window.matches, key=lambda each: each.offset):
                    if record.offset > last:
                        return
                    yield record
