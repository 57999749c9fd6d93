"""The transaction coordinator: producer ids and epochs, partitions of transactions, commit and abort. One method per API; a reply may come later.

Pure except for its ports (state log, markers, producer ids). State belongs to the partitions of
`__transaction_state`: it is loaded, changed only through the log (`transactional_ids.py`), and ended
with markers (`transaction_ends.py`). A box coordinates the partitions that it leads, others answer
NOT_COORDINATOR. Owned by the coordinator process. Sources: KIP-98, KIP-360, KIP-447, KIP-664, KIP-890,
Kafka's `TransactionCoordinator`. Weak spot: until its lease ends (`shm/lease.py`), an isolated box
verifies transactions from memory; it cannot decide any, because its appends stay above the high
watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_PRODUCER_ID, ProducerId, TopicPartition
from appliance.cluster.state_log import LoadedRecord, StateLog
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.protocol.transaction_apis import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ExtendedTransaction,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionToExtend,
)
from appliance.runtime.timers import Timers
from services.coordinator.transactions.transaction import (
    ENDING,
    LARGEST_EPOCH,
    NO_PRODUCER_EPOCH,
    SECOND_PROTOCOL,
    MarkerWriter,
    ProducerIds,
    Transaction,
    TransactionalId,
    TransactionSettings,
    TransactionState,
    add_partitions,
    is_exhausted,
    knows_itself,
    next_epoch,
    next_producer,
)
from services.coordinator.transactions.transaction_ends import TransactionEnds
from services.coordinator.transactions.transactional_ids import OnDone, TransactionalIds, describe_transactions, list_transactions

TIMERS_A_TURN = 100
_FENCED_SINCE_INIT = 4
"""From this version on InitProducerId has PRODUCER_FENCED (the other APIs: from `_FENCED_SINCE`); older versions get INVALID_PRODUCER_EPOCH."""
_FENCED_SINCE = 2
_BETWEEN_BROKERS_SINCE = 4
_SECOND_PROTOCOL_END_SINCE = 5

FEW_PARTITIONS = 16
"""A transaction may have so many whatever memory there is: producers that are there go on."""

Response = TypeVar("Response")
Reply = Callable[[Response], None]
OnVerified = Callable[[dict[TopicPartition, ErrorCode]], None]


class TransactionCoordinator:
    """All transactions that this box coordinates."""

    def __init__(
        self,
        state_log: StateLog,
        partition_count: int,
        markers: MarkerWriter,
        producer_ids: ProducerIds,
        settings: TransactionSettings,
        exists: Callable[[TopicPartition], bool],
        leader_epoch_of: Callable[[int], int],
        offsets_partition_of: Callable[[str], TopicPartition | None],
        wall_ms: Callable[[], int],
    ) -> None:
        """`exists`: true if a partition is in the metadata. `leader_epoch_of`: the leader epoch of a partition of the state topic.
        `offsets_partition_of`: the partition with a group's offsets; None: the topic does not exist. `now_ms` of the methods is monotonic; records
        have `wall_ms`."""
        self.ids = TransactionalIds(state_log, partition_count, settings)
        self._timers = Timers()
        self._ends = TransactionEnds(self.ids, markers, self._timers, exists, leader_epoch_of, wall_ms)
        self._producer_ids = producer_ids
        self._settings = settings
        self._exists = exists
        self._offsets_partition_of = offsets_partition_of
        self._wall_ms = wall_ms
        self._next_overdue_ms = 0
        self._next_expiry_ms = 0
        self.skipped_records = 0
        """Records that a load could not read."""

    # -- tenures of partitions of the state topic

    def begin_load(self, partition: int) -> None:
        self.ids.begin_load(partition)

    def load(self, partition: int, records: Iterable[LoadedRecord]) -> None:
        self.skipped_records += self.ids.load(partition, records)

    def finish_load(self, partition: int, now_ms: int) -> None:
        """Start to serve the partition; finish the transactions that a former coordinator had decided."""
        self._ends.now_ms = now_ms
        for transactional in list(self.ids.finish_load(partition)):
            if transactional.current.state in ENDING:
                self._ends.write_markers(transactional)

    def unload(self, partition: int, now_ms: int) -> None:
        self.ids.unload(partition)

    # -- turns

    def tick(self, now_ms: int) -> int:
        """Retries, overdue transactions, expired ids; returns how much was done."""
        self._ends.now_ms = now_ms
        work = self._timers.fire_due(now_ms, TIMERS_A_TURN)
        if now_ms >= self._next_overdue_ms:
            self._next_overdue_ms = now_ms + self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            work += self._abort_overdue()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + self._settings.transaction_remove_expired_transaction_cleanup_interval_ms
            work += self._forget_expired()
        return work

    def next_deadline_ms(self) -> int:
        timer_ms = self._timers.next_deadline_ms()
        others_ms = min(self._next_overdue_ms, self._next_expiry_ms)
        return others_ms if timer_ms is None else min(timer_ms, others_ms)

    @property
    def under_way(self) -> int:
        """Decided transactions that wait for markers."""
        return self._ends.under_way

    def _abort_overdue(self) -> int:
        wall_ms, overdue = self._wall_ms(), 0
        for transactional in self.ids:
            if transactional.pending is None and transactional.current.is_overdue(wall_ms):
                overdue += 1
                self._ends.abort_fenced(transactional, lambda _code: None)
        return overdue

    def _forget_expired(self) -> int:
        wall_ms, expired = self._wall_ms(), 0
        for transactional in self.ids:
            if transactional.pending is None and transactional.current.is_expired(wall_ms, self._settings.transactional_id_expiration_ms):
                expired += 1
                self.ids.forget(transactional, lambda _code: None)
        return expired

    # -- InitProducerId

    def init_producer_id(self, request: InitProducerIdRequest, version: int, now_ms: int, reply: Reply[InitProducerIdResponse]) -> None:
        """Assign producer id and epoch. A transaction that a former producer of the transactional id left open is aborted first."""

        def answer(code: ErrorCode, producer_id: ProducerId = NO_PRODUCER_ID, producer_epoch: int = NO_PRODUCER_EPOCH) -> None:
            reply(InitProducerIdResponse(0, _known_error(code, version >= _FENCED_SINCE_INIT), producer_id, producer_epoch))

        self._ends.now_ms = now_ms
        try:
            self._begin_producer(request, answer)
        except RequestRefused as refused:
            answer(refused.code)

    def _begin_producer(self, request: InitProducerIdRequest, answer: Callable[..., None]) -> None:
        name, knows_id, knows_epoch = request.transactional_id, request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
        if name == "" or knows_id != knows_epoch:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "an empty transactional id, or only one of producer id and epoch")
        if name is None:
            answer(ErrorCode.NONE, self._new_producer_id(), 0)
            return
        if not 0 < request.transaction_timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise RequestRefused(ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"{request.transaction_timeout_ms} ms")
        transactional = self.ids.find(name)
        if transactional is None:
            transactional = self.ids.add(name, Transaction(self._new_producer_id(), timeout_ms=request.transaction_timeout_ms, update_ms=self._wall_ms()))
        current = transactional.current
        if transactional.pending is not None or current.state in ENDING:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the last transaction of {name} is still being ended")
        if knows_id and not knows_itself(current, request.producer_id, request.producer_epoch):
            raise RequestRefused(ErrorCode.PRODUCER_FENCED, f"{name} is producer {current.producer_id} now, not {request.producer_id}")
        if current.state is TransactionState.ONGOING:
            self._ends.abort_fenced(transactional, lambda code: answer(code if code is not ErrorCode.NONE else ErrorCode.CONCURRENT_TRANSACTIONS))
            return
        following = self._following(current, request, knows_id)

        def on_done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                answer(code, following.producer_id, following.producer_epoch)
            else:
                answer(code)

        self.ids.step(transactional, following, on_done)

    def _following(self, current: Transaction, request: InitProducerIdRequest, knows_itself: bool) -> Transaction:
        """Return the next state of a transactional id without an open transaction: the next epoch, or the next producer id."""
        wall_ms, timeout_ms, client_version = self._wall_ms(), request.transaction_timeout_ms, current.client_version
        if knows_itself and current.producer_epoch != NO_PRODUCER_EPOCH and request.producer_id == current.previous_producer_id:
            return current._replace(update_ms=wall_ms)  # the response with the next producer id was lost
        expected_epoch = request.producer_epoch if knows_itself else None
        if current.is_exhausted and (expected_epoch is None or expected_epoch == current.producer_epoch):
            return next_producer(current, self._new_producer_id(), timeout_ms, knows_itself, client_version, wall_ms)
        return next_epoch(current, timeout_ms, expected_epoch, client_version, wall_ms)

    def _new_producer_id(self) -> ProducerId:
        producer_id = self._producer_ids.next()
        if producer_id is None:
            raise RequestRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "there are no producer ids yet")
        return producer_id

    # -- AddPartitionsToTxn, AddOffsetsToTxn

    def add_partitions(self, request: AddPartitionsToTxnRequest, version: int, now_ms: int, reply: Reply[AddPartitionsToTxnResponse]) -> None:
        """Add partitions: up to version 3 to a client's own transaction; from version 4 brokers verify or add for their clients (KIP-890)."""
        self._ends.now_ms = now_ms
        results: dict[int, ExtendedTransaction] = {}
        if not request.transactions:
            reply(AddPartitionsToTxnResponse())
            return

        def on_verified(index: int, wanted: TransactionToExtend, codes: dict[TopicPartition, ErrorCode]) -> None:
            topics = tuple(
                TopicResult(
                    topic, tuple(PartitionResult(number, _known_error(codes[TopicPartition(topic, number)], version >= _FENCED_SINCE)) for number in partitions)
                )
                for topic, partitions in wanted.topics
            )
            results[index] = ExtendedTransaction(wanted.transactional_id, topics)
            if len(results) == len(request.transactions):
                reply(AddPartitionsToTxnResponse(transactions=tuple(results[each] for each in range(len(results)))))

        for index, wanted in enumerate(request.transactions):
            partitions = frozenset(TopicPartition(topic, number) for topic, numbers in wanted.topics for number in numbers)
            client_version = SECOND_PROTOCOL if version >= _BETWEEN_BROKERS_SINCE else 0

            def then(codes: dict[TopicPartition, ErrorCode], index: int = index, wanted: TransactionToExtend = wanted) -> None:
                on_verified(index, wanted, codes)

            if wanted.verify_only:
                self.verify(wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, partitions, then)
            else:
                self.extend(wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, partitions, client_version, then)

    def verify(self, name: str, producer_id: ProducerId, producer_epoch: int, partitions: frozenset[TopicPartition], on_verified: OnVerified) -> None:
        """Check that each partition is in the producer's open transaction: NONE, or TRANSACTION_ABORTABLE (KIP-890)."""
        try:
            transactional = self._transaction_of(name, producer_id, producer_epoch)
        except RequestRefused as refused:
            on_verified(dict.fromkeys(partitions, refused.code))
            return
        current = transactional.current
        is_open = current.state is TransactionState.ONGOING
        on_verified({partition: ErrorCode.NONE if is_open and partition in current.partitions else ErrorCode.TRANSACTION_ABORTABLE for partition in partitions})

    def extend(
        self, name: str, producer_id: ProducerId, producer_epoch: int, partitions: frozenset[TopicPartition], client_version: int, on_extended: OnVerified
    ) -> None:
        """Add partitions to the transaction; the first ones open it. If one does not exist, none is added."""
        unknown = {partition for partition in partitions if not self._exists(partition)}
        if unknown:
            kinds = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            on_extended({partition: kinds[partition in unknown] for partition in partitions})
            return
        self._extend(name, producer_id, producer_epoch, partitions, client_version, lambda code: on_extended(dict.fromkeys(partitions, code)))

    def _extend(
        self, name: str, producer_id: ProducerId, producer_epoch: int, partitions: frozenset[TopicPartition], client_version: int, on_done: OnDone
    ) -> None:
        try:
            transactional = self._transaction_of(name, producer_id, producer_epoch)
            if transactional.pending is not None:
                raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS, f"a change of {name} is being appended")
            current = transactional.current
            self.ids.require_memory(len(partitions - current.partitions) if len(current.partitions) + len(partitions) > FEW_PARTITIONS else 0)
        except RequestRefused as refused:
            on_done(refused.code)
            return
        if current.state is TransactionState.ONGOING and partitions <= current.partitions:
            on_done(ErrorCode.NONE)
            return
        self.ids.step(transactional, add_partitions(current, partitions, client_version, self._wall_ms()), on_done)

    def add_offsets(self, request: AddOffsetsToTxnRequest, version: int, now_ms: int, reply: Reply[AddOffsetsToTxnResponse]) -> None:
        """Add the group's partition of `__consumer_offsets` to the transaction."""
        self._ends.now_ms = now_ms
        partition = self._offsets_partition_of(request.group_id)
        if partition is None:
            reply(AddOffsetsToTxnResponse(0, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return

        def on_done(code: ErrorCode) -> None:
            reply(AddOffsetsToTxnResponse(0, _known_error(code, version >= _FENCED_SINCE)))

        self._extend(request.transactional_id, request.producer_id, request.producer_epoch, frozenset((partition,)), 0, on_done)

    def _transaction_of(self, name: str, producer_id: ProducerId, producer_epoch: int) -> TransactionalId:
        """Return the producer's transaction if it may continue. Errors and their order are Kafka's."""
        transactional = self._known(name, producer_id)
        if transactional.current.producer_epoch != producer_epoch:
            raise RequestRefused(ErrorCode.PRODUCER_FENCED, f"epoch {producer_epoch} of {name} is not {transactional.current.producer_epoch}")
        if transactional.current.state in ENDING:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the last transaction of {name} is still being ended")
        return transactional

    def _known(self, name: str, producer_id: ProducerId, *, or_before: bool = False) -> TransactionalId:
        if not name:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        transactional = self.ids.find(name)
        if transactional is None or not (
            transactional.current.producer_id == producer_id or (or_before and transactional.current.previous_producer_id == producer_id)
        ):
            raise RequestRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{name} is not producer {producer_id}")
        return transactional

    # -- lists and descriptions

    def list_all(self, request: ListTransactionsRequest, version: int, now_ms: int, reply: Reply[ListTransactionsResponse]) -> None:
        reply(list_transactions(self.ids, request, self._wall_ms()))

    def describe(self, request: DescribeTransactionsRequest, version: int, now_ms: int, reply: Reply[DescribeTransactionsResponse]) -> None:
        reply(describe_transactions(self.ids, request))

    # -- EndTxn

    def end_transaction(self, request: EndTxnRequest, version: int, now_ms: int, reply: Reply[EndTxnResponse]) -> None:
        """Commit or abort; answered when the decision is in the log. From version 5 on the response has the producer's next epoch (KIP-890)."""
        self._ends.now_ms = now_ms
        is_second = version >= _SECOND_PROTOCOL_END_SINCE

        def answer(code: ErrorCode, transactional: TransactionalId | None = None) -> None:
            if code is not ErrorCode.NONE or transactional is None or not is_second:
                reply(EndTxnResponse(0, _known_error(code, version >= _FENCED_SINCE)))
                return
            current = transactional.current
            if current.next_producer_id != NO_PRODUCER_ID:
                reply(EndTxnResponse(0, 0, current.next_producer_id, 0))
            else:
                reply(EndTxnResponse(0, 0, current.producer_id, current.producer_epoch))

        try:
            transactional = self._known(request.transactional_id, request.producer_id, or_before=is_second)
            if self._is_ended_already(transactional, request, is_second):
                answer(ErrorCode.NONE, transactional)
                return
            next_producer_id = self._new_producer_id() if is_second and is_exhausted(transactional.current.producer_epoch) else NO_PRODUCER_ID
        except RequestRefused as refused:
            answer(refused.code)
            return
        self._ends.decide(transactional, request.is_commit, is_second, next_producer_id, lambda code: answer(code, transactional))

    def _is_ended_already(self, transactional: TransactionalId, request: EndTxnRequest, is_second: bool) -> bool:
        """Return True if the request repeats one that was carried out, False if it has to be carried out now. Raises `RequestRefused` otherwise."""
        current = transactional.current
        repeats = is_second and self._is_repeated(current, request)
        if not repeats and (request.producer_epoch != current.producer_epoch or request.producer_id != current.producer_id):
            raise RequestRefused(ErrorCode.PRODUCER_FENCED, f"epoch {request.producer_epoch} of {transactional.name} is not {current.producer_epoch}")
        if is_second and not repeats and current.producer_epoch == LARGEST_EPOCH:
            raise RequestRefused(ErrorCode.PRODUCER_FENCED, f"the last epoch of {transactional.name} is reserved for fencing")
        if transactional.pending is not None:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS, f"a change of {transactional.name} is being appended")
        if current.state is TransactionState.ONGOING:
            if repeats:
                raise RequestRefused(ErrorCode.PRODUCER_FENCED, f"{transactional.name} has begun its next transaction")
            return False
        if is_second and not repeats and current.state in ENDING:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the transaction of {transactional.name} before this one is being ended")
        if current.state is TransactionState.EMPTY or current.is_commit != request.is_commit:
            if is_second and not repeats and not request.is_commit:
                return False  # in the second protocol an abort without a transaction still raises the epoch
            if current.state is TransactionState.EMPTY and not request.is_commit:
                return True  # its AddPartitionsToTxn never arrived: under this epoch nothing was open that could have been committed
            raise RequestRefused(ErrorCode.INVALID_TXN_STATE, f"the transaction of {transactional.name} is {current.state.name}")
        if current.state in ENDING:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the transaction of {transactional.name} is being ended")
        if is_second and not repeats:
            if not request.is_commit:
                return False
            raise RequestRefused(ErrorCode.INVALID_TXN_STATE, f"{transactional.name} has no open transaction")
        return True

    @staticmethod
    def _is_repeated(current: Transaction, request: EndTxnRequest) -> bool:
        """In the second protocol the response to EndTxn has the next epoch; a producer with the former one did not receive it."""
        if request.producer_id == current.producer_id:
            return request.producer_epoch == current.producer_epoch - 1
        return request.producer_epoch in (LARGEST_EPOCH - 1, LARGEST_EPOCH) and current.producer_epoch == 0


def _known_error(code: ErrorCode, knows_fenced: bool) -> ErrorCode:
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and not knows_fenced else code
