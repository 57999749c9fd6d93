"""The ends of appended batches above the high watermark, so that it moves without reading the disk.

One entry for each append, because a follower usually fetches what one append has published. Owned by one
partition of a log-writer. Weak spot: bounded; what lies between two entries (a fetch that ended inside an
append, an entry that was dropped) is looked up in the files.
"""

from __future__ import annotations

from collections import deque

from appliance.storage.batch_boundary import BatchBoundary

ENDS_MAX = 1024


class BatchEnds:
    """Ascending in offset."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: deque[BatchBoundary] = deque()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, end: BatchBoundary) -> None:
        """The newest end of the log. When there are too many, the one before it gives way: it is the last that the high watermark comes to."""
        ends = self._ends
        if ends and (ends[-1].offset == end.offset or len(ends) == ENDS_MAX):
            ends.pop()
        ends.append(end)

    def take(self, offset: int) -> BatchBoundary | None:
        """The last end at or below `offset`; it and those before it are forgotten."""
        ends, found = self._ends, None
        while ends and ends[0].offset <= offset:
            found = ends.popleft()
        return found

    def clear(self) -> None:
        self._ends.clear()
