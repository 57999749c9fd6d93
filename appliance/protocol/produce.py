"""Produce 0-12: the request's record sets are located, not copied; the response is packed by hand.

The acceptor calls it for each produce. Hot: a request or response of one partition costs 2-3 µs. Versions
differ in four ways: from 3 the request begins with a transactional id; the response's partition grows
(`_PARTITION`); from 9 lengths are compact and structs end in tagged fields; from 10 errors may name the
current leader. 11 and 12 differ from 10 in the meaning of errors and transactional batches, not in bytes.
Weak spot: versions 0-2 carry message sets of magic 0 and 1, which are located like any other bytes; the
caller converts them.
"""

from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.model import NO_OFFSET, Offset
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.leader_hints import CurrentLeader, NodeEndpoint, write_current_leader, write_node_endpoints
from appliance.protocol.wire import (
    INT32,
    MALFORMED,
    NO_TAGGED_FIELDS,
    Buffer,
    malformed,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_nullable_string,
    read_string,
    read_uvarint,
    require_count,
    skip_tagged_fields,
    truncated,
    write_compact_count,
    write_compact_nullable_string,
    write_count,
    write_nullable_string,
    write_string,
    write_tagged_fields,
    write_uvarint,
)

FLEXIBLE_SINCE: Final = 9
MAGIC_2_SINCE: Final = 3
"""Before it record sets may be message sets of magic 0 and 1."""
_TRANSACTIONAL_ID_SINCE: Final = 3
_THROTTLE_SINCE: Final = 1
_RECORD_ERRORS_SINCE: Final = 8
LEADER_HINTS_SINCE: Final = 10
_STORAGE_ERROR_SINCE: Final = 4

_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_INDEX_AND_SIZE: Final = Struct(">ii")
_unpack_acks_and_timeout = _ACKS_AND_TIMEOUT.unpack_from
_unpack_index_and_size = _INDEX_AND_SIZE.unpack_from
_unpack_int32 = INT32.unpack_from

_TOPIC_SIZE_MIN: Final = 2 + 4
_PARTITION_SIZE_MIN: Final = 4 + 4
_COMPACT_TOPIC_SIZE_MIN: Final = 1 + 1 + 1
_COMPACT_PARTITION_SIZE_MIN: Final = 4 + 1 + 1


class ProducePartition(NamedTuple):
    """One partition's record set: bytes `records_position` to `records_position + records_size` of the buffer that was decoded.

    Null records have size 0, as empty ones.
    """

    topic: str
    partition: int
    records_position: int
    records_size: int


class ProduceRequest(NamedTuple):
    """`acks` as sent: whether it is −1, 0 or 1 is for the caller to check (INVALID_REQUIRED_ACKS is an answer, not a violation)."""

    acks: int
    timeout_ms: int
    transactional_id: str | None
    partitions: list[ProducePartition]


class RecordError(NamedTuple):
    """One record that failed validation (v8+)."""

    batch_index: int
    message: str | None = None


class ProduceResult(NamedTuple):
    """The result of one partition. Fields that a version lacks are left out."""

    topic: str
    partition: int
    error_code: int = 0
    base_offset: Offset = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: Offset = NO_OFFSET
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()
    current_leader: CurrentLeader | None = None


def decode_produce(buffer: Buffer, position: int, limit: int, version: int) -> ProduceRequest:
    """The request whose fields lie in `buffer[position:limit]`."""
    try:
        if version >= FLEXIBLE_SINCE:
            request, position = _decode_flexible(buffer, position, limit)
        else:
            request, position = _decode_plain(buffer, position, limit, version)
    except MALFORMED as error:
        raise malformed("Produce", version, error) from error
    if position > limit:
        raise truncated("Produce", version, position, limit)
    return request


def _decode_flexible(buffer: Buffer, position: int, limit: int) -> tuple[ProduceRequest, int]:
    transactional_id = None
    if buffer[position]:
        transactional_id, position = read_compact_nullable_string(buffer, position, limit)
    else:
        position += 1
    acks, timeout_ms = _unpack_acks_and_timeout(buffer, position)
    topic_count, position = read_compact_count(buffer, position + 6, limit, _COMPACT_TOPIC_SIZE_MIN)
    partitions: list[ProducePartition] = []
    for _ in range(require_count(topic_count, position)):
        topic, position = read_compact_string(buffer, position, limit)
        partition_count, position = read_compact_count(buffer, position, limit, _COMPACT_PARTITION_SIZE_MIN)
        for _ in range(require_count(partition_count, position, len(partitions))):
            partition = _unpack_int32(buffer, position)[0]
            size, position = read_uvarint(buffer, position + 4)
            size = size - 1 if size else 0
            partitions.append(ProducePartition(topic, partition, position, size))
            position += size
            if position > limit:
                raise _records_beyond(topic, partition, size, position, limit)
            position = skip_tagged_fields(buffer, position, limit) if buffer[position] else position + 1
        position = skip_tagged_fields(buffer, position, limit) if buffer[position] else position + 1
    position = skip_tagged_fields(buffer, position, limit) if buffer[position] else position + 1
    return ProduceRequest(acks, timeout_ms, transactional_id, partitions), position


def _decode_plain(buffer: Buffer, position: int, limit: int, version: int) -> tuple[ProduceRequest, int]:
    transactional_id = None
    if version >= _TRANSACTIONAL_ID_SINCE:
        transactional_id, position = read_nullable_string(buffer, position, limit)
    acks, timeout_ms = _unpack_acks_and_timeout(buffer, position)
    topic_count, position = read_count(buffer, position + 6, limit, _TOPIC_SIZE_MIN)
    partitions: list[ProducePartition] = []
    for _ in range(require_count(topic_count, position)):
        topic, position = read_string(buffer, position, limit)
        partition_count, position = read_count(buffer, position, limit, _PARTITION_SIZE_MIN)
        for _ in range(require_count(partition_count, position, len(partitions))):
            partition, size = _unpack_index_and_size(buffer, position)
            position += 8
            if size < 0:
                if size < -1:
                    raise _records_beyond(topic, partition, size, position, limit)
                size = 0
            partitions.append(ProducePartition(topic, partition, position, size))
            position += size
            if position > limit:
                raise _records_beyond(topic, partition, size, position, limit)
    return ProduceRequest(acks, timeout_ms, transactional_id, partitions), position


def _records_beyond(topic: str, partition: int, size: int, position: int, limit: int) -> ProtocolViolation:
    return ProtocolViolation("lying-length", f"{size} bytes of records for {topic}-{partition} end at byte {position}, but their frame ends at byte {limit}")


# ---- the response

_PARTITION: Final = (  # partition, error code, base offset, then log append time (2+), log start offset (5+)
    *[Struct(">ihq")] * 2,
    *[Struct(">ihqq")] * 3,
    *[Struct(">ihqqq")] * 8,
)
_PARTITION_FIELDS: Final = (3, 3, 4, 4, 4, *[5] * 8)
_NO_RECORD_ERRORS: Final = (*[b""] * 8, b"\0\0\0\0\xff\xff", *[b"\1\0\0"] * 4)
"""Nothing; then (8+) no record errors and a null error message, then (9+) the same compact with no tagged fields: the end of
nearly every partition."""
assert len(_PARTITION) == len(_PARTITION_FIELDS) == len(_NO_RECORD_ERRORS) == SERVED_APIS[ApiKey.PRODUCE].version_max + 1

_HEAD: Final = Struct(">iii")
"""size, correlation id, topic count"""
_FLEXIBLE_HEAD: Final = Struct(">iiB")
"""size, correlation id, no tagged fields in the header"""


def encode_produce_response(
    version: int,
    correlation_id: int,
    results: Sequence[ProduceResult],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole frame. `results` in the order of the request: neighbours of one topic share its entry."""
    topics: list[tuple[str, Sequence[ProduceResult]]]
    if len(results) == 1:
        topics = [(results[0].topic, results)]
    else:
        topics = [(topic, list(group)) for topic, group in groupby(results, key=_topic_of)]
    body = _encode_topics_flexible(version, topics) if version >= FLEXIBLE_SINCE else _encode_topics_plain(version, topics)
    if version >= _THROTTLE_SINCE:
        body.append(INT32.pack(throttle_time_ms))
    if version < FLEXIBLE_SINCE:
        encoded = b"".join(body)
        return _HEAD.pack(8 + len(encoded), correlation_id, len(topics)) + encoded
    if node_endpoints and version >= LEADER_HINTS_SINCE:
        body.append(write_tagged_fields([(0, write_node_endpoints(node_endpoints))]))
    else:
        body.append(NO_TAGGED_FIELDS)
    encoded = b"".join(body)
    return _FLEXIBLE_HEAD.pack(5 + len(encoded), correlation_id, 0) + encoded


def _topic_of(result: ProduceResult) -> str:
    return result.topic


def _encode_topics_plain(version: int, topics: list[tuple[str, Sequence[ProduceResult]]]) -> list[bytes]:
    body: list[bytes] = []
    for topic, results in topics:
        body += (write_string(topic), INT32.pack(len(results)))
        _encode_partitions(body, version, results)
    return body


def _encode_topics_flexible(version: int, topics: list[tuple[str, Sequence[ProduceResult]]]) -> list[bytes]:
    body = [write_compact_count(len(topics))]
    for topic, results in topics:
        name = topic.encode()
        body += (write_uvarint(len(name) + 1), name, write_uvarint(len(results) + 1))
        _encode_partitions(body, version, results)
        body.append(NO_TAGGED_FIELDS)
    return body


def _encode_partitions(body: list[bytes], version: int, results: Sequence[ProduceResult]) -> None:
    pack = _PARTITION[version].pack
    field_count = _PARTITION_FIELDS[version]
    plain_end = _NO_RECORD_ERRORS[version]
    for result in results:
        # The fields stand in the order of the wire, hence the slice.
        if not result.error_code:
            body += (pack(*result[1 : 1 + field_count]), plain_end)
            continue
        error_code = _error_code_for(version, result.error_code)
        body += (pack(result.partition, error_code, *result[3 : 1 + field_count]), _end_of_failed(version, result))


def _error_code_for(version: int, error_code: int) -> int:
    """Clients before v4 do not know KAFKA_STORAGE_ERROR; NOT_LEADER_OR_FOLLOWER makes them look again."""
    if error_code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERROR_SINCE:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error_code


def _end_of_failed(version: int, result: ProduceResult) -> bytes:
    """Record errors, error message and tagged fields of a partition that failed."""
    if version < _RECORD_ERRORS_SINCE:
        return b""
    flexible = version >= FLEXIBLE_SINCE
    write_text = write_compact_nullable_string if flexible else write_nullable_string
    end_of_struct = NO_TAGGED_FIELDS if flexible else b""
    parts = [write_compact_count(len(result.record_errors)) if flexible else write_count(len(result.record_errors))]
    for batch_index, message in result.record_errors:
        parts += (INT32.pack(batch_index), write_text(message), end_of_struct)
    parts.append(write_text(result.error_message))
    if result.current_leader and version >= LEADER_HINTS_SINCE:
        parts.append(write_tagged_fields([(0, write_current_leader(result.current_leader))]))
    else:
        parts.append(end_of_struct)
    return b"".join(parts)
