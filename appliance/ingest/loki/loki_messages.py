"""Loki's push request in protobuf: streams of one label set each, with entries of a time, a line and pairs.

Made from a descriptor when the first sender needs it (protobuf costs 6 MB, which an idle box does not pay); no generated code. The timestamp is declared
here like protobuf's own. Weak: fields that a later Loki adds are skipped over without a word; `hash` and `parsed` are of no use here and left undeclared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

PACKAGE = "millrace.loki"


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


class _Stream(Protocol):
    labels: str
    entries: Sequence[_Entry]


class PushRequest(Protocol):
    """What a push holds."""

    streams: Sequence[_Stream]


class _Messages(NamedTuple):
    push_request: Any
    decode_error: type[Exception]


def decode_push(data: bytes) -> PushRequest | None:
    """The request in `data`; None if it is none."""
    messages = _messages()
    try:
        return cast(PushRequest, messages.push_request.FromString(data))
    except messages.decode_error:
        return None


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
    declare("Stream", ("labels", 1, field.TYPE_STRING, "", False), ("entries", 2, field.TYPE_MESSAGE, "Entry", True))
    declare("PushRequest", ("streams", 1, field.TYPE_MESSAGE, "Stream", True))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    push_request = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.PushRequest"))
    return _Messages(push_request, message.DecodeError)
