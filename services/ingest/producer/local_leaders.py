"""The way of an ingest's batches to leaders on its own box: into the arena, through the rings to the log-writers, and then the high watermark.

Owned by the outlet. A batch that all in-sync replicas must have stays under way after its append until the high watermark in the row has passed it under an
unbroken leadership; where that breaks, it goes again under its sequence. What a log-writer holds that hangs, or that was given up, goes again from a copy, and
its slot is free when that process is done with it. Weak: rows of partitions with uncommitted batches are read every turn, 1 µs each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COMMITTED_FLAG, DescriptorKind
from appliance.shm.arena import Arena
from appliance.shm.atomic import signed
from appliance.shm.partition_table import HIGH_WATERMARK, ISR_AND_CONFIG, ROLE_AND_EPOCH, ROLE_LEADER, TornRow
from services.ingest.producer.partition_queue import PartitionQueue
from services.ingest.producer.producer_batch import NO_SLOT, ProducerBatch

_HALF = (1 << 32) - 1


class Answers(Protocol):
    """Who is told what became of a batch that was offered: the outlet."""

    def on_offering(self, batch: ProducerBatch, is_new: bool) -> None:
        """It is stamped, and will be offered now; `is_new`: under a sequence of its own."""

    def on_appended(self, batch: ProducerBatch) -> None: ...

    def on_stored(self, batch: ProducerBatch) -> None: ...

    def on_refused(self, batch: ProducerBatch, code: int) -> None: ...

    def on_unknown(self, batch: ProducerBatch) -> None:
        """Whether it is in the log nobody knows, or nobody promises: it goes again."""


class _Uncommitted(NamedTuple):
    placement: LocalReplica
    leader_epoch: int
    end_offset: int


class LocalLeaders:
    """`uncommitted` batches are those whose high watermark has to pass, by lane."""

    def __init__(
        self,
        arena: Arena,
        view: MetadataCache,
        lane_of: Callable[[ProducerBatch], PartitionQueue],
        answers: Answers,
        may_lead_alone: Callable[[LocalReplica], bool],
    ) -> None:
        self._arena = arena
        self._view = view
        self._lane_of = lane_of
        self._answers = answers
        self._may_lead_alone = may_lead_alone
        """Whether a leader that may have been deposed takes what its followers do not have yet (`cluster/lease_gate.py`)."""
        self._uncommitted: dict[PartitionQueue, None] = {}

    @property
    def waits_for_rows(self) -> bool:
        return bool(self._uncommitted)

    def serves(self, lane: PartitionQueue) -> bool:
        """Whether its log-writer takes something now."""
        return self._view.placement(lane.topic, lane.partition) is not None

    def offer(self, lane: PartitionQueue, now_ns: int) -> int:
        """Offer what waits in a lane that this box leads, as far as there is room; how many batches went."""
        placement = self._view.placement(lane.topic, lane.partition)
        if placement is None:
            return 0
        room = lane.room(now_ns, placement.proxy)
        if room <= 0:
            return 0
        try:
            words = placement.read_words()
        except TornRow:
            return 0
        if words[ROLE_AND_EPOCH] >> 32 != ROLE_LEADER:
            return 0
        sent = 0
        while sent < room and lane.waiting and self._offer(lane, lane.waiting[0], placement, words):
            sent += 1
        return sent

    def _offer(self, lane: PartitionQueue, batch: ProducerBatch, placement: LocalReplica, words: tuple[int, ...]) -> bool:
        if not batch.wants_all and not self._may_lead_alone(placement):
            return False
        arena = self._arena
        if batch.slot < 0:
            slot = arena.allocate(batch.size_bytes)
            if slot < 0:
                return False
            arena.memory[slot : slot + batch.size_bytes] = batch.data
            batch.slot = slot
            batch.data = b""
        self._answers.on_offering(batch, lane.stamp(batch, arena.memory[batch.slot : batch.slot + batch.size_bytes]))
        descriptor = (
            DescriptorKind.PRODUCE, ACKS_ALL_FLAG if batch.wants_all else 0, 0, placement.row, placement.row_generation, words[ROLE_AND_EPOCH] & _HALF,
            words[ISR_AND_CONFIG] & _HALF, batch.size_bytes, batch.slot, 0, batch.record_count, 0, 0, 0,
        )  # fmt: skip
        if not placement.proxy.offer(descriptor, batch.charge, batch):
            return False
        lane.waiting.popleft()
        lane.on_offered(batch)
        return True

    def free(self, batch: ProducerBatch) -> None:
        """It needs its slot no more."""
        if batch.slot >= 0:
            self._arena.free(batch.slot)
            batch.slot = NO_SLOT

    # -- what comes back

    def on_completion(self, batch: ProducerBatch, entry: tuple[Any, ...]) -> None:
        """The log-writer appended the batch, or refused it. Fields of `entry` as in `ipc.descriptors.Completion`."""
        if batch.is_copied:
            self.free(batch)
            return
        code = entry[2]
        if code:
            self._answers.on_refused(batch, code)
        elif entry[1] & COMMITTED_FLAG or not batch.wants_all:
            self._answers.on_stored(batch)
        else:
            lane = self._lane_of(batch)
            placement = self._view.placement(batch.topic, batch.partition)
            if placement is None:
                self._answers.on_unknown(batch)
                return
            batch.uncommitted = _Uncommitted(placement, entry[9], entry[8])
            self._uncommitted[lane] = None
            self._answers.on_appended(batch)

    def look_at_watermarks(self) -> int:
        """Whether what was appended is committed now; how many batches came to an end."""
        ended = 0
        for lane in list(self._uncommitted):
            ended += self._look_at(lane)
            if not any(batch.is_appended for batch in lane.under_way):
                self._uncommitted.pop(lane, None)
        return ended

    def _look_at(self, lane: PartitionQueue) -> int:
        ended = 0
        words: tuple[int, ...] | None = None
        for batch in [batch for batch in lane.under_way if batch.is_appended]:
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
                self._answers.on_unknown(batch)
                ended += 1
            elif signed(words[HIGH_WATERMARK]) >= end_offset and words[ISR_AND_CONFIG] >> 48 >= words[ISR_AND_CONFIG] >> 32 & 0xFFFF:
                self._answers.on_stored(batch)
                ended += 1
            else:
                break
        return ended

    def on_lost(self, batch: ProducerBatch) -> None:
        """Its log-writer died first."""
        if batch.is_copied:
            self.free(batch)
        else:
            self._answers.on_unknown(batch)

    def on_set_aside(self, batch: ProducerBatch) -> None:
        """Its log-writer may be held by its disk for long: the lines go again, from a copy; the slot is free when that process has done with it."""
        if batch.is_copied:
            return
        lane = self._lane_of(batch)
        again = batch.copy_of(batch.bytes_in(self._arena))
        lane.under_way[lane.under_way.index(batch)] = again
        batch.is_copied = True
        self._answers.on_unknown(again)

    def take_out(self, batch: ProducerBatch) -> None:
        """Its bytes out of the arena: it goes to another box, and is in nobody's hands."""
        if batch.slot >= 0:
            batch.data = batch.bytes_in(self._arena)
            self.free(batch)
