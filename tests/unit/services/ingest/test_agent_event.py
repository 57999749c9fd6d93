"""The event of an agent's record: which field becomes what, and where the rest stays."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.records import field_roles
from services.ingest.records.agent_event import agent_record, epoch_ns, unparsed_record
from services.ingest.records.field_roles import facility_of, severity_of, severity_of_otel
from services.ingest.records.ingest_record import IngestRecord

LISTENER = Listener("test", Protocol.FLUENT, ListenerTransport.TCP, 0)
SYSLOG_NAMES = ["time", "host", "app", "proc_id", "msg_id", "severity", "severity_name", "facility", "facility_name", "structured_data", "message"]


def document(record: IngestRecord) -> dict[str, Any]:
    found = orjson.loads(record.value)
    assert isinstance(found, dict)
    return found


def event(fields: dict[str, Any], **options: Any) -> dict[str, Any]:
    return document(agent_record(fields, LISTENER, **options))


def test_names_are_remembered_unless_they_are_long_or_many() -> None:
    for fields in ({"host": "a", "n" * 10_000: 1}, {"host": "a", **{f"n{number}": 1 for number in range(1000)}}, {"host": "a", "short": 1}):
        assert event(fields)["host"] == event(fields)["host"] == "a"
    assert ("host", "short") in field_roles.kept_plans
    assert all(len(names) <= field_roles.PLAN_NAMES_MAX and sum(map(len, names)) <= field_roles.PLAN_BYTES_MAX for names in field_roles.kept_plans)


def test_the_fields_of_a_syslog_event_are_always_there_and_first() -> None:
    assert list(event({})) == SYSLOG_NAMES
    assert list(event({"x": 1}, known={"tag": "t"}, time_ns=1_700_000_000_000_000_001)) == [*SYSLOG_NAMES, "tag", "event_time_ns", "fields"]
    assert event({})["structured_data"] == {} and event({})["message"] is None


def test_what_becomes_part_of_the_event_is_taken_out_and_what_was_translated_stays() -> None:
    fields = {"log": "GET /", "container_name": "/web", "level": "warn", "hostname": "h1", "pid": 7, "facility": "auth", "trace_id": "abc", "other": {"a": [1]}}
    record = agent_record(fields, LISTENER)
    found = document(record)
    assert [found[name] for name in ("message", "app", "host", "proc_id", "trace_id")] == ["GET /", "/web", "h1", "7", "abc"]
    assert [found[name] for name in ("severity", "severity_name", "facility", "facility_name")] == [4, "warning", 4, "auth"]
    assert found["fields"] == {"level": "warn", "facility": "auth", "other": {"a": [1]}}
    assert record.fields is fields and len(fields) == 8, "routes see all of it"
    assert (record.host, record.app, record.severity, record.facility) == ("h1", "/web", 4, 4)


def test_the_best_name_counts_and_the_others_stay() -> None:
    found = event({"log": "second", "message": "first", "msg": 5, "host": {"name": "inner"}, "kubernetes": {"host": "node", "container_name": "c"}})
    assert (found["message"], found["host"], found["app"]) == ("first", "inner", "c")
    assert found["fields"] == {"log": "second", "msg": 5, "host": {"name": "inner"}, "kubernetes": {"host": "node", "container_name": "c"}}


def test_a_value_that_does_not_fit_stays_where_it_is() -> None:
    fields = {"message": {"a": 1}, "host": "", "app": 5, "severity": "purple", "facility": "kitchen", "@timestamp": "yesterday", "pid": [1]}
    found = event(fields)
    assert [found[name] for name in SYSLOG_NAMES] == [None] * 9 + [{}, None] and found["fields"] == fields


def test_what_the_protocol_says_is_not_looked_for() -> None:
    found = event({"host": "field", "message": "field", "level": "error"}, known={"host": None, "message": {"k": ["v", float("nan")]}, "severity": 6})
    assert (found["host"], found["message"], found["severity"], found["severity_name"]) == (None, '{"k":["v","NaN"]}', 6, "info")
    assert found["fields"] == {"host": "field", "message": "field", "level": "error"}


@pytest.mark.parametrize(
    ("fields", "options", "time", "time_ms", "rest"),
    [
        ({"time": "other"}, {"time_ns": 1_700_000_000_123_000_000}, "2023-11-14T22:13:20.123Z", 1_700_000_000_123, {"time": "other"}),
        ({}, {"time_text": "2026-11-22T12:00:00.123456+01:00"}, "2026-11-22T12:00:00.123456+01:00", 1_795_345_200_123, None),
        ({}, {"time_text": "never"}, None, None, None),
        ({"@timestamp": "2026-11-22T12:00:00.1234567Z"}, {}, "2026-11-22T12:00:00.1234567Z", 1_795_348_800_123, None),
        ({"time": "2026-11-22 12:00:00,123"}, {}, "2026-11-22T12:00:00.123Z", 1_795_348_800_123, {"time": "2026-11-22 12:00:00,123"}),
        ({"ts": 1_700_000_000.5}, {}, "2023-11-14T22:13:20.500Z", 1_700_000_000_500, {"ts": 1_700_000_000.5}),
        ({"timestamp": 1_700_000_000_500}, {}, "2023-11-14T22:13:20.500Z", 1_700_000_000_500, {"timestamp": 1_700_000_000_500}),
        ({}, {"time_ns": -5}, None, None, None),
    ],
)
def test_times(fields: dict[str, Any], options: dict[str, Any], time: str | None, time_ms: int | None, rest: dict[str, Any] | None) -> None:
    record = agent_record(fields, LISTENER, **options)
    found = document(record)
    assert (found["time"], record.time_ms, found.get("fields")) == (time, time_ms, rest)
    if time is None:
        assert found.get("time_text", options.get("time_text")) == options.get("time_text")
        assert str(found.get("event_time_ns", "")) in ("", str(options.get("time_ns"))) and ("event_time_ns" in found) == ("time_ns" in options)


def test_a_time_beyond_all_years_is_kept_as_its_number() -> None:
    assert b'"event_time_ns":1208925819614629174706176' in agent_record({}, LISTENER, time_ns=1 << 80).value


def test_numbers_are_times_by_their_size() -> None:
    assert [epoch_ns(1_700_000_000 * 1000**power) for power in range(4)] == [1_700_000_000_000_000_000] * 4
    assert [epoch_ns(number) for number in (float("nan"), float("inf"), -1, 1 << 80)] == [None] * 4


def test_raw_listeners_store_what_the_sender_wrote() -> None:
    raw = LISTENER._replace(raw=True)
    assert agent_record({"a": 1}, raw, raw=b'{ "a":1 }').value == b'{ "a":1 }'
    assert agent_record({"a": float("nan")}, raw, careful=True).value == b'{"a":"NaN"}'
    assert unparsed_record(b"\xff", "no JSON", raw).value == b"\xff"


def test_what_cannot_be_parsed_is_kept() -> None:
    found = document(unparsed_record(b"a\xff", "no JSON", LISTENER, {"tag": "t"}))
    assert list(found) == [*SYSLOG_NAMES, "tag", "parsed", "parse_error", "raw", "bytes_base64"]
    assert (found["parsed"], found["parse_error"], found["raw"], found["bytes_base64"]) == (False, "no JSON", "a\ufffd", {"/raw": "Yf8="})


@pytest.mark.parametrize(
    ("word", "severity"),
    [("WARN", 4), ("warning", 4), ("Error", 3), ("E", 3), ("FATAL", 2), ("panic", 0), ("trace", 7), (" info ", 6), ("3", 3), ("30", 6), (b"notice", 5)]
    + [(0, 0), (7, 7), (8, None), (20, 7), (30, 6), (40, 4), (50, 3), (60, 2), (4.0, 4), (True, None), ("", None), ("²", None), (None, None), ([], None)],
)
def test_severities_in_the_words_of_the_world(word: object, severity: int | None) -> None:
    assert severity_of(word) == severity == severity_of(word)


def test_severities_of_opentelemetry_and_python_and_facilities() -> None:
    assert [severity_of_otel(number) for number in (0, 1, 5, 9, 10, 13, 17, 18, 21, 24, 25)] == [None, 7, 7, 6, 5, 4, 3, 2, 0, 0, None]
    assert [event({"levelno": number})["severity"] for number in (10, 20, 30, 40, 50, 99)] == [7, 6, 4, 3, 2, 2]
    assert [facility_of(value) for value in ("AUTH", "10", 23, 24, "x", None, True)] == [4, 10, 23, None, None, None, None]
