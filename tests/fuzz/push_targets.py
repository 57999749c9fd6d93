"""Fuzzed inputs that arrive by HTTP, each by itself: `_bulk` and its filter, Loki's push, Splunk's collector.

Each function is given what a stranger sends, and asserts that it is taken or refused in words, with nothing raised, no record that is no JSON, and as many
records as the answer says. Weak spot: the HTTP around them is another target.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import cramjam
import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from services.ingest.protocols.elasticsearch.elasticsearch_answers import answer_filter
from services.ingest.protocols.http.http_request import HttpResponse
from services.ingest.protocols.loki.loki_push import parse_labels
from services.ingest.records.ack_group import AckOutcome
from tests.fuzz.target import Target, Targets, check_records
from tests.support.recording_intake import RecordingIntake
from tests.unit.services.ingest.http_requests import ask

_CHANNEL = {b"x-splunk-request-channel": b"c"}
_DOCUMENT = b'{"@timestamp":"2026-11-22T15:00:00Z","message":"x","log":{"level":"info"}}'
_PUSH = bytes.fromhex("0a1e0a077b613d2262227d12130a060880f8f4c606120568656c6c6f1a0208001807")
_PROTOBUF = {b"content-type": b"application/x-protobuf"}
_LOKI = "/loki/api/v1/push"
_STATUSES = frozenset((200, 201, 202, 204, 400, 413, 422))
_BULK_ANSWER: dict[str, Any] = {"took": 7, "errors": False, "items": [{"index": {"_index": "web", "status": 201}}, {"create": {"error": {"type": "x"}}}]}


class Answered(RecordingIntake):
    """An intake that was given one request, with the answer to it."""

    answer: HttpResponse


def answered(path: str, body: bytes, outcome: AckOutcome = AckOutcome.STORED, **more: object) -> Answered:
    """Whatever it is, it is answered once, in JSON or plain text, and what was taken of it is JSON."""
    intake = Answered()
    asked = ask(intake, path, body, **more)  # type: ignore[arg-type]
    intake.complete_all(outcome)
    answer = intake.answer = asked.answer
    assert answer.status in (_STATUSES if outcome is AckOutcome.STORED else _STATUSES | {429, 503}), answer
    if answer.content_type.endswith(b"json") and answer.body:
        orjson.loads(answer.body)
    check_records(intake.records)
    assert answer.status >= 400 or not sum(intake.refused.values()) or path.endswith("/_bulk"), answer
    return intake


def fuzz_elasticsearch_bulk(data: bytes) -> None:
    """As many items are said to be created as records were taken; none while they are refused."""
    taken = answered("/web/_bulk", data)
    if taken.answer.status == 200:
        items = [item for each in orjson.loads(taken.answer.body)["items"] for item in each.values()]
        assert sum(item["status"] == 201 for item in items) == len(taken.records)
        assert len(items) <= data.count(b"\n") and sum(taken.refused.values()) == len(items) - len(taken.records)
        if taken.records:
            assert answered("/web/_bulk", data, AckOutcome.REFUSED).answer.status == 429
    assert len(answered("/web/_doc/7", data).records) == (answered("/web/_create/7", data).answer.status == 201)


def fuzz_elasticsearch_filter(data: bytes) -> None:
    """What is shown is a part of the answer."""
    shown = answer_filter(data.decode("utf-8", "replace"))
    if shown is not None:
        _check_part(shown.apply(_BULK_ANSWER), _BULK_ANSWER)


def _check_part(part: Any, whole: Any) -> None:
    if isinstance(part, dict):
        for name, value in part.items():
            _check_part(value, whole[name])
    elif isinstance(part, list):
        assert len(part) <= len(whole)
    else:
        assert part == whole


def fuzz_loki_protobuf(data: bytes) -> None:
    """Entry by entry, as protobuf's own library reads the whole; and in snappy."""
    taken = answered(_LOKI, data, headers=_PROTOBUF, content_encoding=b"snappy")
    push = _push_request()()
    try:
        push.ParseFromString(data)
    except DecodeError:
        assert taken.answer.status != 204 or not data
        return
    lines = [entry.line for stream in push.streams for entry in stream.entries]
    if taken.answer.status == 204:
        assert [orjson.loads(record.value)["message"] for record in taken.records] == lines
    else:  # labels that are none, or a group, unused since 2008
        assert not taken.records
        assert not data or any(parse_labels(stream.labels) is None for stream in push.streams) or b"wire type" in taken.answer.body, taken.answer
    if not data:
        return
    packed = answered(_LOKI, bytes(cramjam.snappy.compress_raw(data)), headers=_PROTOBUF)
    assert packed.answer.status == taken.answer.status and len(packed.records) == len(taken.records)


def fuzz_loki_json(data: bytes) -> None:
    """JSON of both kinds; the same bytes as snappy are most often none."""
    answered(_LOKI, data, headers={b"content-type": b"application/json"})
    answered(_LOKI, data, headers=_PROTOBUF)


def fuzz_loki_labels(data: bytes) -> None:
    """Names and values, or no label set."""
    labels = parse_labels(data.decode("utf-8", "replace"))
    assert labels is None or sum(len(name) + len(value) for name, value in labels.items()) <= 2 * len(data)


def fuzz_splunk_event(data: bytes) -> None:
    """Events one behind the other."""
    _collected("event", data)


def fuzz_splunk_raw(data: bytes) -> None:
    """A line, a record."""
    lines = sum(1 for line in data.split(b"\n") if line.rstrip(b"\r").strip())
    assert len(_collected("raw", data).records) == lines


def _collected(path: str, data: bytes) -> RecordingIntake:
    waited = answered(f"/services/collector/{path}", data)
    at_once = answered(f"/services/collector/{path}", data, headers=_CHANNEL)
    assert [record.value for record in waited.records] == [record.value for record in at_once.records]
    assert bool(waited.records) == (waited.answer.status == 200) and at_once.answer.status == waited.answer.status
    return waited


def fuzz_splunk_ack(data: bytes) -> None:
    """A poll for unassigned ids returns false."""
    asked = answered("/services/collector/ack", data, headers={b"x-splunk-request-channel": b"another"})
    if asked.answer.status == 200:
        assert not any(orjson.loads(asked.answer.body)["acks"].values())


@cache
def _push_request() -> Any:
    """Loki's message as a whole, declared here once more."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fuzz/loki.proto", package="fuzz.loki", syntax="proto3")
    messages: dict[str, tuple[tuple[str, int, Any, str], ...]] = {
        "Timestamp": (("seconds", 1, field.TYPE_INT64, ""), ("nanos", 2, field.TYPE_INT32, "")),
        "Pair": (("name", 1, field.TYPE_STRING, ""), ("value", 2, field.TYPE_STRING, "")),
        "Entry": (("timestamp", 1, field.TYPE_MESSAGE, "Timestamp"), ("line", 2, field.TYPE_STRING, ""), ("pairs", 3, field.TYPE_MESSAGE, "Pair")),
        "Stream": (("labels", 1, field.TYPE_STRING, ""), ("entries", 2, field.TYPE_MESSAGE, "Entry")),
        "Push": (("streams", 1, field.TYPE_MESSAGE, "Stream"),),
    }
    for name, fields in messages.items():
        declared = file.message_type.add(name=name)
        for field_name, number, kind, type_name in fields:
            label = field.LABEL_REPEATED if field_name.endswith("s") and kind == field.TYPE_MESSAGE else field.LABEL_OPTIONAL
            declared.field.add(name=field_name, number=number, type=kind, label=label, type_name=f".fuzz.loki.{type_name}" if type_name else None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fuzz.loki.Push"))


def _bulk_seeds() -> Iterator[bytes]:
    yield b'{"index":{"_index":"web"}}\n' + _DOCUMENT + b"\n"
    yield b'{"create":{"_id":"1","routing":"r"}}\n' + _DOCUMENT + b'\n\n{"delete":{"_id":"2"}}\n{"update":{"_id":"3"}}\n{"doc":{}}\n'
    yield b'{"index":{"_id":7,"pipeline":"p"}}\r\n{"a":[1,{"b":123456789012345678901234567890}],"c":NaN}\r\n{"index":{}}\n[]\n'


def _filter_seeds() -> Iterator[bytes]:
    yield b"errors,items.*.error,items.*.status"
    yield b"-took,**.status,-**.e*r"


def _loki_json_seeds() -> Iterator[bytes]:
    yield b'{"streams":[{"stream":{"job":"nginx","level":"error"},"values":[["1760000000123456789","hello",{"a":"b"}],["1","x"]]}]}'
    yield b'{"streams":[{"labels":"{a=\\"b\\"}","entries":[{"ts":"2025-10-09T08:53:20.123Z","line":"hello"}]}]}'
    yield bytes(cramjam.snappy.compress_raw(_PUSH))


def _label_seeds() -> Iterator[bytes]:
    yield rb'{a="\"\u00e9\xc3\xa9\U0001F600\101", b=`c`,}'
    yield b"{}"


def _event_seeds() -> Iterator[bytes]:
    yield b'{"time":1760000000.123,"host":"h","source":"s","sourcetype":"t","index":"i","fields":{"a":"b"},"event":{"message":"x"}}{"event":"}{"}'
    yield b'{"event":1}\n{"event":[1]} {"time":"1760000000.5","event":"x"}'


PUSH_TARGETS: Targets = {
    "elasticsearch_bulk": Target(fuzz_elasticsearch_bulk, _bulk_seeds, 512),
    "elasticsearch_filter": Target(fuzz_elasticsearch_filter, _filter_seeds, 128),
    "loki_protobuf": Target(fuzz_loki_protobuf, lambda: iter((_PUSH, _PUSH * 3)), 256),
    "loki_json": Target(fuzz_loki_json, _loki_json_seeds, 256),
    "loki_labels": Target(fuzz_loki_labels, _label_seeds, 128),
    "splunk_event": Target(fuzz_splunk_event, _event_seeds, 256),
    "splunk_raw": Target(fuzz_splunk_raw, lambda: iter((b"one\r\n\ntwo\n", b"\xff\n \nx")), 128),
    "splunk_ack": Target(fuzz_splunk_ack, lambda: iter((b'{"acks":[1,2,3]}', b'{"acks":[]}')), 128),
}
