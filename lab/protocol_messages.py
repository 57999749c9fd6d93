"""Random messages for the codec tests, and both kinds of message (ours, kio's) as plain tuples that can be compared."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import uuid
from typing import Any, get_type_hints

from hypothesis import strategies as st

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_TOPIC_ID, TopicId
from appliance.protocol import schema

INT8 = st.integers(-(2**7), 2**7 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=200)
NAME = st.text(alphabet="abcäß._-", min_size=1, max_size=140)
"""Long enough for lengths of two varint bytes."""
TOPIC_ID = st.binary(min_size=16, max_size=16).map(TopicId)
ERROR_CODE = st.sampled_from([int(code) for code in ErrorCode])
WALL_MS = st.integers(0, 10**13)
"""Append times that kio's dates can hold."""
FAILURE = ERROR_CODE.filter(bool)

_WALL_ZERO = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_TIMES = (
    *("log_append_time_ms", "retention_time_ms", "transaction_start_time_ms", "issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms"),
    *("issue_timestamp", "expiry_timestamp", "max_timestamp"),
)
_PERIODS = ("max_lifetime_ms", "renew_period_ms", "expiry_time_period_ms")
_RESOURCE_TYPE = INT8 | st.sampled_from([2, 4, 8, 16, 32])
"""Of ACLs and configs: numbers that mean something are rare among all."""
_NAMED = {
    "error_code": ERROR_CODE,
    "resource_type": _RESOURCE_TYPE,
    **dict.fromkeys(_TIMES, WALL_MS),
    **dict.fromkeys(_PERIODS, st.integers(-(10**13), 10**13)),
}
"""Fields that kio keeps as something with bounds of its own."""


def plain_kio(value: Any) -> Any:
    """kio's dataclass as nested tuples of its untagged fields in wire order."""
    if dataclasses.is_dataclass(value):
        return tuple(plain_kio(getattr(value, field.name)) for field in dataclasses.fields(value) if "tag" not in field.metadata)
    if isinstance(value, tuple):
        return tuple(plain_kio(element) for element in value)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - _WALL_ZERO) // datetime.timedelta(milliseconds=1)
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value


def plain_ours(value: Any, version: int) -> Any:
    """A schema's NamedTuple as nested tuples of the untagged fields that `version` carries."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        hints = get_type_hints(type(value), include_extras=True)
        fields = [hints[name].__metadata__[0] for name in value._fields]
        present = [(element, field) for element, field in zip(value, fields, strict=True) if field.since <= version <= field.until]
        return tuple(plain_ours(element, version) for element, field in present if field.tag is None)
    if isinstance(value, tuple):
        return tuple(plain_ours(element, version) for element in value)
    # kio shows the zero id, which stands for "none", as None.
    return None if value == NO_TOPIC_ID else value


def tagged_kio(value: Any, tags: set[int]) -> dict[int, Any]:
    """The tagged fields of kio's dataclass that have one of `tags`."""
    return {field.metadata["tag"]: plain_kio(getattr(value, field.name)) for field in dataclasses.fields(value) if field.metadata.get("tag") in tags}


def tagged_ours(value: Any, version: int) -> dict[int, Any]:
    """The tagged fields of a schema's NamedTuple that `version` carries; those of nested ones are not looked at."""
    hints = get_type_hints(type(value), include_extras=True)
    fields = [(hints[name].__metadata__[0], element) for name, element in zip(value._fields, value, strict=True)]
    return {field.tag: plain_ours(element, version) for field, element in fields if field.tag is not None and field.since <= version <= field.until}


@functools.cache
def bodies(body: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Random values of a schema's NamedTuple; fields that `version` lacks keep their defaults."""
    strategies = {}
    for name, hint in get_type_hints(body, include_extras=True).items():
        field: schema.Field = hint.__metadata__[0]
        if field.since <= version <= field.until:
            values = _NAMED[name] if name in _NAMED else _values(field.wire_type, version)
            strategies[name] = st.none() | values if version >= field.nullable_since else values
    return st.fixed_dictionaries(strategies).map(lambda values: body(**values))


def _values(wire_type: Any, version: int) -> st.SearchStrategy[Any]:
    if wire_type is schema.FLOAT64:
        return st.floats(allow_nan=False)
    if wire_type is schema.UINT16:
        return st.integers(0, 2**16 - 1)
    if isinstance(wire_type, schema.Fixed):
        bits = wire_type.layout.size * 8
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if isinstance(wire_type, schema.Bool):
        return st.booleans()
    if isinstance(wire_type, schema.Uuid):
        return TOPIC_ID
    if isinstance(wire_type, schema.Text):
        return TEXT
    if isinstance(wire_type, schema.Octets):
        return st.binary(max_size=300)
    if isinstance(wire_type, schema.ArrayOf):
        return st.lists(_values(wire_type.element, version), max_size=3).map(tuple)
    return bodies(wire_type, version)


def kio_message(message_class: Any, **values: Any) -> Any:
    """An instance of kio's class with those of `values` that its version has."""
    names = {field.name for field in dataclasses.fields(message_class)}
    return message_class(**{name: value for name, value in values.items() if name in names})


def kio_element(message_class: Any, field_name: str) -> Any:
    """The class of the elements of an array field of kio's class."""
    field_type: Any = next(field.type for field in dataclasses.fields(message_class) if field.name == field_name)
    return field_type.__args__[0]
