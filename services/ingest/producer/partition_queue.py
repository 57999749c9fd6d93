"""One partition's way out of an ingest: what waits, what is under way, and the idempotent producer under which it goes.

Owned by the outlet; no socket, no shared memory, no clock. Batches leave in the order in which they were closed, at most `UNDER_WAY_MAX` at a time, because
that is how many of a producer's batches a log remembers: whatever happened to them, offered again they are known (KIP-98). The first batch under a leader goes
alone: a log that does not know the producer takes any sequence, and one that came second would make the first look old. As soon as one comes back nothing is
offered until all are back. Weak: a batch that was refused for good costs the producer an epoch, and what is under way then goes again after that.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from appliance.records.batch import as_produced, stamp_producer
from services.ingest.producer.producer_batch import ProducerBatch

UNDER_WAY_MAX = 5
_SEQUENCES = 1 << 31
_EPOCH_MAX = 32_767
_by_number = attrgetter("number")

LeaderLocation = str
"""Whose budget is charged: a disk's name, "box N" for a leader elsewhere, "" while there is none."""


class PartitionQueue:
    """`under_way`, then `waiting`, then what is `behind` (`ingest_spooling`), in order."""

    __slots__ = (
        "behind", "charged", "is_doubtful", "is_open", "is_recoiling", "leader", "next_sequence", "offered_to", "partition", "place", "producer_epoch",
        "producer_id", "retry_at_ns", "topic", "under_way", "waiting", "wants_epoch",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[ProducerBatch] = deque()
        self.under_way: deque[ProducerBatch] = deque()
        self.behind: deque[ProducerBatch] = deque()
        self.place: LeaderLocation = ""
        self.charged = 0
        """Of everything in it."""
        self.leader = -1
        """The broker that leads, as the image says."""
        self.offered_to: object = None
        """Who was offered what is under way."""
        self.is_open = False
        """The leader has taken one, so more may follow without waiting for each."""
        self.is_recoiling = False
        """Something came back: what was offered behind it has to come back, too."""
        self.is_doubtful = False
        """The leader does not know a sequence that is due: it has to be asked what it has (`doubtful_lanes`)."""
        self.retry_at_ns = 0
        self.producer_id = self.producer_epoch = -1
        self.next_sequence = 0
        self.wants_epoch = False
        """The log lacks a sequence, for good: the next batch begins a new epoch."""

    def room(self, now_ns: int, leader: object) -> int:
        """How many batches may be offered to `leader` now."""
        if now_ns < self.retry_at_ns:
            return 0
        if not self.under_way:
            self.is_recoiling = False
            if self.offered_to != leader:
                self.offered_to = leader
                self.is_open = False
            return UNDER_WAY_MAX if self.is_open else 1
        if self.is_recoiling or not self.is_open or self.offered_to != leader:
            return 0
        return UNDER_WAY_MAX - len(self.under_way)

    # -- the producer

    def begin_producer(self, producer_id: int) -> None:
        """From now on this producer sends; nothing is under way."""
        self.producer_id, self.producer_epoch, self.next_sequence = producer_id, 0, 0
        self.wants_epoch = self.is_open = False

    def raise_epoch(self) -> bool:
        """A new epoch, nothing being under way: sequences begin at 0. False: there is none left, another producer has to go on."""
        if self.producer_epoch >= _EPOCH_MAX:
            return False
        self.producer_epoch += 1
        self.next_sequence = 0
        self.wants_epoch = self.is_open = False
        return True

    def stamp(self, batch: ProducerBatch, buffer: bytearray | memoryview) -> bool:
        """Make the batch whose bytes are `buffer` ready to be offered; whether it has another sequence than before."""
        as_produced(buffer)
        is_new = self.producer_id >= 0 and (batch.producer_id, batch.producer_epoch) != (self.producer_id, self.producer_epoch)
        if is_new:
            batch.producer_id, batch.producer_epoch, batch.base_sequence = self.producer_id, self.producer_epoch, self.next_sequence
            self.next_sequence = (self.next_sequence + batch.record_count) % _SEQUENCES
        stamp_producer(buffer, batch.producer_id, batch.producer_epoch, batch.base_sequence, False)
        return is_new

    # -- there and back

    def on_offered(self, batch: ProducerBatch) -> None:
        """The first that waited is under way."""
        self.under_way.append(batch)
        batch.was_offered = True
        batch.is_appended = False

    def on_gone(self, batch: ProducerBatch) -> None:
        """It is stored, or refused for good, or taken elsewhere."""
        self.under_way.remove(batch)
        self.charged -= batch.charge

    def come_back(self, batch: ProducerBatch, retry_at_ns: int) -> None:
        """To be offered again, in its place."""
        self.under_way.remove(batch)
        self.put_back(batch)
        self.is_recoiling, self.is_open = True, False
        self.retry_at_ns = max(self.retry_at_ns, retry_at_ns)

    def put_back(self, batch: ProducerBatch) -> None:
        """Before everything that was closed later; it is charged already."""
        batch.is_appended, batch.uncommitted = False, None
        insort(self.waiting, batch, key=_by_number)

    def is_first_unknown(self, batch: ProducerBatch) -> bool:
        """Whether the leader has all that was offered before it."""
        if self.is_recoiling:
            return False
        for other in self.under_way:
            if other is batch:
                return True
            if not other.is_appended:
                return False
        return False
