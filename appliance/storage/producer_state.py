"""What a log remembers of the producers that wrote into it: the last sequences, so that a retry is answered and not written twice.

Owned by its log. Entries are immutable: an append checks its batches against a staging copy, which becomes the state when the bytes are in
the file. A batch without a producer id never gets here. Weak spots: transactions are only passed through (first offset kept, no
marker written here yet); the coordinator epoch of a marker is not read when a log is replayed.

Snapshot (`OFFSET.snapshot`, state of everything below OFFSET): int16 version 1, uint32 CRC-32C of what follows it, int32 count, then entries of
producer_id int64, producer_epoch int16, last_sequence int32, last_offset int64, offset_delta int32, timestamp int64, coordinator_epoch int32,
current_txn_first_offset int64. Source: Kafka's ProducerStateManager, KIP-98.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from appliance.records.crc32c import crc32c

REMEMBERED_BATCHES = 5
PRODUCER_EXPIRATION_MS = 86_400_000
LARGEST_SEQUENCE = 2**31 - 1

_SNAPSHOT_HEADER = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CRC_COVERS_FROM = 6
_COUNT = Struct(">i")
assert _SNAPSHOT_HEADER.size == _CRC_COVERS_FROM + _COUNT.size and _SNAPSHOT_ENTRY.size == 46


class BrokenSnapshot(ValueError):
    """A producer snapshot that does not hold together; an older one serves."""


def advance_sequence(sequence: int, by: int) -> int:
    """Sequences wrap from 2^31-1 to 0."""
    return (sequence + by) % (LARGEST_SEQUENCE + 1)


class ProducerBatch(NamedTuple):
    """A batch as a producer's retry would repeat it."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class DuplicateBatch(NamedTuple):
    """A batch that is in the log already, here."""

    base_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry(NamedTuple):
    """One producer id; `batches` newest last, at most five."""

    producer_epoch: int
    batches: tuple[ProducerBatch, ...]
    timestamp: int
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """Entries by producer id."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def stage(self) -> ProducerStaging:
        return ProducerStaging(self._entries)

    def apply(self, staging: ProducerStaging) -> None:
        self._entries.update(staging.changes)

    def replay(self, header: BatchHeader) -> None:
        """Take over a batch that is in the log; nothing is refused."""
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
            )
            self.apply(staging)

    def expire(self, now_ms: int) -> None:
        """Forget producers that wrote nothing for a day and have no open transaction."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if entry.transaction_first_offset >= 0 or now_ms - entry.timestamp < PRODUCER_EXPIRATION_MS
        }

    def clear(self) -> None:
        self._entries = {}

    def encode(self) -> bytes:
        """The snapshot file."""
        content = bytearray(_COUNT.pack(len(self._entries)))
        for producer_id, entry in self._entries.items():
            last = entry.batches[-1] if entry.batches else ProducerBatch(-1, -1, -1, -1, -1)
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
        """Replace the state by a snapshot's. Raises `BrokenSnapshot` and changes nothing."""
        if len(content) < _SNAPSHOT_HEADER.size:
            raise BrokenSnapshot(f"{len(content)} bytes are too few")
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
        if version != _SNAPSHOT_VERSION:
            raise BrokenSnapshot(f"version {version} is unknown")
        if crc != crc32c(content[_CRC_COVERS_FROM:]):
            raise BrokenSnapshot("the checksum does not match")
        if len(content) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            raise BrokenSnapshot(f"{count} entries do not fill {len(content)} bytes")
        self._entries = dict(map(_decode_entry, _SNAPSHOT_ENTRY.iter_unpack(content[_SNAPSHOT_HEADER.size :])))


def _decode_entry(fields: tuple[int, ...]) -> tuple[int, ProducerEntry]:
    producer_id, producer_epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = fields
    batches: tuple[ProducerBatch, ...] = ()
    if last_offset >= 0:
        base_sequence = advance_sequence(last_sequence, -offset_delta)
        batches = (ProducerBatch(base_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp),)
    return producer_id, ProducerEntry(producer_epoch, batches, timestamp, coordinator_epoch, first_offset)


class ProducerStaging:
    """The state as the batches of one append would leave it; costs one object until a producer id appears."""

    __slots__ = ("_entries", "changes")

    def __init__(self, entries: dict[int, ProducerEntry]) -> None:
        self._entries = entries
        self.changes: dict[int, ProducerEntry] = {}

    def _find(self, producer_id: int) -> ProducerEntry | None:
        return self.changes.get(producer_id) or self._entries.get(producer_id)

    def admit(
        self, producer_id: int, producer_epoch: int, base_sequence: int, base_offset: int, last_offset: int, timestamp: int
    ) -> DuplicateBatch | ErrorCode | None:
        """A client's batch: None if it is the next one (it is remembered then), the original if it is a duplicate, else why not."""
        entry = self._find(producer_id)
        batch = _producer_batch(base_sequence, base_offset, last_offset, timestamp)
        if entry is None or entry.producer_epoch < 0:
            self._remember(producer_id, producer_epoch, batch, entry)
            return None
        if producer_epoch < entry.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer_epoch > entry.producer_epoch:
            if base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            for known in entry.batches:
                if known.base_sequence == base_sequence and known.last_sequence == batch.last_sequence:
                    return DuplicateBatch(known.base_offset, known.last_offset, known.timestamp)
            if base_sequence != advance_sequence(entry.last_sequence, 1):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if entry.transaction_first_offset >= 0:
            return ErrorCode.INVALID_TXN_STATE
        self._remember(producer_id, producer_epoch, batch, entry)
        return None

    def replay_batch(
        self, producer_id: int, producer_epoch: int, base_sequence: int, base_offset: int, last_offset: int, timestamp: int, attributes: int
    ) -> None:
        """A batch that a leader accepted: whatever it says is so."""
        entry = self._find(producer_id)
        if attributes & CONTROL_FLAG:
            batches = entry.batches if entry is not None and entry.producer_epoch == producer_epoch else ()
            coordinator_epoch = entry.coordinator_epoch if entry is not None else -1
            self.changes[producer_id] = ProducerEntry(producer_epoch, batches, timestamp, coordinator_epoch)
            return
        self._remember(producer_id, producer_epoch, _producer_batch(base_sequence, base_offset, last_offset, timestamp), entry)
        if attributes & TRANSACTIONAL_FLAG and self.changes[producer_id].transaction_first_offset < 0:
            self.changes[producer_id] = self.changes[producer_id]._replace(transaction_first_offset=base_offset)

    def _remember(self, producer_id: int, producer_epoch: int, batch: ProducerBatch, entry: ProducerEntry | None) -> None:
        if entry is None:
            self.changes[producer_id] = ProducerEntry(producer_epoch, (batch,), batch.timestamp)
            return
        earlier = entry.batches if entry.producer_epoch == producer_epoch else ()
        batches = (*earlier[1 - REMEMBERED_BATCHES :], batch)
        self.changes[producer_id] = entry._replace(producer_epoch=producer_epoch, batches=batches, timestamp=batch.timestamp)


def _producer_batch(base_sequence: int, base_offset: int, last_offset: int, timestamp: int) -> ProducerBatch:
    return ProducerBatch(base_sequence, advance_sequence(base_sequence, last_offset - base_offset), base_offset, last_offset, timestamp)
