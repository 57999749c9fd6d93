"""Write one compacted segment as `.cleaned` files, and decide which transactions stay in it.

Owned by a cleaning run. Index entries follow the append's rule, so a rebuild of the segment gives
the same bytes. Of aborted transactions only those are written that still have a marker. Everything
is synced before `finish` returns, so renaming the files needs no sync except that of the directory.
Written pages are dropped from the page cache, so that a run does not evict what consumers read.
Weak spot: one write buffer of 1 MiB, and one segment at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from appliance.base.model import Offset, ProducerId
from appliance.records.batch import BatchHeader, read_batch_header
from appliance.records.retained_batch import open_records, slice_records
from appliance.storage import file_io
from appliance.storage.indexes import OFFSET_ENTRY
from appliance.storage.segment import SegmentTail
from appliance.storage.segment_files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from appliance.storage.transaction_index import AbortedTxn, encode_transaction_index

_BUFFER_BYTES = 1024 * 1024
_SYNC_BYTES = 32 * 1024 * 1024


def cleaned_path(directory: str, base_offset: Offset, suffix: str) -> str:
    """Return the path of a segment file that a cleaning run writes."""
    return segment_path(directory, base_offset, suffix) + CLEANED_SUFFIX


def remove_cleaned(directory: str, base_offset: Offset) -> None:
    """Remove a segment's `.cleaned` files; missing ones are ignored. Raises OSError."""
    for suffix in SEGMENT_SUFFIXES:
        file_io.unlink_if_there(cleaned_path(directory, base_offset, suffix))


class CleanedSegment:
    """A compacted segment under construction: `append` batches in order, then `finish` or
    `abandon`. Raises OSError.
    """

    def __init__(self, directory: str, base_offset: Offset, index_interval_bytes: int, now_ms: int) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._tail = SegmentTail(base_offset, now_ms)
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._written_bytes = 0
        self._synced_bytes = 0
        self._last_entry_position = 0
        self._index = bytearray()
        self._time_index = bytearray()
        self._fd = file_io.open_path(cleaned_path(directory, base_offset, LOG_SUFFIX), file_io.CREATE_EMPTY)

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches appended so far."""
        return self._tail.size_bytes

    def append(self, batch: bytes) -> None:
        """Append one batch and its index entries. Bytes are buffered up to 1 MiB."""
        header = read_batch_header(batch)
        tail = self._tail
        position = tail.size_bytes
        if header.max_timestamp > tail.max_timestamp:
            tail.max_timestamp = header.max_timestamp
            tail.max_timestamp_offset = header.last_offset
        if position - self._last_entry_position > self._interval_bytes:
            self._index += OFFSET_ENTRY.pack(header.last_offset - self._base_offset, position)
            self._last_entry_position = position
            self._add_time_entry()
        self._pieces.append(batch)
        self._pieces_bytes += len(batch)
        tail.size_bytes = position + len(batch)
        if self._pieces_bytes >= _BUFFER_BYTES:
            self._write()

    def _add_time_entry(self) -> None:
        entry = self._tail.final_time_entry()
        if entry:
            self._time_index += entry
            self._tail.last_indexed_timestamp = self._tail.max_timestamp

    def _write(self) -> None:
        pieces, self._pieces = self._pieces, []
        size_bytes, self._pieces_bytes = self._pieces_bytes, 0
        if not size_bytes:
            return
        file_io.write_all(self._fd, pieces, self._written_bytes, size_bytes)
        self._written_bytes += size_bytes
        if self._written_bytes - self._synced_bytes >= _SYNC_BYTES:  # in small portions: the log-writer's own syncs wait behind them
            self._sync()

    def _sync(self) -> None:
        file_io.sync_data(self._fd)
        file_io.advise(self._fd, self._synced_bytes, self._written_bytes - self._synced_bytes, file_io.NOT_NEEDED)
        self._synced_bytes = self._written_bytes

    def finish(self, modified_ns: int, aborted: list[AbortedTxn]) -> None:
        """Write and sync all files.

        `modified_ns` becomes the log's modification time, which retention reads; `aborted` are the
        entries of the transaction index.
        """
        self._write()
        self._add_time_entry()
        self._write_small(INDEX_SUFFIX, bytes(self._index))
        self._write_small(TIME_INDEX_SUFFIX, bytes(self._time_index))
        if aborted:
            self._write_small(TRANSACTION_INDEX_SUFFIX, encode_transaction_index(aborted))
        file_io.set_times(self._fd, ns=(modified_ns, modified_ns))
        file_io.sync_all(self._fd)
        self._sync()
        self._close()

    def _write_small(self, suffix: str, content: bytes) -> None:
        fd = file_io.open_path(cleaned_path(self._directory, self._base_offset, suffix), file_io.CREATE_EMPTY)
        try:
            file_io.write_all(fd, (content,), 0, len(content))
            file_io.sync_all(fd)
        finally:
            file_io.close(fd)

    def abandon(self) -> None:
        """Close and remove the files."""
        self._close()
        remove_cleaned(self._directory, self._base_offset)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            file_io.close_all((fd,))


_MARKER_KEY = Struct(">hh")
_ABORT, _COMMIT = 0, 1
_MARKER_BYTES_MAX = 64 * 1024


class CleanedTransactions:
    """The transactions that a run passes: which were aborted, and which markers are needed.

    The run passes batches in the order of the log. The rules are Kafka's
    (`CleanedTransactionMetadata`): records of an aborted transaction are removed. A marker, and the
    index entry of an aborted one, may be removed once a whole pass found no batch of its
    transaction. Weak spot: the entries of all aborted transactions of the log are in memory.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[ProducerId, tuple[AbortedTxn, bool]] = {}
        """Producer id → its transaction, and whether a batch of it was met in this pass."""
        self._committed: set[ProducerId] = set()
        """Producer ids of which a batch was met whose transaction was not aborted."""
        self.kept_entries: list[AbortedTxn] = []
        """Entries whose markers stay. The writer of the current segment takes them for its index.
        """

    def _advance(self, offset: Offset) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            entry = self._coming.pop()
            known = self._aborted.get(entry.producer_id)
            if known is None or known[0].last_offset < entry.first_offset:
                self._aborted[entry.producer_id] = (entry, False)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Pass the next data batch; return whether its records belong to an aborted transaction."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        known = self._aborted.get(header.producer_id)
        if known is not None and known[0].last_offset < header.base_offset:
            # Its marker is not in the log: retention took that segment and the files are still there, or a power cut left a hole.
            del self._aborted[header.producer_id]
            known = None
        if known is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (known[0], True)
        return True

    def is_empty_marker(self, header: BatchHeader, batch: bytes) -> bool:
        """Pass the next control batch; return whether no batch of its transaction is left.

        Raises `CorruptBatch`.
        """
        self._advance(header.last_offset)
        kind = _marker_kind(header, batch)
        if kind == _ABORT:
            known = self._aborted.pop(header.producer_id, None)
            if known is not None and known[1]:
                self.kept_entries.append(known[0])
                return False
            return not self._forget_committed(header.producer_id)  # data without an index entry: its marker stays with it
        if kind == _COMMIT:
            return not self._forget_committed(header.producer_id)
        return kind is None

    def _forget_committed(self, producer_id: ProducerId) -> bool:
        is_known = producer_id in self._committed
        self._committed.discard(producer_id)
        return is_known


def _marker_kind(header: BatchHeader, batch: bytes) -> int | None:
    """Type of the control record; None for a batch that compaction has emptied, -1 for a key that
    says nothing.
    """
    if not header.records_count:
        return None
    key = slice_records(open_records(header, batch, _MARKER_BYTES_MAX), header.records_count)[0].key or b""
    return int(_MARKER_KEY.unpack_from(key)[1]) if len(key) >= _MARKER_KEY.size else -1
