"""One closed batch: its bytes, its shares, and its producer id, epoch and sequence.

Owned by `BatchSender`. The bytes are in the arena (`slot`) after they were offered to a log-writer,
otherwise in `data` or in the spool. A batch keeps its sequence when it is offered again, by which
the log recognises it. It gets a new one in another partition or after its producer's epoch was
bumped.
"""

from __future__ import annotations

from appliance.base.model import NO_PRODUCER_ID
from appliance.shm.arena import Arena
from services.ingest.records.ack_group import Part
from services.ingest.records.batcher import ReadyBatch

NO_SLOT = -1


class ProducerBatch:
    """`number` is its position in the order in which batches were closed."""

    __slots__ = (
        "base_sequence", "charge", "closed_ns", "data", "is_appended", "is_replaced",
        "is_replacement", "is_spooled", "number", "partition", "producer_epoch", "producer_id",
        "record_count", "shares", "size_bytes", "slot", "topic", "topic_id", "uncommitted",
        "wants_all", "was_leased", "was_offered",
    )  # fmt: skip

    def __init__(self, topic: str, ready: ReadyBatch, number: int, closed_ns: int) -> None:
        self.topic = topic
        self.topic_id = b""
        """16 bytes, set when it is offered."""
        self.partition, self.data, self.record_count, self.shares = ready
        self.number = number
        self.closed_ns = closed_ns
        self.size_bytes = len(ready.data)
        self.charge = Arena.rounded_size(self.size_bytes)
        self.slot = NO_SLOT
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = self.base_sequence = -1
        self.wants_all = any(share.wants_all for share in ready.shares)
        """True: stored when all in-sync replicas have it. False: stored when the leader has it."""
        self.was_leased = True
        """False: offered without a lease, so no share is stored before the high watermark passes."""
        self.was_offered = False
        self.is_appended = False
        """The current leader has appended it; it waits for the high watermark."""
        self.uncommitted: object = None
        """The offset that the high watermark must reach, and in which replica (`LocalLeaders`)."""
        self.is_replaced = False
        """A copy has taken its place; only its arena slot is still in use."""
        self.is_replacement = False
        """It is such a copy and was not offered yet."""
        self.is_spooled = False
        """Its bytes are in the spool; also in memory unless `data` is empty."""

    @property
    def parts(self) -> list[Part]:
        """The addresses of its records (`records/ack_group.py`)."""
        return [part for share in self.shares for part in share.parts]

    def restore_acks(self) -> None:
        """The leader has a lease: wait for as many replicas as the shares want."""
        self.was_leased = True
        self.wants_all = any(share.wants_all for share in self.shares)

    def bytes_in(self, arena: Arena) -> bytes:
        """Return its bytes from the arena or from `data`."""
        return self.data if self.slot < 0 else bytes(arena.memory[self.slot : self.slot + self.size_bytes])

    def fill(self, data: bytes) -> None:
        """Set the bytes that were read back from the spool."""
        self.data = data
        self.size_bytes = len(data)
        self.charge = Arena.rounded_size(self.size_bytes)

    def copy_of(self, data: bytes) -> ProducerBatch:
        """Return a batch with the same stamp that replaces this one, with its own bytes."""
        other = ProducerBatch(self.topic, ReadyBatch(self.partition, data, self.record_count, self.shares), self.number, self.closed_ns)
        other.topic_id, other.was_offered, other.charge, other.is_replacement = self.topic_id, self.was_offered, self.charge, True
        other.producer_id, other.producer_epoch, other.base_sequence = self.producer_id, self.producer_epoch, self.base_sequence
        return other
