"""Message sets of magic 0 and 1, as clients older than Kafka 0.11 send and read them.

Pure functions over bytes, used by `records/conversion.py`. A set is a sequence of entries; a
compressed set is one entry, the wrapper, whose value is a set again. Weak spot: one Python object a
message, about 2 µs each, so callers bound how many.

    0 offset  8 size  12 crc  16 magic  17 attributes  18 [timestamp, magic 1]  key length, key, value length, value

The CRC is CRC-32 (IEEE) over everything from 16 on. In a wrapper of magic 0 inner offsets are
absolute, in one of magic 1 they count from 0; a wrapper's own offset is that of its last message.
Source: Kafka's LegacyRecord, KIP-31, KIP-32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.records.compression import (
    Buffer,
    Codec,
    CorruptBatch,
    OpenedTooLarge,
    compress,
    decompress,
    opened_batch_limit,
    with_old_header_checksum,
    with_right_header_checksum,
)

SIZE_AT = 8
LOG_OVERHEAD = SIZE_AT + 4
"""Bytes of an entry that its size does not count."""
CRC_AT = LOG_OVERHEAD
MAGIC_AT = CRC_AT + 4
ATTRIBUTES_AT = MAGIC_AT + 1
FIELDS_AT = ATTRIBUTES_AT + 1
"""Where the timestamp (magic 1) or the key's length (magic 0) begins."""
TIMESTAMP_BYTES = 8

MESSAGE_BYTES_MIN = (FIELDS_AT - LOG_OVERHEAD + 8, FIELDS_AT - LOG_OVERHEAD + TIMESTAMP_BYTES + 8)
"""The smallest size of an entry, by magic."""
CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
NO_TIMESTAMP = -1
RECORDS_MAX = 100_000
"""Messages in one set: with more, the acceptor would serve no other client for over 0.5 s."""

_ENTRY = Struct(">qiIBB")
_OFFSET_AND_SIZE = Struct(">qi")
_OFFSET_SIZE_CRC = Struct(">qiI")
_TIMESTAMP = Struct(">q")
_LENGTH = Struct(">i")
_HEAD = (Struct(">BB"), Struct(">BBq"))
_NULL = _LENGTH.pack(-1)

assert _ENTRY.size == FIELDS_AT == 18 and MESSAGE_BYTES_MIN == (14, 22)


class LegacyMessage(NamedTuple):
    """One entry. `timestamp` in ms, −1: none (always so in magic 0)."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def read_entries(buffer: Buffer, position: int, limit: int, entry_bytes_max: int, tolerates_tail: bool) -> Iterator[LegacyMessage]:
    """The entries of buffer[position:limit] as they lie there, wrappers unopened.

    `tolerates_tail`: a last entry that is cut off is passed over, as Kafka does with what a
    producer sends. Raises `RequestRefused`; what was yielded before is right all the same.
    """
    view = memoryview(buffer)
    while limit - position >= LOG_OVERHEAD:
        offset, size = _OFFSET_AND_SIZE.unpack_from(view, position)
        if size < MESSAGE_BYTES_MIN[0]:
            raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, f"a message claims {size} bytes, {MESSAGE_BYTES_MIN[0]} are the least")
        end = position + LOG_OVERHEAD + size
        if end > limit:
            break
        if end - position > entry_bytes_max:
            raise RequestRefused(ErrorCode.MESSAGE_TOO_LARGE, f"a message of {end - position} bytes is larger than the limit of {entry_bytes_max}")
        _, _, crc, magic, attributes = _ENTRY.unpack_from(view, position)
        if crc32(view[position + MAGIC_AT : end]) != crc:
            raise RequestRefused(ErrorCode.CORRUPT_MESSAGE, f"a message's checksum does not match its bytes (stored {crc:#010x})")
        if magic > 1:
            raise RequestRefused(ErrorCode.INVALID_RECORD, f"an entry of magic {magic} stands in a message set")
        if size < MESSAGE_BYTES_MIN[magic]:
            raise RequestRefused(ErrorCode.INVALID_RECORD, f"a message of magic {magic} has {size} bytes, {MESSAGE_BYTES_MIN[magic]} are the least")
        position += FIELDS_AT
        timestamp = NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(view, position)
            position += TIMESTAMP_BYTES
        key, position = _read_bytes(view, position, end - 4)
        value, position = _read_bytes(view, position, end)
        if position != end:
            raise RequestRefused(ErrorCode.INVALID_RECORD, f"{end - position} bytes of a message follow its value")
        yield LegacyMessage(offset, magic, attributes, timestamp, key, value)
    if position != limit and not tolerates_tail:
        raise RequestRefused(ErrorCode.INVALID_RECORD, f"a compressed set ends with {limit - position} bytes that are no whole message")


def _read_bytes(view: memoryview, position: int, limit: int) -> tuple[bytes | None, int]:
    """A field whose length stands in front of it; neither may reach beyond `limit`."""
    (length,) = _LENGTH.unpack_from(view, position)
    position += 4
    if length == -1:
        return None, position
    end = position + length
    if length < 0 or end > limit:
        raise RequestRefused(ErrorCode.INVALID_RECORD, f"a field of a message claims {length} bytes, {limit - position} are left")
    return bytes(view[position:end]), end


def open_wrapper(wrapper: LegacyMessage) -> Iterator[LegacyMessage]:
    """The messages in a compressed set, with absolute offsets and the timestamps that count.

    Raises `RequestRefused`.
    """
    codec = wrapper.attributes & CODEC_MASK
    if codec == Codec.ZSTD:
        raise RequestRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd does not exist in message sets")
    if codec > Codec.ZSTD:
        raise RequestRefused(ErrorCode.INVALID_RECORD, f"compression codec {codec} is unknown")
    if wrapper.value is None:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "a compressed set has no value")
    opened = _decompress(Codec(codec), wrapper.magic, wrapper.value)
    inner = list(_bounded(read_entries(opened, 0, len(opened), len(opened), tolerates_tail=False)))
    if not inner:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "a compressed set is empty")
    first_offset = _first_offset(wrapper, inner[-1].offset)
    stamp = wrapper.timestamp if wrapper.attributes & LOG_APPEND_TIME_FLAG and wrapper.magic else None
    for message in inner:
        if message.magic != wrapper.magic:
            raise RequestRefused(ErrorCode.INVALID_RECORD, f"a message of magic {message.magic} stands in a compressed set of magic {wrapper.magic}")
        if message.attributes & CODEC_MASK:
            raise RequestRefused(ErrorCode.INVALID_RECORD, "a compressed set stands in another")
        offset, _, _, timestamp, key, value = message
        yield LegacyMessage(first_offset + offset, message.magic, 0, timestamp if stamp is None else stamp, key, value)


def _first_offset(wrapper: LegacyMessage, last_inner_offset: int) -> int:
    """What relative offsets count from; 0 where they are absolute.

    Old librdkafka produces wrappers with offset 0.
    """
    if not wrapper.magic or not wrapper.offset:
        return 0
    if wrapper.offset < last_inner_offset:
        raise RequestRefused(ErrorCode.INVALID_RECORD, f"a compressed set at offset {wrapper.offset} ends with relative offset {last_inner_offset}")
    return wrapper.offset - last_inner_offset


def _bounded(messages: Iterator[LegacyMessage]) -> Iterator[LegacyMessage]:
    for count, message in enumerate(messages):
        if count == RECORDS_MAX:
            raise RequestRefused(ErrorCode.RECORD_LIST_TOO_LARGE, f"a message set holds more than {RECORDS_MAX} messages")
        yield message


def _decompress(codec: Codec, magic: int, stream: bytes) -> Buffer:
    if codec is Codec.LZ4 and not magic:
        stream = with_right_header_checksum(stream)
    try:
        return decompress(codec, stream, opened_batch_limit(len(stream)))
    except OpenedTooLarge as problem:
        raise RequestRefused(ErrorCode.MESSAGE_TOO_LARGE, str(problem)) from problem
    except CorruptBatch as problem:
        raise RequestRefused(ErrorCode.INVALID_RECORD, str(problem)) from problem


def read_message_set(buffer: Buffer, position: int, limit: int, entry_bytes_max: int) -> tuple[Codec, list[LegacyMessage], bool]:
    """(codec, messages, whether the timestamp type is LogAppendTime) of what a producer sent,
    compressed or not. Offsets are its own and mean little. No messages: nothing whole was sent.
    Raises `RequestRefused`.
    """
    messages = list(_bounded(read_entries(buffer, position, limit, entry_bytes_max, tolerates_tail=True)))
    if not messages:
        return Codec.NONE, messages, False
    magic = messages[0].magic
    is_compressed = says_append_time = False
    for message in messages:
        if message.magic != magic:
            raise RequestRefused(ErrorCode.INVALID_RECORD, f"messages of magic {magic} and {message.magic} stand in one set")
        is_compressed = is_compressed or message.attributes & CODEC_MASK != 0
        says_append_time = says_append_time or message.attributes & LOG_APPEND_TIME_FLAG != 0
    if not is_compressed:
        return Codec.NONE, messages, says_append_time and magic == 1
    if len(messages) > 1:
        raise RequestRefused(ErrorCode.INVALID_RECORD, "a compressed set does not stand alone in its request")
    opened = list(open_wrapper(messages[0]))  # refuses codecs that do not exist
    return Codec(messages[0].attributes & CODEC_MASK), opened, says_append_time and magic == 1


def build_message(offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    """Return one entry; magic 0 has no field for the timestamp."""
    body = b"".join(
        (
            _HEAD[1].pack(1, attributes, timestamp) if magic else _HEAD[0].pack(0, attributes),
            _NULL if key is None else _LENGTH.pack(len(key)),
            key or b"",
            _NULL if value is None else _LENGTH.pack(len(value)),
            value or b"",
        )
    )
    return _OFFSET_SIZE_CRC.pack(offset, len(body) + 4, crc32(body)) + body


def build_message_set(magic: int, codec: Codec, uses_log_append_time: bool, records: Sequence[tuple[int, int, bytes | None, bytes | None]]) -> bytes:
    """A set of `records` (offset, timestamp, key, value), which may not be empty, in the order of
    their offsets; one wrapper if there is a codec.

    With LogAppendTime all timestamps are the same.
    """
    stamp_type = LOG_APPEND_TIME_FLAG if magic and uses_log_append_time else 0
    if codec is Codec.NONE:
        return b"".join([build_message(offset, magic, stamp_type, timestamp, key, value) for offset, timestamp, key, value in records])
    first_offset = records[0][0] if magic else 0
    inner = b"".join([build_message(offset - first_offset, magic, stamp_type, timestamp, key, value) for offset, timestamp, key, value in records])
    stream = compress(codec, inner)
    if codec is Codec.LZ4 and not magic:
        stream = with_old_header_checksum(stream)
    return build_message(records[-1][0], magic, stamp_type | codec, max(record[1] for record in records), None, stream)
