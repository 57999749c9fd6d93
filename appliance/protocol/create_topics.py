"""CreateTopics 0-7. Owned by nobody; messages as data.

By hand although it is asked seldom, because kio begins at version 2 and librdkafka's tools may speak 0. Weak spot: the tagged
`topicConfigErrorCode` (v5+) is never written; it would only say that the caller may not describe configs.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, UUID, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer


class ReplicaAssignment(NamedTuple):
    """The brokers of one partition, chosen by the caller."""

    partition: Annotated[int, Field(INT32)]
    broker_ids: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class TopicConfig(NamedTuple):
    """One of Kafka's topic settings; null asks for the default."""

    name: Annotated[str, Field(STRING)]
    value: Annotated[str | None, Field(STRING, nullable_since=0)]


class CreatableTopic(NamedTuple):
    """−1 partitions or replicas: the broker's default (v4+), or `assignments` says."""

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
    """What became of one topic."""

    name: Annotated[str, Field(STRING)]
    topic_id: Annotated[TopicId, Field(UUID, since=7)] = NO_TOPIC_ID
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, since=1, nullable_since=1)] = None
    num_partitions: Annotated[int, Field(INT32, since=5)] = -1
    replication_factor: Annotated[int, Field(INT16, since=5)] = -1
    configs: Annotated[tuple[CreatedTopicConfig, ...] | None, Field(ArrayOf(CreatedTopicConfig), since=5, nullable_since=5)] = None


class CreateTopicsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=2)] = 0
    topics: Annotated[tuple[CreatedTopic, ...], Field(ArrayOf(CreatedTopic))] = ()


REQUEST: Final = Message(ApiKey.CREATE_TOPICS, "CreateTopics request", CreateTopicsRequest)
RESPONSE: Final = Message(ApiKey.CREATE_TOPICS, "CreateTopics response", CreateTopicsResponse)


def decode_create_topics(buffer: Buffer, position: int, limit: int, version: int) -> CreateTopicsRequest:
    return REQUEST.decode(buffer, position, limit, version)


def encode_create_topics_body(version: int, topics: tuple[CreatedTopic, ...], throttle_time_ms: int = 0) -> bytes:
    """The response's body alone: the process that decides is not the one that holds the connection."""
    return RESPONSE.encode(version, CreateTopicsResponse(throttle_time_ms, topics))
