"""Truncate a segment at an offset: the file, then its indexes, then a short scan for the end.

A log's `truncate_to` uses it. The whole batch that holds the offset is removed, so a log may end below
it.
"""

from __future__ import annotations

from appliance.storage import file_io
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from appliance.storage.log_config import LogConfig
from appliance.storage.log_loader import open_recovered
from appliance.storage.recovery import RecoveredSegment
from appliance.storage.segment import OpenSegment
from appliance.storage.segment_scan import SegmentScan


def open_truncated(directory: str, base_offset: int, offset: int, config: LogConfig, now_ms: int) -> tuple[OpenSegment, RecoveredSegment]:
    """Cut the segment of `base_offset` so that it ends at or below `offset`, and open it for appending."""
    segment = OpenSegment.open(directory, base_offset)
    try:
        _cut(segment, offset)
    finally:
        segment.close()
    return open_recovered(directory, base_offset, config, now_ms)


def _cut(segment: OpenSegment, offset: int) -> None:
    index = OffsetIndex(segment.index_fd, segment.base_offset)
    start = index.lookup(offset - 1).position if offset > segment.base_offset else 0
    for position, header in SegmentScan(segment.log_fd, start, file_io.size_of(segment.log_fd), verify=False):
        if header.last_offset >= offset:
            file_io.ftruncate(segment.log_fd, position)
            file_io.sync_all(segment.log_fd)
            file_io.ftruncate(segment.index_fd, index.count_at_or_before(position - 1) * OFFSET_ENTRY.size)
            time_index = TimeIndex(segment.time_index_fd, segment.base_offset)
            file_io.ftruncate(segment.time_index_fd, time_index.count_below(header.base_offset) * TIME_ENTRY.size)
            return
