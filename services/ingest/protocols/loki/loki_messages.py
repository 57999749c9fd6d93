"""Loki's push request in protobuf: streams of one label set each, with entries of a time, a line and pairs.

Two bytes of a message become fifty in memory, so a push is never parsed as a whole: its streams and entries are found by hand, counted, and each entry is
read by protobuf's library. That is made from a descriptor when the first sender needs it (protobuf costs 6 MB, which an idle box does not pay); no generated
code. The timestamp is declared here like protobuf's own. Weak: fields that a later Loki adds are skipped over without a word; `hash` and `parsed` are of no
use here and left undeclared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from services.ingest.protocols.protobuf_wire import BadWire, Field, split_fields

PACKAGE = "millrace.loki"
LARGE_ENTRY_BYTES = 1 << 16
"""What is in a larger entry is counted, too."""
_STREAM = 1
_LABELS, _ENTRY = 1, 2


class _Pair(Protocol):
    name: str
    value: str


class _Timestamp(Protocol):
    seconds: int
    nanos: int


class _Entry(Protocol):
    timestamp: _Timestamp
    line: str
    structured_metadata: Sequence[_Pair]


class TooManyParts(ValueError):
    """A push of more streams, entries and other parts than its reader was ready to look at."""


class _Messages(NamedTuple):
    entry: Any
    decode_error: type[Exception]


def read_streams(data: bytes, parts_max: int) -> Iterator[tuple[str, Iterator[_Entry]]]:
    """The labels and the entries of each stream. Raises BadWire for what is no push, TooManyParts for one of more than `parts_max`."""
    parts = _Parts(data, parts_max)
    for number, start, end in parts.split(0, len(data)):
        if number == _STREAM:
            labels = ""
            entries: list[Field] = []
            for field in parts.split(start, end):
                if field[0] == _ENTRY:
                    entries.append(field)
                elif field[0] == _LABELS:
                    labels = _text(data[field[1] : field[2]])
            yield labels, parts.entries(entries)


class _Parts:
    """One push; counts what is looked at."""

    def __init__(self, data: bytes, parts_max: int) -> None:
        self._data = data
        self._left = parts_max + 1

    def split(self, start: int, end: int) -> list[Field]:
        fields, parts = split_fields(self._data, start, end, self._left)
        self._left -= parts
        if not self._left:
            raise TooManyParts("a push of too many parts; send smaller ones")
        return fields

    def entries(self, fields: Sequence[Field]) -> Iterator[_Entry]:
        messages = _messages()
        for _, start, end in fields:
            if end - start > LARGE_ENTRY_BYTES:
                self.split(start, end)
            try:
                yield messages.entry.FromString(self._data[start:end])
            except messages.decode_error as problem:
                raise BadWire(str(problem)) from problem


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise BadWire("labels that are not UTF-8") from problem


@cache
def _messages() -> _Messages:
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="millrace/loki.proto", package=PACKAGE, syntax="proto3")

    def declare(name: str, *fields: tuple[str, int, Any, str, bool]) -> None:
        declared = file.message_type.add(name=name)
        for field_name, number, kind, type_name, is_repeated in fields:
            label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
            declared.field.add(name=field_name, number=number, type=kind, label=label, type_name=f".{PACKAGE}.{type_name}" if type_name else None)

    declare("Timestamp", ("seconds", 1, field.TYPE_INT64, "", False), ("nanos", 2, field.TYPE_INT32, "", False))
    declare("Pair", ("name", 1, field.TYPE_STRING, "", False), ("value", 2, field.TYPE_STRING, "", False))
    declare(
        "Entry",
        ("timestamp", 1, field.TYPE_MESSAGE, "Timestamp", False),
        ("line", 2, field.TYPE_STRING, "", False),
        ("structured_metadata", 3, field.TYPE_MESSAGE, "Pair", True),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return _Messages(message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Entry")), message.DecodeError)
