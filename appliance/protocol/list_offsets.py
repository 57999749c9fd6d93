"""ListOffsets 0-9: the offset of a timestamp, or of an end of a partition.

Owned by nobody; messages as data. Version 0 is of another kind: it asks for so many first offsets of segments and gets a list.
Weak spot: kio does not know version 0; its bytes are tested against Kafka's schema by hand.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT8, INT16, INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
LARGEST_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5


class ListOffsetsPartition(NamedTuple):
    """One partition and the timestamp (ms, or one of the special ones) whose offset is wanted."""

    partition: Annotated[int, Field(INT32)]
    current_leader_epoch: Annotated[int, Field(INT32, since=4)] = -1
    timestamp: Annotated[int, Field(INT64)] = LATEST_TIMESTAMP
    max_num_offsets: Annotated[int, Field(INT32, until=0)] = 1


class ListOffsetsTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[ListOffsetsPartition, ...], Field(ArrayOf(ListOffsetsPartition))]


class ListOffsetsRequest(NamedTuple):
    """`replica_id` −1 is a consumer, −2 a debugging one."""

    replica_id: Annotated[int, Field(INT32)] = -1
    isolation_level: Annotated[int, Field(INT8, since=2)] = 0
    topics: Annotated[tuple[ListOffsetsTopic, ...], Field(ArrayOf(ListOffsetsTopic))] = ()


class ListOffsetsPartitionResult(NamedTuple):
    """The offset found; −1 with NONE when there is none. `old_style_offsets` is what version 0 answers instead, descending."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    timestamp: Annotated[int, Field(INT64, since=1)] = -1
    offset: Annotated[int, Field(INT64, since=1)] = -1
    leader_epoch: Annotated[int, Field(INT32, since=4)] = -1
    old_style_offsets: Annotated[tuple[int, ...], Field(ArrayOf(INT64), until=0)] = ()


class ListOffsetsTopicResult(NamedTuple):
    """Results of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[ListOffsetsPartitionResult, ...], Field(ArrayOf(ListOffsetsPartitionResult))]


class ListOffsetsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32, since=2)] = 0
    topics: Annotated[tuple[ListOffsetsTopicResult, ...], Field(ArrayOf(ListOffsetsTopicResult))] = ()


REQUEST: Final = Message(ApiKey.LIST_OFFSETS, "ListOffsets request", ListOffsetsRequest)
RESPONSE: Final = Message(ApiKey.LIST_OFFSETS, "ListOffsets response", ListOffsetsResponse)


def decode_list_offsets(buffer: Buffer, position: int, limit: int, version: int) -> ListOffsetsRequest:
    return REQUEST.decode(buffer, position, limit, version)


def encode_list_offsets_response(version: int, correlation_id: int, topics: tuple[ListOffsetsTopicResult, ...], throttle_time_ms: int = 0) -> bytes:
    """The whole frame."""
    return RESPONSE.encode_response(version, correlation_id, ListOffsetsResponse(throttle_time_ms, topics))
