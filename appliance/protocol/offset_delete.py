"""OffsetDelete 0: a group forgets how far it has read in some partitions (KIP-496).

Owned by nobody; messages as data. Weak spot: none known; kio knows the one version, which is not flexible.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicResult


class OffsetDeletePartition(NamedTuple):
    """One partition."""

    partition: Annotated[int, Field(INT32)]


class OffsetDeleteTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[OffsetDeletePartition, ...], Field(ArrayOf(OffsetDeletePartition))] = ()


class OffsetDeleteRequest(NamedTuple):
    """A group and partitions."""

    group_id: Annotated[str, Field(STRING)] = ""
    topics: Annotated[tuple[OffsetDeleteTopic, ...], Field(ArrayOf(OffsetDeleteTopic))] = ()


class OffsetDeleteResponse(NamedTuple):
    """Results in the order of the request, or why none was tried."""

    error_code: Annotated[int, Field(INT16)] = 0
    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


REQUEST: Final = Message(ApiKey.OFFSET_DELETE, "OffsetDelete request", OffsetDeleteRequest)
RESPONSE: Final = Message(ApiKey.OFFSET_DELETE, "OffsetDelete response", OffsetDeleteResponse)
