"""OffsetCommit 0-9: a group keeps how far it has read.

Owned by nobody; messages as data. `generation_id` is a member epoch for groups of the newer protocol (KIP-848). Version 0 names
neither member nor generation and is of a client that keeps no membership; version 1 has a time for each partition, versions 2 to 4
have how long to keep the offsets. Weak spot: kio begins at version 2.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicResult

NO_GENERATION: Final = -1
DEFAULT_RETENTION: Final = -1
NOW: Final = -1


class OffsetCommitPartition(NamedTuple):
    """The next offset to read; `commit_timestamp_ms` −1 means now."""

    partition: Annotated[int, Field(INT32)]
    offset: Annotated[int, Field(INT64)]
    leader_epoch: Annotated[int, Field(INT32, since=6)] = -1
    commit_timestamp_ms: Annotated[int, Field(INT64, since=1, until=1)] = NOW
    metadata: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class OffsetCommitTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[OffsetCommitPartition, ...], Field(ArrayOf(OffsetCommitPartition))] = ()


class OffsetCommitRequest(NamedTuple):
    """Who commits what; `retention_time_ms` −1 leaves it to the broker."""

    group_id: Annotated[str, Field(STRING)] = ""
    generation_id: Annotated[int, Field(INT32, since=1)] = NO_GENERATION
    member_id: Annotated[str, Field(STRING, since=1)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=7, nullable_since=7)] = None
    retention_time_ms: Annotated[int, Field(INT64, since=2, until=4)] = DEFAULT_RETENTION
    topics: Annotated[tuple[OffsetCommitTopic, ...], Field(ArrayOf(OffsetCommitTopic))] = ()


class OffsetCommitResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=3)] = 0
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


REQUEST: Final = Message(ApiKey.OFFSET_COMMIT, "OffsetCommit request", OffsetCommitRequest)
RESPONSE: Final = Message(ApiKey.OFFSET_COMMIT, "OffsetCommit response", OffsetCommitResponse)
