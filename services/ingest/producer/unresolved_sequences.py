"""Resolve queues whose leader does not know the expected sequence: ask the leader what it has.

Owned by `BatchSender`. A log remembers the last five batches of a producer. After a crash right
behind the roll of a segment it remembers only the last one, because its snapshot has no more. Then
a batch that the log has may be refused as out of order. If ingest believed that, it would store the
batch twice. So it asks for the producer's last sequence (`journalled_batches`).

Weak: the queue waits until its leader answers.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.cluster.metadata_image import MetadataImage
from services.ingest.producer.partition_queues import PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.replay.journal_records import JournalledBatch
from services.ingest.replay.journalled_batches import JournalledBatches, SequenceRequester


class UnresolvedSequences:
    """`on_stored(batch)`: the leader has it and it is committed. `on_lost(queue)`: the leader lacks
    batches."""

    def __init__(self, peers: SequenceRequester, on_stored: Callable[[ProducerBatch], None], on_lost: Callable[[PartitionQueue], None]) -> None:
        self._peers = peers
        self._on_stored = on_stored
        self._on_lost = on_lost
        self._unresolved: dict[PartitionQueue, JournalledBatches] = {}

    def __bool__(self) -> bool:
        return bool(self._unresolved)

    def resolve(self, queue: PartitionQueue, now_ms: int) -> None:
        """Ask the leader which of the queue's batches it has. Nothing is in flight."""
        if queue in self._unresolved:
            return
        waiting = {}
        for batch in queue.waiting:
            if batch.producer_id == queue.producer_id and batch.producer_epoch == queue.producer_epoch:
                stamped = JournalledBatch(
                    batch.topic, batch.topic_id, batch.partition, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count, ()
                )
                waiting[stamped.stamp] = (stamped, batch)

        def on_resolved(stamped: JournalledBatch, is_stored: bool) -> None:
            _, batch = waiting.pop(stamped.stamp)
            if is_stored and batch in queue.waiting:
                self._on_stored(batch)
            elif not is_stored:
                queue.needs_epoch_bump = True  # the log refuses its sequence, so all that follow need new ones
            if not waiting:
                self._end(queue)

        asked = self._unresolved[queue] = JournalledBatches(self._peers, on_resolved, now_ms)
        for stamped, _ in waiting.values():
            asked.add(stamped)
        if not waiting:
            self._end(queue)

    def _end(self, queue: PartitionQueue) -> None:
        del self._unresolved[queue]
        queue.is_unresolved = False
        if queue.needs_epoch_bump:
            self._on_lost(queue)

    def turn(self, now_ms: int, image: MetadataImage) -> int:
        return sum(asked.turn(now_ms, image) for asked in list(self._unresolved.values()))
