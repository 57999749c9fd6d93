"""Where the batches of an ingest go: into the arena, through the rings to the log-writers that lead, again if need be, until they are stored.

Owned by one ingest agent. Each partition has one queue in the order in which its batches were closed; what failed in a way that may
heal, or was under way when a log-writer died, goes back to its place and is offered again (`ingest.resent`). Batches are charged to the disk
of their partition from the moment they are closed; a disk beyond its budget blocks its partitions (`blocked`), and no others. While a
disk is dead (`dead_disks`), the next partition whose disk lives takes the lines of its partitions, and what waits for it moves there.
Weak: when one batch of several under way is refused and a later one is not, they are stored out of order; and at-least-once is
the promise: a batch that a dying log-writer had appended without saying so is appended again. The order of a key's lines holds within a
partition: when its disk dies or comes back, lines before and after are in two partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.broker.box_view import BoxView, Placement
from appliance.ingest.accounting import COUNTED_COUNTER, RESENT_COUNTER, STORED_COUNTER, LossReason
from appliance.ingest.batcher import ReadyBatch
from appliance.ingest.partitioner import stand_in
from appliance.ipc.descriptors import DescriptorKind
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ISR_AND_CONFIG, ROLE_AND_EPOCH, ROLE_LEADER, TornRow

RETRY_NS = 50_000_000
UNBLOCK_SHARE = 0.75
"""A blocked disk takes lines again when it is down to this share of its budget, so that senders are not stopped and started with every batch."""

RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
_HALF = (1 << 32) - 1
_NO_SLOT = -1


class OutgoingBatch:
    """One batch on its way. Its bytes are in the arena (`slot`), or in `data` while the arena has no room."""

    __slots__ = ("charge", "closed_ns", "data", "disk", "is_copied", "partition", "record_count", "sequence", "size_bytes", "slot", "was_offered")

    def __init__(self, ready: ReadyBatch, sequence: int, closed_ns: int) -> None:
        self.partition, self.data, self.record_count = ready
        self.closed_ns = closed_ns
        self.sequence = sequence
        self.size_bytes = len(ready.data)
        self.charge = Arena.rounded_size(self.size_bytes)
        self.slot = _NO_SLOT
        self.disk = ""
        self.was_offered = False
        self.is_copied = False
        """Another batch with the same lines has taken its place: what is left of it is its slot."""


class IngestOutlet:
    """The queues of one topic's partitions and what is under way."""

    def __init__(
        self,
        topic: str,
        arena: Arena,
        view: BoxView,
        budget_bytes: int,
        clock: Clock,
        counters: Counters,
        log: Logger,
        on_blocked: Callable[[frozenset[int]], None],
    ) -> None:
        self._topic = topic
        self._arena = arena
        self._view = view
        self._budget_bytes = budget_bytes
        self._clock = clock
        self._log = log
        self._on_blocked = on_blocked
        self._disks: list[str] = []
        self._dead_disks: frozenset[str] = frozenset()
        self._led_elsewhere: frozenset[int] = frozenset()
        self.dead: frozenset[int] = frozenset()
        """Partitions whose disk is dead, or that another box leads, while there are others."""
        self._charged: dict[str, int] = {}
        self._over_budget: set[str] = set()
        self._waiting: dict[int, deque[OutgoingBatch]] = {}
        self._retry_at_ns: dict[int, int] = {}
        self._under_way: set[OutgoingBatch] = set()
        self._next_sequence = 0
        self.blocked: frozenset[int] = frozenset()
        self._stored = counters.counter(STORED_COUNTER)
        self._resent = counters.counter(RESENT_COUNTER)
        self._moved = counters.counter("ingest.moved")
        self._refused = counters.counter(COUNTED_COUNTER.format(reason=LossReason.REFUSED))
        self._shutdown = counters.counter(COUNTED_COUNTER.format(reason=LossReason.SHUTDOWN))
        self._batches = counters.counter("ingest.batches")
        self._batch_bytes = counters.counter("ingest.batch_bytes")
        self._latency = counters.histogram("ingest.batch_us")
        self._blockings = counters.counter("ingest.disk_over_budget")
        self._led = counters.counter("ingest.partitions_led")
        self._refusals_logged: set[int] = set()

    @property
    def is_empty(self) -> bool:
        return not self._under_way and not self._waiting

    @property
    def waits(self) -> bool:
        """Whether batches wait to be offered (their log-writer is away, its ring is full, or it is too early to try again)."""
        return bool(self._waiting)

    def describe(self) -> str:
        waiting = sum(len(queue) for queue in self._waiting.values())
        return f"{len(self._under_way)} batches under way, {waiting} waiting"

    # -- in

    def set_partitions(self, disks: list[str], led_elsewhere: frozenset[int] = frozenset()) -> None:
        """The topic's partitions by the disks that hold them on this box ("" elsewhere or unknown), and those that other boxes lead. Fewer than before: the
        topic was made anew."""
        self._disks = disks
        self._led_elsewhere = led_elsewhere
        self._led.set(len(disks) - len(led_elsewhere))
        for partition in [partition for partition in self._waiting if partition >= len(disks)]:
            self._retry_at_ns.pop(partition, None)
            for batch in self._waiting.pop(partition):
                batch.partition = partition % len(disks)
                self._put_back(batch)
        self._look_at_disks()

    def set_dead_disks(self, disks: frozenset[str]) -> None:
        """Which disks are dead now. What waits for them is partitioned anew; what is under way comes back and is then."""
        self._dead_disks = disks
        self._look_at_disks()

    def _look_at_disks(self) -> None:
        dead = self._led_elsewhere | {partition for partition, disk in enumerate(self._disks) if disk in self._dead_disks}
        self.dead = dead if len(dead) < len(self._disks) else frozenset()  # nobody to stand in: lines wait, as for one that is slow
        for partition in [partition for partition in self._waiting if partition in self.dead]:
            self._retry_at_ns.pop(partition, None)
            for batch in self._waiting.pop(partition):
                self._put_back(batch)
        self._look_at_budgets()

    def put(self, batches: list[ReadyBatch]) -> None:
        """Take closed batches; they are offered at once if nothing of their partition waits."""
        for ready in batches:
            batch = OutgoingBatch(ready, self._next_sequence, self._clock.monotonic_ns())
            if batch.partition in self.dead:  # it was open when the disk died
                batch.partition = stand_in(batch.partition, len(self._disks), self.dead)
                self._moved.add(batch.record_count)
            self._next_sequence += 1
            self._batches.add()
            self._batch_bytes.add(batch.size_bytes)
            self._charge(batch)
            queue = self._waiting.setdefault(batch.partition, deque())
            queue.append(batch)
            if len(queue) == 1 and not self._retry_at_ns.get(batch.partition, 0):
                self._offer_waiting(batch.partition, queue)

    def _charge(self, batch: OutgoingBatch) -> None:
        batch.disk = self._disks[batch.partition] if batch.partition < len(self._disks) else ""
        charged = self._charged[batch.disk] = self._charged.get(batch.disk, 0) + batch.charge
        if charged >= self._budget_bytes and batch.disk not in self._over_budget:
            self._blockings.add()
            self._look_at_budgets()

    def _discharge(self, batch: OutgoingBatch) -> None:
        if batch.slot >= 0:
            self._arena.free(batch.slot)
            batch.slot = _NO_SLOT
        self._charged[batch.disk] -= batch.charge
        if batch.disk in self._over_budget and self._charged[batch.disk] <= self._budget_bytes * UNBLOCK_SHARE:
            self._look_at_budgets()

    def _look_at_budgets(self) -> None:
        for disk, charged in self._charged.items():
            if charged >= self._budget_bytes:
                self._over_budget.add(disk)
            elif charged <= self._budget_bytes * UNBLOCK_SHARE:
                self._over_budget.discard(disk)
        self.blocked = frozenset(
            partition for partition in range(len(self._disks)) if self._disks[stand_in(partition, len(self._disks), self.dead)] in self._over_budget
        )
        self._on_blocked(self.blocked)

    # -- out

    def send(self, now_ns: int) -> int:
        """Offer what waits, as far as leaders are there and rings have room; returns how many batches went."""
        sent = 0
        for partition, queue in list(self._waiting.items()):
            if self._retry_at_ns.get(partition, 0) <= now_ns:
                self._retry_at_ns.pop(partition, None)
                sent += self._offer_waiting(partition, queue)
        return sent

    def _offer_waiting(self, partition: int, queue: deque[OutgoingBatch]) -> int:
        placement = self._view.placement(self._topic, partition)
        if placement is None:
            return 0
        try:
            words = placement.read_words()
        except TornRow:
            return 0
        if words[ROLE_AND_EPOCH] >> 32 != ROLE_LEADER:
            return 0
        sent = 0
        while queue and self._offer(queue[0], placement, words):
            queue.popleft()
            sent += 1
        if not queue:
            del self._waiting[partition]
        return sent

    def _offer(self, batch: OutgoingBatch, placement: Placement, row_words: tuple[int, ...]) -> bool:
        if batch.slot < 0:
            slot = self._arena.allocate(batch.size_bytes)
            if slot < 0:
                return False
            self._arena.memory[slot : slot + batch.size_bytes] = batch.data
            batch.slot = slot
            batch.data = b""
        descriptor = (
            DescriptorKind.PRODUCE, 0, 0, placement.row, placement.row_generation, row_words[ROLE_AND_EPOCH] & _HALF, row_words[ISR_AND_CONFIG] & _HALF,
            batch.size_bytes, batch.slot, 0, batch.record_count, 0, 0, 0,
        )  # fmt: skip
        if not placement.proxy.offer(descriptor, batch.charge, batch):
            return False
        self._under_way.add(batch)
        if batch.was_offered:
            self._resent.add(batch.record_count)
        batch.was_offered = True
        return True

    # -- what comes back

    def on_completion(self, batch: OutgoingBatch, entry: tuple[Any, ...]) -> None:
        """The log-writer appended the batch, or refused it. Fields of `entry` as in `ipc.descriptors.Completion`."""
        self._under_way.discard(batch)
        code = entry[2]
        if not code:
            self._stored.add(batch.record_count)
            self._latency.record(self._clock.monotonic_ns() - batch.closed_ns)
            self._discharge(batch)
        elif code in RETRIABLE:
            self._come_back(batch)
            self._retry_at_ns[batch.partition] = self._clock.monotonic_ns() + RETRY_NS
        else:
            self._refused.add(batch.record_count)
            self._discharge(batch)
            if code not in self._refusals_logged:
                self._refusals_logged.add(code)
                name = ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)
                words = f"{self._topic}-{batch.partition} refused a batch of {batch.record_count} lines for good: {name}; they are lost, and counted as refused"
                self._log.error(words, topic=self._topic, partition=batch.partition, disk=batch.disk, reason="refused")

    def on_lost(self, batch: OutgoingBatch) -> None:
        """Its log-writer died first; whether it is in the log is not known, so it goes again."""
        if batch.is_copied:
            self._arena.free(batch.slot)
            return
        self._under_way.discard(batch)
        self._come_back(batch)

    def on_set_aside(self, batch: OutgoingBatch) -> None:
        """Its log-writer may be held by a disk that was given up: the lines go again, from a copy; the slot is free when that process is gone."""
        self._under_way.discard(batch)
        data = bytes(self._arena.memory[batch.slot : batch.slot + batch.size_bytes])
        again = OutgoingBatch(ReadyBatch(batch.partition, data, batch.record_count), batch.sequence, batch.closed_ns)
        again.disk, again.was_offered = batch.disk, True
        batch.is_copied = True
        self._come_back(again)

    def _come_back(self, batch: OutgoingBatch) -> None:
        was_for = batch.disk
        self._put_back(batch)
        if batch.disk != was_for:
            self._look_at_budgets()

    def _put_back(self, batch: OutgoingBatch) -> None:
        """Back to its place in the queue: before everything that was closed later. In the queue of another partition, if its disk is dead."""
        if batch.partition in self.dead:
            self._move(batch, stand_in(batch.partition, len(self._disks), self.dead))
        queue = self._waiting.setdefault(batch.partition, deque())
        place = 0
        while place < len(queue) and queue[place].sequence < batch.sequence:
            place += 1
        queue.insert(place, batch)

    def _move(self, batch: OutgoingBatch, partition: int) -> None:
        """To another partition, and to the budget of its disk; the caller looks at the budgets."""
        self._moved.add(batch.record_count)
        self._charged[batch.disk] -= batch.charge
        batch.partition = partition
        batch.disk = self._disks[partition]
        self._charged[batch.disk] = self._charged.get(batch.disk, 0) + batch.charge

    def ms_to_next_try(self, now_ns: int, limit_ms: int) -> int:
        """How long a wait may be, at most `limit_ms`."""
        if not self._retry_at_ns:
            return limit_ms
        return max(0, min(limit_ms, (min(self._retry_at_ns.values()) - now_ns) // 1_000_000 + 1))

    def give_up(self) -> int:
        """The process ends: book what nobody has taken. What is under way may be stored after all; it is counted as lost, never the other way round."""
        lost = sum(batch.record_count for batch in self._under_way)
        lost += sum(batch.record_count for queue in self._waiting.values() for batch in queue)
        self._shutdown.add(lost)
        self._under_way.clear()
        self._waiting.clear()
        return lost
