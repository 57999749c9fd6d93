"""APIs that create, delete, grow and describe topics: messages as data.

CreateTopics 0-7 (kio: 2-7; tools of librdkafka may use 0), DeleteTopics 0-6, CreatePartitions 0-3
and DescribeTopicPartitions 0 (KIP-966). Weak spot: the tagged `topicConfigErrorCode` of
CreateTopics 5 and later is never written; it says only that the caller may not describe configs.
"""

from typing import Annotated, Final, NamedTuple

from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, UUID, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

# -- CreateTopics


class ReplicaAssignment(NamedTuple):
    """The brokers of one partition, chosen by the caller."""

    partition: Annotated[int, Field(INT32)]
    broker_ids: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class TopicConfig(NamedTuple):
    """One of Kafka's topic settings; null asks for the default."""

    name: Annotated[str, Field(STRING)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)]


class CreatableTopic(NamedTuple):
    """−1 partitions or replicas: the broker's default (v4+), or as `assignments` says."""

    name: Annotated[str, Field(STRING)]
    num_partitions: Annotated[int, Field(INT32)] = -1
    replication_factor: Annotated[int, Field(INT16)] = -1
    assignments: Annotated[tuple[ReplicaAssignment, ...], Field(ArrayOf(ReplicaAssignment))] = ()
    configs: Annotated[tuple[TopicConfig, ...], Field(ArrayOf(TopicConfig))] = ()


class CreateTopicsRequest(NamedTuple):
    """Topics to create, each by itself: one may fail while another succeeds."""

    topics: Annotated[tuple[CreatableTopic, ...], Field(ArrayOf(CreatableTopic))]
    timeout_ms: Annotated[int, Field(INT32)] = 60_000
    validate_only: Annotated[bool, Field(BOOL, since=1)] = False


class CreatedTopicConfig(NamedTuple):
    """One setting of a topic that was created (v5+)."""

    name: Annotated[str, Field(STRING)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)]
    read_only: Annotated[bool, Field(BOOL)] = False
    config_source: Annotated[int, Field(INT8)] = -1
    is_sensitive: Annotated[bool, Field(BOOL)] = False


class CreatedTopic(NamedTuple):
    """The result for one topic."""

    name: Annotated[str, Field(STRING)]
    topic_id: Annotated[TopicId, Field(UUID, since=7)] = NO_TOPIC_ID
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, since=1, nullable_since=1)] = None
    num_partitions: Annotated[int, Field(INT32, since=5)] = -1
    replication_factor: Annotated[int, Field(INT16, since=5)] = -1
    configs: Annotated[tuple[CreatedTopicConfig, ...] | None, Field(ArrayOf(CreatedTopicConfig), since=5, nullable_since=5)] = None
    topic_config_error_code: Annotated[int, Field(INT16, since=5, tag=0)] = 0


class CreateTopicsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=2)] = 0
    topics: Annotated[tuple[CreatedTopic, ...], Field(ArrayOf(CreatedTopic))] = ()


CREATE_TOPICS_REQUEST: Final = Message(ApiKey.CREATE_TOPICS, "CreateTopics request", CreateTopicsRequest)
CREATE_TOPICS_RESPONSE: Final = Message(
    ApiKey.CREATE_TOPICS,
    "CreateTopics response",
    CreateTopicsResponse,
    error=lambda _version, request, code, text: CreateTopicsResponse(
        0, tuple(CreatedTopic(name, error_code=code, error_message=text) for name in dict.fromkeys(topic.name for topic in request.topics))
    ),
)


def decode_create_topics(buffer: Buffer, position: int, limit: int, version: int) -> CreateTopicsRequest:
    return CREATE_TOPICS_REQUEST.decode(buffer, position, limit, version)


def encode_create_topics_body(version: int, topics: tuple[CreatedTopic, ...], throttle_time_ms: int = 0) -> bytes:
    """The response's body alone: the controller decides, the acceptor holds the connection."""
    return CREATE_TOPICS_RESPONSE.encode(version, CreateTopicsResponse(throttle_time_ms, topics))


# -- DeleteTopics: by name, from version 6 by topic id too.
#
# Up to version 5 a request is a list of names, then one of structs; `topics` has both.

_STRUCTS_SINCE: Final = 6


class TopicToDelete(NamedTuple):
    """Named by either; the other is None or zero."""

    name: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    topic_id: Annotated[TopicId, Field(UUID)] = NO_TOPIC_ID


class DeleteTopicsRequest(NamedTuple):
    """Topics to delete, each by itself; `topics` is filled in every version."""

    topics: Annotated[tuple[TopicToDelete, ...], Field(ArrayOf(TopicToDelete), since=_STRUCTS_SINCE)] = ()
    topic_names: Annotated[tuple[str, ...], Field(ArrayOf(STRING), until=_STRUCTS_SINCE - 1)] = ()
    timeout_ms: Annotated[int, Field(INT32)] = 60_000


class DeletedTopic(NamedTuple):
    """The result for one topic; the name may be null if only an unknown id was given."""

    name: Annotated[str | None, Field(STRING, nullable_since=_STRUCTS_SINCE)]
    topic_id: Annotated[TopicId, Field(UUID, since=_STRUCTS_SINCE)] = NO_TOPIC_ID
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None


class DeleteTopicsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    topics: Annotated[tuple[DeletedTopic, ...], Field(ArrayOf(DeletedTopic))] = ()


DELETE_TOPICS_REQUEST: Final = Message(ApiKey.DELETE_TOPICS, "DeleteTopics request", DeleteTopicsRequest)
DELETE_TOPICS_RESPONSE: Final = Message(
    ApiKey.DELETE_TOPICS,
    "DeleteTopics response",
    DeleteTopicsResponse,
    error=lambda _version, request, code, text: DeleteTopicsResponse(
        0, tuple(DeletedTopic(topic.name, topic.topic_id, code, text) for topic in topics_to_delete(request))
    ),
)


def decode_delete_topics(buffer: Buffer, position: int, limit: int, version: int) -> DeleteTopicsRequest:
    request = DELETE_TOPICS_REQUEST.decode(buffer, position, limit, version)
    return request._replace(topics=topics_to_delete(request))


def topics_to_delete(request: DeleteTopicsRequest) -> tuple[TopicToDelete, ...]:
    """Return what a request of any version is about."""
    return request.topics or tuple(TopicToDelete(name) for name in request.topic_names)


def encode_delete_topics_body(version: int, topics: tuple[DeletedTopic, ...], throttle_time_ms: int = 0) -> bytes:
    """The response's body alone: the controller decides, the acceptor holds the connection."""
    return DELETE_TOPICS_RESPONSE.encode(version, DeleteTopicsResponse(throttle_time_ms, topics))


# -- CreatePartitions: more partitions for existing topics.


class PartitionAssignment(NamedTuple):
    """The brokers of one new partition; entries are in the order of the new partitions."""

    broker_ids: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class TopicToGrow(NamedTuple):
    """`partition_count` is the new total; `assignments` None: the controller chooses."""

    name: Annotated[str, Field(STRING)]
    partition_count: Annotated[int, Field(INT32)]
    assignments: Annotated[tuple[PartitionAssignment, ...] | None, Field(ArrayOf(PartitionAssignment), nullable_since=0)] = None


class CreatePartitionsRequest(NamedTuple):
    """Topics to grow, each by itself: one may fail while another succeeds."""

    topics: Annotated[tuple[TopicToGrow, ...], Field(ArrayOf(TopicToGrow))]
    timeout_ms: Annotated[int, Field(INT32)] = 60_000
    validate_only: Annotated[bool, Field(BOOL)] = False


class GrownTopic(NamedTuple):
    """The result for one topic."""

    name: Annotated[str, Field(STRING)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class CreatePartitionsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    results: Annotated[tuple[GrownTopic, ...], Field(ArrayOf(GrownTopic))] = ()


CREATE_PARTITIONS_REQUEST: Final = Message(ApiKey.CREATE_PARTITIONS, "CreatePartitions request", CreatePartitionsRequest)
CREATE_PARTITIONS_RESPONSE: Final = Message(
    ApiKey.CREATE_PARTITIONS,
    "CreatePartitions response",
    CreatePartitionsResponse,
    error=lambda _version, request, code, text: CreatePartitionsResponse(
        0, tuple(GrownTopic(name, code, text) for name in dict.fromkeys(topic.name for topic in request.topics))
    ),
)


# -- DescribeTopicPartitions: topics and partitions in pages.


class TopicToDescribe(NamedTuple):
    """By name alone."""

    name: Annotated[str, Field(STRING)]


class PartitionCursor(NamedTuple):
    """Where a page begins."""

    topic_name: Annotated[str, Field(STRING)]
    partition_index: Annotated[int, Field(INT32)]


class DescribeTopicPartitionsRequest(NamedTuple):
    """At most `response_partition_limit` partitions from `cursor` on, topics by name; no topics: all."""

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
    """One topic, or an error."""

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


DESCRIBE_TOPIC_PARTITIONS_REQUEST: Final = Message(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions request", DescribeTopicPartitionsRequest)
DESCRIBE_TOPIC_PARTITIONS_RESPONSE: Final = Message(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions response", DescribeTopicPartitionsResponse)
