"""Holds the counts and lengths of a message against its size before kio reads it.

kio's native decoder reserves memory for as many elements as a message claims, and a claim that the machine cannot meet ends
the process with an abort that no `except` sees. So bytes of strangers are walked here first, field by field of kio's own dataclass,
and refused (`ProtocolViolation`) if they lie; nothing is built. It has no owner; kio is not imported, only its classes are read.
Weak spot: whether a null is allowed, and what a text says, is left to kio.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args, get_origin

from appliance.base.errors import ProtocolViolation
from appliance.protocol.wire import (
    INT16,
    INT32,
    MALFORMED,
    Buffer,
    malformed,
    read_compact_count,
    read_count,
    read_tagged_fields,
    read_uvarint,
    truncated,
)

Skip: TypeAlias = Callable[[Buffer, int, int], int]
"""(buffer, position, limit) → the position behind one field."""

_FIXED_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}

_skips: dict[Any, Skip] = {}


def check_bounds(message_class: type[Any], buffer: Buffer) -> int:
    """The size of the message of kio's `message_class` at the start of `buffer`; a `ProtocolViolation` if a count or length in it does not fit."""
    name, version, limit = message_class.__name__, message_class.__version__, len(buffer)
    try:
        end = _skip_of_struct(message_class)(buffer, 0, limit)
    except MALFORMED as error:
        raise malformed(name, version, error) from error
    if end > limit:
        raise truncated(name, version, end, limit)
    return end


def _skip_of_struct(struct_class: Any) -> Skip:
    if struct_class not in _skips:
        _skips[struct_class] = _make_skip_of_struct(struct_class)
    return _skips[struct_class]


def _make_skip_of_struct(struct_class: Any) -> Skip:
    flexible: bool = struct_class.__flexible__
    fields = dataclasses.fields(struct_class)
    plain = [_skip_of_field(field, flexible) for field in fields if "tag" not in field.metadata]
    tagged = {field.metadata["tag"]: _skip_of_field(field, flexible) for field in fields if "tag" in field.metadata}

    def skip(buffer: Buffer, position: int, limit: int) -> int:
        for skip_field in plain:
            position = skip_field(buffer, position, limit)
        if not flexible:
            return position
        places, position = read_tagged_fields(buffer, position, limit)
        for tag, (start, end) in places.items():
            if tag in tagged and tagged[tag](buffer, start, end) > end:
                raise ProtocolViolation("lying-length", f"tagged field {tag} at byte {start} of {struct_class.__name__} is longer than it says")
        return position

    return skip


def _skip_of_field(field: dataclasses.Field[Any], flexible: bool) -> Skip:
    field_type: Any = field.type
    arguments = get_args(field_type)
    nullable = get_origin(field_type) is types.UnionType
    if nullable:
        field_type = next(argument for argument in arguments if argument is not types.NoneType)
    if get_origin(field_type) is tuple:
        element: Any = get_args(field_type)[0]
        skip_element = _skip_of_struct(element) if dataclasses.is_dataclass(element) else _skip_of_primitive(field.metadata["kafka_type"], flexible)
        return _skip_of_array(skip_element, flexible)
    if dataclasses.is_dataclass(field_type):
        skip_struct = _skip_of_struct(field_type)
        return _skip_of_nullable_struct(skip_struct) if nullable and "tag" not in field.metadata else skip_struct
    return _skip_of_primitive(field.metadata["kafka_type"], flexible)


def _skip_of_primitive(kafka_type: str, flexible: bool) -> Skip:
    if kafka_type in _FIXED_SIZES:
        size = _FIXED_SIZES[kafka_type]
        return lambda _buffer, position, _limit: position + size
    if flexible:
        return _skip_compact
    return _skip_string if kafka_type == "string" else _skip_bytes


def _skip_compact(buffer: Buffer, position: int, limit: int) -> int:
    length, position = read_uvarint(buffer, position)
    return _within(position + max(length - 1, 0), limit)


def _skip_string(buffer: Buffer, position: int, limit: int) -> int:
    return _within(position + INT16.size + max(INT16.unpack_from(buffer, position)[0], 0), limit)


def _skip_bytes(buffer: Buffer, position: int, limit: int) -> int:
    return _within(position + INT32.size + max(INT32.unpack_from(buffer, position)[0], 0), limit)


def _within(end: int, limit: int) -> int:
    if end > limit:
        raise ProtocolViolation("lying-length", f"a field that ends at byte {end} does not fit a message that ends at byte {limit}")
    return end


def _skip_of_array(skip_element: Skip, flexible: bool) -> Skip:
    read_array_count = read_compact_count if flexible else read_count

    def skip(buffer: Buffer, position: int, limit: int) -> int:
        # No element is shorter than a byte, which is enough to keep a claim within the message.
        count, position = read_array_count(buffer, position, limit, 1)
        for _ in range(count):
            position = _within(skip_element(buffer, position, limit), limit)
        return position

    return skip


def _skip_of_nullable_struct(skip_struct: Skip) -> Skip:
    def skip(buffer: Buffer, position: int, limit: int) -> int:
        is_null = buffer[position] == 0xFF
        return position + 1 if is_null else skip_struct(buffer, position + 1, limit)

    return skip
