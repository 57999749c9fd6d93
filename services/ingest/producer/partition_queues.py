"""All partition queues of an ingest; batches for a dead disk move to the next live partition.

Owned by `BatchSender`. Weak: queues of topics that are no longer written stay, 1 KB each.
"""

from __future__ import annotations

from appliance.shm.counters import Counters
from services.ingest.producer.partition_queue import PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.ingest_places import Key, PartitionLeaders


class PartitionQueues:
    """`waiting`: queues with batches to offer."""

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
            self._leaders.relocate(queue)
        return queue

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
        self._leaders.relocate(queue)
        if queue.waiting and self.is_redirected(queue):
            self.redirect_waiting(queue)

    def is_redirected(self, queue: PartitionQueue) -> bool:
        return self._leaders.live_partition((queue.topic, queue.partition)) != queue.partition

    def redirect_waiting(self, queue: PartitionQueue) -> None:
        """Move waiting batches to the partition that stands in."""
        if any(batch.base_sequence >= 0 for batch in queue.waiting):
            queue.needs_epoch_bump = True  # their sequences will never arrive here
        for batch in queue.waiting:
            queue.charged -= batch.charge
            self._leaders.discharge(queue.location, batch.charge)
            batch.partition = self._leaders.live_partition((queue.topic, queue.partition))
            batch.producer_id = batch.producer_epoch = batch.base_sequence = -1
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
