"""TxnOffsetCommit 0-5: offsets of a group that count when a transaction is committed.

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicResult


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
    """Whose transaction, and whose offsets; who the member is, is told from version 3."""

    transactional_id: Annotated[str, Field(STRING)] = ""
    group_id: Annotated[str, Field(STRING)] = ""
    producer_id: Annotated[int, Field(INT64)] = -1
    producer_epoch: Annotated[int, Field(INT16)] = -1
    generation_id: Annotated[int, Field(INT32, since=3)] = -1
    member_id: Annotated[str, Field(STRING, since=3)] = ""
    group_instance_id: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None
    topics: Annotated[tuple[TxnOffsetCommitTopic, ...], Field(ArrayOf(TxnOffsetCommitTopic))] = ()


class TxnOffsetCommitResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[TopicResult, ...], Field(ArrayOf(TopicResult))] = ()


REQUEST: Final = Message(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit request", TxnOffsetCommitRequest)
RESPONSE: Final = Message(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit response", TxnOffsetCommitResponse)
