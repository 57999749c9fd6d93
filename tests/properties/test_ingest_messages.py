"""The parser and the event builder over any bytes: they never fail, and no byte is lost."""

from __future__ import annotations

import base64

import orjson
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.protocols.syslog.syslog_message import SyslogParser, end_of_structured_data, read_structured_data
from services.ingest.records.event import EventBuilder, EventSource

ARRIVAL_MS = 1_728_684_860_000
SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"tcp")
PARSER = SyslogParser()
EVENTS = EventBuilder()

tokens = st.sampled_from(
    [
        *(b"<13>", b"<13>1 ", b"<191>", b"<192>", b"<", b">", b"1 ", b"- ", b"-", b" ", b"  ", b"[", b"]", b'"', b"\\", b"=", b":", b"%", b"\n", b"\0"),
        *(b"2024-10-11T22:14:15Z ", b"2024-10-11T22:14:15.123456+02:00 ", b"2024-10-11 22:14:15 ", b"Oct 11 22:14:15 ", b"Oct  1 22:14:15 2023 ", b"Feb 29 "),
        *(b"host ", b"app: ", b"app[12]: ", b'[x y="z"]', rb'[x y="\"\]\\"]', b"%SYS-5-CONFIG_I: "),
        *(b"123: ", b"UTC: ", b"\xef\xbb\xbf", b"\xff", "ü€".encode()),
    ]
)
raws = st.one_of(st.binary(max_size=120), st.lists(st.one_of(tokens, st.binary(max_size=6)), max_size=14).map(b"".join))


@given(raws)
def test_the_parser_never_fails_and_keeps_the_message(raw: bytes) -> None:
    message = PARSER.parse(raw, ARRIVAL_MS)
    assert message.raw == raw
    assert 0 <= message.facility < 24 and 0 <= message.severity < 8
    assert raw.rstrip(b"\r\n\0").endswith(message.message)
    for field in (message.host, message.app, message.proc_id, message.msg_id):
        assert field is None or (field and field in raw)
    if message.parse_error is not None and message.host is None and message.app is None and message.parse_error.endswith("priority"):
        assert message.message == raw.rstrip(b"\r\n\0")


@given(raws)
def test_a_parser_answers_the_same_with_cold_and_warm_caches(raw: bytes) -> None:
    assert SyslogParser().parse(raw, ARRIVAL_MS) == PARSER.parse(raw, ARRIVAL_MS) == PARSER.parse(raw, ARRIVAL_MS)


@given(raws)
def test_every_message_becomes_json_that_holds_its_bytes(raw: bytes) -> None:
    message = PARSER.parse(raw, ARRIVAL_MS)
    event = EVENTS.build(message, SOURCE, ARRIVAL_MS)
    document = orjson.loads(event.value)
    if "raw_base64" in document:
        assert base64.b64decode(document["raw_base64"]) == raw
    else:
        assert document["message"].encode() == message.message
        assert ("raw" in document) == (message.parse_error is not None)
        assert document.get("raw", raw.decode("utf-8", "replace")).encode() == raw or "raw" not in document
    assert event.key


names = st.text(st.characters(codec="utf-8", exclude_characters=' ="]\\[', exclude_categories=("Z", "C")), min_size=1, max_size=8)
values = st.text(st.characters(codec="utf-8"), max_size=12)
structured = st.dictionaries(names, st.dictionaries(names, values, max_size=3), min_size=1, max_size=3)


def write(data: dict[str, dict[str, str]]) -> str:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")

    return "".join(f"[{name}{''.join(f' {key}={chr(34)}{escape(value)}{chr(34)}' for key, value in element.items())}]" for name, element in data.items())


@given(structured, st.text(st.characters(codec="utf-8"), max_size=20))
def test_structured_data_comes_out_as_it_was_written(data: dict[str, dict[str, str]], text: str) -> None:
    written = write(data).encode()
    assert end_of_structured_data(written, 0) == len(written)
    assert read_structured_data(written.decode()) == data
    raw = b"<13>1 - h a - - " + written + b" [x] " + text.encode()
    message = PARSER.parse(raw, ARRIVAL_MS)
    assert (message.structured_data, message.parse_error) == (written, None)


fields = st.binary(min_size=1, max_size=10).filter(lambda field: not set(field) & {0, 10, 13, 32} and field != b"-")
texts = st.binary(max_size=40).filter(lambda text: not text.startswith((b" ", b"\xef\xbb\xbf")) and text.rstrip(b"\r\n\0") == text)


@given(st.integers(0, 191), fields, fields, fields, fields, texts)
def test_rfc_5424_fields_come_out_as_they_went_in(priority: int, host: bytes, app: bytes, proc_id: bytes, msg_id: bytes, text: bytes) -> None:
    message = PARSER.parse(b"<%d>1 2024-10-11T22:14:15Z %b %b %b %b - %b" % (priority, host, app, proc_id, msg_id, text), ARRIVAL_MS)
    assert (message.facility * 8 + message.severity, message.host, message.app, message.proc_id, message.msg_id) == (priority, host, app, proc_id, msg_id)
    assert (message.message, message.parse_error) == (text, None)
