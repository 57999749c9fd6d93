"""One batch of an ingest on its way to the log: its bytes, who waits for it, who sends it and under which sequence.

Owned by the outlet. The bytes are in the arena (`slot`) once a log-writer was offered them, else in `data`, or in the spool. A batch keeps its stamp when it is
offered again, so that the log knows it; taken to another partition, or after its producer's epoch was raised, it gets a new one.
"""

from __future__ import annotations

from appliance.shm.arena import Arena
from services.ingest.records.batcher import ReadyBatch
from services.ingest.records.share import Part

NO_SLOT = -1


class ProducerBatch:
    """`number` is its place in the order in which batches were closed."""

    __slots__ = (
        "base_sequence", "charge", "closed_ns", "data", "is_appended", "is_copied", "is_copy", "is_spooled", "number", "partition", "producer_epoch",
        "producer_id", "record_count", "shares", "size_bytes", "slot", "topic", "topic_id", "uncommitted", "wants_all", "was_offered",
    )  # fmt: skip

    def __init__(self, topic: str, ready: ReadyBatch, number: int, closed_ns: int) -> None:
        self.topic = topic
        self.topic_id = b""
        """16 bytes, known when it is offered."""
        self.partition, self.data, self.record_count, self.shares = ready
        self.number = number
        self.closed_ns = closed_ns
        self.size_bytes = len(ready.data)
        self.charge = Arena.rounded_size(self.size_bytes)
        self.slot = NO_SLOT
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.wants_all = any(share.wants_all for share in ready.shares)
        """Stored when all in-sync replicas have it, else when the leader has."""
        self.was_offered = False
        self.is_appended = False
        """The leader that has it now has appended it; it waits for the high watermark."""
        self.uncommitted: object = None
        """What the high watermark has to reach, and where (`LocalLeaders`)."""
        self.is_copied = False
        """Another batch with the same lines has taken its place: what is left of it is its slot."""
        self.is_copy = False
        """It took the place of another one, and was not offered since."""
        self.is_spooled = False
        """Its bytes are in the spool; in memory too, unless `data` is empty."""

    @property
    def parts(self) -> list[Part]:
        """The addresses of its records (`services/ingest/records/share.py`)."""
        return [part for share in self.shares for part in share.parts]

    def bytes_in(self, arena: Arena) -> bytes:
        """Its bytes, wherever they are in memory."""
        return self.data if self.slot < 0 else bytes(arena.memory[self.slot : self.slot + self.size_bytes])

    def fill(self, data: bytes) -> None:
        """Its bytes, read back from the spool."""
        self.data = data
        self.size_bytes = len(data)
        self.charge = Arena.rounded_size(self.size_bytes)

    def copy_of(self, data: bytes) -> ProducerBatch:
        """Another one in its place, whose bytes are `data`."""
        other = ProducerBatch(self.topic, ReadyBatch(self.partition, data, self.record_count, self.shares), self.number, self.closed_ns)
        other.topic_id, other.was_offered, other.charge, other.is_copy = self.topic_id, self.was_offered, self.charge, True
        other.producer_id, other.producer_epoch, other.base_sequence = self.producer_id, self.producer_epoch, self.base_sequence
        return other
