"""The largest timestamp of a segment, which retention by time compares.

Kafka's rule (`LogSegment.largestTimestamp`): the last entry of the time index of a sealed segment, the
known maximum of the active one; if records have no timestamps, the time of the file's last write. Runs
in the log-writer's retention thread. Weak spot: each round reads twelve bytes of each segment that it
asks about.
"""

from __future__ import annotations

from appliance.storage import file_io
from appliance.storage.indexes import TimeIndex
from appliance.storage.retention import SegmentFacts
from appliance.storage.segment_files import LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentScan

YOUNGEST = 2**63 - 1


class SegmentTimes:
    """Of one log."""

    def __init__(self, directory: str, active_max_timestamp: int) -> None:
        self._directory = directory
        self._active_max_timestamp = active_max_timestamp

    def largest(self, segment: SegmentFacts) -> int:
        """Milliseconds. Raises OSError, FileNotFoundError when the segment has gone meanwhile."""
        timestamp = self._active_max_timestamp if segment.is_active else self._of_sealed(segment.base_offset)
        if timestamp >= 0:
            return timestamp
        return file_io.stat(segment_path(self._directory, segment.base_offset, LOG_SUFFIX)).st_mtime_ns // 1_000_000

    def largest_if_there(self, segment: SegmentFacts) -> int:
        """The same; a segment that has gone counts as the youngest of all."""
        try:
            return self.largest(segment)
        except FileNotFoundError:
            return YOUNGEST

    def _of_sealed(self, base_offset: int) -> int:
        fd = file_io.open_path(segment_path(self._directory, base_offset, TIME_INDEX_SUFFIX), file_io.READ_ONLY)
        try:
            return TimeIndex(fd, base_offset).last().timestamp
        finally:
            file_io.close(fd)


def lag_times(directory: str, base_offset: int) -> tuple[int, int]:
    """(maxTimestamp of the first batch or -1, largest timestamp) of a sealed segment in ms: what the compaction lags ask. Raises OSError."""
    fd = file_io.open_path(segment_path(directory, base_offset, LOG_SUFFIX), file_io.READ_ONLY)
    try:
        first = next((header.max_timestamp for _, header in SegmentScan(fd, 0, file_io.size_of(fd), verify=False)), -1)
    finally:
        file_io.close(fd)
    return first, SegmentTimes(directory, -1).largest(SegmentFacts(base_offset, base_offset, 0, False))
