"""protobuf's wire format, as far as needed to find the parts of a message without parsing them
(https://protobuf.dev/programming-guides/encoding).

Pure functions. Weak: only length-delimited fields are returned; numbers are skipped, groups
(obsolete since 2008) refused.
"""

from __future__ import annotations

from collections.abc import Generator

from services.ingest.protocols.steps import PARTS_A_STEP

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
VARINT_BITS_MAX = 70
_TAG_MIN, _TAG_MAX = 8, (1 << 32) - 1

Field = tuple[int, int, int]
"""Field number, start and end of the content."""


class BadWire(ValueError):
    """The bytes are not a protobuf message."""


def split_slowly(data: bytes, position: int, end: int, parts_max: int) -> Generator[None, None, tuple[list[Field], int]]:
    """Do what `split_fields` does in steps; return the fields and their number of any kind."""
    fields, parts, position = split_fields(data, position, end, min(PARTS_A_STEP, parts_max))
    while position < end and parts < parts_max:
        yield
        more, count, position = split_fields(data, position, end, min(PARTS_A_STEP, parts_max - parts))
        fields += more
        parts += count
    return fields, parts


def split_fields(data: bytes, position: int, end: int, parts_max: int) -> tuple[list[Field], int, int]:
    """Return the length-delimited fields in a range, how many fields of any kind were read (at most
    `parts_max`), and the position after them.
    """
    fields: list[Field] = []
    parts_left = parts_max
    while position < end and parts_left:
        parts_left -= 1
        tag = data[position]
        position += 1
        if tag & 0x80:
            tag, position = _varint(data, position - 1, end)
        if not _TAG_MIN <= tag <= _TAG_MAX:
            raise BadWire(f"a field without a number before byte {position}")
        kind = tag & 7
        if kind == _BYTES:
            if position >= end:
                raise BadWire(f"it ends inside a field at byte {position}")
            size = data[position]
            position += 1
            if size & 0x80:
                size, position = _varint(data, position - 1, end)
            if size > end - position:
                raise BadWire(f"a field at byte {position} is longer than what is left")
            fields.append((tag >> 3, position, position + size))
            position += size
            continue
        if kind == _VARINT:
            _, position = _varint(data, position, end)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
            if position > end:
                raise BadWire("it ends inside a number")
        else:
            raise BadWire(f"a field at byte {position} has wire type {kind}")
    return fields, parts_max - parts_left, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < VARINT_BITS_MAX:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise BadWire("a number does not end")
