"""One incarnation of a box's log-writer: the shipped rules (`ReplicationState`, `truncation_offset`), and as little as possible around them.

What a producer is answered, what followers' fetches and the replica-fetcher's orders do to the log, and the roles that the controller process commands.
Owned by its box, which makes a new one for each incarnation. Weak spot: the real log-writer's rings, rows and flushes are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import Offset
from appliance.ipc.descriptors import DescriptorKind, TruncateOrder, Truncation
from appliance.storage import leader_epoch_cache
from services.log_writer.replicas.replication_state import IsrProposal, ReplicationState
from tests.simulation.invariants import Invariants
from tests.simulation.records import MemoryLog, Record
from tests.simulation.world import MS, SECOND, World

LAG = 1 * SECOND
TICK = 125 * MS
NONE, LEADER, FOLLOWER = range(3)
Answer = Callable[[int, int], None]
"""(error code, offset)"""


class Writer:
    def __init__(self, world: World, broker_id: int, log: MemoryLog, high_watermark: int, needs_epoch_bump: bool, min_insync: int, watched: Invariants) -> None:
        self._world, self._watched = world, watched
        self.broker_id = broker_id
        self.log = log
        self.needs_epoch_bump = needs_epoch_bump
        self.is_alive = True
        self.role = NONE
        self.leader_epoch = -1
        self.high_watermark = max(log.start_offset, min(high_watermark, log.end_offset))
        self.checkpoint = self.high_watermark
        self._rules = ReplicationState(broker_id, LAG, min_insync)
        self.progress: ReplicationState | None = None
        """`_rules`, while we lead."""
        self._waiting: list[tuple[int, Answer]] = []
        """Of acks=all: (end offset, how to answer), in order."""
        self.on_wish: Callable[[IsrProposal], None] = lambda _: None
        self.on_change: Callable[[], None] = lambda: None
        """The row has changed: acceptors look."""
        world.after(TICK, self._tick)

    def die(self) -> None:
        self.is_alive = False

    def serve_again(self, role: int, leader_epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...]) -> None:
        """As the incarnation before did, in the same boot: the image still says so. Its in-sync set
        may be outdated.
        """
        if role == LEADER:
            self._lead({"leader_epoch": leader_epoch, "isr": isr, "replicas": replicas, "partition_epoch": -1})
        elif role == FOLLOWER:
            self._follow({"leader_epoch": leader_epoch})

    # --- commands of the controller process

    def command(self, kind: DescriptorKind, payload: dict[str, Any]) -> int:
        if kind == DescriptorKind.BECOME_LEADER:
            return self._lead(payload)
        if kind == DescriptorKind.BECOME_FOLLOWER:
            return self._follow(payload)
        if kind == DescriptorKind.ISR:
            return self._apply_isr(payload)
        return ErrorCode.NONE

    def _lead(self, payload: dict[str, Any]) -> int:
        leader_epoch = payload["leader_epoch"]
        latest = max(self.leader_epoch, self.log.epochs.latest)
        if leader_epoch < latest or (self.needs_epoch_bump and leader_epoch == latest) or (leader_epoch == self.leader_epoch and self.role == FOLLOWER):
            return ErrorCode.FENCED_LEADER_EPOCH
        isr, replicas, partition_epoch, now = tuple(payload["isr"]), tuple(payload["replicas"]), payload["partition_epoch"], self._world.now
        log = self.log
        is_new = leader_epoch > self.leader_epoch or self.role != LEADER
        if is_new:
            self.needs_epoch_bump = False
            log.epochs.assign(leader_epoch, Offset(log.end_offset))
            self._fail_waiting()
            self.role, self.leader_epoch = LEADER, leader_epoch
            self.progress = self._rules
            self._watched.on_lead(self.broker_id, leader_epoch, log, self.high_watermark)
        assert self.progress is not None
        self.progress.on_become_leader(
            leader_epoch, isr, replicas, partition_epoch, Offset(log.start_offset), Offset(log.end_offset), Offset(self.high_watermark), now
        )
        self._publish()
        return ErrorCode.NONE

    def _follow(self, payload: dict[str, Any]) -> int:
        leader_epoch = payload["leader_epoch"]
        if leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch > self.leader_epoch or self.role != FOLLOWER:
            self._fail_waiting()
            self.role, self.leader_epoch, self.progress = FOLLOWER, leader_epoch, None
        self.on_change()
        return ErrorCode.NONE

    def _apply_isr(self, payload: dict[str, Any]) -> int:
        if self.role != LEADER or payload["leader_epoch"] != self.leader_epoch or self.progress is None:
            return ErrorCode.FENCED_LEADER_EPOCH
        self.progress.on_isr(payload["isr"], payload["partition_epoch"], self._world.now, payload.get("change", -1))
        self._publish()
        return ErrorCode.NONE

    # --- producers

    def produce(self, producer: int, sequence: int, value: int, acks_all: bool, answer: Answer) -> None:
        progress, log = self.progress, self.log
        if self.role != LEADER or progress is None:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        if acks_all and not progress.has_enough_replicas:
            answer(ErrorCode.NOT_ENOUGH_REPLICAS, -1)
            return
        offset = -1
        if producer >= 0:
            # Any first sequence of an unknown producer is accepted.
            last_sequence, last_offset = log.sequences.get(producer, (sequence - 1, -1))
            if sequence == last_sequence:
                offset = last_offset
            elif sequence != last_sequence + 1:
                answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
                return
        if offset < 0:
            record = Record(self.leader_epoch, producer, sequence, value)
            offset = log.append(record)
            self._watched.on_append(self.broker_id, offset, record, log, is_leader=True)
            progress.on_append(Offset(log.end_offset), self._world.now)
        if acks_all and offset >= self.high_watermark:
            self._waiting.append((offset + 1, answer))
        else:
            answer(ErrorCode.NONE, offset)
        self._publish()

    def delete_before(self, offset: int) -> None:
        """DeleteRecords, or retention."""
        if self.role == LEADER and self.progress is not None and self.log.start_offset < offset <= self.high_watermark:
            self.log.advance_start(offset)
            self.progress.log_start_offset = Offset(self.log.start_offset)
            self.on_change()

    # --- followers and the replica-fetcher

    def apply_progress(self, leader_epoch: int, replica: int, fetch_offset: int, received: int, broker_epoch: int, log_start: int) -> None:
        if self.is_alive and self.role == LEADER and leader_epoch == self.leader_epoch and self.progress is not None:
            self.progress.on_progress(replica, Offset(fetch_offset), received, broker_epoch, Offset(log_start))
            self._publish()

    def append_as_follower(self, leader_epoch: int, base_offset: int, records: list[Record], high_watermark: int, log_start: int) -> int:
        if self.role != FOLLOWER or leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        log = self.log
        if records and base_offset != log.end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        for record in records:
            if record.leader_epoch < log.epochs.latest:
                return ErrorCode.CORRUPT_MESSAGE
            self._watched.on_append(self.broker_id, log.append(record), record, log, is_leader=False)
        self._raise_high_watermark(min(log.end_offset, high_watermark))
        log.advance_start(min(log_start, self.high_watermark))
        self.on_change()
        return ErrorCode.NONE

    def truncate(self, leader_epoch: int, order: TruncateOrder) -> int:
        if self.role != FOLLOWER or leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        log = self.log
        if order.kind == Truncation.TELL:
            return ErrorCode.NONE
        if order.kind == Truncation.START_AT:
            log.start_at(order.offset)
            self.high_watermark = order.offset
        else:
            offset = order.offset
            if order.kind == Truncation.DIVERGED:
                offset = leader_epoch_cache.truncation_offset(order.leader_epoch, order.offset, log.epochs.end_offset_for, Offset(log.end_offset))
            if offset < self.high_watermark:
                self._watched.on_cut_below_high_watermark(self.broker_id, offset, self.high_watermark)
            self._world.note(f"box {self.broker_id}: cuts its log from {log.end_offset} to {offset}")
            log.truncate_to(offset)
            self.high_watermark = min(self.high_watermark, log.end_offset)
        self.checkpoint = min(self.checkpoint, self.high_watermark)
        self.on_change()
        return ErrorCode.NONE

    # --- what follows

    def _tick(self) -> None:
        if not self.is_alive:
            return
        self.checkpoint = self.high_watermark
        if self.progress is not None and self.role == LEADER and self.progress.tick(self._world.now):
            self._publish()
        self._world.after(TICK, self._tick)

    def _publish(self) -> None:
        progress = self.progress
        if progress is None:
            return
        self._raise_high_watermark(progress.high_watermark)
        while self._waiting and self._waiting[0][0] <= self.high_watermark:
            end_offset, answer = self._waiting.pop(0)
            answer(ErrorCode.NONE if progress.has_enough_replicas else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, end_offset - 1)
        wish = progress.take_proposal(self._world.now)
        if wish is not None:
            self._world.note(f"box {self.broker_id}: requests the ISR {wish.isr}, from {progress.isr} ({wish.partition_epoch})")
            self.on_wish(wish)
        self.on_change()

    def _raise_high_watermark(self, offset: int) -> None:
        if offset != self.high_watermark and (offset > self.high_watermark or self.role == LEADER):
            before, self.high_watermark = self.high_watermark, offset
            self._watched.on_high_watermark(self.broker_id, self.leader_epoch, self.role == LEADER, before, offset, self.log)

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
