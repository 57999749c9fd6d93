"""Transactional producers as Kafka's clients are: of the first protocol (AddPartitionsToTxn, one epoch for many transactions) and of the second (Produce 12,
another epoch after each end).

Batches are pipelined, up to five in flight, and repeated after errors that a client repeats. Any other error is one that a correct broker would not have
given (`Broken`), unless the transaction has passed its time-out or another instance has the transactional id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_PRODUCER_ID
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import AddPartitionsToTxnRequest, TransactionToExtend
from tests.simulation.invariants import Broken
from tests.simulation.transactions.broker import TOPIC, Acceptor, CoordinatorProcess, Part, end_request, init_request
from tests.simulation.transactions.partition import Batch
from tests.simulation.world import MS, World

IN_FLIGHT_MAX = 5
REPEATED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )
)
FENCING = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE))
WANTS_COMMIT, WANTS_ABORT = True, False


class Outcome:
    """One transaction as its client knows it. `is_committed` None: the client died, or the transaction passed its time-out, before the answer."""

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        """value → partition, in the order of sending"""
        self.is_committed: bool | None = None
        self.may_be_committed = False


class Connection:
    """To one acceptor: requests arrive in order, and are answered in order."""

    def __init__(self, world: World, acceptor: Acceptor) -> None:
        self._world = world
        self.acceptor = acceptor
        self._last = {"to": 0, "from": 0}
        self._replies: deque[list[Any]] = deque()
        self._undelivered: list[Callable[[ErrorCode | None], None]] = []
        self.is_closed = False

    def _later(self, way: str, act: Callable[[], None]) -> None:
        self._last[way] = max(self._last[way] + 1, self._world.now + self._world.delay())
        self._world.after(self._last[way] - self._world.now, act)

    def produce(self, partition: int, batch: Batch, name: str, version: int, on_code: Callable[[ErrorCode | None], None]) -> None:
        reply: list[Any] = [None, on_code]
        self._replies.append(reply)

        def answer(code: ErrorCode) -> None:
            reply[0] = code
            while self._replies and self._replies[0][0] is not None:
                done, then = self._replies.popleft()
                self._later("from", lambda done=done, then=then: self._deliver(done, then))  # type: ignore[misc]

        def arrive() -> None:
            if self.acceptor.is_up:
                self.acceptor.produce(Part(partition, batch, name, version, answer))

        self._undelivered.append(on_code)
        self._later("to", arrive)

    def _deliver(self, code: ErrorCode, then: Callable[[ErrorCode | None], None]) -> None:
        if not self.is_closed:
            self._undelivered.remove(then)
            then(code)

    def break_off(self) -> None:
        """The acceptor has died: what is not answered never will be."""
        self.is_closed = True
        undelivered, self._undelivered = self._undelivered, []

        def fail() -> None:
            for then in undelivered:
                then(None)

        self._world.after(self._world.delay(), fail)


class _Sending:
    """A batch that is not acknowledged."""

    def __init__(self, partition: int, batch: Batch) -> None:
        self.partition = partition
        self.batch = batch
        self.is_in_flight = False
        self.tries = 0
        self.not_before = 0


class Producer:
    """One transactional id: its instances, one after the other."""

    def __init__(
        self,
        world: World,
        name: str,
        coordinator: CoordinatorProcess,
        connect: Callable[[], Connection],
        partitions: int,
        transactions: int,
        is_second: bool,
        timeout_ms: int,
        next_value: Callable[[], int],
    ) -> None:
        self._world = world
        self.name = name
        self._coordinator = coordinator
        self._connect = connect
        self._partitions = partitions
        self._left = transactions
        self._is_second = is_second
        self._timeout_ms = timeout_ms
        self._next_value = next_value
        self.outcomes: list[Outcome] = []
        self.instance = 0
        self.is_done = False
        self._connection: Connection | None = None
        self._who = (NO_PRODUCER_ID, -1)
        self._sequences: dict[int, int] = {}
        self._sending: list[_Sending] = []
        self._began = 0
        self._needs_epoch = False
        self._is_ending = False
        self._is_open = False

    # -- instances

    def start(self) -> None:
        self.instance += 1
        self._who, self._sequences, self._sending, self._is_ending, self._needs_epoch = (NO_PRODUCER_ID, -1), {}, [], False, False
        self._init()

    def crash(self) -> None:
        """The process dies, and another one begins with the same transactional id."""
        if not self.is_done:
            self._world.note(f"{self.name}: a new instance")
            self.start()

    def look_again(self) -> None:
        """Connections may have gone."""
        if not self.is_done and self._is_open and self._sending and not self._is_ending:
            self._pump()

    def _guarded(self, act: Callable[..., None]) -> Callable[..., None]:
        """Nothing of an instance happens after its end."""
        instance = self.instance
        return lambda *arguments: act(*arguments) if instance == self.instance else None

    def _again(self, act: Callable[[], None]) -> None:
        self._world.after(self._world.chance.randint(2, 20) * MS, self._guarded(act))

    def _fail(self, where: str, code: ErrorCode) -> None:
        """An error that ends the instance: allowed only where the transaction has passed its time-out."""
        age_ms = (self._world.now - self._began) // MS
        asks_again = where == "init_producer_id" and self._who[0] >= 0  # the answer was lost with the coordinator that knew the epoch before (as with Kafka)
        if code in FENCING and (asks_again or (self._began and age_ms >= self._timeout_ms)):
            self._world.note(f"{self.name}: {where} {code.name} after {age_ms} ms")
            self.start()
            return
        raise Broken(f"ClientsAreServed: {self.name} received {code.name} from {where}, its transaction is {age_ms} ms old")

    def _ask(self, rule: str, request: Any, version: int, then: Callable[[Any], None], again: Callable[[], None], code_of: Callable[[Any], int]) -> None:
        def on_response(response: Any) -> None:
            code = ErrorCode.NOT_COORDINATOR if response is None else ErrorCode(code_of(response))
            self._world.note(f"{self.name}: {rule} of {self._who} was answered {'-' if response is None else code.name}")
            if code in REPEATED:
                self._again(again)
            elif code:
                self._fail(rule, code)
            else:
                then(response)

        instance = self.instance
        # An InitProducerId that arrives late fences the owner of the id at that time, and rightly
        # so.
        is_wanted = (lambda: instance == self.instance) if rule == "init_producer_id" else None
        self._coordinator.ask(rule, request, version, self._guarded(on_response), is_wanted)

    def _init(self) -> None:
        self._began = 0
        request = init_request(self.name, self._timeout_ms, *self._who)
        self._ask("init_producer_id", request, 5, self._on_init, self._init, lambda response: int(response.error_code))

    def _on_init(self, response: Any) -> None:
        self._who, self._sequences = (response.producer_id, response.producer_epoch), {}
        self._begin()

    # -- a transaction

    def _begin(self) -> None:
        if not self._left:
            self.is_done = True
            return
        self._left -= 1
        chance = self._world.chance
        self._began = self._world.now
        self.outcomes.append(Outcome())
        self._is_ending = False
        self._is_open = self._is_second
        self._sending = []
        for partition in chance.sample(range(self._partitions), chance.randint(1, self._partitions)):
            for _ in range(chance.choice((1, 1, 2, 3, 7))):
                sequence = self._sequences.get(partition, 0)
                self._sequences[partition] = sequence + 1
                batch = Batch(*self._who, sequence, self._next_value())
                self.outcomes[-1].values[batch.value] = partition
                self._sending.append(_Sending(partition, batch))
        if chance.random() < 0.15:
            self._world.after(chance.randint(0, 30) * MS, self._guarded(self._abort), len(self.outcomes))
        if self._is_second:
            self._pump()
        else:
            self._add()

    def _add(self) -> None:
        numbers = tuple(sorted({sending.partition for sending in self._sending}))
        wanted = TransactionToExtend(self.name, *self._who, False, (TopicPartitions(TOPIC, numbers),))
        transaction = len(self.outcomes)

        def then(_response: Any) -> None:
            if transaction == len(self.outcomes):
                self._is_open = True
                self._pump()

        def again() -> None:
            if transaction == len(self.outcomes) and not self._is_ending:
                self._add()

        def code_of(response: Any) -> int:
            return int(max(each.error_code for topic in response.transactions[0].topics for each in topic.partitions))

        self._ask("add_partitions", AddPartitionsToTxnRequest((wanted,)), 3, then, again, code_of)

    def _pump(self) -> None:
        if self._is_ending or not self._is_open:
            return
        if not self._sending:
            self._end(WANTS_COMMIT)
            return
        if self._connection is None or self._connection.is_closed:
            if any(sending.is_in_flight for sending in self._sending):
                return  # they are about to fail, all at once
            self._connection = self._connect()
        blocked: set[int] = set()
        in_flight = sum(sending.is_in_flight for sending in self._sending)
        first: dict[int, _Sending] = {}
        for sending in self._sending:
            first.setdefault(sending.partition, sending)
            if sending.is_in_flight:
                continue
            waits = sending.not_before > self._world.now or (sending.tries and first[sending.partition] is not sending)
            if waits or in_flight >= IN_FLIGHT_MAX or sending.partition in blocked:
                blocked.add(sending.partition)
                continue
            in_flight += 1
            sending.is_in_flight = True
            then = self._guarded(self._on_code)
            transaction = len(self.outcomes)
            version = 12 if self._is_second else 11
            on_code = lambda code, sending=sending, transaction=transaction, then=then: then(sending, transaction, code)  # noqa: E731
            self._connection.produce(sending.partition, sending.batch, self.name, version, on_code)

    def _on_code(self, sending: _Sending, transaction: int, code: ErrorCode | None) -> None:
        if transaction != len(self.outcomes) or self._is_ending:
            return
        sending.is_in_flight = False
        self._world.note(f"{self.name}: {sending.batch} to {sending.partition} was answered {code.name if code is not None else '-'}")
        first = next(each for each in self._sending if each.partition == sending.partition)
        if code is ErrorCode.NONE:
            self._sending.remove(sending)
        elif code is None or code in REPEATED or (code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and first is not sending):
            sending.tries += 1
            backoff = self._world.chance.randint(2, 20) * MS
            sending.not_before = self._world.now + backoff
            self._world.after(backoff, self._guarded(self._pump))
        else:
            self._fail(f"Produce {sending.batch} to {sending.partition}", code)
            return
        self._pump()

    def _abort(self, transaction: int) -> None:
        if transaction == len(self.outcomes) and self._is_open and not self._is_ending and self._sending:
            self._needs_epoch = not self._is_second  # what is in flight may arrive later
            self._end(WANTS_ABORT)

    def _end(self, is_commit: bool) -> None:
        self._is_ending = True
        self.outcomes[-1].may_be_committed = is_commit
        request = end_request(self.name, *self._who, is_commit)

        def then(response: Any) -> None:
            self.outcomes[-1].is_committed = is_commit
            if self._is_second:
                self._who, self._sequences = (response.producer_id, response.producer_epoch), {}
            if self._needs_epoch:
                self._needs_epoch = False
                self._init()
            else:
                self._begin()

        self._ask("end_transaction", request, 5 if self._is_second else 3, then, lambda: self._end(is_commit), lambda response: int(response.error_code))
