"""Offer batches to leaders on this box: arena, rings of the log-writers, then the high watermark.

Owned by `BatchSender`. A batch with acks=all stays in flight after its append until the high
watermark in the partition's row has passed it under the same leadership. If the leadership changed,
the append may have been truncated, so the batch is offered again under its sequence. What a hung or
detached log-writer holds is offered again from a copy: that process may still read the slot, which
is freed when it is done.

Weak: rows of partitions with uncommitted batches are read every turn, 1 µs each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from appliance.base.model import LeaderEpoch
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COMMITTED_FLAG, DescriptorKind
from appliance.shm.arena import Arena
from appliance.shm.mapping import signed
from appliance.shm.partition_table import HIGH_WATERMARK, ISR_AND_CONFIG, ROLE_AND_EPOCH, ROLE_LEADER, TornRow
from services.ingest.producer.partition_queues import PartitionQueue
from services.ingest.producer.producer_batch import NO_SLOT, ProducerBatch

_HALF = (1 << 32) - 1


class Answers(Protocol):
    """Receives the result of each offered batch (`BatchAnswers`)."""

    def on_offering(self, batch: ProducerBatch, is_new: bool) -> None:
        """The batch is stamped and is offered next; `is_new` if it has a new sequence."""

    def on_appended(self, batch: ProducerBatch) -> None: ...

    def on_stored(self, batch: ProducerBatch) -> None: ...

    def on_refused(self, batch: ProducerBatch, code: int) -> None: ...

    def on_unknown(self, batch: ProducerBatch) -> None:
        """The result is unknown (a lost log-writer or request, a changed leader): the batch is
        offered again."""


class _Uncommitted(NamedTuple):
    placement: LocalReplica
    leader_epoch: LeaderEpoch
    end_offset: int


class LocalLeaders:
    """One per ingest."""

    def __init__(
        self,
        arena: Arena,
        view: MetadataCache,
        queue_of: Callable[[ProducerBatch], PartitionQueue],
        answers: Answers,
        may_be_replaced: Callable[[LocalReplica], bool],
    ) -> None:
        self._arena = arena
        self._view = view
        self._queue_of = queue_of
        self._answers = answers
        self._may_be_replaced = may_be_replaced
        """True if another box may lead the partition without this one knowing it
        (`cluster/lease_gate.py`)."""
        self._uncommitted: dict[PartitionQueue, None] = {}
        self._unleased: dict[PartitionQueue, None] = {}
        """Queues with batches that were offered without a lease."""

    @property
    def waits_for_rows(self) -> bool:
        return bool(self._uncommitted)

    def serves(self, queue: PartitionQueue) -> bool:
        """True if the partition has a row and its log-writer serves."""
        return self._view.placement(queue.topic, queue.partition) is not None

    def offer(self, queue: PartitionQueue, now_ns: int) -> int:
        """Offer waiting batches of a queue that this box leads; return the number of batches."""
        placement = self._view.placement(queue.topic, queue.partition)
        if placement is None:
            return 0
        capacity = queue.capacity(now_ns, placement.proxy)
        if capacity <= 0:
            return 0
        try:
            words = placement.read_words()
        except TornRow:
            return 0
        if words[ROLE_AND_EPOCH] >> 32 != ROLE_LEADER:
            return 0
        sent = 0
        while sent < capacity and queue.waiting and self._offer(queue, queue.waiting[0], placement, words):
            sent += 1
        return sent

    def _offer(self, queue: PartitionQueue, batch: ProducerBatch, placement: LocalReplica, words: tuple[int, ...]) -> bool:
        if self._may_be_replaced(placement):  # it would truncate what only it has, after the sender was answered
            batch.wants_all, batch.was_leased = True, False
            self._unleased[queue] = None
        elif not batch.was_leased:
            batch.restore_acks()
        arena = self._arena
        if batch.slot < 0:
            slot = arena.allocate(batch.size_bytes)
            if slot < 0:
                return False
            arena.memory[slot : slot + batch.size_bytes] = batch.data
            batch.slot = slot
            batch.data = b""
        # Stamped in the arena: the log-writer writes these bytes, so a batch that is offered again must
        # have the same sequence there, or the log would store it twice.
        self._answers.on_offering(batch, queue.stamp(batch, arena.memory[batch.slot : batch.slot + batch.size_bytes]))
        descriptor = (
            DescriptorKind.PRODUCE, ACKS_ALL_FLAG if batch.wants_all else 0, 0, placement.row, placement.row_generation, words[ROLE_AND_EPOCH] & _HALF,
            words[ISR_AND_CONFIG] & _HALF, batch.size_bytes, batch.slot, 0, batch.record_count, 0, 0, 0,
        )  # fmt: skip
        if not placement.proxy.offer(descriptor, batch.charge, batch):
            return False
        queue.waiting.popleft()
        queue.on_offered(batch)
        return True

    def free(self, batch: ProducerBatch) -> None:
        """Free the batch's slot in the arena."""
        if batch.slot >= 0:
            self._arena.free(batch.slot)
            batch.slot = NO_SLOT

    # -- what comes back

    def on_completion(self, batch: ProducerBatch, entry: tuple[Any, ...]) -> None:
        """Handle a completion; fields of `entry` as in `ipc.descriptors.Completion`."""
        if batch.is_replaced:
            self.free(batch)
            return
        code = entry[2]
        if code:
            self._answers.on_refused(batch, code)
        elif entry[1] & COMMITTED_FLAG or not batch.wants_all:
            self._answers.on_stored(batch)
        else:
            queue = self._queue_of(batch)
            placement = self._view.placement(batch.topic, batch.partition)
            if placement is None:
                self._answers.on_unknown(batch)
                return
            batch.uncommitted = _Uncommitted(placement, entry[9], entry[8])
            self._uncommitted[queue] = None
            self._answers.on_appended(batch)

    def check_high_watermarks(self) -> int:
        """Complete appended batches that the high watermark has passed; return the number of
        batches."""
        ended = 0
        for queue in list(self._unleased):
            self._check_lease(queue)
        for queue in list(self._uncommitted):
            ended += self._check_high_watermark(queue)
            if not any(batch.is_appended for batch in queue.in_flight):
                self._uncommitted.pop(queue, None)
        return ended

    def _check_lease(self, queue: PartitionQueue) -> None:
        """If the lease holds again, complete the shares that need only the leader's append."""
        for batch in [batch for batch in queue.in_flight if batch.is_appended and not batch.was_leased]:
            uncommitted = batch.uncommitted
            if not isinstance(uncommitted, _Uncommitted) or self._may_be_replaced(uncommitted.placement):
                continue
            placement, leader_epoch, _ = uncommitted
            try:
                is_led = placement.proxy.serving and placement.proxy.table is placement.table and placement.leads_on(leader_epoch, placement.read_words())
            except TornRow:
                continue
            if is_led:
                batch.restore_acks()
                self._answers.on_appended(batch)
        if all(batch.was_leased for batch in (*queue.in_flight, *queue.waiting)):
            del self._unleased[queue]

    def _check_high_watermark(self, queue: PartitionQueue) -> int:
        ended = 0
        words: tuple[int, ...] | None = None
        for batch in [batch for batch in queue.in_flight if batch.is_appended]:
            uncommitted = batch.uncommitted
            if not isinstance(uncommitted, _Uncommitted):
                continue
            placement, leader_epoch, end_offset = uncommitted
            is_led = placement.proxy.serving and placement.proxy.table is placement.table
            if is_led:
                try:
                    words = words or placement.read_words()
                except TornRow:
                    break
                is_led = placement.leads_on(leader_epoch, words)
            if not is_led or words is None:
                # Another leader may have truncated the append: offered again, the log decides by its sequence.
                self._answers.on_unknown(batch)
                ended += 1
            # As for a produce with acks=all: committed, and with enough replicas in sync (min.insync.replicas).
            elif signed(words[HIGH_WATERMARK]) >= end_offset and words[ISR_AND_CONFIG] >> 48 >= words[ISR_AND_CONFIG] >> 32 & 0xFFFF:
                self._answers.on_stored(batch)
                ended += 1
            else:
                break
        return ended

    def on_lost(self, batch: ProducerBatch) -> None:
        """The log-writer died before it completed the batch."""
        if batch.is_replaced:
            self.free(batch)
        else:
            self._answers.on_unknown(batch)

    def on_detached(self, batch: ProducerBatch) -> None:
        """Offer a copy: a hung disk may hold the log-writer for long. The slot stays taken until
        that process is done with it."""
        if batch.is_replaced:
            return
        queue = self._queue_of(batch)
        again = batch.copy_of(batch.bytes_in(self._arena))
        queue.in_flight[queue.in_flight.index(batch)] = again
        batch.is_replaced = True
        self._answers.on_unknown(again)

    def copy_out(self, batch: ProducerBatch) -> None:
        """Copy the bytes out of the arena, because another box leads."""
        if batch.slot >= 0:
            batch.data = batch.bytes_in(self._arena)
            self.free(batch)
