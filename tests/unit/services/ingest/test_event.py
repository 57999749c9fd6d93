"""Records made of syslog messages, as a consumer finds them."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import orjson
import pytest

from appliance.records.builder import BatchBuilder
from appliance.records.record import iterate_records
from services.ingest.protocols.syslog.syslog_framing import CutMessage
from services.ingest.protocols.syslog.syslog_message import SyslogParser
from services.ingest.records.event import EventBuilder, EventSource, ProducerRecord

ARRIVAL_MS = int(datetime.fromisoformat("2024-10-11T22:14:20Z").timestamp() * 1000)
DAY_MS = 86_400_000
SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"udp")


def build(raw: bytes, key: str = "host", source: EventSource = SOURCE) -> ProducerRecord:
    return EventBuilder(key).build(SyslogParser().parse(raw, ARRIVAL_MS), source, ARRIVAL_MS)


def value(raw: bytes) -> dict[str, Any]:
    document = orjson.loads(build(raw).value)
    assert isinstance(document, dict)
    return document


def headers(event: ProducerRecord) -> dict[str, bytes | None]:
    builder = BatchBuilder()
    builder.append(event.timestamp_ms, event.key, event.value, event.headers)
    (record,) = iterate_records(builder.build(), 1_000_000)
    assert (record.timestamp, record.key, record.value) == event[:3]
    return dict(record.headers)


def test_the_value_of_an_rfc_5424_message() -> None:
    assert value(b'<165>1 2003-10-11T22:14:15.003Z web evntslog 4711 ID47 [a@1 b="\\"c\\"" b="d"] An "entry"') == {
        "time": "2003-10-11T22:14:15.003Z",
        "host": "web",
        "app": "evntslog",
        "proc_id": "4711",
        "msg_id": "ID47",
        "severity": 5,
        "severity_name": "notice",
        "facility": 20,
        "facility_name": "local4",
        "structured_data": {"a@1": {"b": ['"c"', "d"]}},
        "message": 'An "entry"',
    }


def test_fields_that_the_sender_left_out_are_null() -> None:
    document = value(b"<0>1 - - - - - -")
    assert [document[name] for name in ("time", "host", "app", "proc_id", "msg_id")] == [None] * 5
    assert (document["structured_data"], document["message"], document["severity_name"], document["facility_name"]) == ({}, "", "emerg", "kern")


def test_an_rfc_3164_time_is_written_in_utc() -> None:
    assert value(b"<13>Oct 11 22:14:15 host app: text")["time"] == "2024-10-11T22:14:15.000Z"


def test_what_was_not_parsed_is_marked_and_kept_raw() -> None:
    document = value(b"no syslog at all\n")
    assert (document["parsed"], document["parse_error"], document["raw"]) == (False, "no priority", "no syslog at all\n")
    assert (document["message"], document["severity"], document["facility"]) == ("no syslog at all", 5, 1)


def test_a_parsed_message_is_not_marked() -> None:
    assert not {"parsed", "parse_error", "raw", "raw_base64"} & value(b"<13>text").keys()


@pytest.mark.parametrize("raw", [b"<13>1 - h a - - - caf\xe9", b"<13>1 - h\xff a - - - x", b'<13>1 - h a - - [x y="\xe9"] x', b"\xff\xfe"])
def test_bytes_that_are_not_utf8_are_kept_in_base64(raw: bytes) -> None:
    document = value(raw)
    assert base64.b64decode(document["raw_base64"]) == raw
    assert "�" in orjson.dumps(document).decode()


def test_control_characters_survive_json() -> None:
    assert value(b"<13>1 - h a - - - tab\there\x00nul\x1b[31m")["message"] == "tab\there\0nul\x1b[31m"


@pytest.mark.parametrize(("key", "expected"), [("host", b"web"), ("app", b"su"), ("none", None)])
def test_the_key_is_a_setting(key: str, expected: bytes | None) -> None:
    assert build(b"<13>1 - web su - - - x", key).key == expected


def test_a_sender_that_does_not_name_itself_is_keyed_by_its_address() -> None:
    assert build(b"<13>text").key == b"192.0.2.7"


def test_a_missing_app_is_a_missing_key() -> None:
    assert build(b"<13>text", "app").key is None


def test_an_unknown_key_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="host, app, none"):
        EventBuilder("color")


def at(offset_ms: int) -> int:
    time = datetime.fromtimestamp((ARRIVAL_MS + offset_ms) / 1000).astimezone().isoformat(timespec="milliseconds")
    return build(b"<13>1 %b h a - - - x" % time.encode()).timestamp_ms


def test_the_record_has_the_time_of_the_message() -> None:
    for offset_ms in (0, -1, 1, -DAY_MS, DAY_MS, -9 * 365 * DAY_MS):
        assert at(offset_ms) == ARRIVAL_MS + offset_ms


def test_a_time_more_than_a_day_ahead_or_ten_years_back_is_not_believed() -> None:
    for offset_ms in (DAY_MS + 1, 400 * DAY_MS, -11 * 366 * DAY_MS):
        assert at(offset_ms) == ARRIVAL_MS
    assert value(b"<13>1 1971-01-01T00:00:00Z h a - - - x")["time"] == "1971-01-01T00:00:00Z", "the value still says what the sender wrote"


def test_a_message_without_time_gets_that_of_its_arrival() -> None:
    assert build(b"<13>1 - h a - - - x").timestamp_ms == ARRIVAL_MS


def test_headers_say_where_how_and_when() -> None:
    assert headers(build(b"<13>x")) == {"source": b"192.0.2.7:40312", "transport": b"udp", "arrival_ms": b"%d" % ARRIVAL_MS}


def test_a_cut_message_says_so() -> None:
    assert headers(build(CutMessage(b"<13>x")))["truncated"] == b"true"


def test_a_proxied_source_and_the_peer_are_separate_headers() -> None:
    proxied = headers(build(b"<13>x", source=SOURCE._replace(proxied_source=b"198.51.100.9:1")))
    assert (proxied["source"], proxied["proxied_source"]) == (b"192.0.2.7:40312", b"198.51.100.9:1")


def test_headers_follow_time_and_source() -> None:
    builder = EventBuilder()
    other = EventSource(b"192.0.2.8:1", b"192.0.2.8", b"tcp")
    sections = {builder.headers(source, arrival_ms, is_cut) for source in (SOURCE, other) for arrival_ms in (1, 2) for is_cut in (True, False)}
    assert len(sections) == 8
