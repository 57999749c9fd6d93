"""Move batches of an unreachable leader to the spool, and back in order.

Owned by `BatchSender`. The overflow of a queue is on disk or, if the spool is full, in memory; it
keeps its order. Before the first batch of a queue goes to disk, all batches before it are written
there too, up to the head. So after a crash the next incarnation finds the whole queue from its head
on, and what senders repeat is queued after it. If only the tail were on disk, a repeat of a lost
head would be stored after the tail. A spooled batch remains an object here, so that its ack groups,
order and accounting work like those of any other batch.

Weak: the head of a queue, and a batch that was read back, are in memory and on disk until they are
stored. The head is written in one turn.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from appliance.senders.accounting import LossReason
from services.ingest.producer.partition_queues import IN_FLIGHT_MAX, PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.ack_group import identity_of

_by_number = attrgetter("number")


class Spool(Protocol):
    """`ingest_spool.IngestSpool`, as far as it is needed."""

    @property
    def has_space(self) -> bool: ...

    def write(self, batch: ProducerBatch, data: bytes) -> bool: ...

    def read(self, batch: ProducerBatch) -> bytes | None: ...

    def done(self, batch: ProducerBatch) -> None: ...


class IngestSpooling:
    """`put` into the overflow, `refill` from it.

    `charge(queue, batch)` charges the memory of a batch, `bytes_of` returns the bytes of a batch in
    memory, `on_lost(batch, reason)` counts its records, `on_written(batch)` is called for each batch in
    the spool, `journal(batch)` records the stamp under which it was offered.
    """

    def __init__(
        self,
        spool: Spool,
        charge: Callable[[PartitionQueue, ProducerBatch], None],
        bytes_of: Callable[[ProducerBatch], bytes],
        on_lost: Callable[[ProducerBatch, LossReason], int],
        on_written: Callable[[ProducerBatch], None],
        journal: Callable[[ProducerBatch], None],
    ) -> None:
        self._spool = spool
        self._charge = charge
        self._bytes_of = bytes_of
        self._on_lost = on_lost
        self._on_written = on_written
        self._journal = journal
        self._is_full = False
        """True from a refused write until a batch in the spool is done or no batch waits."""

    @property
    def has_space(self) -> bool:
        return not self._is_full and self._spool.has_space

    def put(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Append to the queue's overflow; return True if it is on disk, and everything before it."""
        is_written = self._is_spooled_from_head(queue) and self._write(batch)
        queue.overflow.append(batch)  # also if it is not on disk: nothing overtakes in a queue
        if is_written:
            batch.data = b""
            return True
        self._is_full = True
        self._charge(queue, batch)
        return False

    def _is_spooled_from_head(self, queue: PartitionQueue) -> bool:
        """True if the whole queue is on disk; writes what is not, as far as it fits."""
        if queue.overflow and queue.overflow[-1].is_spooled:
            return True
        return all(batch.is_spooled or self._write(batch) for batch in (*queue.in_flight, *queue.waiting, *queue.overflow))

    def _write(self, batch: ProducerBatch) -> bool:
        batch.is_spooled = self._spool.write(batch, self._bytes_of(batch))
        if batch.is_spooled:
            self._on_written(batch)
        return batch.is_spooled

    def refill(self, queue: PartitionQueue) -> None:
        """Move as many batches to `waiting` as may be in flight."""
        while queue.overflow and len(queue.waiting) < IN_FLIGHT_MAX:
            batch = queue.overflow.popleft()
            if batch.is_spooled and not batch.data:
                data = self._spool.read(batch)
                if data is None:
                    self._on_lost(batch, LossReason.DAMAGED)
                    self.done(batch)
                    continue
                batch.fill(data)
                self._charge(queue, batch)
            queue.waiting.append(batch)

    def done(self, batch: ProducerBatch) -> None:
        """The batch is stored or given up."""
        if batch.is_spooled:
            batch.is_spooled = self._is_full = False
            self._spool.done(batch)

    def on_idle(self) -> None:
        """No batch waits: try the spool again with the next one."""
        self._is_full = False

    def spool_all(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """Stop: write the queue in its order for the next incarnation; return the batches that do
        not fit."""
        batches = sorted((*queue.in_flight, *queue.waiting, *queue.overflow), key=_by_number)
        for place, batch in enumerate(batches):
            if not batch.is_spooled:
                self._give_identity(batch)
                if not self._write(batch):
                    return [left for left in batches[place:] if not left.is_spooled]
        return []

    def _give_identity(self, batch: ProducerBatch) -> None:
        """Give an identity to an offered batch that has none.

        The leader may have it. The next incarnation asks leaders only about batches with
        identities.
        """
        if batch.was_offered and batch.base_sequence >= 0 and not batch.parts:
            identity = identity_of(b"stop", b"%d %d %d" % (batch.producer_id, batch.producer_epoch, batch.base_sequence))
            batch.shares[0].parts.append((identity, 0, batch.record_count))
            self._journal(batch)
