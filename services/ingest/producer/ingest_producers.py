"""Producer ids for the lanes of an ingest: one for each partition and life, out of a block that the controller leases.

Owned by the outlet. Without an id a lane waits; after `PATIENCE_NS` (ZooKeeper is away while we start) lines that nobody would recognise anyway go without one,
and at-least-once is all that they get, until there is a block. Weak: an id is never given back; a life uses one for each partition that it writes to.
"""

from __future__ import annotations

from typing import Protocol

from services.ingest.producer.partition_queue import PartitionQueue

PATIENCE_NS = 2_000_000_000


class ProducerIdSource(Protocol):
    """`ProducerIdLeases`."""

    def next(self) -> int | None: ...


class IngestProducers:
    """`is_ready` before each offer."""

    def __init__(self, ids: ProducerIdSource, now_ns: int) -> None:
        self._ids = ids
        self._patient_until_ns = now_ns + PATIENCE_NS

    def is_ready(self, lane: PartitionQueue, now_ns: int) -> bool:
        """Whether the lane's first waiting batch may be stamped; gives it a producer, or a new epoch, when it is time: when nothing is under way."""
        if lane.producer_id >= 0 and not lane.wants_epoch:
            return True
        if lane.under_way:
            return not lane.wants_epoch
        if lane.wants_epoch and lane.producer_id >= 0 and lane.raise_epoch():
            return True
        producer_id = self._ids.next()
        if producer_id is not None:
            lane.begin_producer(producer_id)
            return True
        return now_ns >= self._patient_until_ns and not lane.waiting[0].parts and lane.producer_id < 0
