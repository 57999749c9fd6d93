"""How deep values may be nested is one rule, whichever input they come by, and however their JSON is made."""

from __future__ import annotations

import copy
from struct import pack
from typing import Any

import msgpack
import orjson
import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.document import LEVELS_MAX, Extension, deep_text, encode_document
from services.ingest.protocols.fluent.fluent_session import FluentSession
from services.ingest.protocols.gelf.gelf_message import gelf_record
from services.ingest.protocols.lumberjack.lumberjack_session import LumberjackSession
from services.ingest.protocols.otlp.otlp_json import read_otlp_json
from services.ingest.protocols.otlp.otlp_protobuf import read_protobuf
from services.ingest.records.agent_event import agent_record
from services.ingest.records.agent_events import agent_records, common_of
from tests.support.otlp_requests import otlp_request
from tests.support.recording_connection import RecordingConnection
from tests.support.recording_intake import RecordingIntake
from tests.unit.services.ingest.http_requests import SOURCE, ask

LISTENER = Listener("any", Protocol.HTTP, ListenerTransport.TCP, 0)
WHOLE = LEVELS_MAX - 2
"""Levels that a field's value may have: the document and `fields` are two."""
PROTOBUF_LISTS_MAX = 49
"""Lists within each other that protobuf's own library reads: each is two of its hundred messages."""


def nested(levels: int, innermost: Any) -> Any:
    for _ in range(levels):
        innermost = [innermost]
    return innermost


def kept(levels: int, innermost: Any = 1) -> Any:
    """What the event has of a field with so many levels."""
    return nested(levels, innermost) if levels <= WHOLE else nested(WHOLE, deep_text(nested(levels - WHOLE, innermost)))


def by_http(path: str, body: bytes, media_type: bytes) -> bytes:
    intake = RecordingIntake()
    intake.topics.add("t")
    ask(intake, path, body, headers={b"content-type": media_type})
    return intake.records[0].value


def by_fluent(fields: dict[str, Any], count: int) -> bytes:
    connection = RecordingConnection(LISTENER)
    FluentSession(connection).received(msgpack.packb(["tag", [[1_760_000_000, fields]] * count]))
    return connection.intake.records[-1].value


def by_lumberjack(json: bytes) -> bytes:
    connection = RecordingConnection(LISTENER)
    LumberjackSession(connection).received(b"2W" + pack(">I", 1) + b"2J" + pack(">II", 1, len(json)) + json)
    return connection.intake.records[0].value


def otlp_json(levels: int) -> bytes:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(levels):
        value = {"arrayValue": {"values": [value]}}
    return b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"attributes":[{"key":"deep","value":%b}]}]}]}]}' % json_of(value)


def json_of(value: Any) -> bytes:
    """Deeper than orjson writes."""
    return deep_text(value).encode()


@pytest.mark.parametrize("levels", [64, 65, WHOLE, WHOLE + 1, 260, 330])
def test_a_value_is_json_to_the_same_depth_by_every_input(levels: int) -> None:
    fields = {"deep": nested(levels, 1)}
    text = json_of(fields)
    written = {
        "ndjson": by_http("/ingest/t", text + b"\n", b"application/x-ndjson"),
        "an array": by_http("/ingest/t", b"[%b]" % text, b"application/json"),
        "_bulk": by_http("/_bulk", b'{"create":{"_index":"a"}}\n%b\n' % text, b"application/x-ndjson"),
        "gelf": gelf_record(text, LISTENER, SOURCE, RecordingIntake()).value,
        "splunk": by_http("/services/collector", b'{"event":%b}' % text, b"application/json"),
        "fluent": by_fluent(fields, 1),
        "fluent, by columns": by_fluent(fields, 8),
        "fluent, with NaN": by_fluent({**fields, "n": float("nan")}, 1),
        "lumberjack": by_lumberjack(text),
        "otlp": next(iter(read_otlp_json(otlp_json(levels), LISTENER).slices))[0].value,
    }
    found = {by: orjson.loads(value)["fields"]["deep"] for by, value in written.items()}
    assert found == dict.fromkeys(written, kept(levels))


def test_by_protobuf_a_record_that_its_library_does_not_read_is_kept_whole() -> None:
    def documents(levels: int) -> list[Any]:
        request = otlp_request(["fine", "deep"], {"deep": nested(levels, 1)}).SerializeToString()
        return [orjson.loads(record.value) for records in read_protobuf(request, LISTENER).slices for record in records]

    assert [document["fields"]["deep"] for document in documents(PROTOBUF_LISTS_MAX)] == [kept(PROTOBUF_LISTS_MAX)] * 2
    assert [document["parsed"] for document in documents(PROTOBUF_LISTS_MAX + 1)] == [False] * 2


def test_json_that_is_nested_too_deep_is_refused_or_kept_raw() -> None:
    text = b'{"deep":%b}' % json_of(nested(5_000, 1))
    for value in (
        by_http("/ingest/t", text + b"\n", b"application/x-ndjson"),
        gelf_record(text, LISTENER, SOURCE, RecordingIntake()).value,
        by_lumberjack(text),
    ):
        document = orjson.loads(value)
        assert (document["parsed"], document["raw"].encode()) == (False, text)


@pytest.mark.parametrize("levels", [WHOLE - 1, WHOLE, WHOLE + 1])
@pytest.mark.parametrize("innermost", [1, [], {}, {"a": 1}, Extension(7, b"x"), b"bytes"], ids=["number", "array", "object", "in it", "extension", "bytes"])
def test_the_fast_way_and_the_careful_one_write_the_same(levels: int, innermost: Any) -> None:
    document = {"fields": {"deep": nested(levels, innermost)}}
    assert encode_document(document) == encode_document(document, careful=True)


@pytest.mark.parametrize("levels", [WHOLE - 1, WHOLE, WHOLE + 1])
def test_what_all_records_of_a_scope_have_is_as_deep_by_columns_as_one_by_one(levels: int) -> None:
    known = {"resource": {"deep": nested(levels, 1)}}
    fields = [{"message": str(number), "n": number} for number in range(8)]
    alone = [agent_record(each, LISTENER, known).value for each in copy.deepcopy(fields)]
    assert [record.value for record in agent_records(fields, LISTENER, common_of(known))] == alone
