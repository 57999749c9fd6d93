"""DescribeTransactions 0: the state of transactional ids (KIP-664).

Owned by nobody; messages as data. Weak spot: none known; kio knows the one version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicPartitions


class DescribeTransactionsRequest(NamedTuple):
    """Transactional ids."""

    transactional_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()


class DescribedTransaction(NamedTuple):
    """One transactional id; the start is −1 where no transaction goes on, and a refusal has zeros, as Kafka's has."""

    error_code: Annotated[int, Field(INT16)] = 0
    transactional_id: Annotated[str, Field(STRING)] = ""
    transaction_state: Annotated[str, Field(STRING)] = ""
    transaction_timeout_ms: Annotated[int, Field(INT32)] = 0
    transaction_start_time_ms: Annotated[int, Field(INT64)] = 0
    producer_id: Annotated[int, Field(INT64)] = 0
    producer_epoch: Annotated[int, Field(INT16)] = 0
    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()


class DescribeTransactionsResponse(NamedTuple):
    """Transactions in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    transactions: Annotated[tuple[DescribedTransaction, ...], Field(ArrayOf(DescribedTransaction))] = ()


REQUEST: Final = Message(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions request", DescribeTransactionsRequest)
RESPONSE: Final = Message(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions response", DescribeTransactionsResponse)
