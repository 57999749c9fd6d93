"""The transactions that a cleaning run passes: which were aborted, and which markers are needed.

Owned by one run, which passes batches in the order of the log. The rules are Kafka's
(`CleanedTransactionMetadata`): records of an aborted transaction are removed. A marker, and the index
entry of an aborted one, may be removed once a whole pass found no batch of its transaction. Aborted
transactions are known from the `.txnindex` files. Weak spot: the entries of all aborted transactions
of the log are in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from appliance.records.batch import BatchHeader
from appliance.records.retained_batch import open_records, slice_records
from appliance.storage.transaction_index import AbortedTransaction

_MARKER_KEY = Struct(">hh")
_ABORT, _COMMIT = 0, 1
_MARKER_BYTES_MAX = 64 * 1024


class CleanedTransactions:
    """One pass over a log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """Producer id → its transaction, and whether a batch of it was met in this pass."""
        self._committed: set[int] = set()
        """Producer ids of which a batch was met whose transaction was not aborted."""
        self.kept_entries: list[AbortedTransaction] = []
        """Entries whose markers stay. The writer of the current segment takes them for its index."""

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            entry = self._coming.pop()
            known = self._aborted.get(entry.producer_id)
            if known is None or known[0].last_offset < entry.first_offset:
                self._aborted[entry.producer_id] = (entry, False)

    def is_aborted(self, header: BatchHeader) -> bool:
        """A data batch is next: whether its records were aborted."""
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
        """A control batch is next: whether nothing of its transaction is left. Raises `CorruptBatch`."""
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

    def _forget_committed(self, producer_id: int) -> bool:
        is_known = producer_id in self._committed
        self._committed.discard(producer_id)
        return is_known


def _marker_kind(header: BatchHeader, batch: bytes) -> int | None:
    """Type of the control record; None for a batch that compaction has emptied, -1 for a key that says nothing."""
    if not header.records_count:
        return None
    key = slice_records(open_records(header, batch, _MARKER_BYTES_MAX), header.records_count)[0].key or b""
    return int(_MARKER_KEY.unpack_from(key)[1]) if len(key) >= _MARKER_KEY.size else -1
