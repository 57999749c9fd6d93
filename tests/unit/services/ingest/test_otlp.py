"""OTLP over HTTP: protobuf and JSON say the same, nothing of a record is dropped, and a hostile request costs little."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from services.ingest.protocols.document import LEVELS_MAX
from services.ingest.protocols.http.http_request import RECORDS_MAX
from services.ingest.protocols.otlp import otlp_protobuf
from services.ingest.protocols.otlp.otlp_json import read_otlp_json
from services.ingest.protocols.otlp.otlp_protobuf import MESSAGE_BYTES_MAX, read_protobuf
from services.ingest.protocols.otlp.otlp_record import BadPayload, OtlpRequest, TooManyRecords
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Oddity, RefusedReason
from tests.support.http_talk import LISTENER, HttpTalk, Response, request
from tests.support.otlp_requests import SPAN_ID, TIME_NS, TRACE_ID, otlp_request

PROTOBUF, JSON = "application/x-protobuf", "application/json"
RESOURCE = {"service.name": "shop", "host.name": "web-1", "process.pid": 4711}
ATTRIBUTES = {
    "http.status": 503,
    "path": "/cart",
    "cached": False,
    "ratio": 0.5,
    "tags": ["a", 1],
    "user": {"id": 7, "name": "Ä"},
    "key": b"\x00\xff",
    "nothing": None,
}
FULL = otlp_request(
    ["it broke"],
    ATTRIBUTES,
    RESOURCE,
    observed_time_unix_nano=TIME_NS + 10**9,
    severity_number=17,
    severity_text="ERROR",
    trace_id=TRACE_ID,
    span_id=SPAN_ID,
    event_name="checkout.failed",
    flags=1,
    dropped_attributes_count=2,
)


def as_json(message: ExportLogsServiceRequest) -> bytes:
    """In OTLP's JSON, which has ids in hex where protobuf's has base64."""
    document = MessageToDict(message)
    for resource_logs, originals in zip(document.get("resourceLogs", []), message.resource_logs):
        for scope_logs, scope in zip(resource_logs["scopeLogs"], originals.scope_logs):
            for record, original in zip(scope_logs["logRecords"], scope.log_records):
                record.update({name: value.hex() for name, value in (("traceId", original.trace_id), ("spanId", original.span_id)) if value})
                if "severityNumber" in record:
                    record["severityNumber"] = original.severity_number
    return orjson.dumps(document)


def records_of(reading: OtlpRequest) -> list[IngestRecord]:
    return [record for records in reading.slices for record in records]


def export(talk: HttpTalk, body: bytes, media_type: str = PROTOBUF) -> Response:
    (answer,) = talk.ask(request("/v1/logs", body, Content_Type=media_type))
    return answer


def document_of(message: ExportLogsServiceRequest) -> dict[str, Any]:
    """Of its one record, which is the same in both encodings."""
    (from_protobuf,) = records_of(read_protobuf(message.SerializeToString(), LISTENER))
    (from_json,) = records_of(read_otlp_json(as_json(message), LISTENER))
    assert orjson.loads(from_json.value) == orjson.loads(from_protobuf.value)
    assert from_json[1:] == from_protobuf[1:]
    document: dict[str, Any] = orjson.loads(from_protobuf.value)
    return document


def test_everything_of_a_record_is_in_the_event() -> None:
    assert document_of(FULL) == {
        "time": "2025-10-09T08:53:20.123Z",
        "host": "web-1",
        "app": "shop",
        "proc_id": "4711",
        "msg_id": "checkout.failed",
        "severity": 3,
        "severity_name": "err",
        "facility": None,
        "facility_name": None,
        "structured_data": {},
        "message": "it broke",
        "resource": RESOURCE,
        "scope": {"name": "library", "version": "1.2"},
        "fields": {**ATTRIBUTES, "key": "AP8="},
        "trace_id": TRACE_ID.hex(),
        "span_id": SPAN_ID.hex(),
        "event_time_ns": TIME_NS,
        "otlp": {
            "severity_number": 17,
            "severity_text": "ERROR",
            "event_name": "checkout.failed",
            "observed_time": "2025-10-09T08:53:21.123Z",
            "flags": 1,
            "dropped_attributes_count": 2,
        },
    }


def test_routes_see_host_app_severity_resource_and_attributes() -> None:
    (record,) = records_of(read_protobuf(FULL.SerializeToString(), LISTENER))
    assert (record.host, record.app, record.severity, record.time_ms) == ("web-1", "shop", 3, TIME_NS // 1_000_000)
    assert record.fields is not None and record.fields["http.status"] == 503
    assert record.labels == RESOURCE


@pytest.mark.parametrize(("number", "severity"), [(1, 7), (5, 7), (9, 6), (10, 5), (13, 4), (17, 3), (18, 2), (19, 1), (21, 0), (24, 0)])
def test_severities_are_those_of_syslog(number: int, severity: int) -> None:
    assert document_of(otlp_request(["x"], severity_number=number))["severity"] == severity


def test_a_severity_without_a_number_is_read_from_its_text() -> None:
    assert document_of(otlp_request(["x"], severity_number=0, severity_text="Warning"))["severity"] == 4


@pytest.mark.parametrize(
    ("body", "message", "kept"),
    [
        ("text", "text", None),
        ({"message": "inner", "n": 1}, "inner", {"message": "inner", "n": 1}),
        ({"n": 1}, '{"n":1}', {"n": 1}),
        ([1, "a"], '[1,"a"]', [1, "a"]),
        (7, "7", 7),
        (True, "true", True),
        (b"\xff\x00", "/wA=", None),
        (None, None, None),
    ],
)
def test_a_body_of_any_kind_has_a_text_and_keeps_its_form(body: Any, message: str | None, kept: Any) -> None:
    document = document_of(otlp_request([body]))
    assert document["message"] == message and document.get("body") == kept


def test_doubles_that_json_does_not_know_are_texts() -> None:
    document = document_of(otlp_request(["x"], {"a": math.nan, "b": math.inf, "c": -math.inf}))
    assert document["fields"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}


def test_a_key_that_is_there_twice_loses_no_value() -> None:
    message = otlp_request(["x"], {"a": 1})
    message.resource_logs[0].scope_logs[0].log_records[0].attributes.add(key="a").value.int_value = 2
    assert document_of(message)["fields"] == {"a": 1, "a#2": 2}


def test_without_its_own_time_a_record_has_the_observed_one() -> None:
    assert document_of(otlp_request(["x"], time_unix_nano=0, observed_time_unix_nano=TIME_NS))["event_time_ns"] == TIME_NS


def test_raw_is_the_record_in_otlps_json() -> None:
    raw = LISTENER._replace(raw=True)
    (from_protobuf,) = records_of(read_protobuf(FULL.SerializeToString(), raw))
    (from_json,) = records_of(read_otlp_json(as_json(FULL), raw))
    document = orjson.loads(from_protobuf.value)
    assert document["traceId"] == TRACE_ID.hex() and document["body"] == {"stringValue": "it broke"}
    assert orjson.loads(from_json.value) == document | {"severityNumber": 17}


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
def test_a_request_is_one_unit_and_answered_in_its_encoding(media_type: str) -> None:
    talk = HttpTalk()
    message = otlp_request(["a", "b", "c"])
    answer = export(talk, message.SerializeToString() if media_type == PROTOBUF else as_json(message), media_type)
    assert answer.status == 200 and answer.headers.get("content-type", media_type) == media_type
    assert answer.body == (b"" if media_type == PROTOBUF else b"{}")
    assert len(talk.intake.closed) == 1 and len(talk.intake.records) == 3


def test_records_that_can_never_be_stored_are_a_partial_success() -> None:
    message = otlp_request(["a", "b"])
    for media_type, body in ((PROTOBUF, message.SerializeToString()), (JSON, as_json(message))):
        talk = HttpTalk()
        talk.send(request("/v1/logs", body, Content_Type=media_type))
        talk.intake.complete(talk.intake.in_flight[0], AckOutcome.STORED, [(1, "too large for the topic")])
        (answer,) = talk.answers()
        assert answer.status == 200
        if media_type == PROTOBUF:
            partial = ExportLogsServiceResponse.FromString(answer.body).partial_success
            assert (partial.rejected_log_records, partial.error_message) == (1, "too large for the topic")
        else:
            assert answer.words == {"partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "too large for the topic"}}


def test_a_record_that_cannot_be_parsed_is_kept_and_the_others_with_it() -> None:
    talk = HttpTalk()
    good = otlp_request(["a"]).resource_logs[0].scope_logs[0].log_records[0].SerializeToString()
    scope_logs = b"".join(b"\x12%c%b" % (len(record), record) for record in (good, b"\x1a\x01\xff", good))
    body = b"\x12%c%b" % (len(scope_logs), scope_logs)
    assert export(talk, b"\x0a%c%b" % (len(body), body)).status == 200
    broken = orjson.loads(talk.intake.records[1].value)
    assert len(talk.intake.records) == 3 and not broken["parsed"] and broken["bytes_base64"] == {"/raw": "GgH/"}
    assert talk.intake.oddities == {Oddity.UNPARSED: 1}


def test_a_record_too_large_to_be_read_is_counted_and_reported() -> None:
    talk = HttpTalk()
    partial = ExportLogsServiceResponse.FromString(export(talk, otlp_request(["x" * (MESSAGE_BYTES_MAX + 1), "b"]).SerializeToString()).body).partial_success
    assert partial.rejected_log_records == 1 and len(talk.intake.records) == 1 and talk.intake.refused == {RefusedReason.TOO_LARGE: 1}


def test_busy_is_503_with_a_status_that_can_be_read() -> None:
    talk = HttpTalk()
    talk.intake.is_blocked = True
    answer = export(talk, b"", JSON)
    assert answer.status == 503 and answer.headers["retry-after"] == "1" and answer.words["code"] == 14
    assert export(talk, b"").body[:2] == b"\x08\x0e"


@pytest.mark.parametrize(
    "body", [b"\x0a", b"\x0a\x05abc", b"\xff" * 20, b"\x0a\x04\x12\x02\x12\x01", b"\x0b", b"\x0a\x07\x0a\x05\x0a\x03\x0a\x01\xff", b"\x02\x00", b"{}"]
)
def test_what_is_no_protobuf_is_answered_400_and_counted(body: bytes) -> None:
    talk = HttpTalk()
    assert export(talk, body).status == 400 and talk.intake.refused == {RefusedReason.MALFORMED: 1}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'"x"'])
def test_what_is_no_json_of_otlp_is_answered_400_and_counted(body: bytes) -> None:
    talk = HttpTalk()
    assert export(talk, body, JSON).status == 400 and talk.intake.refused == {RefusedReason.MALFORMED: 1}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"resource_logs": [{}]}, "resourceLogs"),
        ({"resourceSpans": [{}]}, "resourceLogs"),
        ({"resourceLogs": [{"scope_logs": [{}]}]}, "scopeLogs"),
        ({"resourceLogs": [{"instrumentationLibraryLogs": [{}]}]}, "scopeLogs"),
        ({"resourceLogs": [{"scopeLogs": [{"log_records": [{}]}]}]}, "logRecords"),
    ],
)
def test_records_under_another_name_are_refused_and_not_lost_without_a_word(body: object, name: str) -> None:
    talk = HttpTalk()
    answer = export(talk, orjson.dumps(body), JSON)
    assert answer.status == 400 and name in answer.words["message"] and talk.intake.refused == {RefusedReason.MALFORMED: 1}


def test_names_that_are_not_known_are_ignored_beside_records() -> None:
    body = orjson.dumps({"later": 1, "resourceLogs": [{"later": 1, "scopeLogs": [{"later": 1, "logRecords": [{"later": 1, "body": {"stringValue": "x"}}]}]}]})
    (record,) = records_of(read_otlp_json(body, LISTENER))
    assert orjson.loads(record.value)["message"] == "x"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"resourceLogs": 5}, "resourceLogs"),
        ({"resourceLogs": {"scopeLogs": []}}, "resourceLogs"),
        ({"resourceLogs": [{}, 5]}, "resourceLogs"),
        ({"resourceLogs": [{"scopeLogs": "x"}]}, "scopeLogs"),
        ({"resourceLogs": [{"scopeLogs": [None]}]}, "scopeLogs"),
        ({"resourceLogs": [{"scopeLogs": [{"logRecords": {"body": {"stringValue": "x"}}}]}]}, "logRecords"),
    ],
)
def test_ambiguous_records_are_refused_and_not_lost_silently(body: object, name: str) -> None:
    talk = HttpTalk()
    answer = export(talk, orjson.dumps(body), JSON)
    assert answer.status == 400 and name in answer.words["message"] and talk.intake.refused == {RefusedReason.MALFORMED: 1}


def test_a_record_that_is_no_object_is_kept_and_said_to_be_unparsed() -> None:
    body = orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": ["text", {"body": {"stringValue": "x"}}, None]}]}]})
    text, good, nothing = records_of(read_otlp_json(body, LISTENER))
    assert orjson.loads(good.value)["message"] == "x"
    assert [(document["parsed"], document["raw"]) for document in map(orjson.loads, (text.value, nothing.value))] == [(False, '"text"'), (False, "null")]


def test_json_of_wrong_types_is_taken_for_absent() -> None:
    wrong: dict[str, Any] = {"timeUnixNano": "soon", "attributes": {}, "body": {"intValue": "x"}, "severityNumber": [], "traceId": 1, "flags": None}
    body = orjson.dumps({"resourceLogs": [{"resource": [], "scopeLogs": [{"logRecords": [wrong]}]}]})
    (record,) = records_of(read_otlp_json(body, LISTENER))
    assert orjson.loads(record.value)["message"] == "x"


def test_an_empty_request_is_a_success() -> None:
    assert export(HttpTalk(), b"").status == 200


def test_another_content_type_is_415() -> None:
    talk = HttpTalk()
    assert export(talk, b"x", "text/plain").status == 415 and talk.intake.refused == {RefusedReason.NO_INPUT: 1}


def test_a_request_of_very_many_tiny_records_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RECORDS_MAX == 100_000
    monkeypatch.setattr(otlp_protobuf, "RECORDS_MAX", 100)
    records = b"\x12\x00" * 101
    scope_logs = b"\x12" + _varint(len(records)) + records
    body = b"\x0a" + _varint(len(scope_logs)) + scope_logs
    with pytest.raises(TooManyRecords):
        read_protobuf(body, LISTENER)
    with pytest.raises(TooManyRecords):
        read_protobuf(b"\x0a\x00" * 401, LISTENER)
    numbers = b"\x38\x01" * 50
    with pytest.raises(TooManyRecords):  # unread numbers cost time all the same
        read_protobuf((b"\x0a" + _varint(len(numbers)) + numbers) * 9, LISTENER)


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_a_key_that_is_there_thousands_of_times_costs_time_in_proportion(encoding: str) -> None:
    count = 20_000
    if encoding == "protobuf":
        message = otlp_request(["x"])
        for number in range(count):
            message.resource_logs[0].scope_logs[0].log_records[0].attributes.add(key="k").value.int_value = number
        (record,) = records_of(read_protobuf(message.SerializeToString(), LISTENER))
    else:
        pairs = b",".join(b'{"key":"k","value":{"intValue":%d}}' % number for number in range(count))
        body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"attributes":[%b]}]}]}]}' % pairs
        (record,) = records_of(read_otlp_json(body, LISTENER))
    fields = orjson.loads(record.value)["fields"]
    assert len(fields) == count and fields["k"] == 0 and fields[f"k#{count}"] == count - 1


def test_nested_json_without_an_end_is_refused_or_kept_as_text() -> None:
    deep = b'{"arrayValue":{"values":[' * 300 + b"{}" + b"]}}" * 300
    body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b}]}]}]}' % deep
    (record,) = records_of(read_otlp_json(body, LISTENER))
    value: Any = "[" * 47 + "null" + "]" * 47
    for _ in range(LEVELS_MAX - 1):
        value = [value]
    assert orjson.loads(record.value)["body"] == value
    with pytest.raises(BadPayload):
        read_otlp_json(b"[" * 100_000, LISTENER)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
