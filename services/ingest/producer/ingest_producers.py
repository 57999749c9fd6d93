"""Give each partition queue a producer id, from a block that the controller leases.

Owned by `BatchSender`. A queue without a producer id waits. If the controller has none for
`PATIENCE_NS` (ZooKeeper is away when ingest starts), lines without an identity are sent without a
producer, at least once: a repeat of them could not be recognised anyway.

Weak: ids are never returned; an incarnation uses one for each partition that it writes to.
"""

from __future__ import annotations

from typing import Protocol

from services.ingest.producer.partition_queue import PartitionQueue

PATIENCE_NS = 2_000_000_000


class ProducerIdSource(Protocol):
    """`ipc.producer_id_leases.ProducerIdLeases`, as far as it is needed."""

    def next(self) -> int | None: ...


class IngestProducers:
    """Call `is_ready` before each offer."""

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
