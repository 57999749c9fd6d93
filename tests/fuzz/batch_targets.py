"""Fuzzed fast ways: what is read and written many at a time is the same as one by one, whatever the records.

Weak spot: what both ways have in common is not judged here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.json_text import read_json
from services.ingest.protocols.otlp import otlp_protobuf
from services.ingest.protocols.otlp.otlp_wire import read_plain
from services.ingest.protocols.syslog.syslog_framing import CutMessage
from services.ingest.protocols.syslog.syslog_lines import SyslogLines
from services.ingest.protocols.syslog.syslog_message import SyslogParser
from services.ingest.records.agent_event import agent_record
from services.ingest.records.agent_events import agent_records, common_of
from services.ingest.records.event import EventBuilder, EventSource
from tests.fuzz.target import Target, Targets
from tests.support.otlp_requests import SPAN_ID, TRACE_ID, otlp_request

_ARRIVAL_MS = 1_728_684_860_000
_SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"tcp")
_LISTENER = Listener("fluent", Protocol.FLUENT, ListenerTransport.TCP, 0)
_WAYS = [(EventBuilder(key, b"a", is_raw), SyslogParser()) for key, is_raw in (("host", False), ("app", False), ("none", False), ("host", True))]
_LINES = [SyslogLines(parser, events) for events, parser in _WAYS]
_NEIGHBOUR = b"\x0a\x01" * 8
_KNOWN: tuple[dict[str, Any], ...] = ({"tag": "web"}, {"host": "h", "severity": 3, "labels": {"job": "a"}}, {"resource": {"a": 1}, "message": None}, {})


def fuzz_syslog_lines(data: bytes) -> None:
    """Lines behind the first byte, which says what their key is; after a form feed their end is missing. Caches live on from input to input."""
    if not data:
        return
    number = data[0] & 3
    events, parser = _WAYS[number]
    raws = [CutMessage(line[:-1]) if line[-1:] == b"\f" else line for line in data[1:].split(b"\n")]
    built = [events.build(parser.parse(raw, _ARRIVAL_MS), _SOURCE, _ARRIVAL_MS) for raw in raws]
    for _ in range(2):  # the second time what repeats itself is known
        lines = _LINES[number].read(raws, _SOURCE, _ARRIVAL_MS)
        assert lines.values == [event.value for event in built]
        assert lines.keys == [event.key for event in built]
        assert lines.timestamps_ms == [event.timestamp_ms for event in built]
        usual = events.headers(_SOURCE, _ARRIVAL_MS, False)
        assert [lines.headers.get(place, usual) for place in range(len(raws))] == [event.headers for event in built]
        assert lines.unparsed == sum(parser.parse(raw, _ARRIVAL_MS).parse_error is not None for raw in raws)


def fuzz_agent_events(data: bytes) -> None:
    """Objects behind the first byte, repeated until they are many; the byte says what the protocol knows of them, and whether it has their times."""
    if not data:
        return
    try:
        document = read_json(data[1:])
    except ValueError:
        return
    found = document if type(document) is list else [document]
    count = sum(1 for each in found if type(each) is dict) * 4
    if not count or count > 64:
        return
    known = _KNOWN[data[0] & 3]
    times_ns: list[int | None] | None = [1_760_000_000_000_000_000 + place * data[0] * 1001 for place in range(count)] if data[0] & 4 else None
    if times_ns is not None and data[0] & 8:
        times_ns[0] = None
    said = {"trace_id": [str(place) if place & 1 else None for place in range(count)]} if data[0] & 16 else None
    expected = []
    for place, fields in enumerate(_copies(data[1:])):
        own = {**known, "trace_id": str(place)} if said and place & 1 else known
        expected.append(agent_record(fields, _LISTENER, own, None if times_ns is None else times_ns[place]))
    records = agent_records(_copies(data[1:]), _LISTENER, common_of(dict(known)), times_ns, said)
    assert len(records) == len(expected)
    for record, other in zip(records, expected, strict=True):
        assert orjson.loads(record.value) == orjson.loads(other.value) and record[1:] == other[1:], (record, other)


def _copies(text: bytes) -> list[dict[str, Any]]:
    """Four of each object, none of which shares anything."""
    copies = []
    for _ in range(4):
        document = read_json(text)
        copies += [each for each in (document if type(document) is list else [document]) if type(each) is dict]
    return copies


def fuzz_otlp_record(data: bytes) -> None:
    """A LogRecord among its neighbours' bytes: what is read by hand is what protobuf's library reads. Attributes live on from input to input."""
    library = otlp_protobuf.protobuf_library()
    for _ in range(2):
        try:
            row = read_plain(_NEIGHBOUR + data + _NEIGHBOUR, len(_NEIGHBOUR), len(_NEIGHBOUR) + len(data), library.pair, library.value)
        except library.error:
            row = None
        if row is not None:
            assert row == otlp_protobuf.row_of(library.log_record(data))


def _lines() -> Iterator[bytes]:
    plain = b"<165>1 2024-10-11T22:14:15.003Z host app 12 ID47 - message"
    yield b"\0" + plain + b"\n" + plain.replace(b"host", b"-") + b"\n" + plain + b"\f\n<34>Oct 11 22:14:15 mymachine su[230]: x"
    yield b"\1" + plain + b"\xff\n" + plain.replace(b"- message", b"- \xef\xbb\xbfmessage") + b"\n" + plain.replace(b"- message", b"-  m")
    yield b"\2" + plain + b"\r\n" + plain.replace(b".003Z", b"+02:00") + b"\n" + plain.replace(b"2024", b"1924") + b"\n<165>1 - - - - - - \n"
    yield b"\3" + plain


def _objects() -> Iterator[bytes]:
    yield b'\0{"message":"x","host":"h","level":"warn","pid":7,"time":"2026-11-22T15:00:00Z","deep":{"a":[1,2.5]}}'
    yield b'\4[{"message":"x","level":3},{"level":"error","message":""},{"trace_id":"a","span_id":"b","log":{"level":"info"}}]'
    yield b'\x19{"@timestamp":1760000000.5,"msg":"x","host":{"name":"n"},"levelno":30,"facility":"kern","app":null}'
    yield b'\x12[{"time":"2026-11-22 15:00:00","a":1},{"time":"soon","a":1}]'


def _log_records() -> Iterator[bytes]:
    request = otlp_request(
        ["it broke", {"n": [1, 2.5, True, b"x"]}, "x" * 200, None],
        {"a": 1, "b": "text", "c": False, "d": {"e": "f"}, "g": -1, "h": 1 << 40, "long": "y" * 130},
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        observed_time_unix_nano=7,
        severity_text="WARN",
        flags=1,
        dropped_attributes_count=2,
    )
    for record in request.resource_logs[0].scope_logs[0].log_records:
        yield record.SerializeToString()


BATCH_TARGETS: Targets = {
    "otlp_record": Target(fuzz_otlp_record, _log_records, 640),
    "syslog_lines": Target(fuzz_syslog_lines, _lines, 320),
    "agent_events": Target(fuzz_agent_events, _objects, 256),
}
