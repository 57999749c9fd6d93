"""DescribeTopicPartitions 0: topics and partitions in pages (KIP-966). Owned by nobody; messages as data. Weak spot: none known."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, STRING, UUID, ArrayOf, Field, Message


class TopicToDescribe(NamedTuple):
    """By name alone."""

    name: Annotated[str, Field(STRING)]


class PartitionCursor(NamedTuple):
    """Where a page begins."""

    topic_name: Annotated[str, Field(STRING)]
    partition_index: Annotated[int, Field(INT32)]


class DescribeTopicPartitionsRequest(NamedTuple):
    """No topics: all. At most `response_partition_limit` partitions are told, from `cursor` on, topics in the order of their names."""

    topics: Annotated[tuple[TopicToDescribe, ...], Field(ArrayOf(TopicToDescribe))] = ()
    response_partition_limit: Annotated[int, Field(INT32)] = 2000
    cursor: Annotated[PartitionCursor | None, Field(PartitionCursor, nullable_since=0)] = None


class PartitionDescription(NamedTuple):
    """One partition. There are no eligible leaders outside the ISR here."""

    error_code: Annotated[int, Field(INT16)]
    partition_index: Annotated[int, Field(INT32)]
    leader_id: Annotated[int, Field(INT32)]
    leader_epoch: Annotated[int, Field(INT32)]
    replica_nodes: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]
    isr_nodes: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]
    eligible_leader_replicas: Annotated[tuple[int, ...] | None, Field(ArrayOf(INT32), nullable_since=0)] = ()
    last_known_elr: Annotated[tuple[int, ...] | None, Field(ArrayOf(INT32), nullable_since=0)] = ()
    offline_replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class TopicDescription(NamedTuple):
    """One topic, or why not."""

    error_code: Annotated[int, Field(INT16)]
    name: Annotated[str | None, Field(STRING, nullable_since=0)]
    topic_id: Annotated[TopicId, Field(UUID)] = NO_TOPIC_ID
    is_internal: Annotated[bool, Field(BOOL)] = False
    partitions: Annotated[tuple[PartitionDescription, ...], Field(ArrayOf(PartitionDescription))] = ()
    topic_authorized_operations: Annotated[int, Field(INT32)] = -(2**31)


class DescribeTopicPartitionsResponse(NamedTuple):
    """One page; `next_cursor` None: the last one."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[TopicDescription, ...], Field(ArrayOf(TopicDescription))] = ()
    next_cursor: Annotated[PartitionCursor | None, Field(PartitionCursor, nullable_since=0)] = None


REQUEST: Final = Message(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions request", DescribeTopicPartitionsRequest)
RESPONSE: Final = Message(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions response", DescribeTopicPartitionsResponse)
