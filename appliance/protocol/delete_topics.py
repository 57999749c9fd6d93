"""DeleteTopics 0-6: by name, from version 6 by topic id too. Owned by nobody; messages as data.

Up to version 5 a request is a list of names, then one of structs; `topics` holds both. Weak spot: none known.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, UUID, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

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
    """What became of one topic; the name may be null where only an unknown id was given."""

    name: Annotated[str | None, Field(STRING, nullable_since=_STRUCTS_SINCE)]
    topic_id: Annotated[TopicId, Field(UUID, since=_STRUCTS_SINCE)] = NO_TOPIC_ID
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, since=5, nullable_since=5)] = None


class DeleteTopicsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    topics: Annotated[tuple[DeletedTopic, ...], Field(ArrayOf(DeletedTopic))] = ()


REQUEST: Final = Message(ApiKey.DELETE_TOPICS, "DeleteTopics request", DeleteTopicsRequest)
RESPONSE: Final = Message(ApiKey.DELETE_TOPICS, "DeleteTopics response", DeleteTopicsResponse)


def decode_delete_topics(buffer: Buffer, position: int, limit: int, version: int) -> DeleteTopicsRequest:
    request = REQUEST.decode(buffer, position, limit, version)
    return request if version >= _STRUCTS_SINCE else request._replace(topics=tuple(TopicToDelete(name) for name in request.topic_names))


def encode_delete_topics_body(version: int, topics: tuple[DeletedTopic, ...], throttle_time_ms: int = 0) -> bytes:
    """The response's body alone: the process that decides is not the one that holds the connection."""
    return RESPONSE.encode(version, DeleteTopicsResponse(throttle_time_ms, topics))
