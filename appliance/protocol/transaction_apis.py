"""APIs of transactions and producer ids: messages as data.

InitProducerId 0-5, AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4, TxnOffsetCommit 0-5, EndTxn 0-5,
WriteTxnMarkers 0-2 (kio: 1-2), DescribeTransactions 0, ListTransactions 0-1 and
DescribeProducers 0 (KIP-98, KIP-664, KIP-890, KIP-994).
"""

from typing import Annotated, Final, NamedTuple

from appliance.base.invariants import check
from appliance.base.model import NO_PRODUCER_ID, ProducerId
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, INT64, STRING, ArrayOf, Field, Message, OlderShape
from appliance.protocol.topic_partitions import TopicPartitions, TopicResult, same_result

# -- InitProducerId: a producer id and epoch; ends what an earlier producer of the transactional id left open.

NO_PRODUCER_EPOCH: Final = -1


class InitProducerIdRequest(NamedTuple):
    """Without a transactional id the producer is idempotent only. Id and epoch: its current ones."""

    transactional_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    transaction_timeout_ms: Annotated[int, Field(INT32)] = 60_000
    producer_id: Annotated[ProducerId, Field(INT64, since=3)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16, since=3)] = NO_PRODUCER_EPOCH


class InitProducerIdResponse(NamedTuple):
    """The producer's new id and epoch; −1 and −1 with an error."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    producer_id: Annotated[ProducerId, Field(INT64)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16)] = NO_PRODUCER_EPOCH


INIT_PRODUCER_ID_REQUEST: Final = Message(ApiKey.INIT_PRODUCER_ID, "InitProducerId request", InitProducerIdRequest)
INIT_PRODUCER_ID_RESPONSE: Final = Message(ApiKey.INIT_PRODUCER_ID, "InitProducerId response", InitProducerIdResponse)


# -- AddPartitionsToTxn: clients (up to version 3) add partitions, brokers (from version 4) verify them.
#
# Up to version 3 request and response have one transaction, from version 4 several; here they are
# always lists. An older response does not name its transaction, so decoding one leaves the id empty, and
# has no error code for the whole: it stands in each partition (`topic_partitions.same_result`).

_SINGLE_UNTIL: Final = 3


class TransactionToExtend(NamedTuple):
    """One transaction and its partitions; `verify_only` adds nothing."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[ProducerId, Field(INT64)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16)] = -1
    verify_only: Annotated[bool, Field(BOOL)] = False
    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()


class AddPartitionsToTxnRequest(NamedTuple):
    """Several transactions."""

    transactions: Annotated[tuple[TransactionToExtend, ...], Field(ArrayOf(TransactionToExtend))] = ()


class ExtendedTransaction(NamedTuple):
    """The results for one transaction's partitions."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


class AddPartitionsToTxnResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    transactions: Annotated[tuple[ExtendedTransaction, ...], Field(ArrayOf(ExtendedTransaction))] = ()


class _OneTransaction(NamedTuple):
    transactional_id: Annotated[str, Field(STRING)]
    producer_id: Annotated[ProducerId, Field(INT64)]
    producer_epoch: Annotated[int, Field(INT16)]
    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))]


class _OneResult(NamedTuple):
    throttle_time_ms: Annotated[int, Field(INT32)]
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))]


def _widen_request(request: _OneTransaction) -> AddPartitionsToTxnRequest:
    transactional_id, producer_id, producer_epoch, topics = request
    return AddPartitionsToTxnRequest((TransactionToExtend(transactional_id, producer_id, producer_epoch, False, topics),))


def _narrow_request(request: AddPartitionsToTxnRequest) -> _OneTransaction:
    check(len(request.transactions) == 1, f"{len(request.transactions)} transactions are extended in a version that knows one")
    transactional_id, producer_id, producer_epoch, verify_only, topics = request.transactions[0]
    check(not verify_only, "a transaction is verified in a version that only extends")
    return _OneTransaction(transactional_id, producer_id, producer_epoch, topics)


def _widen_response(response: _OneResult) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(response.throttle_time_ms, transactions=(ExtendedTransaction("", response.topics),))


def _narrow_response(response: AddPartitionsToTxnResponse) -> _OneResult:
    check(len(response.transactions) == 1, f"{len(response.transactions)} transactions are answered in a version that knows one")
    check(response.error_code == 0, f"error {response.error_code} of a whole request in a version that has it in every partition")
    return _OneResult(response.throttle_time_ms, response.transactions[0].topics)


ADD_PARTITIONS_TO_TXN_REQUEST: Final = Message(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    "AddPartitionsToTxn request",
    AddPartitionsToTxnRequest,
    OlderShape(_SINGLE_UNTIL, _OneTransaction, _widen_request, _narrow_request),
)
ADD_PARTITIONS_TO_TXN_RESPONSE: Final = Message(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    "AddPartitionsToTxn response",
    AddPartitionsToTxnResponse,
    OlderShape(_SINGLE_UNTIL, _OneResult, _widen_response, _narrow_response),
    error=lambda _version, request, code, _text: AddPartitionsToTxnResponse(
        transactions=tuple(ExtendedTransaction(one.transactional_id, same_result(one.topics, code)) for one in request.transactions)
    ),
)


# -- AddOffsetsToTxn: the offsets of a group join a transaction.


class AddOffsetsToTxnRequest(NamedTuple):
    """A transaction and a group."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[ProducerId, Field(INT64)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16)] = -1
    group_id: Annotated[str, Field(STRING)] = ""


class AddOffsetsToTxnResponse(NamedTuple):
    """NONE, or an error."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0


ADD_OFFSETS_TO_TXN_REQUEST: Final = Message(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn request", AddOffsetsToTxnRequest)
ADD_OFFSETS_TO_TXN_RESPONSE: Final = Message(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn response", AddOffsetsToTxnResponse)


# -- TxnOffsetCommit: offsets of a group that count when a transaction is committed.


class TxnOffsetCommitPartition(NamedTuple):
    """The next offset to read."""

    partition: Annotated[int, Field(INT32)]
    offset: Annotated[int, Field(INT64)]
    leader_epoch: Annotated[int, Field(INT32, since=2)] = -1
    metadata: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class TxnOffsetCommitTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[TxnOffsetCommitPartition, ...], Field(ArrayOf(TxnOffsetCommitPartition))] = ()


class TxnOffsetCommitRequest(NamedTuple):
    """A transaction and the offsets of a group; from version 3 also the member."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    group_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[ProducerId, Field(INT64)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16)] = -1
    generation_id: Annotated[int, Field(INT32, since=3)] = -1
    member_id: Annotated[str, Field(STRING, since=3)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None
    topics: Annotated[tuple[TxnOffsetCommitTopic, ...], Field(ArrayOf(TxnOffsetCommitTopic))] = ()


class TxnOffsetCommitResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


TXN_OFFSET_COMMIT_REQUEST: Final = Message(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit request", TxnOffsetCommitRequest)
TXN_OFFSET_COMMIT_RESPONSE: Final = Message(
    ApiKey.TXN_OFFSET_COMMIT,
    "TxnOffsetCommit response",
    TxnOffsetCommitResponse,
    error=lambda _version, request, code, _text: TxnOffsetCommitResponse(0, same_result(request.topics, code)),
)


# -- EndTxn: commit or abort a transaction.
#
# From version 5 the response has the producer id and epoch of the next transaction (KIP-890).


class EndTxnRequest(NamedTuple):
    """A transaction, and whether to commit it."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[ProducerId, Field(INT64)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16)] = -1
    is_commit: Annotated[bool, Field(BOOL)] = False


class EndTxnResponse(NamedTuple):
    """NONE, or an error; −1 and −1: the producer keeps its id and epoch."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    producer_id: Annotated[ProducerId, Field(INT64, since=5)] = NO_PRODUCER_ID
    producer_epoch: Annotated[int, Field(INT16, since=5)] = -1


END_TXN_REQUEST: Final = Message(ApiKey.END_TXN, "EndTxn request", EndTxnRequest)
END_TXN_RESPONSE: Final = Message(ApiKey.END_TXN, "EndTxn response", EndTxnResponse)


# -- WriteTxnMarkers: a transaction coordinator ends transactions in the partitions that a broker leads.

SECOND_PROTOCOL: Final = 2
"""A `transaction_version` in which a marker has a larger producer epoch than the batches of its transaction (KIP-890)."""


class TxnMarker(NamedTuple):
    """The end of one transaction, for some partitions.

    `coordinator_epoch` is the leader epoch of the coordinator's partition, `transaction_version` that of
    the transaction (KIP-1228).
    """

    producer_id: Annotated[ProducerId, Field(INT64)]
    producer_epoch: Annotated[int, Field(INT16)]
    is_commit: Annotated[bool, Field(BOOL)]
    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()
    coordinator_epoch: Annotated[int, Field(INT32)] = 0
    transaction_version: Annotated[int, Field(INT8, since=2)] = 0


class WriteTxnMarkersRequest(NamedTuple):
    """Markers of several transactions."""

    markers: Annotated[tuple[TxnMarker, ...], Field(ArrayOf(TxnMarker))] = ()


class TxnMarkerResult(NamedTuple):
    """The results for one transaction's markers."""

    producer_id: Annotated[ProducerId, Field(INT64)]
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


class WriteTxnMarkersResponse(NamedTuple):
    """Results in the order of the request."""

    markers: Annotated[tuple[TxnMarkerResult, ...], Field(ArrayOf(TxnMarkerResult))] = ()


WRITE_TXN_MARKERS_REQUEST: Final = Message(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers request", WriteTxnMarkersRequest)
WRITE_TXN_MARKERS_RESPONSE: Final = Message(
    ApiKey.WRITE_TXN_MARKERS,
    "WriteTxnMarkers response",
    WriteTxnMarkersResponse,
    error=lambda _version, request, code, _text: WriteTxnMarkersResponse(
        tuple(TxnMarkerResult(each.producer_id, same_result(each.topics, code)) for each in request.markers)
    ),
)


# -- DescribeTransactions: the state of transactional ids.


class DescribeTransactionsRequest(NamedTuple):
    """Transactional ids."""

    transactional_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()


class DescribedTransaction(NamedTuple):
    """One transactional id; the start is −1 without an open transaction; an error has zeros, as in Kafka."""

    error_code: Annotated[int, Field(INT16)] = 0
    transactional_id: Annotated[str, Field(STRING)] = ""
    transaction_state: Annotated[str, Field(STRING)] = ""
    transaction_timeout_ms: Annotated[int, Field(INT32)] = 0
    transaction_start_time_ms: Annotated[int, Field(INT64)] = 0
    producer_id: Annotated[ProducerId, Field(INT64)] = ProducerId(0)
    producer_epoch: Annotated[int, Field(INT16)] = 0
    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()


class DescribeTransactionsResponse(NamedTuple):
    """Transactions in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    transactions: Annotated[tuple[DescribedTransaction, ...], Field(ArrayOf(DescribedTransaction))] = ()


DESCRIBE_TRANSACTIONS_REQUEST: Final = Message(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions request", DescribeTransactionsRequest)
DESCRIBE_TRANSACTIONS_RESPONSE: Final = Message(
    ApiKey.DESCRIBE_TRANSACTIONS,
    "DescribeTransactions response",
    DescribeTransactionsResponse,
    error=lambda _version, request, code, _text: DescribeTransactionsResponse(0, tuple(DescribedTransaction(code, each) for each in request.transactional_ids)),
)


# -- ListTransactions: the transactional ids that a broker coordinates.


class ListTransactionsRequest(NamedTuple):
    """Filters by state, producer and duration (open for longer than this); empty or −1: all."""

    state_filters: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    producer_id_filters: Annotated[tuple[int, ...], Field(ArrayOf(INT64))] = ()
    duration_filter_ms: Annotated[int, Field(INT64, since=1)] = -1


class ListedTransaction(NamedTuple):
    """One transactional id."""

    transactional_id: Annotated[str, Field(STRING)]
    producer_id: Annotated[ProducerId, Field(INT64)] = NO_PRODUCER_ID
    transaction_state: Annotated[str, Field(STRING)] = ""


class ListTransactionsResponse(NamedTuple):
    """Transactions in any order, and the filters that name no state."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    unknown_state_filters: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    transactions: Annotated[tuple[ListedTransaction, ...], Field(ArrayOf(ListedTransaction))] = ()


LIST_TRANSACTIONS_REQUEST: Final = Message(ApiKey.LIST_TRANSACTIONS, "ListTransactions request", ListTransactionsRequest)
LIST_TRANSACTIONS_RESPONSE: Final = Message(ApiKey.LIST_TRANSACTIONS, "ListTransactions response", ListTransactionsResponse)


# -- DescribeProducers: producers of a partition, and their open transactions.

NO_TRANSACTION: Final = -1


class DescribeProducersRequest(NamedTuple):
    """Partitions by topic."""

    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()


class ActiveProducer(NamedTuple):
    """One producer; its epoch has four bytes here. The offset: first record of its open transaction, or −1."""

    producer_id: Annotated[ProducerId, Field(INT64)]
    producer_epoch: Annotated[int, Field(INT32)]
    last_sequence: Annotated[int, Field(INT32)] = -1
    last_timestamp_ms: Annotated[int, Field(INT64)] = -1
    coordinator_epoch: Annotated[int, Field(INT32)] = -1
    current_txn_start_offset: Annotated[int, Field(INT64)] = NO_TRANSACTION


class ProducersOfPartition(NamedTuple):
    """The producers of one partition, or an error."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    producers: Annotated[tuple[ActiveProducer, ...], Field(ArrayOf(ActiveProducer))] = ()


class ProducersOfTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[ProducersOfPartition, ...], Field(ArrayOf(ProducersOfPartition))] = ()


class DescribeProducersResponse(NamedTuple):
    """Partitions in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[ProducersOfTopic, ...], Field(ArrayOf(ProducersOfTopic))] = ()


DESCRIBE_PRODUCERS_REQUEST: Final = Message(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers request", DescribeProducersRequest)
DESCRIBE_PRODUCERS_RESPONSE: Final = Message(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers response", DescribeProducersResponse)
