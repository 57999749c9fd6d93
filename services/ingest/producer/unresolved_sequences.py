"""Lanes whose leader does not know a sequence that is due: asks it what it has, before anything is believed to be lost, and stored again.

Owned by the outlet. A log remembers the last five batches of a producer, but only the last one over a crash that comes right behind the roll of a segment (its
snapshot has no more): then a batch that it has may look as if it came too late. So the leader is asked for the producer's last sequence
(`journalled_batches`). Weak: while a leader does not answer the lane waits.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.cluster.metadata_image import MetadataImage
from services.ingest.producer.partition_queue import PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.replay.journal_records import JournalledBatch
from services.ingest.replay.journalled_batches import JournalledBatches, SequenceRequester


class UnresolvedSequences:
    """`on_stored(batch)` for what a leader has, and has committed; `on_lost(lane)` when it lacks what follows."""

    def __init__(self, peers: SequenceRequester, on_stored: Callable[[ProducerBatch], None], on_lost: Callable[[PartitionQueue], None]) -> None:
        self._peers = peers
        self._on_stored = on_stored
        self._on_lost = on_lost
        self._asked: dict[PartitionQueue, JournalledBatches] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, lane: PartitionQueue, now_ms: int) -> None:
        """What of the lane's batches does its leader have? Nothing is under way."""
        if lane in self._asked:
            return
        waiting = {}
        for batch in lane.waiting:
            if batch.producer_id == lane.producer_id and batch.producer_epoch == lane.producer_epoch:
                stamped = JournalledBatch(
                    batch.topic, batch.topic_id, batch.partition, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count, ()
                )
                waiting[stamped.stamp] = (stamped, batch)

        def on_resolved(stamped: JournalledBatch, is_stored: bool) -> None:
            _, batch = waiting.pop(stamped.stamp)
            if is_stored and batch in lane.waiting:
                self._on_stored(batch)
            elif not is_stored:
                lane.wants_epoch = True
            if not waiting:
                self._end(lane)

        asked = self._asked[lane] = JournalledBatches(self._peers, on_resolved, now_ms)
        for stamped, _ in waiting.values():
            asked.add(stamped)
        if not waiting:
            self._end(lane)

    def _end(self, lane: PartitionQueue) -> None:
        del self._asked[lane]
        lane.is_doubtful = False
        if lane.wants_epoch:
            self._on_lost(lane)

    def turn(self, now_ms: int, image: MetadataImage) -> int:
        return sum(asked.turn(now_ms, image) for asked in list(self._asked.values()))
