"""Bytes and tagged fields of messages that are data."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import pytest

from appliance.base.errors import ProtocolViolation
from appliance.base.invariants import InvariantViolation
from appliance.protocol.schema import BYTES, INT32, INT64, Field, struct_codec


class Inner(NamedTuple):
    number: Annotated[int, Field(INT32)]


class Tagged(NamedTuple):
    number: Annotated[int, Field(INT32)] = 0
    inner: Annotated[Inner | None, Field(Inner, since=1, nullable_since=1, tag=0)] = None
    other: Annotated[int, Field(INT64, since=1, tag=3)] = -1


class Data(NamedTuple):
    required: Annotated[bytes, Field(BYTES)]
    optional: Annotated[bytes | None, Field(BYTES, nullable_since=0)] = None


def read_all(body: type[tuple[Any, ...]], version: int, flexible: bool, data: bytes) -> Any:
    value, position = struct_codec(body, version, flexible).read(data + b"\x55" * 20, 0, len(data))
    assert position == len(data)
    return value


@pytest.mark.parametrize(
    ("flexible", "data", "value"),
    [
        (False, b"\0\0\0\3abc" + b"\xff\xff\xff\xff", Data(b"abc", None)),
        (False, b"\0\0\0\0" + b"\0\0\0\0", Data(b"", b"")),
        (True, b"\4abc" + b"\0" + b"\0", Data(b"abc", None)),
        (True, b"\1" + b"\3de" + b"\0", Data(b"", b"de")),
        (True, b"\xad\x02" + b"x" * 300 + b"\0" + b"\0", Data(b"x" * 300, None)),
    ],
)
def test_bytes_have_an_old_and_a_compact_form(flexible: bool, data: bytes, value: Data) -> None:
    assert struct_codec(Data, 0, flexible).write(value) == data
    assert read_all(Data, 0, flexible, data) == value


@pytest.mark.parametrize(
    ("flexible", "data"), [(False, b"\xff\xff\xff\xff"), (False, b"\0\0\0\x09abc"), (False, b"\x80\0\0\0"), (True, b"\0"), (True, b"\x0aabc")]
)
def test_bytes_are_not_null_and_end_in_their_frame(flexible: bool, data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        struct_codec(Data, 0, flexible).read(data + bytes(20), 0, len(data))


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\0\0\0\1" + b"\0", Tagged(1)),
        (b"\0\0\0\1" + b"\1" + b"\3\x08" + bytes(7) + b"\x09", Tagged(1, None, 9)),
        (b"\0\0\0\1" + b"\2" + b"\0\6\1\0\0\0\7\0" + b"\3\x08" + bytes(7) + b"\x09", Tagged(1, Inner(7), 9)),
    ],
)
def test_a_tagged_field_is_written_where_it_is_not_its_default(data: bytes, value: Tagged) -> None:
    assert struct_codec(Tagged, 1, True).write(value) == data
    assert read_all(Tagged, 1, True, data) == value


def test_unknown_tags_are_skipped() -> None:
    data = b"\0\0\0\1" + b"\2" + b"\2\3abc" + b"\3\x08" + bytes(7) + b"\x09"
    assert read_all(Tagged, 1, True, data) == Tagged(1, None, 9)
    assert read_all(Tagged, 0, True, data) == Tagged(1)


@pytest.mark.parametrize("size", [7, 9])
def test_a_tagged_field_is_as_long_as_it_says(size: int) -> None:
    data = b"\0\0\0\1" + b"\1" + b"\3" + bytes([size]) + bytes(size)
    with pytest.raises(ProtocolViolation, match="tagged field 3"):
        struct_codec(Tagged, 1, True).read(data + bytes(20), 0, len(data))


def test_no_version_without_tags_has_a_tagged_field() -> None:
    with pytest.raises(InvariantViolation):
        struct_codec(Tagged, 1, False)
