"""The producers that wrote to a log, with their last sequences: a retry is not appended twice.

Owned by its log. Entries are immutable: an append checks its batches against a staging copy, which
becomes the state when the bytes are in the file. Batches without a producer id never get here. The
state includes open transactions with their first offsets, and so the last stable offset.
`verification` decides whether a transaction may begin. Weak spot: each abort searches all open
transactions.

Snapshot (`OFFSET.snapshot`, the state of everything below OFFSET): int16 version 1, uint32 CRC-32C
of what follows, int32 count, then entries of producer_id int64, producer_epoch int16, last_sequence
int32, last_offset int64, offset_delta int32, timestamp int64, coordinator_epoch int32,
current_txn_first_offset int64. Source: Kafka's ProducerStateManager and ProducerAppendInfo, KIP-98,
KIP-360.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_OFFSET, Offset, ProducerId
from appliance.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from appliance.records.control_batch import EndTransactionMarker
from appliance.records.crc32c import crc32c
from appliance.storage.transaction_index import AbortedTxn
from appliance.storage.verification import NeedsVerification, Offer, Verifications

REMEMBERED_BATCHES = 5
PRODUCER_EXPIRATION_MS = 86_400_000
LARGEST_SEQUENCE = 2**31 - 1
PRODUCERS_MAX = 50_000
"""Producers that a log remembers, 0.5 KB each. A client may write under any number of producer ids."""
KEPT_SHARE = 0.75
"""What is left of them when there are too many, so that it takes a while until there are again."""

_SNAPSHOT_HEADER = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CRC_COVERS_FROM = 6
_COUNT = Struct(">i")
assert _SNAPSHOT_HEADER.size == _CRC_COVERS_FROM + _COUNT.size and _SNAPSHOT_ENTRY.size == 46


class BrokenSnapshot(ValueError):
    """A damaged producer snapshot; an older one is used instead."""


def advance_sequence(sequence: int, by: int) -> int:
    """Return the sequence `by` records after `sequence`; sequences wrap from 2^31-1 to 0."""
    return (sequence + by) % (LARGEST_SEQUENCE + 1)


class BatchMetadata(NamedTuple):
    """A batch as a producer's retry would repeat it. `timestamp` in ms."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp: int


RecentBatches = tuple[ProducerId, int, list[list[Any]]]
"""Producer id, producer epoch, remembered batches with the fields of `BatchMetadata`, newest last.
"""


class DuplicateBatch(NamedTuple):
    """The offsets and the timestamp of a batch that is in the log already."""

    base_offset: Offset
    last_offset: Offset
    timestamp: int


class ProducerEntry(NamedTuple):
    """The state of one producer id; `batches` newest last, at most five. `timestamp` in ms."""

    producer_epoch: int
    batches: tuple[BatchMetadata, ...]
    timestamp: int
    coordinator_epoch: int = -1
    transaction_first_offset: Offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """The last sequence of the newest batch, -1 without one."""
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """The producers of a log, by producer id."""

    def __init__(self) -> None:
        self._entries: dict[ProducerId, ProducerEntry] = {}
        self._open: dict[ProducerId, Offset] = {}
        """Producer id → first offset of its open transaction, in the order of these offsets."""
        self._ended: list[tuple[Offset, Offset]] = []
        """(first offset, offset of its marker) of transactions that ended, until the high watermark
        has passed their markers."""
        self.is_undecided = False
        """Whether `last_stable_offset` may lie below the high watermark."""

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, producer_id: ProducerId) -> ProducerEntry | None:
        """Return the entry of a producer id, None if it is unknown."""
        return self._entries.get(producer_id)

    def last_batches(self) -> list[tuple[ProducerId, int, Offset]]:
        """Return (producer id, producer epoch, last offset of its last data batch or -1) of every
        producer. Compaction must keep the headers of these batches.
        """
        return [
            (producer_id, entry.producer_epoch, entry.batches[-1].last_offset if entry.batches else NO_OFFSET) for producer_id, entry in self._entries.items()
        ]

    def recent(self, most: int) -> list[RecentBatches]:
        """Return the remembered batches of the `most` producers that wrote last and have more than
        one. A snapshot has only the last batch.
        """
        several = [(producer_id, entry) for producer_id, entry in self._entries.items() if len(entry.batches) > 1]
        several.sort(key=lambda each: -each[1].batches[-1].last_offset)
        return [(producer_id, entry.producer_epoch, [list(batch) for batch in entry.batches]) for producer_id, entry in several[:most]]

    def remember_earlier(self, recent: Iterable[RecentBatches]) -> None:
        """Add the batches in `recent` to producers that have written nothing since: a retry may be
        of any of the last five.
        """
        for producer_id, producer_epoch, batches in recent:
            entry = self._entries.get(producer_id)
            remembered = tuple(BatchMetadata(*batch) for batch in batches)
            if entry is not None and entry.producer_epoch == producer_epoch and entry.batches and entry.batches[-1][:4] == remembered[-1][:4]:
                self._entries[producer_id] = entry._replace(batches=remembered)

    def remember_kept(self, before: ProducerState, end_offset: Offset) -> None:
        """Add the batches of `before` below `end_offset` to this state, which was loaded again
        after a truncation to that offset.
        """
        self.remember_earlier(
            (producer_id, entry.producer_epoch, [list(batch) for batch in kept])
            for producer_id, entry in before._entries.items()
            if (kept := [batch for batch in entry.batches if batch.last_offset < end_offset])
        )

    def copy(self) -> ProducerState:
        """Return an independent copy."""
        other = ProducerState()
        other._entries, other._open, other._ended = dict(self._entries), dict(self._open), list(self._ended)
        other.is_undecided = self.is_undecided
        return other

    def snapshot(self) -> list[tuple[ProducerId, ProducerEntry]]:
        """Return every producer's entry by producer id, as it is now."""
        return list(self._entries.items())

    def follows_on(self, producer_id: ProducerId, producer_epoch: int, base_sequence: int) -> bool:
        """Return whether the producer is known under this epoch and the batch is its next one or a
        duplicate.
        """
        entry = self._entries.get(producer_id)
        if entry is None or entry.producer_epoch != producer_epoch or not entry.batches:
            return False
        return base_sequence == advance_sequence(entry.last_sequence, 1) or any(known.base_sequence == base_sequence for known in entry.batches)

    def has_open_transaction(self, producer_id: ProducerId, producer_epoch: int) -> bool:
        """Return whether the producer has an open transaction under exactly this epoch."""
        return producer_id in self._open and self._entries[producer_id].producer_epoch == producer_epoch

    def stage(self, verifications: Verifications | None = None) -> ProducerStaging:
        """Return a staging for one append.

        Without `verifications` no client's transaction can begin in it.
        """
        return ProducerStaging(self._entries, self._open, verifications)

    def apply(self, staging: ProducerStaging) -> None:
        """Apply the changes of a staging whose batches were written."""
        self._entries.update(staging.changes)
        if staging.has_transactions:
            self._ended += staging.ended
            self._note_open(staging.changes)
            staging.end_verifications()
        if len(self._entries) > PRODUCERS_MAX:
            self.keep_newest(int(PRODUCERS_MAX * KEPT_SHARE))

    def _note_open(self, changes: dict[ProducerId, ProducerEntry]) -> None:
        opened = []
        for producer_id, entry in changes.items():
            first_offset = entry.transaction_first_offset
            if self._open.get(producer_id, -1) != first_offset:
                self._open.pop(producer_id, None)
                if first_offset >= 0:
                    opened.append((first_offset, producer_id))
        for first_offset, producer_id in sorted(opened):
            self._open[producer_id] = first_offset
        self.is_undecided = bool(self._open or self._ended)

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the last stable offset: below it every transaction has ended, and its marker is
        replicated. `high_watermark` must not decrease.
        """
        if self._ended:
            self._ended = [ended for ended in self._ended if ended[1] >= high_watermark]
            self.is_undecided = bool(self._open or self._ended)
        oldest_open = next(iter(self._open.values()), high_watermark)
        return min([high_watermark, oldest_open, *(first_offset for first_offset, _ in self._ended)])

    def replay(self, header: BatchHeader, marker: EndTransactionMarker | None = None) -> tuple[AbortedTxn, ...]:
        """Apply a batch that is in the log; nothing is refused.

        `marker`: the content of a control batch. Returns the transaction that it aborts, if any.
        """
        if header.producer_id >= 0:
            staging = self.stage()
            staging.replay_batch(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.attributes,
                marker,
            )
            self.apply(staging)
            return staging.aborted
        return ()

    def expire(self, now_ms: int, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> None:
        """Forget producers without an open transaction that wrote nothing for `expiration_ms`
        (`producer.id.expiration.ms`).
        """
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if entry.transaction_first_offset >= 0 or now_ms - entry.timestamp < expiration_ms
        }

    def keep_newest(self, count: int) -> None:
        """Forget the producers that wrote longest ago, as if they had expired, until `count` are left.
        Those with an open transaction stay. Takes about 1 µs for each producer.
        """
        idle = [
            (entry.batches[-1].last_offset if entry.batches else NO_OFFSET, producer_id)
            for producer_id, entry in self._entries.items()
            if entry.transaction_first_offset < 0
        ]
        idle.sort()
        for _, producer_id in idle[: max(0, len(self._entries) - count)]:
            del self._entries[producer_id]

    def clear(self) -> None:
        """Forget everything."""
        self._entries, self._open, self._ended = {}, {}, []
        self.is_undecided = False

    def encode(self) -> bytes:
        """Return the content of a snapshot file."""
        content = bytearray(_COUNT.pack(len(self._entries)))
        for producer_id, entry in self._entries.items():
            last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, NO_OFFSET, NO_OFFSET, -1)
            content += _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.last_offset - last.base_offset,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        header = _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, crc32c(content), 0)[:_CRC_COVERS_FROM]
        return header + bytes(content)

    def decode(self, content: bytes) -> None:
        """Replace the state by that of a snapshot file.

        Raises `BrokenSnapshot` and changes nothing.
        """
        if len(content) < _SNAPSHOT_HEADER.size:
            raise BrokenSnapshot(f"{len(content)} bytes are too few")
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
        if version != _SNAPSHOT_VERSION:
            raise BrokenSnapshot(f"version {version} is unknown")
        if crc != crc32c(content[_CRC_COVERS_FROM:]):
            raise BrokenSnapshot("the checksum does not match")
        if len(content) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            raise BrokenSnapshot(f"{count} entries do not fill {len(content)} bytes")
        self.clear()
        self._entries = dict(map(_decode_entry, _SNAPSHOT_ENTRY.iter_unpack(content[_SNAPSHOT_HEADER.size :])))
        self._note_open(self._entries)


def _decode_entry(fields: tuple[Any, ...]) -> tuple[ProducerId, ProducerEntry]:
    producer_id, producer_epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = fields
    batches: tuple[BatchMetadata, ...] = ()
    if last_offset >= 0:
        base_sequence = advance_sequence(last_sequence, -offset_delta)
        batches = (BatchMetadata(base_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp),)
    return producer_id, ProducerEntry(producer_epoch, batches, timestamp, coordinator_epoch, first_offset)


class ProducerStaging:
    """The state after the batches of one append; costs one object until a producer id appears."""

    __slots__ = ("_entries", "_open", "_verifications", "aborted", "changes", "ended", "has_transactions")

    def __init__(self, entries: dict[ProducerId, ProducerEntry], open_transactions: dict[ProducerId, Offset], verifications: Verifications | None) -> None:
        self._entries = entries
        self._open = open_transactions
        self._verifications = verifications
        self.changes: dict[ProducerId, ProducerEntry] = {}
        self.has_transactions = False
        """Whether a batch here began or ended a transaction; only then the others count."""
        self.aborted: tuple[AbortedTxn, ...] = ()
        """What the transaction index must say, in the order of the markers."""
        self.ended: tuple[tuple[Offset, Offset], ...] = ()

    def _find(self, producer_id: ProducerId) -> ProducerEntry | None:
        return self.changes.get(producer_id) or self._entries.get(producer_id)

    def admit(
        self, producer_id: ProducerId, producer_epoch: int, base_sequence: int, base_offset: Offset, last_offset: Offset, timestamp: int
    ) -> DuplicateBatch | ErrorCode | None:
        """Check a client's batch outside any transaction.

        Returns None for the next batch, which is remembered; the original of a duplicate; or an
        error code. Source: Kafka's `ProducerAppendInfo`.
        """
        entry = self._find(producer_id)
        batch = _producer_batch(base_sequence, base_offset, last_offset, timestamp)
        if entry is not None and entry.producer_epoch >= 0:
            # The next one is no retry: that is seen first, because nearly every batch is it.
            last_sequence = entry.batches[-1].last_sequence if entry.batches else -1
            if base_sequence != (last_sequence + 1) & LARGEST_SEQUENCE or producer_epoch != entry.producer_epoch:
                answer = _known(entry, producer_epoch, batch) or _sequence_problem(entry, producer_epoch, base_sequence)
                if answer is not None:
                    return answer
            if entry.transaction_first_offset >= 0:
                return ErrorCode.INVALID_TXN_STATE
        self._remember(producer_id, producer_epoch, batch, entry)
        return None

    def admit_transactional(
        self,
        producer_id: ProducerId,
        producer_epoch: int,
        base_sequence: int,
        base_offset: Offset,
        last_offset: Offset,
        timestamp: int,
        offer: Offer,
        now_ms: int,
    ) -> DuplicateBatch | NeedsVerification | ErrorCode | None:
        """Check a transactional batch, as `admit`.

        The first batch of a transaction in this log opens it, after verification by its
        coordinator.
        """
        entry = self._find(producer_id)
        if entry is not None and entry.producer_epoch < 0:
            entry = None
        batch = _producer_batch(base_sequence, base_offset, last_offset, timestamp)
        if offer.is_coordinator:
            if entry is not None and producer_epoch < entry.producer_epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            is_open = entry is not None and entry.transaction_first_offset >= 0 and entry.producer_epoch == producer_epoch
            if offer.is_verified and not is_open and (self._verifications is None or not self._verifications.is_good(producer_id, producer_epoch, offer.guard)):
                return ErrorCode.INVALID_TXN_STATE  # it ended while its coordinator was asked
            self._remember(producer_id, producer_epoch, batch, entry)
            self._begin_transaction(producer_id, base_offset)
            return None
        answer: DuplicateBatch | NeedsVerification | ErrorCode | None = None
        if entry is not None:
            answer = _known(entry, producer_epoch, batch)
        is_ongoing = entry is not None and entry.transaction_first_offset >= 0 and entry.producer_epoch == producer_epoch
        if answer is None and not is_ongoing:
            if self._verifications is None:
                return ErrorCode.INVALID_TXN_STATE
            is_known = entry is not None and bool(entry.batches)
            answer = self._verifications.problem(producer_id, producer_epoch, base_sequence, offer, is_known, now_ms)
        if answer is None and entry is not None:
            answer = _sequence_problem(entry, producer_epoch, base_sequence)
        if answer is None:
            self._remember(producer_id, producer_epoch, batch, entry)
            self._begin_transaction(producer_id, base_offset)
        return answer

    def end_transaction(
        self, producer_id: ProducerId, producer_epoch: int, offset: Offset, timestamp: int, marker: EndTransactionMarker, raises_epoch: bool = False
    ) -> DuplicateBatch | ErrorCode | None:
        """Check a coordinator's marker.

        Returns None if it ends the open transaction or there is none, the log end if the marker is
        in the log already, or an error code. A newer epoch than that of the batches fences their
        producer (KIP-360). With KIP-890 every marker has a newer one (`raises_epoch`): a marker
        with the epoch of the open transaction is late or repeated, and belongs to the one before
        (KIP-1228).
        """
        entry = self._find(producer_id)
        if entry is not None and producer_epoch < entry.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if entry is not None and marker.coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if raises_epoch and entry is not None and producer_epoch == entry.producer_epoch:
            if entry.transaction_first_offset >= 0:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            return DuplicateBatch(offset - 1, offset - 1, timestamp)
        self._end_transaction(producer_id, producer_epoch, offset, timestamp, marker, entry)
        return None

    def end_verifications(self) -> None:
        """Remove the guards of transactions that began or ended here."""
        if self._verifications is not None:
            for producer_id in self.changes:
                self._verifications.end(producer_id)

    def replay_batch(
        self,
        producer_id: ProducerId,
        producer_epoch: int,
        base_sequence: int,
        base_offset: Offset,
        last_offset: Offset,
        timestamp: int,
        attributes: int,
        marker: EndTransactionMarker | None,
    ) -> None:
        """Apply a batch that a leader accepted, without checks.

        A control batch without `marker` was emptied by compaction and is ignored.
        """
        entry = self._find(producer_id)
        if attributes & CONTROL_FLAG:
            if marker is not None:
                self._end_transaction(producer_id, producer_epoch, last_offset, timestamp, marker, entry)
            return
        self._remember(producer_id, producer_epoch, _producer_batch(base_sequence, base_offset, last_offset, timestamp), entry)
        if attributes & TRANSACTIONAL_FLAG:
            self._begin_transaction(producer_id, base_offset)

    def _begin_transaction(self, producer_id: ProducerId, base_offset: Offset) -> None:
        """Its first batch was just remembered; nothing happens if one is open."""
        if self.changes[producer_id].transaction_first_offset < 0:
            self.changes[producer_id] = self.changes[producer_id]._replace(transaction_first_offset=base_offset)
            self.has_transactions = True

    def _end_transaction(
        self, producer_id: ProducerId, producer_epoch: int, offset: Offset, timestamp: int, marker: EndTransactionMarker, entry: ProducerEntry | None
    ) -> None:
        batches = entry.batches if entry is not None and entry.producer_epoch == producer_epoch else ()
        self.changes[producer_id] = ProducerEntry(producer_epoch, batches, timestamp, marker.coordinator_epoch)
        self.has_transactions = True
        if entry is None or entry.transaction_first_offset < 0:
            return  # nothing was written under it
        self.ended = (*self.ended, (entry.transaction_first_offset, offset))
        if not marker.is_commit:
            others = {**self._open, **{each: changed.transaction_first_offset for each, changed in self.changes.items()}}
            last_stable_offset = min((first for first in others.values() if first >= 0), default=offset + 1)
            self.aborted = (*self.aborted, AbortedTxn(producer_id, entry.transaction_first_offset, offset, last_stable_offset))

    def _remember(self, producer_id: ProducerId, producer_epoch: int, batch: BatchMetadata, entry: ProducerEntry | None) -> None:
        if entry is None:
            self.changes[producer_id] = ProducerEntry(producer_epoch, (batch,), batch.timestamp)
            return
        earlier = entry.batches if entry.producer_epoch == producer_epoch else ()
        batches = (*earlier[1 - REMEMBERED_BATCHES :], batch)
        self.changes[producer_id] = entry._replace(producer_epoch=producer_epoch, batches=batches, timestamp=batch.timestamp)


def _producer_batch(base_sequence: int, base_offset: Offset, last_offset: Offset, timestamp: int) -> BatchMetadata:
    return BatchMetadata(base_sequence, advance_sequence(base_sequence, last_offset - base_offset), base_offset, last_offset, timestamp)


def _known(entry: ProducerEntry, producer_epoch: int, batch: BatchMetadata) -> DuplicateBatch | ErrorCode | None:
    """Whether a batch is a retry of one of the last five, or of a producer that was replaced."""
    if producer_epoch < entry.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if producer_epoch == entry.producer_epoch:
        for known in entry.batches:
            if known.base_sequence == batch.base_sequence and known.last_sequence == batch.last_sequence:
                return DuplicateBatch(known.base_offset, known.last_offset, known.timestamp)
    return None


def _sequence_problem(entry: ProducerEntry, producer_epoch: int, base_sequence: int) -> ErrorCode | None:
    """A new epoch begins at 0, an old one goes on without a gap."""
    due = 0 if producer_epoch > entry.producer_epoch else advance_sequence(entry.last_sequence, 1)
    return None if base_sequence == due else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
