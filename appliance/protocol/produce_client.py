"""Produce 7 and 8 as ingest sends it to a leader on another box.

The versions differ by the record errors in the response. Packed by hand like the other side (`produce`),
because the batches are large: they are joined once. Weak spot: error messages of the response are skipped.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from appliance.protocol.wire import INT32, MALFORMED, Buffer, malformed, read_count, read_nullable_string, read_string, require_count, truncated, write_string

VERSION_MIN: Final = 7
VERSION_MAX: Final = 8
_RECORD_ERRORS_SINCE: Final = 8
_HEAD: Final = Struct(">hhi")
"""null transactional id, acks, timeout in ms"""
_INDEX_AND_SIZE: Final = Struct(">ii")
_RESULT: Final = Struct(">ihqqq")
"""partition, error code, base offset, log append time, log start offset"""
_RESULT_SIZE_MIN: Final = _RESULT.size
_TOPIC_SIZE_MIN: Final = 2 + 4
_RECORD_ERROR_SIZE_MIN: Final = 4 + 2


class PartitionBatch(NamedTuple):
    """One batch for one partition; a partition is named once in a request."""

    topic: str
    partition: int
    data: bytes


class ProducedPartition(NamedTuple):
    """The leader's result."""

    topic: str
    partition: int
    error_code: int
    base_offset: int


def encode_produce(acks: int, timeout_ms: int, batches: Sequence[PartitionBatch]) -> bytes:
    """The body, the same in both versions."""
    by_topic: dict[str, list[PartitionBatch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch)
    pieces = [_HEAD.pack(-1, acks, timeout_ms), INT32.pack(len(by_topic))]
    for topic, of_topic in by_topic.items():
        pieces += (write_string(topic), INT32.pack(len(of_topic)))
        for _, partition, data in of_topic:
            pieces += (_INDEX_AND_SIZE.pack(partition, len(data)), data)
    return b"".join(pieces)


def decode_produce_response(buffer: Buffer, position: int, limit: int, version: int) -> list[ProducedPartition]:
    """The response whose fields lie in `buffer[position:limit]`."""
    results: list[ProducedPartition] = []
    try:
        topic_count, position = read_count(buffer, position, limit, _TOPIC_SIZE_MIN)
        for _ in range(require_count(topic_count, position)):
            topic, position = read_string(buffer, position, limit)
            partition_count, position = read_count(buffer, position, limit, _RESULT_SIZE_MIN)
            for _ in range(require_count(partition_count, position, len(results))):
                partition, error_code, base_offset, _, _ = _RESULT.unpack_from(buffer, position)
                position += _RESULT.size
                if version >= _RECORD_ERRORS_SINCE:
                    position = _skip_errors(buffer, position, limit)
                results.append(ProducedPartition(topic, partition, error_code, base_offset))
        position += INT32.size  # throttle time
    except MALFORMED as error:
        raise malformed("Produce response", version, error) from error
    if position > limit:
        raise truncated("Produce response", version, position, limit)
    return results


def _skip_errors(buffer: Buffer, position: int, limit: int) -> int:
    count, position = read_count(buffer, position, limit, _RECORD_ERROR_SIZE_MIN)
    for _ in range(require_count(count, position)):
        _, position = read_nullable_string(buffer, position + 4, limit)
    _, position = read_nullable_string(buffer, position, limit)
    return position
