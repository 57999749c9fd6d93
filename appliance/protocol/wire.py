"""Primitive types of Kafka's wire protocol, read from a buffer and written to bytes; old and compact forms.

Readers take `(buffer, position, limit)` and return `(value, next position)`. A request may be in an arena far
larger than itself, so there are bytes of other requests after `limit`: each reader of variable length
compares with `limit`. Readers of fixed length do not, because positions only grow: the caller that decodes a
whole message compares its last position with `limit` once. Reading past the buffer itself raises IndexError
or struct.error, which `MALFORMED` names and each public decoder turns into a `ProtocolViolation`.

Weak spot: this division of labour. A reader that could move backwards, or a loop whose count was not checked
against the remaining bytes (`read_count`), would break it.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final, TypeAlias

from appliance.base.errors import ProtocolViolation

Buffer: TypeAlias = bytes | bytearray | memoryview

INT8: Final = Struct(">b")
INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")

UUID_SIZE: Final = 16

MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError)
"""What reading beyond a buffer, or text that is not UTF-8, raises inside a decoder."""

_unpack_int16 = INT16.unpack_from
_unpack_int32 = INT32.unpack_from
_UVARINT_SHIFT_MAX: Final = 28
"""A 32-bit number takes at most five bytes of seven bits."""

ELEMENTS_MAX: Final = 100_000
"""No array, and no request, has more elements: without it 32 MiB of empty topics keep an event loop busy for seconds and take a
gigabyte. More than all partitions of a box with ten log directories."""
TOO_MANY_ELEMENTS: Final = "too-many-elements"
"""The reason of a `ProtocolViolation`."""
STRING_SIZE_MAX: Final = 0x7FFF
"""Of any text, as in Kafka: what came in a compact form must fit the old form too, in which other messages and records hold it."""
_TAGGED_FIELDS_MAX: Final = 32
"""Of one struct. Kafka defines four at most."""


def truncated(what: str, version: int, position: int, limit: int) -> ProtocolViolation:
    return ProtocolViolation("truncated-request", f"{what} v{version} ends at byte {position}, but its frame ends at byte {limit}")


def malformed(what: str, version: int, error: Exception) -> ProtocolViolation:
    return ProtocolViolation("malformed-request", f"{what} v{version} cannot be read: {error}")


def _beyond(kind: str, length: int, position: int, limit: int) -> ProtocolViolation:
    return ProtocolViolation("lying-length", f"{kind} of length {length} at byte {position} is too long for its kind or for a frame that ends at byte {limit}")


def _unexpected_null(kind: str, position: int) -> ProtocolViolation:
    return ProtocolViolation("unexpected-null", f"{kind} before byte {position} is null where the protocol does not allow it")


# ---- reading


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits."""
    value = buffer[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                raise ProtocolViolation("lying-length", f"varint before byte {position} exceeds 32 bits")
            return value, position
        shift += 7
        if shift > _UVARINT_SHIFT_MAX:
            raise ProtocolViolation("lying-length", f"varint before byte {position} is longer than five bytes")


def read_string(buffer: Buffer, position: int, limit: int) -> tuple[str, int]:
    length = _unpack_int16(buffer, position)[0]
    position += 2
    end = position + length
    if length < 0:
        raise _unexpected_null("string", position)
    if end > limit:
        raise _beyond("string", length, position, limit)
    return str(buffer[position:end], "utf-8"), end


def read_nullable_string(buffer: Buffer, position: int, limit: int) -> tuple[str | None, int]:
    if _unpack_int16(buffer, position)[0] == -1:
        return None, position + 2
    return read_string(buffer, position, limit)


def read_compact_string(buffer: Buffer, position: int, limit: int) -> tuple[str, int]:
    length, position = read_uvarint(buffer, position)
    end = position + length - 1
    if length == 0:
        raise _unexpected_null("compact string", position)
    if end > limit or length > STRING_SIZE_MAX + 1:
        raise _beyond("compact string", length - 1, position, limit)
    return str(buffer[position:end], "utf-8"), end


def read_compact_nullable_string(buffer: Buffer, position: int, limit: int) -> tuple[str | None, int]:
    if buffer[position] == 0:
        return None, position + 1
    return read_compact_string(buffer, position, limit)


def read_bytes(buffer: Buffer, position: int, limit: int) -> tuple[bytes, int]:
    length = _unpack_int32(buffer, position)[0]
    position += 4
    end = position + length
    if length < 0:
        raise _unexpected_null("bytes", position)
    if end > limit:
        raise _beyond("bytes", length, position, limit)
    return bytes(buffer[position:end]), end


def read_nullable_bytes(buffer: Buffer, position: int, limit: int) -> tuple[bytes | None, int]:
    if _unpack_int32(buffer, position)[0] == -1:
        return None, position + 4
    return read_bytes(buffer, position, limit)


def read_compact_bytes(buffer: Buffer, position: int, limit: int) -> tuple[bytes, int]:
    length, position = read_uvarint(buffer, position)
    end = position + length - 1
    if length == 0:
        raise _unexpected_null("compact bytes", position)
    if end > limit:
        raise _beyond("compact bytes", length - 1, position, limit)
    return bytes(buffer[position:end]), end


def read_compact_nullable_bytes(buffer: Buffer, position: int, limit: int) -> tuple[bytes | None, int]:
    if buffer[position] == 0:
        return None, position + 1
    return read_compact_bytes(buffer, position, limit)


def read_count(buffer: Buffer, position: int, limit: int, element_size_min: int) -> tuple[int, int]:
    """An array's count, which must fit the bytes that are left; −1 stands for null."""
    count = _unpack_int32(buffer, position)[0]
    position += 4
    if count * element_size_min > limit - position or not -1 <= count <= ELEMENTS_MAX:
        raise _beyond("array", count, position, limit)
    return count, position


def read_compact_count(buffer: Buffer, position: int, limit: int, element_size_min: int) -> tuple[int, int]:
    """A compact array's count, which must fit the bytes that are left; −1 stands for null."""
    count, position = read_uvarint(buffer, position)
    count -= 1
    if count * element_size_min > limit - position or count > ELEMENTS_MAX:
        raise _beyond("compact array", count, position, limit)
    return count, position


def require_count(count: int, position: int, already: int = 0) -> int:
    """`count` of an array that may not be null and whose elements join `already` others of the same request."""
    if count < 0:
        raise _unexpected_null("array", position)
    if already + count > ELEMENTS_MAX:
        total = already + count
        raise ProtocolViolation(TOO_MANY_ELEMENTS, f"array before byte {position} brings its request to {total} elements, {ELEMENTS_MAX} are allowed")
    return count


def skip_tagged_fields(buffer: Buffer, position: int, limit: int) -> int:
    """The position behind a tagged section, whose fields we do not know (KIP-482: unknown tags are skipped)."""
    count, position = read_uvarint(buffer, position)
    if count * 2 > limit - position or count > _TAGGED_FIELDS_MAX:
        raise _beyond("tagged section", count, position, limit)
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position)
        size_bytes, position = read_uvarint(buffer, position)
        if position + size_bytes > limit:
            raise _beyond("tagged field", size_bytes, position, limit)
        position += size_bytes
    return position


def read_tagged_fields(buffer: Buffer, position: int, limit: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Where each field of a tagged section lies: tag → (position, end)."""
    count, position = read_uvarint(buffer, position)
    if count * 2 > limit - position or count > _TAGGED_FIELDS_MAX:
        raise _beyond("tagged section", count, position, limit)
    fields: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size_bytes, position = read_uvarint(buffer, position)
        end = position + size_bytes
        if end > limit:
            raise _beyond("tagged field", size_bytes, position, limit)
        fields[tag] = (position, end)
        position = end
    return fields, position


# ---- writing

_SHORT_UVARINTS: Final = tuple(bytes([value]) for value in range(0x80))


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT_UVARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_string(text: str) -> bytes:
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


def write_nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else write_string(text)


def write_compact_string(text: str) -> bytes:
    encoded = text.encode()
    return write_uvarint(len(encoded) + 1) + encoded


def write_compact_nullable_string(text: str | None) -> bytes:
    return b"\0" if text is None else write_compact_string(text)


def write_bytes(data: bytes) -> bytes:
    return INT32.pack(len(data)) + data


def write_nullable_bytes(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else write_bytes(data)


def write_compact_bytes(data: bytes) -> bytes:
    return write_uvarint(len(data) + 1) + data


def write_compact_nullable_bytes(data: bytes | None) -> bytes:
    return b"\0" if data is None else write_compact_bytes(data)


def write_count(count: int) -> bytes:
    return INT32.pack(count)


def write_compact_count(count: int) -> bytes:
    return write_uvarint(count + 1)


NO_TAGGED_FIELDS: Final = b"\0"


def write_tagged_fields(fields: list[tuple[int, bytes]]) -> bytes:
    """A tagged section; `fields` in ascending order of their tags."""
    if not fields:
        return NO_TAGGED_FIELDS
    parts = [write_uvarint(len(fields))]
    for tag, data in fields:
        parts += (write_uvarint(tag), write_uvarint(len(data)), data)
    return b"".join(parts)
