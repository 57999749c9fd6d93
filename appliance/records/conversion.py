"""Convert message sets of old producers to one batch of magic 2, and stored batches back.

Pure. The acceptor calls it (`services/acceptor/fetch/message_sets.py`), only for clients older than
Kafka 0.11. Each record costs 3 to 4 µs of Python, so both directions are bounded: up by
`RECORDS_MAX` messages in a set and by the limit on decompressed size; down by the caller's bytes
and `DOWN_RECORDS_MAX` records, after which the consumer asks for the next offset.

Weak spots: a large batch that is read in several parts is opened again for each, and skipping its
first records costs 2 µs each (0.2 s for the last part of the largest that is accepted). Old clients
cannot read a batch of more than `RECORDS_MAX` records.

Up: Kafka's LogValidator.convertAndAssignOffsets. Down: Kafka's RecordsUtil.downConvert; control
batches are dropped, headers are lost.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.records.batch import RECORDS_AT, read_batch_header, stored_batch_problem
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Buffer, Codec, CorruptBatch, opened_batch_limit
from appliance.records.legacy import NO_TIMESTAMP, RECORDS_MAX, build_message_set, read_message_set
from appliance.records.record import iterate_records

SHRINKS_AT_MOST = 5
"""A message of magic 1 has 34 bytes around key and value, a record of magic 2 at least 7."""
DOWN_RECORDS_MAX = 10_000
"""Records converted for one partition of one fetch: about 40 ms."""
_LONGEST_DELTA = 2**63 - 1
_TIMESTAMP_MAX = 2**63 - 1


def convert_up(buffer: Buffer, position: int, limit: int, max_message_bytes: int, uses_log_append_time: bool) -> bytes:
    """The message set in buffer[position:limit] as one batch of magic 2, in its codec; b'' where
    nothing whole was sent.

    `uses_log_append_time`: of the topic; the log-writer stamps, here it decides only what a
    producer may claim. Raises `RequestRefused`. The batch may be larger than `max_message_bytes`:
    that is for the caller's check of batches.
    """
    if limit - position > SHRINKS_AT_MOST * max_message_bytes:
        raise RequestRefused(ErrorCode.MESSAGE_TOO_LARGE, f"a message set of {limit - position} bytes becomes a batch of more than {max_message_bytes} bytes")
    codec, messages, says_append_time = read_message_set(buffer, position, limit, max_message_bytes)
    if not messages:
        return b""
    first_timestamp = messages[0].timestamp
    builder = BatchBuilder(codec)
    for _, _, _, timestamp, key, value in messages:
        if timestamp < NO_TIMESTAMP or not -_LONGEST_DELTA <= timestamp - first_timestamp <= _LONGEST_DELTA:
            raise RequestRefused(ErrorCode.INVALID_TIMESTAMP, f"a message has timestamp {timestamp}")
        if says_append_time and (uses_log_append_time or timestamp == NO_TIMESTAMP):
            raise RequestRefused(ErrorCode.INVALID_TIMESTAMP, "a client must not send messages with the timestamp type LogAppendTime")
        builder.append(timestamp, key, value)
    return builder.build()


def convert_down(stored: Buffer, magic: int, fetch_offset: int, bytes_max: int, records_max: int = DOWN_RECORDS_MAX) -> bytes:
    """The batches of a log in `stored` as message sets of `magic`, from `fetch_offset` on; a batch
    that is cut off at the end is passed over.

    Stops behind the record with which the sets have `bytes_max` bytes before compression, or
    `records_max` records; at least one record is converted if there is one. Raises `RequestRefused`
    when the first batch that counts cannot be converted, stops before a later one.
    """
    view = memoryview(stored)
    sets: list[bytes] = []
    room, left = bytes_max, records_max
    position = 0
    while room > 0 and left > 0 and len(view) - position >= RECORDS_AT:
        header = read_batch_header(view, position)
        end = position + header.size_bytes
        if end > len(view) and header.size_bytes >= RECORDS_AT:
            break
        if header.size_bytes >= RECORDS_AT and (header.is_control or not header.records_count or header.last_offset < fetch_offset):
            position = end
            continue
        try:
            converted, opened_bytes, count = _convert_batch(view[position:end], magic, fetch_offset, room, left)
        except RequestRefused:
            if sets:
                break
            raise
        if converted:
            sets.append(converted)
        room -= opened_bytes
        left -= count
        position = end
    return b"".join(sets)


def _convert_batch(batch: memoryview, magic: int, fetch_offset: int, room: int, left: int) -> tuple[bytes, int, int]:
    """(set, its size before compression, records in it) of one batch.

    Kafka keeps records before the fetch offset in compressed batches; readers skip them, so they
    are left out here in both cases.
    """
    problem = stored_batch_problem(batch, 0, len(batch))
    if problem is not None:
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, problem)
    header = read_batch_header(batch)
    if header.attributes & 0x07 >= Codec.ZSTD:
        raise RequestRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.attributes & 0x07} does not exist in message sets")
    if header.records_count > RECORDS_MAX:
        # Each piece of it would have to pass all records before it.
        raise RequestRefused(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {header.records_count} records is not converted, {RECORDS_MAX} are the most")
    records: list[tuple[int, int, bytes | None, bytes | None]] = []
    opened_bytes = 0
    try:
        for offset, timestamp, key, value, _headers in iterate_records(batch, opened_batch_limit(len(batch))):
            if offset < fetch_offset:
                continue
            records.append((offset, timestamp if 0 <= timestamp <= _TIMESTAMP_MAX else NO_TIMESTAMP, key, value))
            opened_bytes += 34 + len(key or b"") + len(value or b"")
            if opened_bytes >= room or len(records) >= left:
                break
    except CorruptBatch as error:
        raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if not records:
        return b"", 0, 0
    return build_message_set(magic, header.codec, header.uses_log_append_time, records), opened_bytes, len(records)
