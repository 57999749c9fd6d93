"""AddPartitionsToTxn 0-5: partitions join a transaction (clients, up to version 3), or are looked for in it (brokers, from version 4).

Owned by nobody; messages as data. Up to version 3 request and response are about one transaction, from version 4 about several; here they
are always lists. Weak spots: an older response does not name its transaction, so decoding one leaves the id empty, and it has no error
code for the whole, so that has to stand in every partition (`topic_partitions.same_result`).
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.invariants import check
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, INT64, STRING, ArrayOf, Field, Message, OlderShape
from appliance.protocol.topic_partitions import TopicPartitions, TopicResult

_SINGLE_UNTIL: Final = 3


class TransactionToExtend(NamedTuple):
    """One transaction and its partitions; `verify_only` adds nothing."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[int, Field(INT64)] = -1
    producer_epoch: Annotated[int, Field(INT16)] = -1
    verify_only: Annotated[bool, Field(BOOL)] = False
    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()


class AddPartitionsToTxnRequest(NamedTuple):
    """Several transactions."""

    transactions: Annotated[tuple[TransactionToExtend, ...], Field(ArrayOf(TransactionToExtend))] = ()


class ExtendedTransaction(NamedTuple):
    """What became of one transaction's partitions."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


class AddPartitionsToTxnResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    transactions: Annotated[tuple[ExtendedTransaction, ...], Field(ArrayOf(ExtendedTransaction))] = ()


class _OneTransaction(NamedTuple):
    transactional_id: Annotated[str, Field(STRING)]
    producer_id: Annotated[int, Field(INT64)]
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


REQUEST: Final = Message(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    "AddPartitionsToTxn request",
    AddPartitionsToTxnRequest,
    OlderShape(_SINGLE_UNTIL, _OneTransaction, _widen_request, _narrow_request),
)
RESPONSE: Final = Message(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    "AddPartitionsToTxn response",
    AddPartitionsToTxnResponse,
    OlderShape(_SINGLE_UNTIL, _OneResult, _widen_response, _narrow_response),
)
