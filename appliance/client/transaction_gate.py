"""Where transactional batches wait while the transaction coordinator is asked whether their partition belongs to the transaction (KIP-890).

A log-writer that receives the first batch of a transaction answers NEEDS_VERIFICATION with a guard. The batch, and what the same producer sends to the same
partition behind it, waits here in order; with the coordinator's agreement all are offered again, with the guard, and the log-writer takes them as one
goes after the other. One question a turn covers all partitions of a transaction. Where the producer leaves it to us to add partitions (Produce 12), a
coordinator that still ends the transaction before is asked again, shortly, because that is the common case there. Owned by one acceptor.
Weak spot: what waits keeps its arena slot and is not charged to its disk; a connection has at most 16 such requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER, ProducerId
from appliance.client.peers import OnAnswer
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.state_log import TRANSACTIONS_TOPIC, partition_of
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    ADD_PARTITIONS_TO_TXN_REQUEST,
    ADD_PARTITIONS_TO_TXN_RESPONSE,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionToExtend,
)

GUARDS_KEPT = 4096
RETRY_NS = 20_000_000
RETRIES_MAX = 5
"""Kafka's add.partitions.to.txn.retry.backoff.ms (20) and …max.ms (100)."""
_GENERIC_ERRORS_SINCE = 11
"""Produce versions from here on know TRANSACTION_ABORTABLE."""
ADDS_PARTITIONS_SINCE = 12

OnVerified = Callable[[Sequence[int]], None]
"""Called once with an error code for each partition, in the order of the question; perhaps before `verify` returns."""


class TransactionVerifier(Protocol):
    """The way to the coordinator of a transaction."""

    def verify(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: int, partitions: Sequence[tuple[str, int]], add: bool, on_answer: OnVerified
    ) -> None:
        """Ask whether `partitions` belong to the ongoing transaction; with `add`, let them belong to it (AddPartitionsToTxn 4)."""


class Producer(NamedTuple):
    """The producer of a batch, and its partition."""

    topic: str
    partition: int
    producer_id: ProducerId
    producer_epoch: int


class WaitingBatch(Protocol):
    """A batch, as the gate needs to know it."""

    @property
    def producer(self) -> Producer: ...

    @property
    def transactional_id(self) -> str: ...

    @property
    def version(self) -> int: ...


_Batch = TypeVar("_Batch", bound=WaitingBatch)


class _Queue(Generic[_Batch]):
    """One producer's batches for one partition, each with the guard that it was answered with; 0: it was held back before it was offered."""

    __slots__ = ("batches", "eldest", "guard", "retries")

    def __init__(self, guard: int, batch: _Batch) -> None:
        self.guard = guard
        self.eldest = batch
        self.batches = [(batch, guard)]
        self.retries = 0

    def guard_of(self, guard: int) -> int:
        """What the answer to our question is good for: a guard that was given later says that the log-writer has seen the transaction end since."""
        return guard if guard == self.guard else 0


class TransactionGate(Generic[_Batch]):
    """Of one acceptor. `on_verified(batch, guard)` offers a batch again, `on_refused(batch, code)` answers it. Without a verifier no transaction is
    served."""

    def __init__(
        self,
        verifier: TransactionVerifier | None,
        clock: Clock,
        on_verified: Callable[[_Batch, int], None],
        on_refused: Callable[[_Batch, ErrorCode], None],
    ) -> None:
        self._verifier = verifier
        self._clock = clock
        self._on_verified = on_verified
        self._on_refused = on_refused
        self._queues: dict[Producer, _Queue[_Batch]] = {}
        self._verified: OrderedDict[Producer, int] = OrderedDict()
        """Guards that the coordinator has agreed to: batches that were offered before that was known come back for them."""
        self._unasked: list[_Queue[_Batch]] = []
        self._retries: list[tuple[int, _Queue[_Batch]]] = []
        """(when, what) is asked again, in order."""

    def __len__(self) -> int:
        """Batches that wait."""
        return sum(len(queue.batches) for queue in self._queues.values())

    def maybe_hold(self, batch: _Batch) -> bool:
        """A new batch: whether it has to wait behind others of its producer."""
        queue = self._queues.get(batch.producer) if self._queues else None
        if queue is None:
            return False
        queue.batches.append((batch, 0))
        return True

    def on_needed(self, batch: _Batch, guard: int) -> None:
        """The log-writer wants the coordinator to be asked."""
        producer = batch.producer
        queue = self._queues.get(producer)
        if queue is not None:
            queue.batches.append((batch, guard))
        elif self._verified.get(producer) == guard:
            self._on_verified(batch, guard)
        else:
            queue = self._queues[producer] = _Queue(guard, batch)
            self._unasked.append(queue)

    def park_ms(self, now_ns: int, most_ms: int) -> int:
        """How long the acceptor may wait before it asks again."""
        return most_ms if not self._retries else max(0, min(most_ms, -(-(self._retries[0][0] - now_ns) // 1_000_000)))

    def ask(self, now_ns: int) -> int:
        """Ask for those whose turn it is; how many questions that took. Once a turn."""
        while self._retries and self._retries[0][0] <= now_ns:
            self._unasked.append(self._retries.pop(0)[1])
        if not self._unasked:
            return 0
        unasked, self._unasked = self._unasked, []
        questions: dict[tuple[str, ProducerId, int, bool], list[_Queue[_Batch]]] = {}
        for queue in unasked:
            eldest = queue.eldest
            key = (eldest.transactional_id, eldest.producer.producer_id, eldest.producer.producer_epoch, eldest.version >= ADDS_PARTITIONS_SINCE)
            questions.setdefault(key, []).append(queue)
        for question, queues in questions.items():
            self._ask(*question, queues)
        return len(questions)

    def _ask(self, transactional_id: str, producer_id: ProducerId, producer_epoch: int, adds: bool, queues: list[_Queue[_Batch]]) -> None:
        if self._verifier is None:
            for queue in queues:
                self._refuse(queue, ErrorCode.INVALID_TXN_STATE)
            return

        def on_answer(codes: Sequence[int]) -> None:
            for queue, code in zip(queues, codes, strict=True):
                self._on_answer(queue, code, adds)

        names = [queue.eldest.producer[:2] for queue in queues]
        self._verifier.verify(transactional_id, producer_id, producer_epoch, names, adds, on_answer)

    def _on_answer(self, queue: _Queue[_Batch], code: int, adds: bool) -> None:
        if code == ErrorCode.CONCURRENT_TRANSACTIONS and adds and queue.retries < RETRIES_MAX:
            queue.retries += 1
            self._retries.append((self._clock.monotonic_ns() + RETRY_NS, queue))
            return
        if code:
            self._refuse(queue, ErrorCode(code))
            return
        producer = queue.eldest.producer
        del self._queues[producer]
        self._verified[producer] = queue.guard
        self._verified.move_to_end(producer)
        if len(self._verified) > GUARDS_KEPT:
            self._verified.popitem(last=False)
        for batch, guard in queue.batches:
            self._on_verified(batch, queue.guard_of(guard))

    def _refuse(self, queue: _Queue[_Batch], code: ErrorCode) -> None:
        """Those it was asked for are answered; others are offered as if for the first time."""
        del self._queues[queue.eldest.producer]
        for batch, guard in queue.batches:
            if queue.guard_of(guard):
                self._on_refused(batch, client_error(code, batch.version))
            else:
                self._on_verified(batch, 0)


_ASK_AGAIN = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)


def client_error(code: ErrorCode, version: int) -> ErrorCode:
    """Return the coordinator's error as this version of Produce has it; NOT_ENOUGH_REPLICAS makes any client retry."""
    if code in _ASK_AGAIN:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _GENERIC_ERRORS_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return code


# ---- verification by the coordinator of another box (AddPartitionsToTxn from version 4 on)


VERSION_MIN: Final = 4
TIMEOUT_MS: Final = 5_000

Partitions = Sequence[tuple[str, int]]
OnCodes = Callable[[Sequence[int]], None]
"""Called once with an error code for each partition, in the order of the question."""


class TransactionRequester(Protocol):
    """`client.peers.Peers`, as far as it is needed."""

    def ask(
        self,
        broker_id: int,
        question: Message[AddPartitionsToTxnRequest],
        reply: Message[AddPartitionsToTxnResponse],
        body: AddPartitionsToTxnRequest,
        on_answer: OnAnswer,
        timeout_ms: int,
        *,
        version_min: int,
    ) -> None: ...


class TransactionPeers:
    """Implements `transaction_gate.TransactionVerifier` for transactions that other boxes coordinate."""

    def __init__(self, view: MetadataCache, peers: TransactionRequester) -> None:
        self._view = view
        self._peers = peers

    def other_coordinator(self, transactional_id: str) -> int:
        """Return the box that coordinates a transactional id; -1 if this box does, or none."""
        topic = self._view.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None or not topic.partitions:
            return NO_LEADER
        leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        return NO_LEADER if leader == self._view.broker_id else leader

    def verify(self, transactional_id: str, producer_id: ProducerId, producer_epoch: int, partitions: Partitions, add: bool, on_answer: OnCodes) -> None:
        wanted = question(transactional_id, producer_id, producer_epoch, partitions, add)
        self._peers.ask(
            self.other_coordinator(transactional_id),
            ADD_PARTITIONS_TO_TXN_REQUEST,
            ADD_PARTITIONS_TO_TXN_RESPONSE,
            AddPartitionsToTxnRequest((wanted,)),
            lambda response: on_answer(codes(response, partitions)),
            TIMEOUT_MS,
            version_min=VERSION_MIN,
        )


def question(transactional_id: str, producer_id: ProducerId, producer_epoch: int, partitions: Partitions, add: bool) -> TransactionToExtend:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    topics = tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in by_topic.items())
    return TransactionToExtend(transactional_id, producer_id, producer_epoch, not add, topics)


def codes(response: AddPartitionsToTxnResponse | None, partitions: Partitions) -> list[int]:
    """One for each partition; COORDINATOR_NOT_AVAILABLE without a response, and from a box that does not know this one's address yet: producers try again."""
    if response is None or response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(partitions)
    found = {(result.topic, each.partition): each.error_code for answered in response.transactions for result in answered.topics for each in result.partitions}
    return [found.get(partition, response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR) for partition in partitions]
