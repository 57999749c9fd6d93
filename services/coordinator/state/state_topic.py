"""A state topic in the coordinator: the partitions that this box leads, their loads, and appends to them.

Owned by the coordinator process. A partition is served while its row says leader. A new incarnation of its log-writer, another
row or another leader epoch starts a new tenure: an append without an answer may or may not be in the log, so memory is
dropped and the log is read again. Appends go through the rings like any producer's, are answered when the high watermark has
passed them, and keep their order.

A load reads to the end of the log, and the partition is served when the high watermark has reached that end. Records between
the two are of an earlier leader. If this box loses leadership before every in-sync replica has them, the next leader may lack
them. Markers or offsets that result from such a record would then be half a transaction. Kafka does not wait, and has that
window.
Weak spots: an append that waits for free space in ring or arena delays those behind it, each with its deadline; a load waits
for an absent in-sync replica until it returns or leaves the ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.cluster.metadata_cache import LocalReplica, MetadataCache
from appliance.cluster.state_log import LoadedRecord, OnAppended, ProducerIdentity, StateRecord
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COORDINATOR_FLAG, VERIFIED_FLAG, DescriptorKind
from appliance.ipc.log_reader_proxy import LogReaderProxy
from appliance.records.builder import BatchBuilder
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import HIGH_WATERMARK, ISR_AND_CONFIG, ROLE_AND_EPOCH
from services.coordinator.state.state_load import StateLoad
from services.coordinator.state.state_partition import NO_SLOT, READ_NOTHING, StateAppend, StatePartition, tenure_of
from services.coordinator.verification_guards import OnGuard, VerificationGuards

LOADS_AT_ONCE = 4
LOAD_AGAIN_NS = 100_000_000
_HALF = (1 << 32) - 1


class TopicCoordinator(Protocol):
    """Whose state the topic holds."""

    @property
    def skipped_records(self) -> int: ...

    def begin_load(self, partition: int) -> None: ...

    def load(self, partition: int, records: list[LoadedRecord]) -> None: ...

    def finish_load(self, partition: int, now_ms: int) -> None: ...

    def unload(self, partition: int, now_ms: int) -> None: ...


class StateTopic:
    """Implements `coordination.state_log.StateLog`."""

    def __init__(
        self,
        name: str,
        arena: Arena,
        view: MetadataCache,
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
        self._coordinator: TopicCoordinator | None = None
        self._partitions: dict[int, StatePartition] = {}
        self._refused: list[StateAppend] = []
        """Appends to partitions that are not ours, to be answered with the next turn."""
        self._under_way: set[StateAppend] = set()
        self.guards = VerificationGuards(clock)
        label = f'{{topic="{name}"}}'
        self._appends = counters.counter(f"coordinator.appends{label}")
        self._failures = counters.counter(f"coordinator.failed_appends{label}")
        self._loaded = counters.counter(f"coordinator.loaded_records{label}")
        self._load_failures = counters.counter(f"coordinator.failed_loads{label}")
        self._skipped = counters.counter(f"coordinator.skipped_records{label}")
        self._skipped_logged = 0
        self._led = counters.gauge(f"coordinator.partitions{label}")
        self._not_served = counters.gauge(f"coordinator.partitions_loading{label}")
        self._latency = counters.histogram(f"coordinator.load_us{label}")

    def serve(self, coordinator: TopicCoordinator) -> None:
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
            append.guard = self.guards.take(partition, producer)
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

    def begin_verification(self, partition: int, producer: ProducerIdentity, on_guard: OnGuard, timeout_ms: int = 5_000) -> None:
        """Ask the log-writer for a guard, before another box is asked about a transaction."""
        self.guards.ask(self._partitions.get(partition), producer, on_guard, timeout_ms)

    # -- offers

    def _offer_waiting(self, partition: StatePartition) -> int:
        waiting = partition.waiting
        words = partition.led_words()
        if words is None:
            return 0
        offered = 0
        while waiting and self._offer(waiting[0], partition.placement, words):
            self._under_way.add(waiting.popleft())
            offered += 1
        return offered

    def _offer(self, append: StateAppend, placement: LocalReplica, words: tuple[int, ...]) -> bool:
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

    def _answer_replicated(self, partition: StatePartition) -> int:
        words = partition.led_words()
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
            append.slot = NO_SLOT

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

    def _expire(self, partition: StatePartition, now_ns: int) -> int:
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
        return len(expired) + self.guards.expire(now_ns)

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
            tenure = tenure_of(placement) if placement is not None else None
            known = self._partitions.get(number)
            if known is not None and known.tenure == tenure and placement is not None:
                known.placement = placement
                continue
            if known is not None:
                self._end_tenure(number)
            if tenure is not None and placement is not None:
                self._partitions[number] = StatePartition(tenure, placement)
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

    def _begin_load(self, number: int, partition: StatePartition, now_ns: int) -> bool:
        reader = self._readers.get(partition.tenure.disk)
        coordinator = self._coordinator
        if reader is None or coordinator is None or partition.led_words() is None:
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

    def _maybe_serve(self, number: int, partition: StatePartition) -> int:
        """Once all that was read is below the high watermark, nothing of it can vanish any more."""
        words = partition.led_words()
        if words is None or words[HIGH_WATERMARK] < partition.read_to:
            return 0
        partition.read_to = READ_NOTHING
        partition.is_loaded = True
        self._latency.record(self._clock.monotonic_ns() - partition.began_ns)
        if self._coordinator is not None:
            self._coordinator.finish_load(number, self._now_ms())
            self._log_skipped(number, self._coordinator.skipped_records)
        return 1

    def _log_skipped(self, number: int, skipped: int) -> None:
        """Log how many records a load skipped: acknowledged state that is damaged, or that a newer release wrote."""
        count, self._skipped_logged = skipped - self._skipped_logged, skipped
        if count:
            self._skipped.add(count)
            words = f"{self.name}-{number} was loaded without {count} of its records, which could not be read"
            self._log.warning(words, topic=self.name, partition=number)

    def led_partitions(self) -> Iterable[int]:
        """The partitions that this box leads."""
        return self._partitions.keys()

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
