"""The active segment of a log: its three open files, and the numbers that plan the next append.

Owned by its log. `SegmentTail` is the state, `OpenSegment` the descriptors. Weak spot: three
descriptors for every partition, so a box with thousands of partitions needs a raised limit.
"""

from __future__ import annotations

from appliance.base.model import FILE_START, Offset
from appliance.storage import file_io
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY
from appliance.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_path

NEVER = 2**63 - 1


class SegmentTail:
    """The end of a segment and the state of its indexes.

    Plans change copies; the log adopts a copy after the files are written. Times in ms.
    """

    __slots__ = (
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "first_timestamp",
        "index_count",
        "last_indexed_timestamp",
        "max_timestamp",
        "max_timestamp_offset",
        "size_bytes",
        "time_index_count",
    )

    def __init__(self, base_offset: Offset, created_ms: int) -> None:
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size_bytes = FILE_START
        """Also the position of the next batch."""
        self.first_timestamp = -1
        """maxTimestamp of the first batch: time-based rolls count from it (Kafka's rule), from
        `created_ms` when it is negative."""
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        """The last offset of the batch that holds `max_timestamp`."""
        self.bytes_since_index_entry = 0
        self.index_count = 0
        self.time_index_count = 0
        self.last_indexed_timestamp = -1

    def copy(self) -> SegmentTail:
        """Return an independent copy. Written out, because each append makes one."""
        other = SegmentTail(self.base_offset, self.created_ms)
        other.size_bytes = self.size_bytes
        other.first_timestamp = self.first_timestamp
        other.max_timestamp = self.max_timestamp
        other.max_timestamp_offset = self.max_timestamp_offset
        other.bytes_since_index_entry = self.bytes_since_index_entry
        other.index_count = self.index_count
        other.time_index_count = self.time_index_count
        other.last_indexed_timestamp = self.last_indexed_timestamp
        return other

    def roll_timestamp(self, segment_ms: int, now_ms: int) -> int:
        """Return the timestamp (ms) above which a batch needs a new segment: `segment_ms` after the
        first batch. Source: Kafka's `LogSegment.shouldRoll`.
        """
        if not self.size_bytes:
            return NEVER
        if self.first_timestamp >= 0:
            return self.first_timestamp + segment_ms
        return -2 if now_ms - self.created_ms > segment_ms else NEVER

    def final_time_entry(self) -> bytes:
        """Return the entry that the time index lacks when the segment is sealed or closed; empty if
        none.
        """
        if self.max_timestamp <= self.last_indexed_timestamp:
            return b""
        return TIME_ENTRY.pack(self.max_timestamp, self.max_timestamp_offset - self.base_offset)


class OpenSegment:
    """The descriptors of a segment that may be written. Raises OSError."""

    __slots__ = ("base_offset", "directory", "index_fd", "log_fd", "time_index_fd")

    def __init__(self, directory: str, base_offset: Offset, flags: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.log_fd = self.index_fd = self.time_index_fd = -1
        try:
            self.log_fd = file_io.open_path(segment_path(directory, base_offset, LOG_SUFFIX), flags)
            self.index_fd = file_io.open_path(segment_path(directory, base_offset, INDEX_SUFFIX), flags)
            self.time_index_fd = file_io.open_path(segment_path(directory, base_offset, TIME_INDEX_SUFFIX), flags)
        except OSError:
            self.close()
            raise

    @classmethod
    def create(cls, directory: str, base_offset: Offset) -> OpenSegment:
        """Create new, empty files; files of an undone roll with these names are emptied."""
        return cls(directory, base_offset, file_io.CREATE_EMPTY)

    @classmethod
    def open(cls, directory: str, base_offset: Offset) -> OpenSegment:
        """Open existing files; missing indexes are created empty."""
        return cls(directory, base_offset, file_io.READ_WRITE_CREATE)

    @classmethod
    def beside(cls, directory: str, base_offset: Offset, suffix: str) -> OpenSegment:
        """Open an existing log read-only, with new, empty indexes beside its own whose names end
        with `suffix`.
        """
        segment = cls.__new__(cls)
        segment.directory, segment.base_offset = directory, base_offset
        segment.log_fd = segment.index_fd = segment.time_index_fd = -1
        try:
            segment.log_fd = file_io.open_path(segment_path(directory, base_offset, LOG_SUFFIX), file_io.READ_ONLY)
            segment.index_fd = file_io.open_path(segment_path(directory, base_offset, INDEX_SUFFIX) + suffix, file_io.CREATE_EMPTY)
            segment.time_index_fd = file_io.open_path(segment_path(directory, base_offset, TIME_INDEX_SUFFIX) + suffix, file_io.CREATE_EMPTY)
        except OSError:
            segment.close()
            raise
        return segment

    @property
    def files(self) -> tuple[int, int, int]:
        """The descriptors of log, offset index and time index."""
        return (self.log_fd, self.index_fd, self.time_index_fd)

    def cut_to(self, tail: SegmentTail) -> None:
        """Truncate the files to the sizes in `tail`, the log first, so that an index points past it
        only for a moment.
        """
        file_io.ftruncate(self.log_fd, tail.size_bytes)
        file_io.ftruncate(self.index_fd, tail.index_count * OFFSET_ENTRY.size)
        file_io.ftruncate(self.time_index_fd, tail.time_index_count * TIME_ENTRY.size)

    def close(self) -> None:
        """Close each descriptor once: afterwards its number may belong to another file."""
        files = self.files
        self.log_fd = self.index_fd = self.time_index_fd = -1
        file_io.close_all(fd for fd in files if fd >= 0)
