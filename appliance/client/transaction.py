"""One producer's transactions: records of several partitions and a group's offsets, all of them or none. Source: KIP-98, KIP-447.

Owned by one thread. `begin` fences the former producer of the transactional id and ends the transaction that it left open. Every step may be repeated,
so a restart of a broker or coordinator only delays it. After an exception only `abort`, or another `begin`, makes sense.
Weak spot: a process that dies leaves its transaction open until the next `begin` of the same id, or until the coordinator's time-out; readers of committed
records wait for that long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.invariants import check
from appliance.base.model import NO_PRODUCER_ID, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.coordinator import GROUP, TRANSACTION, CoordinatorClient, by_topic, first_error
from appliance.client.errors import ClientFailed
from appliance.client.groups import CommittedOffset
from appliance.client.messages import ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT, Answered, Asked, ClientApi
from appliance.client.producer import DELIVERY_TIMEOUT_MS, WAITING_BYTES_MAX, BatchProducer
from appliance.cluster.state_log import ProducerIdentity
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionToExtend,
    TxnOffsetCommitPartition,
    TxnOffsetCommitRequest,
    TxnOffsetCommitTopic,
)

TRANSACTION_TIMEOUT_MS = 300_000


class TransactionalProducer:
    """`begin`, `append` …, `flush`, `commit_offsets`, `commit`; or `abort`. Use it in a `with` block: leaving it without a commit aborts."""

    def __init__(self, cluster: ClusterClient, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS,
                 delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:  # fmt: skip
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._waiting_bytes_max = waiting_bytes_max
        self._coordinator = CoordinatorClient(cluster, TRANSACTION, transactional_id, retry_ms=delivery_timeout_ms, asks_again=True)
        self._sender: BatchProducer | None = None
        self._identity = ProducerIdentity(NO_PRODUCER_ID, -1)
        self._joined: set[TopicPartition] = set()
        self._is_open = False

    def __enter__(self) -> TransactionalProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            if self._is_open:
                self.abort()
        except (ClientFailed, RequestRefused):
            if error is None:
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Drop the connections, and leave the transaction as it is."""
        if self._sender is not None:
            self._sender.close()

    def begin(self) -> None:
        """Be the one producer of this transactional id."""
        self.close()
        request = InitProducerIdRequest(self.transactional_id, self._timeout_ms)
        body = self._ask(INIT_PRODUCER_ID, request, "begin a transaction", _error_of_body)
        self._identity = ProducerIdentity(body.producer_id, body.producer_epoch)
        self._sender = BatchProducer(
            self._cluster,
            self._identity,
            transactional_id=self.transactional_id,
            delivery_timeout_ms=self._delivery_timeout_ms,
            waiting_bytes_max=self._waiting_bytes_max,
        )
        self._joined.clear()
        self._is_open = False

    @property
    def sender(self) -> BatchProducer:
        check(self._sender is not None, f"transaction {self.transactional_id!r} is used before it is begun")
        assert self._sender is not None
        return self._sender

    def join(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the transaction go over `partitions`, before anything is appended to them."""
        new = sorted(set(partitions) - self._joined)
        if not new:
            return
        topics = tuple(TopicPartitions(*topic) for topic in by_topic(new))
        joined = TransactionToExtend(self.transactional_id, *self._identity, topics=topics)
        self._is_open = True
        self._ask(ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest((joined,)), "add partitions to the transaction", _error_of_partitions)
        self._joined.update(new)

    def append(self, partition: TopicPartition, batch: bytes) -> None:
        """Send one batch, made without a producer; `join` its partition first."""
        check(partition in self._joined, f"{partition} is not part of transaction {self.transactional_id!r}")
        self.sender.append(partition, batch)

    def flush(self) -> None:
        """Return when all that was appended is in the logs."""
        self.sender.flush()

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Offsets of a group that count if the transaction does."""
        self.add_group(group_id)
        committed = [(topic, TxnOffsetCommitPartition(partition, each.offset, metadata=each.metadata)) for (topic, partition), each in sorted(offsets.items())]
        topics = tuple(TxnOffsetCommitTopic(*topic) for topic in by_topic(committed))
        doing = f"commit the offsets of group {group_id!r} in transaction {self.transactional_id!r}"
        group = CoordinatorClient(self._cluster, GROUP, group_id, retry_ms=self._delivery_timeout_ms, asks_again=True)
        group.ask(TXN_OFFSET_COMMIT, TxnOffsetCommitRequest(self.transactional_id, group_id, *self._identity, topics=topics), doing, first_error)

    def add_group(self, group_id: str) -> None:
        """Let the transaction go over the group's offsets."""
        self._is_open = True
        request = AddOffsetsToTxnRequest(self.transactional_id, *self._identity, group_id)
        self._ask(ADD_OFFSETS_TO_TXN, request, f"add group {group_id!r} to the transaction", _error_of_body)

    def commit(self) -> None:
        """All of it counts when this returns. Nothing is sent for a transaction that is over nothing."""
        self.flush()
        self._end(True)

    def abort(self) -> None:
        """None of it counts."""
        self._end(False)

    def _end(self, is_commit: bool) -> None:
        if self._is_open:
            request = EndTxnRequest(self.transactional_id, *self._identity, is_commit)
            self._ask(END_TXN, request, "commit the transaction" if is_commit else "abort the transaction", _error_of_body)
        self._is_open = False
        self._joined.clear()

    def _ask(self, api: ClientApi[Asked, Answered], request: Asked, doing: str, error_of: Callable[[Answered], tuple[int, str | None]]) -> Answered:
        return self._coordinator.ask(api, request, f"{doing} (transactional id {self.transactional_id!r})", error_of)


def _error_of_body(body: InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse) -> tuple[int, str | None]:
    return body.error_code, None


def _error_of_partitions(body: AddPartitionsToTxnResponse) -> tuple[int, str | None]:
    """Return the error behind a refusal: the other partitions were only not attempted."""
    codes = [each.error_code for extended in body.transactions for topic in extended.topics for each in topic.partitions]
    return next((code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)), max(codes, default=0)), None
