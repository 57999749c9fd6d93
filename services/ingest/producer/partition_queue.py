"""The queue of one partition: waiting batches, batches in flight, and the idempotent producer that
sends them.

Owned by `BatchSender`; no socket, no shared memory, no clock.

* Batches leave in the order in which they were closed, at most `IN_FLIGHT_MAX` at a time: a log
  remembers that many batches of a producer, so a batch that is offered again is recognised
  (KIP-98).
* The first batch under a leader is alone in flight. A log that does not know the producer takes any
  sequence; if the second batch arrived first, the first one would look like an old duplicate.
* After one batch is returned, nothing is offered until all are back, so that they are offered again
  in order.

Weak: a batch that is refused for good costs the producer an epoch, and what is in flight is offered
again after that.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from appliance.records.batch import as_produced, stamp_producer
from services.ingest.producer.producer_batch import ProducerBatch

IN_FLIGHT_MAX = 5
_SEQUENCES = 1 << 31
_EPOCH_MAX = 32_767
_by_number = attrgetter("number")

LeaderLocation = str
"""Whose budget is charged: a disk's name, "box N" for a remote leader, "" without a leader."""


class PartitionQueue:
    """Batches in order: `in_flight`, then `waiting`, then `overflow` (`ingest_spooling`)."""

    __slots__ = (
        "charged",
        "in_flight",
        "is_draining",
        "is_unresolved",
        "leader",
        "location",
        "may_pipeline",
        "needs_epoch_bump",
        "next_sequence",
        "offered_to",
        "overflow",
        "partition",
        "producer_epoch",
        "producer_id",
        "retry_at_ns",
        "topic",
        "waiting",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: deque[ProducerBatch] = deque()
        self.overflow: deque[ProducerBatch] = deque()
        self.location: LeaderLocation = ""
        self.charged = 0
        """Arena bytes of all its batches in memory."""
        self.leader = -1
        """The leader in the metadata image."""
        self.offered_to: object = None
        """The log-writer or box that the batches in flight were offered to."""
        self.may_pipeline = False
        """The leader has accepted a batch: up to `IN_FLIGHT_MAX` may be in flight."""
        self.is_draining = False
        """A batch was returned: nothing is offered until the later ones are back, too."""
        self.is_unresolved = False
        """The leader does not know the expected sequence and must be asked what it has
        (`unresolved_sequences`)."""
        self.retry_at_ns = 0
        self.producer_id = self.producer_epoch = -1
        self.next_sequence = 0
        self.needs_epoch_bump = False
        """The log will never get one of the sequences: the next batch starts a new epoch."""

    def capacity(self, now_ns: int, leader: object) -> int:
        """Return how many batches may be offered to `leader` now."""
        if now_ns < self.retry_at_ns:
            return 0
        if not self.in_flight:
            self.is_draining = False
            if self.offered_to != leader:
                self.offered_to = leader
                self.may_pipeline = False
            return IN_FLIGHT_MAX if self.may_pipeline else 1
        if self.is_draining or not self.may_pipeline or self.offered_to != leader:
            return 0
        return IN_FLIGHT_MAX - len(self.in_flight)

    # -- the producer

    def begin_producer(self, producer_id: int) -> None:
        """Start with a new producer id; nothing is in flight."""
        self.producer_id, self.producer_epoch, self.next_sequence = producer_id, 0, 0
        self.needs_epoch_bump = self.may_pipeline = False

    def bump_epoch(self) -> bool:
        """Start the next producer epoch at sequence 0; nothing is in flight. False if there is none
        left: the queue needs another producer id."""
        if self.producer_epoch >= _EPOCH_MAX:
            return False
        self.producer_epoch += 1
        self.next_sequence = 0
        self.needs_epoch_bump = self.may_pipeline = False
        return True

    def stamp(self, batch: ProducerBatch, buffer: bytearray | memoryview) -> bool:
        """Write producer id, epoch and sequence into the batch's bytes; return True if the sequence
        is new.

        A batch that was stamped under the same producer and epoch keeps its sequence: by that the
        log recognises it.
        """
        as_produced(buffer)
        is_new = self.producer_id >= 0 and (batch.producer_id, batch.producer_epoch) != (self.producer_id, self.producer_epoch)
        if is_new:
            batch.producer_id, batch.producer_epoch, batch.base_sequence = self.producer_id, self.producer_epoch, self.next_sequence
            self.next_sequence = (self.next_sequence + batch.record_count) % _SEQUENCES
        stamp_producer(buffer, batch.producer_id, batch.producer_epoch, batch.base_sequence, False)
        return is_new

    # -- there and back

    def on_offered(self, batch: ProducerBatch) -> None:
        """The first waiting batch was offered."""
        self.in_flight.append(batch)
        batch.was_offered = True
        batch.is_appended = False

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch that is stored, refused for good, or redirected."""
        self.in_flight.remove(batch)
        self.charged -= batch.charge

    def requeue(self, batch: ProducerBatch, retry_at_ns: int) -> None:
        """Take a batch back, to be offered again in its order."""
        self.in_flight.remove(batch)
        self.put_back(batch)
        self.is_draining, self.may_pipeline = True, False
        self.retry_at_ns = max(self.retry_at_ns, retry_at_ns)

    def put_back(self, batch: ProducerBatch) -> None:
        """Insert before all batches that were closed later; it is charged already."""
        batch.is_appended, batch.uncommitted = False, None
        insort(self.waiting, batch, key=_by_number)

    def is_first_unknown(self, batch: ProducerBatch) -> bool:
        """True if the leader has all batches that were offered before this one."""
        if self.is_draining:
            return False
        for other in self.in_flight:
            if other is batch:
                return True
            if not other.is_appended:
                return False
        return False
