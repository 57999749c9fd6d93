"""Loki's push request in protobuf: streams with a label set each, and entries with a time, a line
and pairs.

Two bytes of a message can take fifty in memory, so a push is never parsed as a whole: streams and
entries are found by hand and counted, and protobuf's library parses one entry at a time. Its class
is made from a descriptor by the first sender that needs it (protobuf costs 6 MB, which an idle box
saves); there is no generated code. The timestamp is declared here in the same form as protobuf's
own. Weak: fields of later versions of Loki are skipped; `hash` and `parsed` are not declared,
because they are not used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from services.ingest.protocols.protobuf_wire import BadWire, Field, split_slowly
from services.ingest.protocols.steps import run_to_end

PACKAGE = "millrace.loki"
STREAMS_A_STEP = 256
LARGE_ENTRY_BYTES = 1 << 16
"""The parts of a larger entry are counted as well."""
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


LokiStreams = list[tuple[str, Iterator[_Entry]]]
"""Labels and entries of each stream."""


class TooManyParts(ValueError):
    """A push has more streams, entries and other parts than allowed."""


class _Messages(NamedTuple):
    entry: Any
    decode_error: type[Exception]


def read_streams(data: bytes, parts_max: int) -> Generator[None, None, LokiStreams]:
    """Find labels and entries of each stream, in steps; the entries are parsed when they are read.
    Raises BadWire for what is not a push, TooManyParts for more than `parts_max`.
    """
    parts = _Parts(data, parts_max)
    streams: LokiStreams = []
    for number, start, end in (yield from parts.split(0, len(data))):
        if number == _STREAM:
            labels = ""
            entries: list[Field] = []
            for field in (yield from parts.split(start, end)):
                if field[0] == _ENTRY:
                    entries.append(field)
                elif field[0] == _LABELS:
                    labels = _text(data[field[1] : field[2]])
            streams.append((labels, parts.entries(entries)))
            if not len(streams) % STREAMS_A_STEP:
                yield
    return streams


class _Parts:
    """The parts of one push, counted."""

    def __init__(self, data: bytes, parts_max: int) -> None:
        self._data = data
        self._left = parts_max + 1

    def split(self, start: int, end: int) -> Generator[None, None, list[Field]]:
        fields, parts = yield from split_slowly(self._data, start, end, self._left)
        self._left -= parts
        if not self._left:
            raise TooManyParts("a push of too many parts; send smaller ones")
        return fields

    def entries(self, fields: Sequence[Field]) -> Iterator[_Entry]:
        messages = _messages()
        for _, start, end in fields:
            if end - start > LARGE_ENTRY_BYTES:
                run_to_end(self.split(start, end))
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
