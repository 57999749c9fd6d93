"""Find the position of an offset in a log's files: at the start of a batch, or behind the last one.

The log-writer uses it for a high watermark below the log end whose position is not in memory. It
only reads, through descriptors that the caller owns. Weak spot: it reads the disk; usually the data
was appended a moment ago and is in the page cache.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.storage.indexes import OffsetIndex
from appliance.storage.segment_scan import SegmentScan


class BatchBoundary(NamedTuple):
    """Every batch before `position` of the segment ends at or below `offset`, every one behind it begins at or above."""

    offset: int
    base_offset: int
    """of the segment"""
    position: int


def find_boundary(log_fd: int, index_fd: int, base_offset: int, size_bytes: int, offset: int, start: int) -> BatchBoundary:
    """Of `offset` in a segment of `size_bytes`, which begins at or below it; where it is inside of a batch, that batch's beginning. `start`: a position where
    a batch begins that is not behind it. Raises OSError."""
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
