"""Partition queues: batches waiting and in flight, and their idempotent producer.

Owned by `BatchSender`; no socket, no shared memory, no clock.

* Batches leave in the order in which they were closed, at most `IN_FLIGHT_MAX` at a time: a log
  remembers that many batches of a producer, so a batch that is offered again is recognised
  (KIP-98).
* The first batch under a leader is alone in flight. A log that does not know the producer takes any
  sequence; if the second batch arrived first, the first one would look like an old duplicate.
* After one batch is returned, nothing is offered until all are back, so that they are offered again
  in order.
* Each queue gets a producer id from a block that the controller leases. Without one it waits. If
  the controller has none for `PATIENCE_NS` (ZooKeeper is away when ingest starts), lines without an
  identity are sent without a producer, at least once: a repeat of them could not be recognised
  anyway.

Weak: a batch that is refused for good costs the producer an epoch, and what is in flight is offered
again after that. Producer ids are never returned; queues of topics that are no longer written stay,
1 KB each.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import Protocol

from appliance.base.model import NO_PRODUCER_ID, ProducerId
from appliance.records.batch import as_produced, stamp_producer
from appliance.shm.counters import Counters
from services.ingest.producer.partition_leaders import Key, LeaderLocation, PartitionLeaders
from services.ingest.producer.producer_batch import ProducerBatch

IN_FLIGHT_MAX = 5
_SEQUENCES = 1 << 31
_EPOCH_MAX = 32_767
_by_number = attrgetter("number")


class PartitionQueue:
    """Batches in order: `in_flight`, then `waiting`, then `overflow` (`ingest_spooling`)."""

    __slots__ = (
        "charged", "in_flight", "is_draining", "is_unresolved", "leader", "location",
        "may_pipeline", "needs_epoch_bump", "next_sequence", "offered_to", "overflow", "partition",
        "producer_epoch", "producer_id", "retry_at_ns", "topic", "waiting",
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
        self.producer_id, self.producer_epoch = NO_PRODUCER_ID, -1
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
        # While batches are with one leader, none goes to another. A leader that does not know the
        # producer takes any sequence, and earlier batches would then look like duplicates.
        if self.is_draining or not self.may_pipeline or self.offered_to != leader:
            return 0
        return IN_FLIGHT_MAX - len(self.in_flight)

    # -- the producer

    def begin_producer(self, producer_id: ProducerId) -> None:
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


PATIENCE_NS = 2_000_000_000


class ProducerIdSource(Protocol):
    """`ipc.producer_id_leases.ProducerIdLeases`, as far as it is needed."""

    def next(self) -> ProducerId | None: ...


class IngestProducers:
    """Assigns producer ids to queues: call `is_ready` before each offer."""

    def __init__(self, ids: ProducerIdSource, now_ns: int) -> None:
        self._ids = ids
        self._patient_until_ns = now_ns + PATIENCE_NS

    def is_ready(self, queue: PartitionQueue, now_ns: int) -> bool:
        """True if the queue's first waiting batch may be stamped.

        Assigns a producer id, or bumps the epoch, when nothing is in flight: a log would see
        batches of the old epoch after those of the new one and refuse them.
        """
        if queue.producer_id >= 0 and not queue.needs_epoch_bump:
            return True
        if queue.in_flight:
            return not queue.needs_epoch_bump
        if queue.needs_epoch_bump and queue.producer_id >= 0 and queue.bump_epoch():
            return True
        producer_id = self._ids.next()
        if producer_id is not None:
            queue.begin_producer(producer_id)
            return True
        return now_ns >= self._patient_until_ns and not queue.waiting[0].parts and queue.producer_id < 0


class PartitionQueues:
    """All queues by partition; `waiting` are those with batches to offer."""

    def __init__(self, leaders: PartitionLeaders, counters: Counters) -> None:
        self.by_key: dict[Key, PartitionQueue] = {}
        self.waiting: dict[PartitionQueue, None] = {}
        self.in_flight = 0
        self._leaders = leaders
        self._moved = counters.counter("ingest.moved")

    def of(self, batch: ProducerBatch) -> PartitionQueue:
        """Return the queue of a batch's partition."""
        key = (batch.topic, batch.partition)
        queue = self.by_key.get(key)
        if queue is None:
            queue = self.by_key[key] = PartitionQueue(*key)
            self._relocate(queue)
        return queue

    def _relocate(self, queue: PartitionQueue) -> None:
        """Update leader and location of a queue, and move its charge."""
        queue.leader, location = self._leaders.leader_and_location((queue.topic, queue.partition))
        if location != queue.location:
            self._leaders.move_charge(queue.location, location, queue.charged)
            queue.location = location

    def add(self, batch: ProducerBatch) -> PartitionQueue:
        """Return the queue for a batch that was just closed: another one if the partition's disk
        died meanwhile."""
        live_partition = self._leaders.live_partition((batch.topic, batch.partition))
        if live_partition != batch.partition:
            batch.partition = live_partition
            self._moved.add(batch.record_count)
        queue = self.of(batch)
        self.waiting[queue] = None
        return queue

    def charge(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Charge the batch to the location of the queue's leader."""
        queue.charged += batch.charge
        self._leaders.charge(queue.location, batch.charge)

    def on_leaders_changed(self, queue: PartitionQueue) -> None:
        """Update leader and location; redirect what waits for a dead disk or a deleted partition."""
        self._relocate(queue)
        if queue.waiting and self.is_redirected(queue):
            self.redirect_waiting(queue)

    def is_redirected(self, queue: PartitionQueue) -> bool:
        return self._leaders.live_partition((queue.topic, queue.partition)) != queue.partition

    def redirect_waiting(self, queue: PartitionQueue) -> None:
        """Move waiting batches to the partition that stands in."""
        if any(batch.base_sequence >= 0 for batch in queue.waiting):
            queue.needs_epoch_bump = True  # the log here expects their sequences, which go elsewhere
        for batch in queue.waiting:
            queue.charged -= batch.charge
            self._leaders.discharge(queue.location, batch.charge)
            batch.partition = self._leaders.live_partition((queue.topic, queue.partition))
            batch.producer_id = NO_PRODUCER_ID
            batch.producer_epoch = batch.base_sequence = -1
            self._moved.add(batch.record_count)
            other = self.of(batch)
            other.put_back(batch)
            self.charge(other, batch)
            self.waiting[other] = None
        queue.waiting.clear()
        queue.retry_at_ns = 0
        if not queue.overflow:
            self.waiting.pop(queue, None)

    def requeue(self, batch: ProducerBatch, retry_at_ns: int) -> None:
        """Take a batch back, to be offered again."""
        queue = self.of(batch)
        queue.requeue(batch, retry_at_ns)
        self.in_flight -= 1
        self.waiting[queue] = None
        if self.is_redirected(queue):
            self.redirect_waiting(queue)

    def end(self, batch: ProducerBatch) -> PartitionQueue:
        """Remove a batch that is stored or refused for good."""
        queue = self.of(batch)
        queue.remove(batch)
        self.in_flight -= 1
        self._leaders.discharge(queue.location, batch.charge)
        return queue

    def ms_to_next_try(self, now_ns: int, limit_ms: int) -> int:
        """Return the time until the first retry, at most `limit_ms`."""
        retries = [queue.retry_at_ns for queue in self.waiting if queue.retry_at_ns > now_ns]
        return max(0, min(limit_ms, (min(retries) - now_ns) // 1_000_000 + 1)) if retries else limit_ms

    def oldest_waiting_ms(self, now_ns: int) -> int:
        """Return how long the oldest waiting batch has waited."""
        closed_ns = min((queue.waiting[0].closed_ns for queue in self.waiting if queue.waiting), default=now_ns)
        return max(0, now_ns - closed_ns) // 1_000_000

    def clear(self) -> None:
        for queue in self.by_key.values():
            for batches in (queue.in_flight, queue.waiting, queue.overflow):
                batches.clear()
        self.waiting.clear()
        self.in_flight = 0
