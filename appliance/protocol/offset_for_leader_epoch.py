"""OffsetForLeaderEpoch 0-4: where a leader epoch ends in the leader's log (KIP-101, KIP-320).

Owned by nobody; messages as data. Weak spot: kio begins at version 2; the bytes of 0 and 1 are tested against Kafka's schema by hand.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

DEBUGGING_REPLICA_ID: Final = -2


class EpochPartition(NamedTuple):
    """One partition and the epoch whose end is wanted."""

    partition: Annotated[int, Field(INT32)]
    current_leader_epoch: Annotated[int, Field(INT32, since=2)] = -1
    leader_epoch: Annotated[int, Field(INT32)] = -1


class EpochTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[EpochPartition, ...], Field(ArrayOf(EpochPartition))]


class OffsetForLeaderEpochRequest(NamedTuple):
    """`replica_id` is a follower's, −1 a consumer's; before version 3 nobody says."""

    replica_id: Annotated[int, Field(INT32, since=3)] = DEBUGGING_REPLICA_ID
    topics: Annotated[tuple[EpochTopic, ...], Field(ArrayOf(EpochTopic))] = ()


class EpochPartitionResult(NamedTuple):
    """The largest known epoch that is not above the one asked for, and where it ends; −1 and −1 with NONE when nothing can be said."""

    error_code: Annotated[int, Field(INT16)]
    partition: Annotated[int, Field(INT32)]
    leader_epoch: Annotated[int, Field(INT32, since=1)] = -1
    end_offset: Annotated[int, Field(INT64)] = -1


class EpochTopicResult(NamedTuple):
    """Results of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[EpochPartitionResult, ...], Field(ArrayOf(EpochPartitionResult))]


class OffsetForLeaderEpochResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=2)] = 0
    topics: Annotated[tuple[EpochTopicResult, ...], Field(ArrayOf(EpochTopicResult))] = ()


REQUEST: Final = Message(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch request", OffsetForLeaderEpochRequest)
RESPONSE: Final = Message(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch response", OffsetForLeaderEpochResponse)


def decode_offset_for_leader_epoch(buffer: Buffer, position: int, limit: int, version: int) -> OffsetForLeaderEpochRequest:
    return REQUEST.decode(buffer, position, limit, version)


def encode_offset_for_leader_epoch_response(version: int, correlation_id: int, topics: tuple[EpochTopicResult, ...], throttle_time_ms: int = 0) -> bytes:
    """The whole frame."""
    return RESPONSE.encode_response(version, correlation_id, OffsetForLeaderEpochResponse(throttle_time_ms, topics))
