"""Zig-zag base-128 integers, as records use them (Protocol Buffers' sint32 and sint64).

Pure functions. Small numbers are encoded by a table: lengths, deltas and counts are nearly always
small.
"""

from __future__ import annotations

from appliance.records.compression import Buffer
from appliance.records.corrupt_batch import CorruptBatch

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


TABLE = [_encode(value) for value in range(TABLE_END)]
"""TABLE[n] is the encoding of n; public for loops that cannot afford a call."""

NULL_LENGTH = _encode(-1)


def encode_varint(value: int) -> bytes:
    """The encoding of an integer of at most 64 bits."""
    return TABLE[value] if 0 <= value < TABLE_END else _encode(value)


def decode_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """(value, position behind it). Raises `CorruptBatch` when it does not end, or not within 10 bytes."""
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
