"""A state topic as the coordinator keeps it: which of its partitions this box leads, their loads, and appends to them.

Owned by the coordinator process. A partition is ours while its row says leader; a new life of its log-writer, another row or another leader epoch is
a new tenure: what was appended and not answered may or may not be in the log, so memory is thrown away and the log read again. Appends go through the
rings as any producer's do, are answered when the high watermark has passed them, and keep their order.

A load reads to the end of the log, and the partition is served when the high watermark has reached that end. What lies between the two is of a former leader:
we keep it as long as we lead, but if we lose leadership before every in-sync replica has it, a leader may follow that never had it. Markers written, or offsets
shown, by a decision that vanishes then would be half a transaction; Kafka, which does not wait, has that window.
Weak spots: while an append waits for room in ring or arena, those behind it wait, too, each with its deadline; while an in-sync replica is away, a load waits
for it to come back or to leave the ISR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from appliance.agents.state_load import StateLoad
from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.broker.box_view import BoxView, Placement
from appliance.coordination.state_log import LoadedRecord, OnAppended, ProducerIdentity, StateRecord
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COORDINATOR_FLAG, VERIFIED_FLAG, DescriptorKind
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.records.builder import BatchBuilder
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import HIGH_WATERMARK, ISR_AND_CONFIG, PARTITION_AND_GENERATION, ROLE_AND_EPOCH, ROLE_LEADER, TornRow

LOADS_AT_ONCE = 4
LOAD_AGAIN_NS = 100_000_000
_READ_NOTHING = -1
_HALF = (1 << 32) - 1
_NO_SLOT = -1


OnGuard = Callable[[ErrorCode, int], None]
"""NONE and a guard for the append to come, 0 while a transaction of the producer is open: then nobody needs to be asked."""


class Tenure(NamedTuple):
    """What must stay the same for memory to follow the log."""

    disk: str
    table: str
    row: int
    row_generation: int
    leader_epoch: int


class Coordinator(Protocol):
    """Whose state the topic holds."""

    def begin_load(self, partition: int) -> None: ...

    def load(self, partition: int, records: list[LoadedRecord]) -> None: ...

    def finish_load(self, partition: int, now_ms: int) -> None: ...

    def unload(self, partition: int, now_ms: int) -> None: ...


class StateAppend:
    """A batch on its way. Its bytes are in the arena (`slot`), or in `data` while they wait."""

    __slots__ = (
        "data", "deadline_ns", "end_offset", "guard", "is_answered", "is_coordinated", "on_appended", "partition", "record_count", "slot", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: StateTopic, partition: int, data: bytes, record_count: int, is_coordinated: bool, deadline_ns: int, on_appended: OnAppended
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.data = data
        self.record_count = record_count
        self.is_coordinated = is_coordinated
        self.deadline_ns = deadline_ns
        self.on_appended = on_appended
        self.slot = _NO_SLOT
        self.guard: int | None = None
        """Set where another box was asked before: what the log-writer gave us then."""
        self.end_offset = -1
        self.is_answered = False

    def answer(self, code: ErrorCode) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.on_appended(code)


class GuardQuestion:
    """A guard that a log-writer is asked for, before another box is asked about a transaction."""

    __slots__ = ("deadline_ns", "is_answered", "on_guard", "topic")

    def __init__(self, topic: StateTopic, deadline_ns: int, on_guard: OnGuard) -> None:
        self.topic = topic
        self.deadline_ns = deadline_ns
        self.on_guard = on_guard
        self.is_answered = False

    def answer(self, code: ErrorCode, guard: int = 0) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.on_guard(code, guard)


class _Partition:
    """One partition that this box leads."""

    __slots__ = ("appended", "began_ns", "is_loaded", "load", "load_at_ns", "placement", "read_to", "tenure", "waiting")

    def __init__(self, tenure: Tenure, placement: Placement) -> None:
        self.tenure = tenure
        self.placement = placement
        self.is_loaded = False
        self.load: StateLoad | None = None
        self.load_at_ns = 0
        self.began_ns = 0
        self.read_to = _READ_NOTHING
        """Where the log that is read ended; served when the high watermark is there."""
        self.waiting: deque[StateAppend] = deque()
        """Not offered yet."""
        self.appended: deque[StateAppend] = deque()
        """In the log, and not below the high watermark."""


class StateTopic:
    """Implements `coordination.state_log.StateLog`."""

    def __init__(
        self,
        name: str,
        arena: Arena,
        view: BoxView,
        readers: dict[str, LogReaderProxy],
        clock: Clock,
        now_ms: Callable[[], int],
        counters: Counters,
        log: Logger,
    ) -> None:
        """`now_ms` is the time that coordinators go by."""
        self.name = name
        self.partition_count = 0
        """0: the topic is not there."""
        self._arena = arena
        self._view = view
        self._readers = readers
        self._clock = clock
        self._now_ms = now_ms
        self._log = log
        self._coordinator: Coordinator | None = None
        self._partitions: dict[int, _Partition] = {}
        self._refused: list[StateAppend] = []
        """Appends to partitions that are not ours, to be answered with the next turn."""
        self._under_way: set[StateAppend] = set()
        self._questions: set[GuardQuestion] = set()
        self._guards: dict[tuple[int, ProducerIdentity], int] = {}
        label = f'{{topic="{name}"}}'
        self._appends = counters.counter(f"coordinator.appends{label}")
        self._failures = counters.counter(f"coordinator.failed_appends{label}")
        self._loaded = counters.counter(f"coordinator.loaded_records{label}")
        self._load_failures = counters.counter(f"coordinator.failed_loads{label}")
        self._led = counters.gauge(f"coordinator.partitions{label}")
        self._not_served = counters.gauge(f"coordinator.partitions_loading{label}")
        self._latency = counters.histogram(f"coordinator.load_us{label}")

    def serve(self, coordinator: Coordinator) -> None:
        """Whose state it is, from the next `refresh` on."""
        self._coordinator = coordinator

    def leader_epoch_of(self, partition: int) -> int:
        """Of a partition that is ours; -1 else."""
        found = self._partitions.get(partition)
        return found.tenure.leader_epoch if found is not None else -1

    def count_partitions(self) -> int:
        """As the image says now; 0: the topic is not there."""
        image = self._view.image.topics.get(self.name)
        self.partition_count = len(image.partitions) if image is not None else 0
        return self.partition_count

    # -- appends

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 5_000
    ) -> None:
        builder = BatchBuilder()
        now_ms = self._now_ms()
        for record in records:
            builder.append(now_ms, record.key, record.value)
        data = builder.build() if producer is None else builder.build(*producer)
        deadline_ns = self._clock.monotonic_ns() + timeout_ms * 1_000_000
        append = StateAppend(self, partition, data, len(records), producer is not None, deadline_ns, on_appended)
        if producer is not None:
            append.guard = self._guards.pop((partition, producer), None)
        found = self._partitions.get(partition)
        if found is None:
            self._refused.append(append)
            return
        found.waiting.append(append)
        if len(found.waiting) == 1:
            self._offer_waiting(found)

    def has_waiting(self, partition: int) -> bool:
        """Whether appends to it have not been offered yet."""
        found = self._partitions.get(partition)
        return found is not None and bool(found.waiting)

    # -- appends about which another box is asked first

    def begin_verification(self, partition: int, producer: ProducerIdentity, on_guard: OnGuard, timeout_ms: int = 5_000) -> None:
        """Ask the log-writer for a guard, so that what ends here while another box is asked is not taken for what begins."""
        question = GuardQuestion(self, self._clock.monotonic_ns() + timeout_ms * 1_000_000, on_guard)
        found = self._partitions.get(partition)
        words = self._led_words(found) if found is not None else None
        if found is None or words is None:
            on_guard(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
            return
        placement = found.placement
        descriptor = (
            DescriptorKind.BEGIN_VERIFICATION, ACKS_ALL_FLAG, 0, placement.row, placement.row_generation, words[ROLE_AND_EPOCH] & _HALF,
            words[ISR_AND_CONFIG] & _HALF, 0, 0, 0, producer.producer_id, 0, producer.producer_epoch & 0xFFFF, 0,
        )  # fmt: skip
        if placement.proxy.offer_or_queue(descriptor, 0, question):
            self._questions.add(question)
        else:
            on_guard(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)

    def on_guard(self, question: GuardQuestion, entry: tuple[Any, ...]) -> None:
        """Fields of `entry` as in `ipc.descriptors.Completion`."""
        self._questions.discard(question)
        question.answer(ErrorCode(entry[2]), entry[11])

    def on_guard_lost(self, question: GuardQuestion) -> None:
        self._questions.discard(question)
        question.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @contextmanager
    def guarded(self, partition: int, producer: ProducerIdentity, guard: int) -> Iterator[None]:
        """What is appended for `producer` meanwhile comes with the guard."""
        self._guards[partition, producer] = guard
        try:
            yield
        finally:
            self._guards.pop((partition, producer), None)

    # -- offers

    def _offer_waiting(self, partition: _Partition) -> int:
        waiting = partition.waiting
        words = self._led_words(partition)
        if words is None:
            return 0
        offered = 0
        while waiting and self._offer(waiting[0], partition.placement, words):
            self._under_way.add(waiting.popleft())
            offered += 1
        return offered

    def _led_words(self, partition: _Partition) -> tuple[int, ...] | None:
        """The row, if the tenure holds."""
        placement = partition.placement
        if placement.proxy.table is not placement.table or placement.proxy.is_hung:
            return None
        try:
            words = placement.read_words()
        except TornRow:
            return None
        tenure = partition.tenure
        is_ours = words[ROLE_AND_EPOCH] == ROLE_LEADER << 32 | tenure.leader_epoch and words[PARTITION_AND_GENERATION] & _HALF == tenure.row_generation
        return words if is_ours else None

    def _offer(self, append: StateAppend, placement: Placement, words: tuple[int, ...]) -> bool:
        size_bytes = len(append.data)
        if append.slot < 0:
            append.slot = self._arena.allocate(size_bytes)
            if append.slot < 0:
                return False
            self._arena.memory[append.slot : append.slot + size_bytes] = append.data
        flags = ACKS_ALL_FLAG | (COORDINATOR_FLAG if append.is_coordinated else 0) | (VERIFIED_FLAG if append.guard is not None else 0)
        descriptor = (
            DescriptorKind.PRODUCE, flags, 0, placement.row, placement.row_generation, words[ROLE_AND_EPOCH] & _HALF, words[ISR_AND_CONFIG] & _HALF,
            size_bytes, append.slot, 0, append.record_count, 0, 0, append.guard or 0,
        )  # fmt: skip
        return placement.proxy.offer(descriptor, Arena.rounded_size(size_bytes), append)

    def on_completion(self, append: StateAppend, entry: tuple[Any, ...]) -> None:
        """Fields of `entry` as in `ipc.descriptors.Completion`."""
        self._under_way.discard(append)
        self._free(append)
        partition = self._partitions.get(append.partition)
        if entry[2]:
            self._fail(append, ErrorCode(entry[2]))
        elif partition is None or partition.tenure.leader_epoch != entry[9]:
            self._fail(append, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._appends.add()
            append.end_offset = entry[8]
            partition.appended.append(append)
            self._answer_replicated(partition)

    def on_lost(self, append: StateAppend) -> None:
        """Its log-writer died first: whether it is in the log the load will tell."""
        self._under_way.discard(append)
        self._free(append)
        self._fail(append, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _answer_replicated(self, partition: _Partition) -> int:
        words = self._led_words(partition)
        if words is None:
            return 0
        high_watermark, answered = words[HIGH_WATERMARK], 0
        while partition.appended and partition.appended[0].end_offset <= high_watermark:
            partition.appended.popleft().answer(ErrorCode.NONE)
            answered += 1
        return answered

    def _fail(self, append: StateAppend, code: ErrorCode) -> None:
        self._failures.add()
        append.answer(code)

    def _free(self, append: StateAppend) -> None:
        if append.slot >= 0:
            self._arena.free(append.slot)
            append.slot = _NO_SLOT

    @property
    def waits_for_rows(self) -> bool:
        """Whether a change of a row would be news."""
        return any(partition.appended or partition.read_to >= 0 for partition in self._partitions.values())

    # -- turns

    def turn(self, now_ns: int) -> int:
        """Refusals, offers, answers, deadlines, loads."""
        work = len(self._refused)
        refused, self._refused = self._refused, []
        for append in refused:
            self._fail(append, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        loading = sum(partition.load is not None for partition in self._partitions.values())
        work += self._expire_under_way(now_ns)
        for number, partition in list(self._partitions.items()):
            if partition.waiting:
                work += self._offer_waiting(partition)
            if partition.appended:
                work += self._answer_replicated(partition)
            work += self._expire(partition, now_ns)
            if partition.is_loaded or partition.load is not None:
                continue
            if partition.read_to >= 0:
                work += self._maybe_serve(number, partition)
            elif loading < LOADS_AT_ONCE and now_ns >= partition.load_at_ns:
                loading += self._begin_load(number, partition, now_ns)
                work += 1
        self._not_served.set(self.loading_count)
        return work

    def _expire(self, partition: _Partition, now_ns: int) -> int:
        """What takes too long is answered; what was offered stays its log-writer's until it is done."""
        expired = [append for append in (*partition.waiting, *partition.appended) if append.deadline_ns <= now_ns]
        for append in expired:
            if append in partition.waiting:
                partition.waiting.remove(append)
                self._free(append)
            else:
                partition.appended.remove(append)
            self._fail(append, ErrorCode.REQUEST_TIMED_OUT)
        return len(expired)

    def _expire_under_way(self, now_ns: int) -> int:
        """Of what a log-writer keeps: answered now, freed when it is done."""
        expired = [append for append in self._under_way if append.deadline_ns <= now_ns and not append.is_answered]
        for append in expired:
            self._fail(append, ErrorCode.REQUEST_TIMED_OUT)
        late = [question for question in self._questions if question.deadline_ns <= now_ns]
        for question in late:
            self._questions.discard(question)
            question.answer(ErrorCode.REQUEST_TIMED_OUT)
        return len(expired) + len(late)

    # -- tenures

    def refresh(self) -> None:
        """Image or tables have changed: see which partitions are ours now."""
        coordinator = self._coordinator
        if coordinator is None:
            return
        self.count_partitions()
        for number in [number for number in self._partitions if number >= self.partition_count]:
            self._end_tenure(number)
        for number in range(self.partition_count):
            placement = self._view.placement(self.name, number)
            tenure = _tenure_of(placement) if placement is not None else None
            known = self._partitions.get(number)
            if known is not None and known.tenure == tenure and placement is not None:
                known.placement = placement
                continue
            if known is not None:
                self._end_tenure(number)
            if tenure is not None and placement is not None:
                self._partitions[number] = _Partition(tenure, placement)
                coordinator.begin_load(number)
        self._led.set(len(self._partitions))

    def _end_tenure(self, number: int) -> None:
        partition = self._partitions.pop(number)
        if partition.load is not None:
            partition.load.cancel()
        for append in (*partition.waiting, *partition.appended):
            self._free(append)
            self._fail(append, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._coordinator is not None:
            self._coordinator.unload(number, self._now_ms())

    def _begin_load(self, number: int, partition: _Partition, now_ns: int) -> bool:
        reader = self._readers.get(partition.tenure.disk)
        coordinator = self._coordinator
        if reader is None or coordinator is None or self._led_words(partition) is None:
            return False

        def on_records(records: list[LoadedRecord]) -> None:
            self._loaded.add(len(records))
            coordinator.load(number, records)

        def on_done(problem: str) -> None:
            partition.load = None
            if problem:
                self._load_failures.add()
                self._log.warning(f"{self.name}-{number} could not be loaded: {problem}; it is tried again", topic=self.name, partition=number)
                partition.load_at_ns = self._clock.monotonic_ns() + LOAD_AGAIN_NS
                coordinator.unload(number, self._now_ms())
                coordinator.begin_load(number)
                return
            partition.read_to = load.end_offset
            self._maybe_serve(number, partition)

        partition.began_ns = now_ns
        partition.load = load = StateLoad(reader, partition.placement, on_records, on_done, self._log)
        load.start()
        return partition.load is not None

    def _maybe_serve(self, number: int, partition: _Partition) -> int:
        """Once all that was read is below the high watermark, nothing of it can vanish any more."""
        words = self._led_words(partition)
        if words is None or words[HIGH_WATERMARK] < partition.read_to:
            return 0
        partition.read_to = _READ_NOTHING
        partition.is_loaded = True
        self._latency.record(self._clock.monotonic_ns() - partition.began_ns)
        if self._coordinator is not None:
            self._coordinator.finish_load(number, self._now_ms())
        return 1

    @property
    def led_count(self) -> int:
        """Partitions that this box leads."""
        return len(self._partitions)

    @property
    def loading_count(self) -> int:
        """Those of them that are not served yet: being read, or read and not below the high watermark."""
        return sum(not partition.is_loaded for partition in self._partitions.values())

    @property
    def has_unanswered(self) -> bool:
        return bool(self._under_way) or any(partition.waiting or partition.appended for partition in self._partitions.values())

    def end_all(self) -> None:
        """Let go of every partition."""
        for number in list(self._partitions):
            self._end_tenure(number)


def _tenure_of(placement: Placement) -> Tenure | None:
    """Who leads it now, if this box does."""
    try:
        role_and_epoch = placement.read_words()[ROLE_AND_EPOCH]
    except TornRow:
        return None
    if role_and_epoch >> 32 != ROLE_LEADER:
        return None
    return Tenure(placement.disk, placement.table.shared.name, placement.row, placement.row_generation, role_and_epoch & _HALF)
