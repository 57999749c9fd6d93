"""Acceptors and the transaction coordinator: the shipped gate and the shipped coordinator, with messages in between that are delayed, reordered and lost.

A ring keeps its order and dies with its log-writer; a request to the coordinator does not. A marker for another box is a request that arrives late, even
after the coordinator that sent it has died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import ProducerId, TopicPartition
from appliance.client.transaction_gate import ADDS_PARTITIONS_SINCE, RETRY_NS, OnVerified, Producer, TransactionGate
from appliance.cluster.state_log import LoadedRecord, OnAppended, ProducerIdentity, StateRecord
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, TransactionToExtend
from appliance.storage.verification import NeedsVerification
from services.acceptor.handlers.produce import OFFERS_MAX
from services.acceptor.produce.refused_sequences import RETRIABLE
from services.coordinator.transactions.transaction import Marker, TransactionSettings
from services.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from tests.simulation.transactions.partition import GUARDS_A_LIFE, Batch, Partition
from tests.simulation.world import MS, World

TOPIC = "t"
QUESTION_TIMEOUT = 100 * MS
MARKER_TIMEOUT = 30 * MS
RESTART = 60 * MS
TICK = 10 * MS


class Ring:
    """From a source to one log-writer and back: in order, lost with either of them. `on_lost` is called when the log-writer dies first."""

    def __init__(self, world: World, partition: Partition) -> None:
        self._world = world
        self._partition = partition
        self._last = 0
        self._outstanding: dict[int, Callable[[], None]] = {}
        self._next = 0
        self.is_closed = False

    def offer(self, act: Callable[[], Any], on_done: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        if not self._partition.is_up:
            self._world.after(0, on_lost)
            return
        token = self._next = self._next + 1
        self._outstanding[token] = on_lost
        incarnation = self._partition.incarnation

        def work() -> None:
            if incarnation != self._partition.incarnation:
                return
            if self.is_closed and self._world.chance.random() < 0.5:
                return  # the log-writer has not taken it before its source died
            done = act()
            self._later(lambda: self._complete(token, done, on_done))

        self._later(work)

    def _later(self, act: Callable[[], None]) -> None:
        self._last = max(self._last + 1, self._world.now + self._world.delay())
        self._world.after(self._last - self._world.now, act)

    def _complete(self, token: int, done: Any, on_done: Callable[[Any], None]) -> None:
        if self._outstanding.pop(token, None) is not None and not self.is_closed:
            on_done(done)

    def on_log_writer_death(self) -> None:
        outstanding, self._outstanding = self._outstanding, {}
        for on_lost in outstanding.values():
            if not self.is_closed:
                self._world.after(0, on_lost)


class Part:
    """A batch on its way through an acceptor. `on_code` gets the client's answer."""

    def __init__(self, partition: int, batch: Batch, transactional_id: str, version: int, on_code: Callable[[ErrorCode], None]) -> None:
        self.producer = Producer(TOPIC, partition, ProducerId(batch.producer_id), batch.producer_epoch)
        self.batch = batch
        self.transactional_id = transactional_id
        self.version = version
        self.on_code = on_code
        self.guard = 0
        self.offers = 0
        self.repeats_seen = 0


class SimulatedClock:
    """`world.now`, as `appliance.base.clock.Clock`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic_ns(self) -> int:
        return self._world.now

    def monotonic_ms(self) -> int:
        return self._world.now // MS

    wall_ms = monotonic_ms
    boottime_ns = thread_cpu_ns = monotonic_ns


class Acceptor:
    """One incarnation, with one connection: the oldest sequence that was refused for now is known, as `broker.refused_sequences` does."""

    def __init__(self, world: World, partitions: Sequence[Partition], coordinator: CoordinatorProcess) -> None:
        self._world = world
        self._partitions = partitions
        self._coordinator = coordinator
        self.is_up = True
        self.rings = [Ring(world, partition) for partition in partitions]
        self.gate: TransactionGate[Part] = TransactionGate(self, SimulatedClock(world), self._offer_verified, self._refuse)
        self._refused: dict[Producer, int] = {}
        self._repeats = 0

    def die(self) -> None:
        self.is_up = False
        for ring in self.rings:
            ring.is_closed = True

    def produce(self, part: Part) -> None:
        refused = self._refused.get(part.producer)
        if refused is not None and part.batch.sequence <= refused:
            del self._refused[part.producer]
        part.repeats_seen = self._repeats
        if not self.gate.maybe_hold(part):
            self._offer(part, 0)

    def _offer_verified(self, part: Part, guard: int) -> None:
        self._repeats += 1
        part.repeats_seen = self._repeats
        self._offer(part, guard)

    def _offer(self, part: Part, guard: int) -> None:
        partition = self._partitions[part.producer.partition]
        adds = part.version >= ADDS_PARTITIONS_SINCE
        incarnation = partition.incarnation

        def on_done(answer: NeedsVerification | ErrorCode) -> None:
            if isinstance(answer, NeedsVerification):
                self.gate.on_needed(part, answer.guard)
                self._soon(200_000)
            elif answer is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._may_offer_again(part):
                part.offers += 1
                self._offer_verified(part, guard)  # what it has overtaken was offered again
            else:
                self._answer(part, answer)

        if guard and guard // GUARDS_A_LIFE != incarnation:
            self._answer(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)  # the partition table is another one
            return
        act = lambda: partition.produce(part.batch, guard, adds, self._world.now // MS)  # noqa: E731
        self.rings[partition.number].offer(act, on_done, lambda: self._answer(part, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _may_offer_again(self, part: Part) -> bool:
        return part.repeats_seen != self._repeats and part.offers < OFFERS_MAX

    def _refuse(self, part: Part, code: ErrorCode) -> None:
        self._answer(part, code)

    def _answer(self, part: Part, code: ErrorCode) -> None:
        refused = self._refused.get(part.producer)
        if code in RETRIABLE and (refused is None or part.batch.sequence < refused):
            self._refused[part.producer] = part.batch.sequence
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and refused is not None and part.batch.sequence > refused:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        part.on_code(code)

    def _soon(self, delay: int) -> None:
        self._world.after(delay, self._turn)

    def _turn(self) -> None:
        if self.is_up:
            self.gate.ask(self._world.now)

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]], add: bool, on_answer: OnVerified
    ) -> None:
        """`transaction_gate.TransactionVerifier`: AddPartitionsToTxn between brokers."""
        numbers = tuple(number for _, number in partitions)
        wanted = TransactionToExtend(transactional_id, ProducerId(producer_id), producer_epoch, not add, (TopicPartitions(TOPIC, numbers),))

        def on_response(response: Any) -> None:
            if not self.is_up:
                return
            if response is None:
                on_answer([ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(numbers))
            else:
                found = {each.partition: each.error_code for topic in response.transactions[0].topics for each in topic.partitions}
                on_answer([found[number] for number in numbers])
            self._soon(RETRY_NS + 1)
            self._soon(200_000)

        self._coordinator.ask("add_partitions", AddPartitionsToTxnRequest((wanted,)), 5, on_response)


class SharedStateLog:
    """The partition of `__transaction_state`, through the incarnation of one coordinator: in order; what is on its way when that one dies may be there."""

    def __init__(self, world: World, records: list[LoadedRecord]) -> None:
        self._world = world
        self._records = records
        self._pending: deque[tuple[Sequence[StateRecord], OnAppended]] = deque()
        self._last = 0
        self.is_closed = False

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 5_000
    ) -> None:
        self._pending.append((records, on_appended))
        self._last = max(self._last + 1, self._world.now + self._world.delay())
        self._world.after(self._last - self._world.now, self._take)

    def _take(self) -> None:
        if self.is_closed:
            return
        records, on_appended = self._pending.popleft()
        chance = self._world.chance.random()
        if chance < self._world.network.loss / 4:
            self._world.after(self._world.delay(), self._answer, on_appended, ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        self._write(records)
        code = ErrorCode.REQUEST_TIMED_OUT if chance < self._world.network.loss / 2 else ErrorCode.NONE
        self._world.after(self._world.delay(), self._answer, on_appended, code)

    def _answer(self, on_appended: OnAppended, code: ErrorCode) -> None:
        if not self.is_closed:
            on_appended(code)

    def _write(self, records: Sequence[StateRecord]) -> None:
        self._records += [LoadedRecord(len(self._records) + index, 0, record.key, record.value) for index, record in enumerate(records)]

    def close(self) -> None:
        self.is_closed = True
        for _ in range(self._world.chance.randint(0, len(self._pending))):
            self._write(self._pending.popleft()[0])


class Coordinator:
    """One incarnation: the shipped rules."""

    def __init__(self, process: CoordinatorProcess) -> None:
        self._process = process
        self._world = process.world
        self.is_up = True
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self._unsent: list[tuple[Marker, Callable[[ErrorCode], None]]] = []
        self.log = SharedStateLog(process.world, process.records)
        self.rings = [Ring(process.world, partition) for partition in process.partitions]
        wall_ms = SimulatedClock(process.world).wall_ms
        settings = TransactionSettings(append_timeout_ms=200, transaction_abort_timed_out_transaction_cleanup_interval_ms=50)
        epoch = process.leader_epoch
        self.rules = TransactionCoordinator(self.log, 1, self, process, settings, lambda _: True, lambda _: epoch, lambda _: None, wall_ms)
        self.rules.begin_load(0)
        self.rules.load(0, process.records)
        self.rules.finish_load(0, wall_ms())
        self._world.after(TICK, self._tick)

    def _tick(self) -> None:
        if self.is_up:
            self.rules.tick(self._world.now // MS)
            self._world.after(TICK, self._tick)

    def write(self, marker: Marker, on_written: Callable[[ErrorCode], None]) -> None:
        """`transactions.ports.MarkerWriter`: in the ring of a partition of this box, as a request to another box."""
        self._unsent.append((marker, on_written))
        if len(self._unsent) == 1:
            self._world.after(0, self._send_markers)

    def _send_markers(self) -> None:
        """In the order of partitions: that of a set is another one in each process."""
        unsent, self._unsent = self._unsent if self.is_up else [], []
        for marker, on_written in sorted(unsent, key=lambda each: each[0]):
            self._send(marker, on_written)

    def _send(self, marker: Marker, on_written: Callable[[ErrorCode], None]) -> None:
        partition = self._process.partitions[marker.topic_partition.partition]
        is_answered = False

        def answer(code: ErrorCode) -> None:
            nonlocal is_answered
            if self.is_up and not is_answered:
                is_answered = True
                on_written(code)

        def end() -> ErrorCode:
            return partition.end(marker, self._world.now // MS)

        if partition.number not in self._process.elsewhere:
            self.rings[partition.number].offer(end, answer, lambda: answer(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return

        def arrive() -> None:
            code = end() if partition.is_up else ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._world.send(2, 1, answer, code)

        delay = self._world.delay()
        if self._world.chance.random() < 2 * self._world.network.loss:
            delay += int(self._world.chance.random() * 15 * MARKER_TIMEOUT)  # another acceptor of that box reads it, late
        self._world.after(delay, arrive)
        self._world.after(MARKER_TIMEOUT, answer, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def die(self) -> None:
        self.is_up = False
        self.log.close()
        for ring in self.rings:
            ring.is_closed = True
        waiting, self.waiting = self.waiting, {}
        for on_response in waiting.values():
            self._world.after(self._world.delay(), on_response, None)


class CoordinatorProcess:
    """The coordinator's place: one incarnation after the other over the same state log. Also `transactions.ports.ProducerIds`."""

    def __init__(self, world: World, partitions: Sequence[Partition], elsewhere: frozenset[int]) -> None:
        self.world = world
        self.partitions = partitions
        self.elsewhere = elsewhere
        self.records: list[LoadedRecord] = []
        self.leader_epoch = 0
        self._given = 0
        self._token = 0
        self.now: Coordinator | None = Coordinator(self)

    def next(self) -> ProducerId | None:
        self._given += 1
        return ProducerId(self._given)

    def die(self, changes_leader: bool) -> None:
        """`changes_leader`: the next incarnation is on another box, under another leader epoch of the state partition."""
        if self.now is None:
            return
        self.now.die()
        self.now = None
        self.leader_epoch += changes_leader
        self.world.after(RESTART, self._start)

    def _start(self) -> None:
        self.now = Coordinator(self)

    def ask(self, rule: str, request: Any, version: int, on_response: Callable[[Any], None], is_wanted: Callable[[], bool] | None = None) -> None:
        """Send a request by itself: others may overtake it.

        `on_response` is called once; None: the request was lost, or no box received it. With `is_wanted` it
        arrives soon, or not at all once `is_wanted` returns False.
        """
        self._token += 1
        token, is_answered = self._token, False

        def answer(response: Any) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                on_response(response)

        def arrive() -> None:
            coordinator = self.now
            if is_wanted is not None and not is_wanted():
                return
            if coordinator is None:
                self.world.after(self.world.delay(), answer, None)
                return
            coordinator.waiting[token] = answer

            def reply(response: Any) -> None:
                if coordinator.waiting.pop(token, None) is not None:
                    self.world.send(1, 2, answer, response)

            getattr(coordinator.rules, rule)(request, version, self.world.now // MS, reply)

        if is_wanted is None:
            self.world.send(2, 1, arrive)
        else:
            self.world.after(MS, arrive)
        self.world.after(QUESTION_TIMEOUT, answer, None)


def init_request(name: str, timeout_ms: int, producer_id: int = -1, producer_epoch: int = -1) -> InitProducerIdRequest:
    return InitProducerIdRequest(name, timeout_ms, ProducerId(producer_id), producer_epoch)


def end_request(name: str, producer_id: int, producer_epoch: int, is_commit: bool) -> EndTxnRequest:
    return EndTxnRequest(name, ProducerId(producer_id), producer_epoch, is_commit)


def topic_partition(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)
