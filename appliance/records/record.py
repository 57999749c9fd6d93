"""Records of a stored batch, and the integers that they consist of.

Used wherever batches are opened: look-ups by time, dumps, commands, tests; never between a produce
and a fetch. Integers are zig-zag base-128 (Protocol Buffers' sint32 and sint64); small ones are
encoded by a table, because lengths, deltas and counts are nearly always small. Weak spot: one
Python object per record, about 2 µs each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.base.model import Offset
from appliance.records.batch import RECORDS_AT, BatchHeader, read_batch_header, stored_batch_problem
from appliance.records.compression import Buffer, Codec, CorruptBatch, decompress

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record; `timestamp` in ms, the batch's append time when the batch says so."""

    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def iterate_records(batch: Buffer, limit_bytes: int) -> Iterator[Record]:
    """The records of exactly one batch, oldest first; at most `limit_bytes` when decompressed.

    Raises `CorruptBatch`.
    """
    problem = stored_batch_problem(batch, 0, len(batch))
    if problem is not None:
        raise CorruptBatch(problem)
    header = read_batch_header(batch)
    if header.size_bytes != len(batch):
        raise CorruptBatch(f"{len(batch) - header.size_bytes} bytes follow the batch")
    if header.attributes & 0x07 > Codec.ZSTD:
        raise CorruptBatch(f"compression codec {header.attributes & 0x07} is unknown")
    yield from read_records(header, bytes(decompress(header.codec, memoryview(batch)[RECORDS_AT:], limit_bytes)))


def read_records(header: BatchHeader, body: bytes) -> Iterator[Record]:
    """The records of a batch that is opened: `body` is all that follows its header.

    Raises `CorruptBatch`.
    """
    position = 0
    for _ in range(header.records_count):
        record, position = _read_record(body, position, header)
        yield record
    if position != len(body):
        raise CorruptBatch(f"{len(body) - position} bytes follow the last record")


def _read_record(body: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    length, position = decode_varint(body, position)
    end = position + length
    if length < 0 or end > len(body):
        raise CorruptBatch(f"a record claims {length} bytes, {len(body) - position} are left")
    timestamp_delta, position = decode_varint(body, position + 1)  # behind the record's attributes, which mean nothing yet
    offset_delta, position = decode_varint(body, position)
    key, position = _read_bytes(body, position, end)
    value, position = _read_bytes(body, position, end)
    headers, position = _read_headers(body, position, end)
    if position != end:
        raise CorruptBatch(f"a record claims {length} bytes and has {length + position - end}")
    timestamp = header.max_timestamp if header.uses_log_append_time else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), end


def _read_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(body, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise CorruptBatch(f"a field claims {length} bytes, {end - position} are left in its record")
    return body[position : position + length], position + length


def read_record_headers(section: bytes) -> Headers:
    """The headers of one record: `section` is what follows its value. Raises `CorruptBatch`."""
    headers, position = _read_headers(section, 0, len(section))
    if position != len(section):
        raise CorruptBatch(f"{len(section) - position} bytes follow a record's headers")
    return headers


def _read_headers(body: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = decode_varint(body, position)
    if count == 0:
        return (), position
    if count < 0 or count > end - position:
        raise CorruptBatch(f"a record claims {count} headers")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(body, position, end)
        if name is None:
            raise CorruptBatch("a header has no name")
        value, position = _read_bytes(body, position, end)
        # a name that is not UTF-8 must not make a log unreadable; it is shown with replacement characters
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position


_LONGEST_BYTES = 10
TABLE_END = 8192


def _encode(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


TABLE = [bytes((value << 1,)) for value in range(64)] + [bytes((value << 1 & 0x7F | 0x80, value >> 6)) for value in range(64, TABLE_END)]
"""TABLE[n] is the encoding of n, in one byte or two; public for loops that cannot afford a call."""

NULL_LENGTH = _encode(-1)


def encode_varint(value: int) -> bytes:
    """The encoding of an integer of at most 64 bits."""
    return TABLE[value] if 0 <= value < TABLE_END else _encode(value)


def decode_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """(value, position behind it).

    Raises `CorruptBatch` when it does not end, or not within 10 bytes.
    """
    try:
        byte = buffer[position]
        position += 1
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position
        rest = byte & 0x7F
        for shift in range(7, 7 * _LONGEST_BYTES, 7):
            byte = buffer[position]
            position += 1
            rest |= (byte & 0x7F) << shift
            if byte < 0x80:
                if rest >> 64:
                    break
                return (rest >> 1) ^ -(rest & 1), position
    except IndexError:
        raise CorruptBatch("a batch ends inside an integer") from None
    raise CorruptBatch("an integer has more than 64 bits")
