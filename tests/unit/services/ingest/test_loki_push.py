"""Loki's push in its three forms: entries become records with their stream's labels."""

from __future__ import annotations

from typing import Any

import cramjam
import orjson
import pytest
from google.protobuf.internal.encoder import _VarintBytes as varint  # type: ignore[attr-defined]

from services.ingest.protocols.http.http_request import HttpResponse
from services.ingest.protocols.loki import loki_push
from services.ingest.protocols.loki.loki_push import parse_labels
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.intake import RefusedReason
from tests.support.recording_intake import RecordingIntake
from tests.unit.services.ingest.http_requests import HTTP, ask, documents, stored

PUSH = "/loki/api/v1/push"
JSON = {b"content-type": b"application/json"}
PROTOBUF = {b"content-type": b"application/x-protobuf"}
LABELS = '{job="nginx", host="web-1", level="error"}'


def field(number: int, content: bytes | int) -> bytes:
    """One field of a protobuf message, by hand: the decoder is held against the format, not against itself."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def protobuf_push(line: bytes = b"hello", labels: str = LABELS) -> bytes:
    time = field(1, 1_760_000_000) + field(2, 123_456_789)
    entry = field(1, time) + field(2, line) + field(3, field(1, b"trace_id") + field(2, b"abc")) + field(4, b"")
    return field(1, field(1, labels.encode()) + field(2, entry) + field(3, 7))


def json_push(*values: object, **labels: str) -> bytes:
    return orjson.dumps({"streams": [{"stream": labels, "values": values}]})


def check_hello(intake: RecordingIntake, answer: HttpResponse) -> dict[str, Any]:
    assert answer.status == 204 and not answer.body
    (record,), (document,) = intake.records, documents(intake)
    assert record.labels == {"job": "nginx", "host": "web-1", "level": "error"}
    assert (record.host, record.app, record.severity, record.time_ms) == ("web-1", "nginx", 3, 1_760_000_000_123)
    assert document["message"] == "hello" and document["event_time_ns"] == 1_760_000_000_123_456_789
    return document


def test_protobuf_comes_in_snappy_with_or_without_an_encoding() -> None:
    intake = RecordingIntake()
    snappy = bytes(cramjam.snappy.compress_raw(protobuf_push()))
    document = check_hello(intake, stored(intake, PUSH, snappy, headers=PROTOBUF).answer)
    assert document["trace_id"] == "abc"
    intake = RecordingIntake()
    check_hello(intake, stored(intake, PUSH, protobuf_push(), headers=PROTOBUF, content_encoding=b"snappy").answer)


def test_json_has_times_as_texts_and_structured_metadata_as_a_third() -> None:
    intake = RecordingIntake()
    body = json_push(["1760000000123456789", "hello", {"user": {"id": 7}}], job="nginx", host="web-1", level="error")
    document = check_hello(intake, stored(intake, PUSH, body, headers=JSON).answer)
    assert document["fields"] == {"user": {"id": 7}}


def test_the_old_json_has_its_labels_as_a_text() -> None:
    intake = RecordingIntake()
    body = orjson.dumps({"streams": [{"labels": LABELS, "entries": [{"ts": "2025-10-09T08:53:20.123Z", "line": "hello"}]}]})
    assert stored(intake, "/api/prom/push", body, headers=JSON).answer.status == 204
    assert intake.records[0].time_ms == 1_760_000_000_123 and documents(intake)[0]["message"] == "hello"


def test_the_tenant_is_a_label_and_nothing_is_out_of_order() -> None:
    intake = RecordingIntake()
    body = json_push(["2000000000", "second"], ["1000000000", "first"], job="a")
    stored(intake, PUSH, body, headers={**JSON, b"x-scope-orgid": b"team-7"})
    assert [record.labels for record in intake.records] == [{"job": "a", "__tenant_id__": "team-7"}] * 2
    assert [document["message"] for document in documents(intake)] == ["second", "first"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"streams":[7]}',
        b'{"streams":[{"stream":{},"values":7}]}',
        b'{"streams":[{"stream":[],"values":[]}]}',
        json_push(["1", "good"], ["1"]),
        json_push(["1", 7]),
        json_push(["-1", "x"]),
        json_push(["1", "x", []]),
        json_push([str(1 << 63), "x"]),
        json_push(["1e9", "x"]),
        b'{"streams":[{"labels":"{a=}","entries":[]}]}',
        b'{"streams":[{"labels":"{}","entries":[{"ts":7,"line":"x"}]}]}',
    ],
)
def test_a_push_is_read_whole_or_refused_whole(body: bytes) -> None:
    intake = RecordingIntake()
    answer = ask(intake, PUSH, body, headers=JSON).answer
    assert answer.status == 400 and answer.body and not intake.taken and intake.refused[RefusedReason.MALFORMED] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 8,
        bytes(cramjam.snappy.compress_raw(b"\x0a\xff")),
        bytes(cramjam.snappy.compress_raw(b"\x02\x00")),
        bytes(cramjam.snappy.compress_raw(protobuf_push(labels="job"))),
    ],
)
def test_protobuf_that_is_none_is_refused(body: bytes) -> None:
    intake = RecordingIntake()
    answer = ask(intake, PUSH, body, headers=PROTOBUF).answer
    assert answer.status == 400 and answer.body and not intake.taken


def test_a_snappy_bomb_is_refused_before_it_is_opened() -> None:
    intake = RecordingIntake()
    bomb = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    answer = ask(intake, PUSH, bomb, headers=PROTOBUF, listener=HTTP._replace(decompressed_bytes_max=1 << 16)).answer
    assert answer.status == 413 and intake.refused[RefusedReason.TOO_LARGE] == 1


def test_more_entries_than_one_turn_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loki_push, "RECORDS_MAX", 2)
    intake = RecordingIntake()
    assert ask(intake, PUSH, json_push(*[["1", "x"]] * 3), headers=JSON).answer.status == 413 and not intake.taken
    assert stored(intake, PUSH, json_push(*[["1", "x"]] * 2), headers=JSON).answer.status == 204


@pytest.mark.parametrize(
    "body",
    [field(1, b"") * 9, field(1, field(1, b"{}") * 9), field(1, field(1, b"{}") + field(2, field(2, b"x" * (1 << 16)) + field(3, b"") * 9))],
    ids=("streams", "labels", "pairs of a large entry"),
)
def test_a_push_of_very_many_empty_parts_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(loki_push, "PARTS_MAX", 8)
    intake = RecordingIntake()
    asked = ask(intake, PUSH, body, headers=PROTOBUF, content_encoding=b"snappy")
    assert asked.answer.status == 413 and not intake.records and intake.refused == {RefusedReason.TOO_LARGE: 1}


def test_back_pressure_is_429_and_what_can_never_be_stored_400() -> None:
    intake = RecordingIntake()
    asked = ask(intake, PUSH, json_push(["1", "x"]), headers=JSON)
    intake.complete_all(AckOutcome.REFUSED)
    assert asked.answer.status == 429 and dict(asked.answer.headers)[b"Retry-After"] == b"1"
    asked = ask(intake, PUSH, json_push(["1", "x"], ["2", "y"]), headers=JSON)
    intake.complete(intake.closed[-1], rejected=[(1, "larger than the topic allows")])
    assert asked.answer.status == 400 and b"1 of 2" in asked.answer.body


def test_readiness_and_version_requests_are_answered() -> None:
    intake = RecordingIntake()
    assert ask(intake, "/ready", method="GET").answer.status == 200
    assert ask(intake, "/loki/api/v1/status/buildinfo", method="GET").json["version"]
    intake.is_blocked = True
    assert ask(intake, "/ready", method="GET").answer.status == 503


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{}", {}),
        (' { a = "1" , b="2",} ', {"a": "1", "b": "2"}),
        (r'{a="\"\\\n\t"}', {"a": '"\\\n\t'}),
        (r'{a="\u00e9\xc3\xa9\U0001F600\303\251"}', {"a": "éé😀é"}),
        (r"{a=`C:\tmp`}", {"a": r"C:\tmp"}),
        ('{a="x,y}z"}', {"a": "x,y}z"}),
        ('{a="1",a="2"}', {"a": "2"}),
        ('{service.name="x"}', {"service.name": "x"}),
        ("", None),
        ("{", None),
        ('{a="1"', None),
        ("{a=1}", None),
        ('{a="1" b="2"}', None),
        ('{="1"}', None),
        (r'{a="\q"}', None),
        (r'{a="\ud800"}', None),
        (r'{a="\777"}', None),
        (r'{a="\xc3"}', {"a": "\ufffd"}),
    ],
)
def test_labels_are_read_as_go_quotes_them(text: str, labels: dict[str, str] | None) -> None:
    assert parse_labels(text) == labels
