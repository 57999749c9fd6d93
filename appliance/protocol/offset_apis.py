"""APIs that look up or move offsets of partitions: messages as data.

ListOffsets 0-9 (kio: 1-9), OffsetForLeaderEpoch 0-4 (kio: 2-4; KIP-101, KIP-320) and
DeleteRecords 0-2 (KIP-107). A test compares the bytes of the versions that kio does not know with
Kafka's schema.
"""

from typing import Annotated, Final, NamedTuple

from appliance.base.model import NO_LEADER_EPOCH, LeaderEpoch
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT8, INT16, INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

# -- ListOffsets: the offset of a timestamp, or of an end of a partition.
#
# Version 0 is different: it requests up to a number of first offsets of segments and receives a list.

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
LARGEST_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5


class ListOffsetsPartition(NamedTuple):
    """One partition and the timestamp (ms, or one of the special ones) whose offset is wanted."""

    partition: Annotated[int, Field(INT32)]
    current_leader_epoch: Annotated[LeaderEpoch, Field(INT32, since=4)] = NO_LEADER_EPOCH
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
    """The offset found; −1 with NONE if there is none. Version 0 has `old_style_offsets`, descending."""

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


LIST_OFFSETS_REQUEST: Final = Message(ApiKey.LIST_OFFSETS, "ListOffsets request", ListOffsetsRequest)
LIST_OFFSETS_RESPONSE: Final = Message(
    ApiKey.LIST_OFFSETS,
    "ListOffsets response",
    ListOffsetsResponse,
    error=lambda _version, request, code, _text: ListOffsetsResponse(
        0,
        tuple(
            ListOffsetsTopicResult(topic.topic, tuple(ListOffsetsPartitionResult(each.partition, code) for each in topic.partitions))
            for topic in request.topics
        ),
    ),
)


def decode_list_offsets(buffer: Buffer, position: int, limit: int, version: int) -> ListOffsetsRequest:
    return LIST_OFFSETS_REQUEST.decode(buffer, position, limit, version)


def encode_list_offsets_response(version: int, correlation_id: int, topics: tuple[ListOffsetsTopicResult, ...], throttle_time_ms: int = 0) -> bytes:
    """The whole frame."""
    return LIST_OFFSETS_RESPONSE.encode_response(version, correlation_id, ListOffsetsResponse(throttle_time_ms, topics))


# -- OffsetForLeaderEpoch: where a leader epoch ends in the leader's log.

DEBUGGING_REPLICA_ID: Final = -2


class EpochPartition(NamedTuple):
    """One partition and the epoch whose end is wanted."""

    partition: Annotated[int, Field(INT32)]
    current_leader_epoch: Annotated[LeaderEpoch, Field(INT32, since=2)] = NO_LEADER_EPOCH
    leader_epoch: Annotated[int, Field(INT32)] = -1


class EpochTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[EpochPartition, ...], Field(ArrayOf(EpochPartition))]


class OffsetForLeaderEpochRequest(NamedTuple):
    """`replica_id` is a follower's, or −1 for a consumer; versions before 3 lack it."""

    replica_id: Annotated[int, Field(INT32, since=3)] = DEBUGGING_REPLICA_ID
    topics: Annotated[tuple[EpochTopic, ...], Field(ArrayOf(EpochTopic))] = ()


class EpochPartitionResult(NamedTuple):
    """The largest known epoch up to the requested one, and its end; −1 and −1 with NONE: unknown."""

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


OFFSET_FOR_LEADER_EPOCH_REQUEST: Final = Message(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch request", OffsetForLeaderEpochRequest)
OFFSET_FOR_LEADER_EPOCH_RESPONSE: Final = Message(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    "OffsetForLeaderEpoch response",
    OffsetForLeaderEpochResponse,
    error=lambda _version, request, code, _text: OffsetForLeaderEpochResponse(
        0,
        tuple(EpochTopicResult(topic.topic, tuple(EpochPartitionResult(code, each.partition) for each in topic.partitions)) for topic in request.topics),
    ),
)


def decode_offset_for_leader_epoch(buffer: Buffer, position: int, limit: int, version: int) -> OffsetForLeaderEpochRequest:
    return OFFSET_FOR_LEADER_EPOCH_REQUEST.decode(buffer, position, limit, version)


def encode_offset_for_leader_epoch_response(version: int, correlation_id: int, topics: tuple[EpochTopicResult, ...], throttle_time_ms: int = 0) -> bytes:
    """The whole frame."""
    return OFFSET_FOR_LEADER_EPOCH_RESPONSE.encode_response(version, correlation_id, OffsetForLeaderEpochResponse(throttle_time_ms, topics))


# -- DeleteRecords: let partitions begin at a later offset.

HIGH_WATERMARK: Final = -1


class DeleteRecordsPartition(NamedTuple):
    """One partition and the first offset that stays; −1: the high watermark (delete all that is readable)."""

    partition: Annotated[int, Field(INT32)]
    offset: Annotated[int, Field(INT64)]


class DeleteRecordsTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[DeleteRecordsPartition, ...], Field(ArrayOf(DeleteRecordsPartition))]


class DeleteRecordsRequest(NamedTuple):
    """`timeout_ms` is how long the client waits."""

    topics: Annotated[tuple[DeleteRecordsTopic, ...], Field(ArrayOf(DeleteRecordsTopic))] = ()
    timeout_ms: Annotated[int, Field(INT32)] = 60_000


class DeleteRecordsPartitionResult(NamedTuple):
    """The new log start offset; −1 with an error."""

    partition: Annotated[int, Field(INT32)]
    low_watermark: Annotated[int, Field(INT64)] = -1
    error_code: Annotated[int, Field(INT16)] = 0


class DeleteRecordsTopicResult(NamedTuple):
    """Results of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[DeleteRecordsPartitionResult, ...], Field(ArrayOf(DeleteRecordsPartitionResult))]


class DeleteRecordsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[DeleteRecordsTopicResult, ...], Field(ArrayOf(DeleteRecordsTopicResult))] = ()


DELETE_RECORDS_REQUEST: Final = Message(ApiKey.DELETE_RECORDS, "DeleteRecords request", DeleteRecordsRequest)
DELETE_RECORDS_RESPONSE: Final = Message(ApiKey.DELETE_RECORDS, "DeleteRecords response", DeleteRecordsResponse)


def decode_delete_records(buffer: Buffer, position: int, limit: int, version: int) -> DeleteRecordsRequest:
    return DELETE_RECORDS_REQUEST.decode(buffer, position, limit, version)


def encode_delete_records_response(version: int, correlation_id: int, topics: tuple[DeleteRecordsTopicResult, ...], throttle_time_ms: int = 0) -> bytes:
    """The whole frame."""
    return DELETE_RECORDS_RESPONSE.encode_response(version, correlation_id, DeleteRecordsResponse(throttle_time_ms, topics))
