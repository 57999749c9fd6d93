"""Read a partition by offset and by time: look-ups through indexes, descriptors of segments.

Owned by the log-reader, and used by commands; never writes. The caller passes the limit of what is
readable (the high watermark in the table's row), because this process cannot see how far the
log-writer is. Compaction replaces segments meanwhile: a log and its indexes are opened in the order
in which they belong together (`segment_swap.py`), else the look-up starts again. Weak spots: an
index may lag behind the log by one entry, which costs a few header reads; a look-up by time opens
batches and may decompress them.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import FILE_START, NO_OFFSET, LeaderEpoch, Offset, Position
from appliance.records.batch import BATCH_HEADER, RECORDS_AT, BatchHeader
from appliance.records.compression import opened_batch_limit
from appliance.records.record import iterate_records
from appliance.storage import file_io
from appliance.storage.indexes import OffsetIndex, TimeIndex
from appliance.storage.leader_epoch_cache import LeaderEpochCache
from appliance.storage.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of_name,
    segment_path,
)
from appliance.storage.segment_scan import SegmentScan
from appliance.storage.transaction_index import TRANSACTION_ENTRY, AbortedTxn, aborted_between

ATTEMPTS = 20
"""Times a look-up begins anew because segments were replaced meanwhile; a swap takes well under a
millisecond."""

READS_AHEAD = 8
"""How many later reads a look-up finds the beginnings of. Each costs a search in the index and some
header reads, a third of a look-up of its own."""

INDEX_BLOCK_ENTRIES = 512
"""A look-up with reads ahead takes a hundred entries of an index, which lie close together: 4 KiB."""

_LARGEST_OFFSET = Offset(2**63 - 1)

_Answer = TypeVar("_Answer")


class OffsetOutOfRange(RequestRefused):
    """The log does not contain the requested offset."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)


class SegmentMoved(RequestRefused):
    """Segments are being replaced; the caller retries."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


class _Replaced(Exception):
    """A file of the segment list is gone, or compaction has replaced it."""


class ReadAhead(NamedTuple):
    """The start of a later read, if each read takes as many bytes as the one before it."""

    offset: Offset
    """It will be asked for: it follows the last batch that the read before it had whole."""
    position: Position
    batch_size_bytes: int


class Located(NamedTuple):
    """The location of a read.

    `batch_size_bytes` 0: nothing is readable there yet, and `position` is where the next batch
    goes.
    """

    segment_base_offset: Offset
    position: Position
    batch_size_bytes: int
    segment_size_bytes: int
    """Bytes of the segment file at the moment of the look-up; the readable part may end before."""
    base_offset: Offset
    segment_file: int = 0
    """Which file `position` is in (its inode number): compaction puts another one under the same
    name."""
    ahead: tuple[ReadAhead, ...] = ()
    """in the same segment"""
    is_gap: bool = False
    """The batch has no records and stands for lost offsets (`log_damage.py`)."""


class RecordFound(NamedTuple):
    """The result of a look-up by time. `timestamp` in ms."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


class LogReading:
    """Look-ups in one partition directory.

    Call `refresh` after its segment list has changed. Raises `StorageFailed` if the disk fails.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._bases: list[Offset] = []
        self._transaction_indexes: set[Offset] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read the segment list.

        A listing may miss a file that is renamed meanwhile, so two must agree, without a swap under
        way. Raises `SegmentMoved`.
        """
        seen: list[Offset] | None = None
        with self._storage("list"):
            for _ in range(ATTEMPTS):
                names = file_io.listdir(self._directory)
                bases = sorted(base for name in names if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
                is_settled = not any(name.endswith(SWAP_SUFFIX) for name in names)
                if is_settled and bases == seen:
                    self._bases = bases
                    indexes = (offset_of_name(name, TRANSACTION_INDEX_SUFFIX) for name in names if name.endswith(TRANSACTION_INDEX_SUFFIX))
                    self._transaction_indexes = {base for base in indexes if base is not None}
                    return
                seen = bases if is_settled else None
        raise SegmentMoved(f"segments of {self._directory} are being replaced")

    def _settled(self, action: str, look: Callable[[], _Answer]) -> _Answer:
        """The answer of `look`, begun anew where segments were replaced under it."""
        for _ in range(ATTEMPTS):
            try:
                with self._storage(action):
                    return look()
            except _Replaced:
                self.refresh()
        raise SegmentMoved(f"segments of {self._directory} are being replaced")

    def segments(self) -> list[Offset]:
        """Return the base offsets of the segments, ascending."""
        return list(self._bases)

    @property
    def earliest(self) -> Offset:
        """The first segment's base offset; the log start offset in the table row may be higher.

        Raises `OffsetOutOfRange` without a segment.
        """
        if not self._bases:
            raise OffsetOutOfRange(f"{self._directory} holds no segment")
        return self._bases[0]

    def open_segment(self, base_offset: Offset) -> int:
        """Return a read-only descriptor of a segment's log, which the caller closes.

        Raises `OffsetOutOfRange` if the segment was removed, `SegmentMoved` if it became part of
        another one.
        """
        try:
            with self._storage("open a segment of"):
                return self._open(base_offset, LOG_SUFFIX)
        except _Replaced:
            self.refresh()
            if base_offset < self.earliest:
                raise OffsetOutOfRange(f"segment {base_offset} of {self._directory} is gone") from None
            raise SegmentMoved(f"segment {base_offset} of {self._directory} was replaced") from None

    def locate(self, offset: Offset, limit_offset: Offset, ahead_bytes: int = 0) -> Located:
        """Locate the batch that contains `offset`, or the first one behind it in a compacted log,
        below `limit_offset`.

        With `ahead_bytes` also return where the next reads begin, if each takes that many bytes.
        Raises `OffsetOutOfRange` for an offset below the first segment or above the limit.
        """
        return self._settled("look up an offset in", lambda: self._locate(offset, limit_offset, ahead_bytes))

    def _locate(self, offset: Offset, limit_offset: Offset, ahead_bytes: int) -> Located:
        if offset > limit_offset or offset < self.earliest:
            raise OffsetOutOfRange(f"offset {offset} is not in [{self.earliest}, {limit_offset}] of {self._directory}")
        number = bisect_right(self._bases, offset) - 1
        while True:
            found = self._locate_in(number, offset, limit_offset, ahead_bytes)
            if found.batch_size_bytes or found.base_offset >= limit_offset or number + 1 == len(self._bases) or self._bases[number + 1] > limit_offset:
                return found
            number += 1  # the offset was compacted away at this segment's end

    def _locate_in(self, number: int, offset: Offset, limit_offset: Offset, ahead_bytes: int) -> Located:
        base = self._bases[number]
        with self._descriptors(base, *((LOG_SUFFIX, INDEX_SUFFIX) if offset > base or ahead_bytes else (LOG_SUFFIX,))) as (log_fd, *indexes):
            index = OffsetIndex(indexes[0], base, INDEX_BLOCK_ENTRIES if ahead_bytes else 1) if indexes else None
            start = index.lookup(offset).position if index is not None else FILE_START
            figures = file_io.fstat(log_fd)
            size_bytes, file = figures.st_size, figures.st_ino
            scan = SegmentScan(log_fd, start, size_bytes, verify=False)
            for position, header in scan:
                if header.base_offset >= limit_offset:
                    return Located(base, position, 0, size_bytes, header.base_offset, file)
                if header.last_offset >= offset:
                    first = ReadAhead(offset, position, header.size_bytes)
                    ahead = tuple(_reads_ahead(log_fd, index, first, ahead_bytes, limit_offset)) if index is not None and ahead_bytes else ()
                    is_gap = not header.records_count and header.producer_id < 0
                    return Located(base, position, header.size_bytes, size_bytes, header.base_offset, file, ahead, is_gap)
            return Located(base, scan.valid_end, 0, size_bytes, offset, file)

    def segments_modified_by(self, wall_ms: int, most: int) -> list[Offset]:
        """Return base offsets, descending: the newest segment last written at or before `wall_ms`,
        and those before it; at most `most`.
        """
        return self._settled("list the segments of", lambda: self._segments_modified_by(wall_ms, most))

    def _segments_modified_by(self, wall_ms: int, most: int) -> list[Offset]:
        for number in range(len(self._bases), 0, -1):
            try:
                modified_ns = file_io.stat(segment_path(self._directory, self._bases[number - 1], LOG_SUFFIX)).st_mtime_ns
            except FileNotFoundError:
                raise _Replaced from None
            if modified_ns // 1_000_000 <= wall_ms:
                return self._bases[max(0, number - most) : number][::-1]
        return []

    def aborted_in(self, first_offset: Offset, segment_base_offset: Offset, end_position: Position, limit_offset: Offset) -> tuple[Offset, list[AbortedTxn]]:
        """Return (end offset, aborted transactions with records in [first_offset, end offset)).

        The end is an offset that no batch before `end_position` of the segment reaches, and is not
        above `limit_offset`.
        """
        return self._settled("look up aborted transactions in", lambda: self._aborted_in(first_offset, segment_base_offset, end_position, limit_offset))

    def _aborted_in(self, first_offset: Offset, segment_base_offset: Offset, end_position: Position, limit_offset: Offset) -> tuple[Offset, list[AbortedTxn]]:
        end_offset = min(limit_offset, self._upper_bound(segment_base_offset, end_position))
        first = max(0, bisect_right(self._bases, first_offset) - 1)
        return end_offset, aborted_between(map(self._transaction_index, self._bases[first:]), first_offset, end_offset)

    def _upper_bound(self, base_offset: Offset, end_position: Position) -> Offset:
        """Return an offset above every one before `position`, as near as the index allows."""
        with self._descriptors(base_offset, LOG_SUFFIX, INDEX_SUFFIX) as (_, index_fd):
            index = OffsetIndex(index_fd, base_offset)
            number = index.count_at_or_before(end_position - 1)
            if number < index.count():
                return index.entry(number).offset
        behind = bisect_right(self._bases, base_offset)
        return self._bases[behind] if behind < len(self._bases) else _LARGEST_OFFSET

    def _transaction_index(self, base_offset: Offset) -> bytes:
        """Whole entries of a `.txnindex`; empty where there is none.

        Which sealed segments have one does not change unless they are replaced.
        """
        is_sealed = base_offset != self._bases[-1]
        if is_sealed and base_offset not in self._transaction_indexes:
            return b""
        try:
            content = file_io.read_file(segment_path(self._directory, base_offset, TRANSACTION_INDEX_SUFFIX))
        except FileNotFoundError:
            if is_sealed:
                raise _Replaced from None
            return b""
        return content[: len(content) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size]

    def epoch_end(self, leader_epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Return (largest known epoch ≤ `leader_epoch`, its end offset), (-1, -1) if unknown."""
        return self._leader_epochs().end_offset_for(leader_epoch, log_end_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the leader epoch of the record at `offset`, -1 if unknown."""
        return self._leader_epochs().epoch_at(offset)

    def _leader_epochs(self) -> LeaderEpochCache:
        """As they are now: the checkpoint is replaced whole, and before its log-writer publishes
        the epoch in the row.
        """
        epochs = LeaderEpochCache(self._directory)
        with self._storage("read the leader epochs of"):
            if not epochs.load():
                raise OSError(errno.EIO, f"{epochs.path} does not hold together")
        return epochs

    def offset_for_timestamp(self, timestamp: int, limit_offset: Offset) -> RecordFound | None:
        """Return the first record at or after `timestamp` (ms) and below `limit_offset`, None if
        there is none.
        """
        return self._settled("look up a time in", lambda: self._offset_for_timestamp(timestamp, limit_offset))

    def _offset_for_timestamp(self, timestamp: int, limit_offset: Offset) -> RecordFound | None:
        for number in range(len(self._bases)):
            if self._bases[number] >= limit_offset:
                return None
            found = self._find_time(number, timestamp, limit_offset)
            if found is not None:
                return found if found.offset < limit_offset else None
        return None

    def _find_time(self, number: int, timestamp: int, limit_offset: Offset) -> RecordFound | None:
        base = self._bases[number]
        with self._descriptors(base, LOG_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX) as (log_fd, time_fd, index_fd):
            time_index = TimeIndex(time_fd, base)
            if number + 1 < len(self._bases) and 0 <= time_index.last().timestamp < timestamp:
                return None  # a sealed segment's last entry is its largest timestamp
            after = time_index.lookup(timestamp - 1).offset
            start = OffsetIndex(index_fd, base).lookup(after).position
            for position, header in SegmentScan(log_fd, start, file_io.size_of(log_fd), verify=False):
                if header.base_offset >= limit_offset:
                    return None
                if header.max_timestamp >= timestamp and not header.is_control:
                    found = _first_record_at(log_fd, position, header, timestamp)
                    if found is not None:
                        return found
        return None

    def offset_of_max_timestamp(self, limit_offset: Offset) -> RecordFound | None:
        """Return the first record with the largest timestamp below `limit_offset`, None for an
        empty log. Source: KIP-734.
        """
        return self._settled("look up a time in", lambda: self._offset_of_max_timestamp(limit_offset))

    def _offset_of_max_timestamp(self, limit_offset: Offset) -> RecordFound | None:
        best: tuple[int, Offset, Position, BatchHeader] | None = None
        for number, base in enumerate(self._bases):
            if base >= limit_offset:
                break
            if best is not None and self._sealed_maximum(number, limit_offset) <= best[0]:
                continue
            with self._descriptors(base, LOG_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX) as (log_fd, time_fd, index_fd):
                start = _position_of_maximum(time_fd, index_fd, base, limit_offset)
                found, largest = _youngest_batch(log_fd, start, limit_offset)
                if start and (found is None or largest > found[1].max_timestamp):
                    # The index led to a marker, or to a batch that compaction emptied: what is before it counts again.
                    found, _ = _youngest_batch(log_fd, FILE_START, limit_offset)
                if found is not None and (best is None or found[1].max_timestamp > best[0]):
                    best = (found[1].max_timestamp, base, *found)
        if best is None:
            return None
        timestamp, base, position, header = best
        with self._descriptors(base, LOG_SUFFIX) as (log_fd,):
            if file_io.pread_all(log_fd, position, RECORDS_AT) != BATCH_HEADER.pack(*header):
                raise _Replaced
            return _first_record_at(log_fd, position, header, timestamp)

    def _sealed_maximum(self, number: int, limit_offset: Offset) -> int:
        """A sealed segment's largest timestamp; for the last one, or one that reaches over the
        limit, the largest there is.
        """
        if number + 1 == len(self._bases) or self._bases[number + 1] > limit_offset:
            return 2**63 - 1
        with self._descriptors(self._bases[number], LOG_SUFFIX, TIME_INDEX_SUFFIX) as (_, time_fd):
            return TimeIndex(time_fd, self._bases[number]).last().timestamp

    def _open(self, base_offset: Offset, suffix: str) -> int:
        try:
            fd = file_io.open_path(segment_path(self._directory, base_offset, suffix), file_io.READ_ONLY)
        except FileNotFoundError:
            raise _Replaced from None
        if suffix == LOG_SUFFIX:
            # No read-ahead: a look-up reads a few headers, and the acceptor sends what is in the page cache.
            file_io.advise(fd, 0, 0, file_io.RANDOM)
        return fd

    @contextmanager
    def _descriptors(self, base_offset: Offset, *suffixes: str) -> Iterator[list[int]]:
        """Files of one segment that belong together: the log first, then indexes, and then the log
        must still be the same. Raises `_Replaced`.
        """
        opened: list[int] = []
        try:
            for suffix in suffixes:
                opened.append(self._open(base_offset, suffix))
            if len(opened) > 1 and file_io.fstat(opened[0]).st_ino != self._file_of(base_offset):
                raise _Replaced
            yield opened
        finally:
            file_io.close_all(opened)

    def _file_of(self, base_offset: Offset) -> int:
        try:
            return file_io.stat(segment_path(self._directory, base_offset, LOG_SUFFIX)).st_ino
        except FileNotFoundError:
            raise _Replaced from None

    @contextmanager
    def _storage(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise file_io.storage_failure(f"{action} {self._directory}", error) from error


def _position_of_maximum(time_fd: int, index_fd: int, base: Offset, limit_offset: Offset) -> Position:
    """No batch before this position of a segment has a larger timestamp than the one there, or an
    equal one: where the time index's last entry below the limit points, at best.
    """
    time_index = TimeIndex(time_fd, base)
    number = time_index.count_below(limit_offset)
    if not number:
        return FILE_START
    return OffsetIndex(index_fd, base).lookup(time_index.entry(number - 1).offset).position


def _youngest_batch(log_fd: int, start: Position, limit_offset: Offset) -> tuple[tuple[Position, BatchHeader] | None, int]:
    """Position and header of the first batch with records that has the largest timestamp from
    `start` on; and the largest of any batch.
    """
    found: tuple[Position, BatchHeader] | None = None
    largest = -1
    for position, header in SegmentScan(log_fd, start, file_io.size_of(log_fd), verify=False):
        if header.base_offset >= limit_offset:
            break
        largest = max(largest, header.max_timestamp)
        if not header.is_control and header.records_count and (found is None or header.max_timestamp > found[1].max_timestamp):
            found = (position, header)
    return found, largest


def _reads_ahead(log_fd: int, index: OffsetIndex, first: ReadAhead, size_bytes: int, limit_offset: Offset) -> Iterator[ReadAhead]:
    """The beginnings of the reads after `first`, in its segment and below `limit_offset`."""
    file_bytes = file_io.size_of(log_fd)
    read = first
    for _ in range(READS_AHEAD):
        end = read.position + max(size_bytes, read.batch_size_bytes)
        known = index.count_at_or_before(end)
        start = max(read.position, index.entry(known - 1).position) if known else read.position
        follows = NO_OFFSET
        for position, header in SegmentScan(log_fd, start, file_bytes, verify=False):
            if header.base_offset >= limit_offset:
                return
            if position + header.size_bytes > end:
                read = ReadAhead(follows if follows >= 0 else header.base_offset, position, header.size_bytes)
                break
            follows = header.last_offset + 1
        else:
            return
        yield read


def _first_record_at(log_fd: int, position: Position, header: BatchHeader, timestamp: int) -> RecordFound | None:
    """The first record of a batch that is at or after `timestamp`; maxTimestamp is the producer's
    word, so there may be none.
    """
    batch = file_io.pread_all(log_fd, position, header.size_bytes)
    for record in iterate_records(batch, opened_batch_limit(len(batch))):
        if record.timestamp >= timestamp:
            return RecordFound(record.offset, record.timestamp, header.partition_leader_epoch)
    return None
