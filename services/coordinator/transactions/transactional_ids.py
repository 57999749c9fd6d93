"""The transactional ids of the state partitions that this box leads. They change only through the log.

A change is appended first and applied when the append is done; a refused append has no effect. Owned by
the transaction coordinator. Weak spot: whether an append that timed out is in the log is unknown; later
records follow it, and the last record of an id counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.state_log import LoadedRecord, StateLog, StateRecord, partition_of
from appliance.protocol.forwarded_apis import AnswerBudget
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from services.coordinator.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    STATE_NAMES,
    Transaction,
    TransactionalId,
    TransactionSettings,
    TransactionState,
)
from services.coordinator.transactions.transaction_records import decode_transaction, decode_transaction_key, encode_transaction, encode_transaction_key

OnDone = Callable[[ErrorCode], None]

_AS_COORDINATOR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""The client's error for a refused append of state; any other is UNKNOWN_SERVER_ERROR."""


NAME_CHARACTERS_MAX = 1_024
"""Of a new id; all are in one answer of ListTransactions. Kafka: 32,767."""
PARTITION_BYTES = 300
"""What a description has of a partition with the longest name, about."""


class _Partition:
    """One partition of the state topic, loading or loaded."""

    __slots__ = ("by_name", "is_loaded")

    def __init__(self) -> None:
        self.by_name: dict[str, TransactionalId] = {}
        self.is_loaded = False


class TransactionalIds:
    """All ids, by partition and name."""

    def __init__(self, state_log: StateLog, partition_count: int, settings: TransactionSettings) -> None:
        self._log = state_log
        self._partition_count = partition_count
        self._append_timeout_ms = settings.append_timeout_ms
        self._ids_max = settings.max_transactional_ids
        self.on_refused: Callable[[], None] = lambda: None
        """Called for each id beyond `max.transactional.ids`."""
        self.has_memory: Callable[[], bool] = lambda: True
        """False while nothing may grow (`coordinator.heap.bytes`)."""
        self._partitions: dict[int, _Partition] = {}

    # -- tenures

    def begin_load(self, partition: int) -> None:
        self._partitions[partition] = _Partition()

    def load(self, partition: int, records: Iterable[LoadedRecord]) -> int:
        """Take records in the order of the log; returns how many could not be read."""
        by_name, unreadable = self._partitions[partition].by_name, 0
        for record in records:
            try:
                name = decode_transaction_key(record.key) if record.is_commit is None else None
                if name is None:
                    continue
                if record.value is None:
                    by_name.pop(name, None)
                else:
                    by_name[name] = TransactionalId(name, decode_transaction(record.value))
            except ValueError:
                unreadable += 1
        return unreadable

    def finish_load(self, partition: int) -> Iterable[TransactionalId]:
        self._partitions[partition].is_loaded = True
        return self._partitions[partition].by_name.values()

    def unload(self, partition: int) -> None:
        self._partitions.pop(partition, None)

    @property
    def is_loading(self) -> bool:
        return any(not partition.is_loaded for partition in self._partitions.values())

    def partition_of(self, name: str) -> int:
        return partition_of(name, self._partition_count)

    # -- look-ups

    def find(self, name: str) -> TransactionalId | None:
        """Raises `RequestRefused` if this box is not the coordinator, or still loading."""
        return self._loaded(name).by_name.get(name)

    def add(self, name: str, first: Transaction) -> TransactionalId:
        """Add a new id; it is in the log with its first change.

        Raises `RequestRefused` beyond `max.transactional.ids`, or without memory; those in the log are loaded, whatever the bound.
        """
        if len(name) > NAME_CHARACTERS_MAX:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"a transactional id has at most {NAME_CHARACTERS_MAX} characters")
        self.require_memory(1)
        count = sum(len(partition.by_name) for partition in self._partitions.values())
        if count >= self._ids_max:
            self.on_refused()
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, f"this box has {count} transactional ids, and max.transactional.ids is {self._ids_max}")
        found = self._loaded(name).by_name[name] = TransactionalId(name, first)
        return found

    def require_memory(self, growth: int) -> None:
        """Raise `RequestRefused` if a transactional id may not have more than it has."""
        if growth > 0 and not self.has_memory():
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, "the coordinator uses as much memory as coordinator.heap.bytes allows")

    def _loaded(self, name: str) -> _Partition:
        partition = self._partitions.get(self.partition_of(name))
        if partition is None:
            raise RequestRefused(ErrorCode.NOT_COORDINATOR, f"transactional id {name} is coordinated elsewhere")
        if not partition.is_loaded:
            raise RequestRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the state of transactional id {name} is being read")
        return partition

    def __iter__(self) -> Iterator[TransactionalId]:
        for partition in list(self._partitions.values()):
            if partition.is_loaded:
                yield from list(partition.by_name.values())

    def __len__(self) -> int:
        return sum(len(partition.by_name) for partition in self._partitions.values())

    def holds(self, transactional: TransactionalId) -> bool:
        """Whether this object is still what is known of its id (and not that of a tenure that has ended)."""
        partition = self._partitions.get(self.partition_of(transactional.name))
        return partition is not None and partition.by_name.get(transactional.name) is transactional

    # -- steps

    def step(self, transactional: TransactionalId, following: Transaction, on_done: OnDone) -> None:
        """Append `following`; when it is in the log it is what is known, and `on_done` hears NONE. Else it hears what to tell the client."""
        transactional.pending = following
        record = StateRecord(encode_transaction_key(transactional.name), encode_transaction(following))

        def on_appended(code: ErrorCode) -> None:
            if not self.holds(transactional):
                on_done(ErrorCode.NOT_COORDINATOR)
                return
            transactional.pending = None
            if code is ErrorCode.NONE:
                transactional.current = following
            on_done(code if code is ErrorCode.NONE else _AS_COORDINATOR.get(code, ErrorCode.UNKNOWN_SERVER_ERROR))

        self._log.append(self.partition_of(transactional.name), (record,), on_appended, timeout_ms=self._append_timeout_ms)

    def forget(self, transactional: TransactionalId, on_done: OnDone) -> None:
        """Append a tombstone; then nothing is known of the id."""
        partition = self._partitions[self.partition_of(transactional.name)]
        if transactional.current.producer_epoch == NO_PRODUCER_EPOCH:
            del partition.by_name[transactional.name]  # it never got into the log
            on_done(ErrorCode.NONE)
            return
        transactional.pending = transactional.current

        def on_appended(code: ErrorCode) -> None:
            transactional.pending = None
            if code is ErrorCode.NONE and self.holds(transactional):
                del partition.by_name[transactional.name]
            on_done(code)

        self._log.append(
            self.partition_of(transactional.name),
            (StateRecord(encode_transaction_key(transactional.name), None),),
            on_appended,
            timeout_ms=self._append_timeout_ms,
        )


# ---- lists and descriptions


def list_transactions(ids: TransactionalIds, request: ListTransactionsRequest, wall_ms: int) -> ListTransactionsResponse:
    """List the transactions that pass every filter; an unknown state is reported and matches none."""
    known = set(STATE_NAMES.values())
    unknown = tuple(state for state in request.state_filters if state not in known)
    if ids.is_loading:
        return ListTransactionsResponse(0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown)
    states, producer_ids = frozenset(request.state_filters), frozenset(request.producer_id_filters)
    listed = tuple(
        ListedTransaction(transactional.name, transactional.current.producer_id, STATE_NAMES[transactional.current.state])
        for transactional in ids
        if _passes(transactional.current, states, producer_ids) and _has_lasted(transactional.current, request, wall_ms)
    )
    return ListTransactionsResponse(0, 0, unknown, listed)


def _passes(transaction: Transaction, states: frozenset[str], producer_ids: frozenset[int]) -> bool:
    if transaction.producer_epoch == NO_PRODUCER_EPOCH:
        return False  # nothing of it is in the log
    if states and STATE_NAMES[transaction.state] not in states:
        return False
    return not producer_ids or transaction.producer_id in producer_ids


def _has_lasted(transaction: Transaction, request: ListTransactionsRequest, wall_ms: int) -> bool:
    if request.duration_filter_ms < 0:
        return True
    return transaction.state is TransactionState.ONGOING and wall_ms - transaction.start_ms > request.duration_filter_ms


def describe_transactions(ids: TransactionalIds, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    budget = AnswerBudget()
    return DescribeTransactionsResponse(0, tuple(_describe(ids, name, budget) for name in request.transactional_ids))


def _describe(ids: TransactionalIds, name: str, budget: AnswerBudget) -> DescribedTransaction:
    if not name or budget.is_spent:
        return DescribedTransaction(ErrorCode.INVALID_REQUEST, name)
    try:
        transactional = ids.find(name)
    except RequestRefused as refused:
        return DescribedTransaction(refused.code, name)
    if transactional is None or transactional.current.producer_epoch == NO_PRODUCER_EPOCH:
        return DescribedTransaction(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
    current = transactional.current
    if not budget.take(PARTITION_BYTES * (1 + len(current.partitions))):
        return DescribedTransaction(ErrorCode.INVALID_REQUEST, name)
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(current.partitions):
        topics[topic].append(partition)
    listed = tuple(TopicPartitions(topic, tuple(partitions)) for topic, partitions in topics.items())
    start_ms = current.start_ms if current.state is not TransactionState.EMPTY else -1
    return DescribedTransaction(0, name, STATE_NAMES[current.state], current.timeout_ms, start_ms, current.producer_id, current.producer_epoch, listed)
