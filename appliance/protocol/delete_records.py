"""DeleteRecords 0-2: let partitions begin at a later offset (KIP-107).

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, ArrayOf, Field, Message
from appliance.protocol.wire import Buffer

HIGH_WATERMARK: Final = -1


class DeleteRecordsPartition(NamedTuple):
    """One partition and the first offset that stays; −1 means the high watermark, so all that is readable goes."""

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
    """Where the partition begins now; −1 with an error."""

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


REQUEST: Final = Message(ApiKey.DELETE_RECORDS, "DeleteRecords request", DeleteRecordsRequest)
RESPONSE: Final = Message(ApiKey.DELETE_RECORDS, "DeleteRecords response", DeleteRecordsResponse)


def decode_delete_records(buffer: Buffer, position: int, limit: int, version: int) -> DeleteRecordsRequest:
    return REQUEST.decode(buffer, position, limit, version)


def encode_delete_records_response(version: int, correlation_id: int, topics: tuple[DeleteRecordsTopicResult, ...], throttle_time_ms: int = 0) -> bytes:
    """The whole frame."""
    return RESPONSE.encode_response(version, correlation_id, DeleteRecordsResponse(throttle_time_ms, topics))
