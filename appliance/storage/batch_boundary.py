"""Find the position of an offset in a log's files: at the start of a batch, or behind the last one.

The log-writer uses it for a high watermark below the log end whose position is not in memory. It
only reads, through descriptors that the caller owns. Weak spot: it reads the disk; usually the data
was appended a moment ago and is in the page cache.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from appliance.base.model import Offset, Position
from appliance.storage.indexes import OffsetIndex
from appliance.storage.segment_scan import SegmentScan


class BatchBoundary(NamedTuple):
    """Every batch before `position` of the segment ends at or below `offset`, every one behind it
    begins at or above.
    """

    offset: Offset
    base_offset: Offset
    """of the segment"""
    position: Position


def find_boundary(log_fd: int, index_fd: int, base_offset: Offset, size_bytes: int, offset: Offset, start: Position) -> BatchBoundary:
    """Find `offset` in a segment of `size_bytes` that starts at or below it.

    If the offset is inside of a batch, the boundary is the start of that batch. `start`: the
    position of a batch at or before the offset. Raises OSError.
    """
    position = max(start, OffsetIndex(index_fd, base_offset).lookup(offset - 1).position)
    scan = SegmentScan(log_fd, position, size_bytes, verify=False)
    end_offset = base_offset
    for position, header in scan:
        if header.base_offset >= offset:
            return BatchBoundary(offset, base_offset, position)
        if header.last_offset >= offset:
            return BatchBoundary(header.base_offset, base_offset, position)
        end_offset = header.last_offset + 1
    if scan.problem is not None:  # no consumer can be shown anything behind the damage
        return BatchBoundary(end_offset, base_offset, scan.valid_end)
    return BatchBoundary(offset, base_offset, scan.valid_end)


ENDS_MAX = 1024


class BatchEnds:
    """The ends of appended batches above the high watermark, ascending in offset.

    With them it moves without reading the disk. One entry for each append, because a follower
    usually fetches what one append has published. Owned by one partition of a log-writer. Weak
    spot: bounded; what lies between two entries (a fetch that ended inside an append, an entry that
    was dropped) is looked up in the files.
    """

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: deque[BatchBoundary] = deque()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, end: BatchBoundary) -> None:
        """Add the newest end of the log.

        If the list is full, it replaces the last one, which the high watermark reaches last.
        """
        ends = self._ends
        if ends and (ends[-1].offset == end.offset or len(ends) == ENDS_MAX):
            ends.pop()
        ends.append(end)

    def take(self, offset: Offset) -> BatchBoundary | None:
        """Return the last end at or below `offset`, and forget it and those before it."""
        ends, found = self._ends, None
        while ends and ends[0].offset <= offset:
            found = ends.popleft()
        return found

    def clear(self) -> None:
        """Forget all ends, as after a truncation."""
        self._ends.clear()
