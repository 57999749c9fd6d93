"""Find the valid end of a segment, and bring its indexes in line with it.

A log uses it when it opens and when it truncates; the log decides which segments, this module does
one. `resume` relies on the index up to a position and scans from there; `rebuild` reads the whole
segment. Both apply the append's own index rule, so that a recovered index equals, byte for byte,
the one that appends would have left. Weak spot: `resume` verifies checksums only from the last
index entry on; the scrubber checks what is before.

The indexes of a closed segment that the scrubber rejected are rebuilt beside the old ones
(`rebuild_beside`, in a thread) and renamed over them (`put_in_place`, in the duty cycle, which
knows whether the segment is still there); look-ups open an index by name each time. A crash leaves
`.tmp` files, which the next start removes. A damaged log gives no good index, so its index stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.base.model import FILE_START, FIRST_OFFSET, NO_OFFSET, LeaderEpoch, Offset, Position
from appliance.records.batch import CONTROL_FLAG, BatchHeader
from appliance.storage import file_io
from appliance.storage.indexes import LARGEST_RELATIVE_OFFSET, OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from appliance.storage.known_segments import NONE_KNOWN, KnownSegments
from appliance.storage.segment import OpenSegment, SegmentTail
from appliance.storage.segment_files import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentScan


class Clean(NamedTuple):
    """The log was closed: only the last few batches are read, to find the end.

    `segments`: what it had then; empty if that is not known.
    """

    segments: KnownSegments = NONE_KNOWN


class SameBoot(NamedTuple):
    """Our process died, the page cache is whole: everything up to `active_position` of segment
    `active_base_offset` (where `end_offset` comes next) is known; what lies behind is scanned.
    `recovery_point` is used when the file does not agree.
    """

    end_offset: Offset
    active_base_offset: Offset
    active_position: Position
    recovery_point: Offset = FIRST_OFFSET


class Unclean(NamedTuple):
    """The machine went down: what lies above `recovery_point` is scanned, and where the indexes
    below do not agree, the whole segment.

    `segments`: what it had at the last clean stop. `knows_start`: this release has written
    down its log start offset, below which alone segments were removed, and `COMPACTED`.
    """

    recovery_point: Offset
    segments: KnownSegments = NONE_KNOWN
    knows_start: bool = False


Recovery = Clean | SameBoot | Unclean
CLEAN = Clean()


class Disagreement(Exception):
    """A segment is not what the index or the caller says; it must be rebuilt."""


class RecoveredSegment(NamedTuple):
    """What a scan found. `cut_bytes` were behind the valid end."""

    tail: SegmentTail
    next_offset: Offset
    cut_bytes: int
    problem: str | None
    leader_epochs: list[tuple[LeaderEpoch, Offset]]
    """(leader epoch, base offset) where a batch carries a larger epoch than those before it in the
    scan."""
    first_producer_offset: Offset
    has_markers: bool
    """Whether the scan met the end of a transaction."""


class SegmentRecovery:
    """Recovers one segment; afterwards its files are as long as `RecoveredSegment.tail` says."""

    def __init__(
        self,
        segment: OpenSegment,
        index_interval_bytes: int,
        created_ms: int,
        cut: bool = True,
        read: Callable[[int, Position, int], bytes] = file_io.pread_all,
    ) -> None:
        """`read` as for `SegmentScan`."""
        self._read = read
        self._segment = segment
        self._interval_bytes = index_interval_bytes
        self._tail = SegmentTail(segment.base_offset, created_ms)
        self._cut = cut
        self._next_offset = segment.base_offset
        self._index_entries = bytearray()
        self._time_entries = bytearray()
        self._last_entry_position = FILE_START
        self._leader_epochs: list[tuple[LeaderEpoch, Offset]] = []
        self._first_producer_offset = NO_OFFSET
        self._has_markers = False
        self._problem: str | None = None

    def rebuild(self) -> RecoveredSegment:
        """Scan the whole segment, cut it at the first bad batch, write both indexes anew."""
        size_bytes = file_io.size_of(self._segment.log_fd)
        self._scan(FILE_START, size_bytes, None)
        return self._finish(size_bytes)

    def resume(self, known: SameBoot | None) -> RecoveredSegment:
        """Scan from the last index entry (of those at or before `known.active_position`). Raises
        `Disagreement`.

        Without `known` the whole file must be intact from there on; with it, whole batches behind
        its position are kept and the first bad one cuts.
        """
        size_bytes = file_io.size_of(self._segment.log_fd)
        if known is not None and size_bytes < known.active_position:
            raise Disagreement(f"the segment has {size_bytes} bytes, {known.active_position} were known")
        start = self._trust_indexes(Position(size_bytes) if known is None else known.active_position, None if known is None else known.end_offset)
        self._scan(start, size_bytes, known)
        if self._problem is not None and (known is None or self._tail.size_bytes < known.active_position):
            raise Disagreement(self._problem)
        if known is not None and self._tail.size_bytes == known.active_position and self._next_offset != known.end_offset:
            raise Disagreement(f"the segment ends at offset {self._next_offset}, {known.end_offset} was known")
        return self._finish(size_bytes)

    def resume_above(self, recovery_point: Offset) -> RecoveredSegment:
        """After a power cut: what lies below `recovery_point` was synced, indexes too; scan from
        the last index entry below it, cut at the first bad batch. Raises `Disagreement` where that
        is not what the files say.
        """
        size_bytes = file_io.size_of(self._segment.log_fd)
        index = OffsetIndex(self._segment.index_fd, self._segment.base_offset)
        number = index.count_below(recovery_point) - 1
        # Entries above it may be torn or zero, so that the search can miss; what it finds must be an entry, and its batch where it says.
        start = self._trust_indexes(index.entry(number).position + 1 if number >= 0 else FILE_START, recovery_point)
        self._check_that_entries_ascend()
        self._check_last_time_entry(index)
        self._scan(start, size_bytes, None)
        if self._next_offset < recovery_point:
            raise Disagreement(f"the segment ends at offset {self._next_offset}, everything below {recovery_point} was synced")
        return self._finish(size_bytes)

    def _check_that_entries_ascend(self) -> None:
        """Of both indexes, as far as they are kept: a search that met torn entries may have gone
        past some (those of a GiB take 0.1 s). Raises `Disagreement`.
        """
        kept = ((self._segment.index_fd, OFFSET_ENTRY, self._tail.index_count), (self._segment.time_index_fd, TIME_ENTRY, self._tail.time_index_count))
        for descriptor, entry, count in kept:
            first, second = -1, -1
            for one, other in entry.iter_unpack(file_io.pread_all(descriptor, 0, count * entry.size)):
                if one <= first or other <= second:
                    raise Disagreement("an index does not ascend")
                first, second = one, other

    def _check_last_time_entry(self, index: OffsetIndex) -> None:
        """The last entry that is kept must be behind the one before it, and its batch must say the
        same. Raises `Disagreement`.
        """
        count, base_offset = self._tail.time_index_count, self._segment.base_offset
        if not count:
            return
        time_index = TimeIndex(self._segment.time_index_fd, base_offset)
        last = time_index.entry(count - 1)
        if count > 1:
            before = time_index.entry(count - 2)
            if before.timestamp >= last.timestamp or before.offset >= last.offset:
                raise Disagreement("the time index does not ascend")
        log_fd = self._segment.log_fd
        start = index.lookup(last.offset - 1).position if last.offset > base_offset else FILE_START
        for _, header in SegmentScan(log_fd, max(FILE_START, start), file_io.size_of(log_fd), verify=False):
            if header.last_offset >= last.offset:
                if header.base_offset <= last.offset and header.max_timestamp == last.timestamp:
                    return
                break
        raise Disagreement(f"the time index names offset {last.offset} for {last.timestamp}, its batch does not")

    def _trust_indexes(self, limit_position: Position, limit_offset: Offset | None) -> Position:
        """Keep the index entries before `limit_position` and take their state over; the position to
        scan from.
        """
        segment, tail = self._segment, self._tail
        if file_io.size_of(segment.index_fd) % OFFSET_ENTRY.size or file_io.size_of(segment.time_index_fd) % TIME_ENTRY.size:
            raise Disagreement("an index ends inside an entry")
        index, time_index = OffsetIndex(segment.index_fd, segment.base_offset), TimeIndex(segment.time_index_fd, segment.base_offset)
        tail.index_count = index.count_at_or_before(limit_position - 1)
        tail.time_index_count = time_index.count() if limit_offset is None else time_index.count_below(limit_offset)
        if tail.time_index_count:
            last = time_index.entry(tail.time_index_count - 1)
            tail.max_timestamp = tail.last_indexed_timestamp = last.timestamp
            tail.max_timestamp_offset = last.offset
        self._read_first_timestamp()
        if not tail.index_count:
            return FILE_START
        entry = index.entry(tail.index_count - 1)
        if entry.position <= 0 or entry.offset < segment.base_offset:
            raise Disagreement("the index has an entry that no append writes")
        self._last_entry_position = entry.position
        self._expect_last_offset = entry.offset
        return entry.position

    _expect_last_offset: Offset | None = None

    def _read_first_timestamp(self) -> None:
        for _, header in SegmentScan(self._segment.log_fd, FILE_START, file_io.size_of(self._segment.log_fd), verify=False):
            self._tail.first_timestamp = header.max_timestamp
            return

    def _scan(self, start: Position, size_bytes: int, known: SameBoot | None) -> None:
        scan = SegmentScan(self._segment.log_fd, start, size_bytes, read=self._read)
        for position, header in scan:
            problem = self._batch_problem(position, header, known)
            if problem is not None:
                self._problem = problem
                break
            self._take(position, header)
        else:
            self._problem = scan.problem
        self._tail.size_bytes = scan.valid_end

    def _batch_problem(self, position: Position, header: BatchHeader, known: SameBoot | None) -> str | None:
        if self._expect_last_offset is not None:
            expected, self._expect_last_offset = self._expect_last_offset, None
            # Kafka's followers write one entry for many batches: the position of the first, the offset of the last
            if header.base_offset < self._tail.base_offset or header.last_offset > expected:
                raise Disagreement(f"the index names offset {expected}, its batch ends with {header.last_offset}")
        elif header.base_offset < self._next_offset:
            return f"a batch has base offset {header.base_offset} where {self._next_offset} or more is due"
        if header.last_offset - self._tail.base_offset > LARGEST_RELATIVE_OFFSET:
            return f"offset {header.last_offset} does not belong into the segment of {self._tail.base_offset}"
        if known is not None and position == known.active_position and self._next_offset != known.end_offset:
            raise Disagreement(f"offset {self._next_offset} is due at byte {position}, {known.end_offset} was known")
        if known is not None and position < known.active_position < position + header.size_bytes:
            raise Disagreement(f"a batch reaches over byte {known.active_position}, where one was known to begin")
        return None

    def _take(self, position: Position, header: BatchHeader) -> None:
        tail = self._tail
        if not position:
            tail.first_timestamp = header.max_timestamp
        if header.max_timestamp > tail.max_timestamp:
            tail.max_timestamp = header.max_timestamp
            tail.max_timestamp_offset = header.last_offset
        if position - self._last_entry_position > self._interval_bytes:
            self._index_entries += OFFSET_ENTRY.pack(header.last_offset - tail.base_offset, position)
            self._last_entry_position = position
            self._add_time_entry()
        if header.partition_leader_epoch > (self._leader_epochs[-1][0] if self._leader_epochs else -1):
            self._leader_epochs.append((header.partition_leader_epoch, header.base_offset))
        if header.producer_id >= 0 and self._first_producer_offset < 0:
            self._first_producer_offset = header.base_offset
        if header.attributes & CONTROL_FLAG and header.producer_id >= 0:
            self._has_markers = True
        self._next_offset = header.last_offset + 1

    def _add_time_entry(self) -> None:
        entry = self._tail.final_time_entry()
        if entry:
            self._time_entries += entry
            self._tail.last_indexed_timestamp = self._tail.max_timestamp

    def _finish(self, size_bytes: int) -> RecoveredSegment:
        """Make the files agree: log first, then the indexes, which must never point past it."""
        segment, tail = self._segment, self._tail
        if self._cut and tail.size_bytes < size_bytes:
            file_io.ftruncate(segment.log_fd, tail.size_bytes)
        tail.bytes_since_index_entry = tail.size_bytes - self._last_entry_position
        tail.index_count = _extend(segment.index_fd, tail.index_count, self._index_entries, OFFSET_ENTRY.size)
        tail.time_index_count = _extend(segment.time_index_fd, tail.time_index_count, self._time_entries, TIME_ENTRY.size)
        cut_bytes, first_producer = size_bytes - tail.size_bytes, self._first_producer_offset
        return RecoveredSegment(tail, self._next_offset, cut_bytes, self._problem, self._leader_epochs, first_producer, self._has_markers)


def _extend(fd: int, count: int, entries: bytearray, entry_bytes: int) -> int:
    """Let an index consist of its first `count` entries and `entries`; the new count."""
    position = count * entry_bytes
    if file_io.size_of(fd) != position:
        file_io.ftruncate(fd, position)
    if entries:
        file_io.write_all(fd, (entries,), position, len(entries))
    return count + len(entries) // entry_bytes


def seal(segment: OpenSegment, tail: SegmentTail) -> bool:
    """Write the final time index entry of a segment that is appended to no more (or whose log
    closes). True if one was due.
    """
    entry = tail.final_time_entry()
    if entry:
        file_io.write_all(segment.time_index_fd, (entry,), tail.time_index_count * TIME_ENTRY.size, len(entry))
        tail.time_index_count += 1
        tail.last_indexed_timestamp = tail.max_timestamp
    return bool(entry)


TEMPORARY = ".tmp"


def rebuild_beside(directory: str, base_offset: Offset, index_interval_bytes: int, now_ms: int) -> str | None:
    """Write `N.index.tmp` and `N.timeindex.tmp`, synced.

    None when they are ready, else why there is no rebuilding. Raises OSError.
    """
    segment = OpenSegment.beside(directory, base_offset, TEMPORARY)
    try:
        recovered = SegmentRecovery(segment, index_interval_bytes, now_ms, cut=False).rebuild()
        if recovered.problem is not None:
            return recovered.problem
        entry = recovered.tail.final_time_entry()
        if entry:
            file_io.write_all(segment.time_index_fd, (entry,), file_io.size_of(segment.time_index_fd), len(entry))
        file_io.sync_data(segment.index_fd)
        file_io.sync_data(segment.time_index_fd)
    finally:
        segment.close()
    return None


def put_in_place(directory: str, base_offset: Offset) -> None:
    """Rename the new indexes over the old ones. Raises OSError."""
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        path = segment_path(directory, base_offset, suffix)
        file_io.rename(path + TEMPORARY, path)


def discard(directory: str, base_offset: Offset) -> None:
    """Remove what `rebuild_beside` wrote. Raises OSError."""
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        file_io.unlink_if_there(segment_path(directory, base_offset, suffix) + TEMPORARY)
