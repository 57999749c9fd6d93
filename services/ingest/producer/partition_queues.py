"""All lanes of an ingest: which there are, which have something to offer, how much is under way, and who takes over for a dead disk.

Owned by the outlet. Weak: lanes of topics that nobody writes to any more stay, 1 KB each.
"""

from __future__ import annotations

from appliance.shm.counters import Counters
from services.ingest.producer.partition_queue import PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.ingest_places import IngestPlaces, Key


class PartitionQueues:
    """`waiting` are those with batches that are not under way."""

    def __init__(self, places: IngestPlaces, counters: Counters) -> None:
        self.by_key: dict[Key, PartitionQueue] = {}
        self.waiting: dict[PartitionQueue, None] = {}
        self.under_way = 0
        self._places = places
        self._moved = counters.counter("ingest.moved")

    def of(self, batch: ProducerBatch) -> PartitionQueue:
        """The lane of a batch's partition."""
        key = (batch.topic, batch.partition)
        lane = self.by_key.get(key)
        if lane is None:
            lane = self.by_key[key] = PartitionQueue(*key)
            self._places.move(lane)
        return lane

    def enter(self, batch: ProducerBatch) -> PartitionQueue:
        """The lane of a batch that was just closed: another one, if it was open when the disk died."""
        living = self._places.living((batch.topic, batch.partition))
        if living != batch.partition:
            batch.partition = living
            self._moved.add(batch.record_count)
        lane = self.of(batch)
        self.waiting[lane] = None
        return lane

    def charge(self, lane: PartitionQueue, batch: ProducerBatch) -> None:
        """It takes memory of the lane's place."""
        lane.charged += batch.charge
        self._places.charge(lane.place, batch.charge)

    def look_at(self, lane: PartitionQueue) -> None:
        """Leader, place and disk may be others. What waits for a dead disk, or a partition that is no more, is partitioned anew."""
        self._places.move(lane)
        if lane.waiting and self.is_stood_in_for(lane):
            self.move_waiting(lane)

    def is_stood_in_for(self, lane: PartitionQueue) -> bool:
        return self._places.living((lane.topic, lane.partition)) != lane.partition

    def move_waiting(self, lane: PartitionQueue) -> None:
        """What waits in it, to the partition that stands in."""
        if any(batch.base_sequence >= 0 for batch in lane.waiting):
            lane.wants_epoch = True  # their sequences are a gap for what follows here
        for batch in lane.waiting:
            lane.charged -= batch.charge
            self._places.discharge(lane.place, batch.charge)
            batch.partition = self._places.living((lane.topic, lane.partition))
            batch.producer_id = batch.producer_epoch = batch.base_sequence = -1
            self._moved.add(batch.record_count)
            other = self.of(batch)
            other.put_back(batch)
            self.charge(other, batch)
            self.waiting[other] = None
        lane.waiting.clear()
        lane.retry_at_ns = 0
        if not lane.behind:
            self.waiting.pop(lane, None)

    def come_back(self, batch: ProducerBatch, retry_at_ns: int) -> None:
        """It goes again."""
        lane = self.of(batch)
        lane.come_back(batch, retry_at_ns)
        self.under_way -= 1
        self.waiting[lane] = None
        if self.is_stood_in_for(lane):
            self.move_waiting(lane)

    def end(self, batch: ProducerBatch) -> PartitionQueue:
        """It is stored, or refused for good."""
        lane = self.of(batch)
        lane.on_gone(batch)
        self.under_way -= 1
        self._places.discharge(lane.place, batch.charge)
        return lane

    def ms_to_next_try(self, now_ns: int, limit_ms: int) -> int:
        """How long a wait may be, at most `limit_ms`."""
        retries = [lane.retry_at_ns for lane in self.waiting if lane.retry_at_ns > now_ns]
        return max(0, min(limit_ms, (min(retries) - now_ns) // 1_000_000 + 1)) if retries else limit_ms

    def oldest_waiting_ms(self, now_ns: int) -> int:
        """How long the oldest batch that waits has waited."""
        closed_ns = min((lane.waiting[0].closed_ns for lane in self.waiting if lane.waiting), default=now_ns)
        return max(0, now_ns - closed_ns) // 1_000_000

    def clear(self) -> None:
        """The process ends."""
        for lane in self.by_key.values():
            for batches in (lane.under_way, lane.waiting, lane.behind):
                batches.clear()
        self.waiting.clear()
        self.under_way = 0
