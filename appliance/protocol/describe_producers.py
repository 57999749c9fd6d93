"""DescribeProducers 0: who has written to partitions with a producer id, and whose transactions are open there (KIP-664).

Owned by nobody; messages as data. Weak spot: none known; kio knows the one version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicPartitions

NO_TRANSACTION: Final = -1


class DescribeProducersRequest(NamedTuple):
    """Partitions by topic."""

    topics: Annotated[tuple[TopicPartitions, ...], Field(ArrayOf(TopicPartitions))] = ()


class ActiveProducer(NamedTuple):
    """One producer; its epoch has four bytes here. The offset is that of its open transaction's first record, −1 if there is none."""

    producer_id: Annotated[int, Field(INT64)]
    producer_epoch: Annotated[int, Field(INT32)]
    last_sequence: Annotated[int, Field(INT32)] = -1
    last_timestamp_ms: Annotated[int, Field(INT64)] = -1
    coordinator_epoch: Annotated[int, Field(INT32)] = -1
    current_txn_start_offset: Annotated[int, Field(INT64)] = NO_TRANSACTION


class ProducersOfPartition(NamedTuple):
    """The producers of one partition, or why not."""

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


REQUEST: Final = Message(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers request", DescribeProducersRequest)
RESPONSE: Final = Message(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers response", DescribeProducersResponse)
