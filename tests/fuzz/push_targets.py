"""Fuzzed inputs that arrive by HTTP and as GELF: `_bulk`, Loki's push, Splunk's collector, GELF.

Each function is given what a stranger sends, and asserts that it is taken or refused in words, with nothing raised and no record that is no JSON.
Weak spot: the HTTP around them is another target.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator

import cramjam
import orjson

from appliance.ingest.elasticsearch.elasticsearch_filter import answer_filter
from appliance.ingest.event import EventSource
from appliance.ingest.gelf.gelf_chunks import MAGIC, SENDER_BYTES_MAX
from appliance.ingest.gelf.gelf_datagrams import GelfDatagrams
from appliance.ingest.gelf.gelf_session import GelfSession
from appliance.ingest.listener import Listener, Protocol, Transport
from appliance.ingest.loki.loki_labels import parse_labels
from appliance.ingest.unit import Unit
from tests.support.recording_connection import RecordingConnection
from tests.support.recording_intake import RecordingIntake
from tests.unit.ingest.http_requests import ask

_FRAME_BYTES = 256
_GELF_UDP = Listener("gelf", Protocol.GELF, Transport.UDP, 0, frame_bytes_max=_FRAME_BYTES, decompressed_bytes_max=1 << 16)
_GELF_TCP = _GELF_UDP._replace(transport=Transport.TCP)
_CHANNEL = {b"x-splunk-request-channel": b"c"}
_DOCUMENT = b'{"@timestamp":"2026-11-22T15:00:00Z","message":"x","log":{"level":"info"}}'
_GELF = b'{"version":"1.1","host":"h","short_message":"x","timestamp":1.5,"level":3,"_a":1}'
_PUSH = bytes.fromhex("0a1e0a077b613d2262227d12130a060880f8f4c606120568656c6c6f1a0208001807")


def _answered(path: str, body: bytes, **more: object) -> RecordingIntake:
    """Whatever it is, it is answered once, in JSON or plain text, and what was taken of it is JSON."""
    intake = RecordingIntake()
    asked = ask(intake, path, body, **more)  # type: ignore[arg-type]
    intake.settle_all()
    assert asked.answer.status in (200, 201, 202, 204, 400, 413)
    if asked.answer.content_type.endswith(b"json") and asked.answer.body:
        orjson.loads(asked.answer.body)
    _check_records(intake)
    return intake


def _check_records(intake: RecordingIntake) -> None:
    for record in intake.records:
        orjson.loads(record.value)


def fuzz_elasticsearch_bulk(data: bytes) -> None:
    """A body, and a `filter_path` in front of the first NUL."""
    filter_path, _, body = data.partition(b"\0")
    shown = answer_filter(filter_path.decode("utf-8", "replace"))
    if shown is not None:
        orjson.dumps(shown.apply({"errors": False, "items": [{"index": {"_index": "web", "status": 201}}]}))
    intake = _answered("/web/_bulk", body)
    assert len(intake.records) <= body.count(b"\n")
    _answered("/web/_doc/7", body)


def fuzz_loki_push(data: bytes) -> None:
    """A body that is JSON, protobuf, or snappy; and a label set."""
    for content_type, encoding in ((b"application/json", b""), (b"application/x-protobuf", b"snappy"), (b"application/x-protobuf", b"")):
        _answered("/loki/api/v1/push", data, headers={b"content-type": content_type}, content_encoding=encoding)
    _answered("/loki/api/v1/push", bytes(cramjam.snappy.compress_raw(data)), headers={b"content-type": b"application/x-protobuf"})
    parse_labels(data.decode("utf-8", "replace"))


def fuzz_splunk_hec(data: bytes) -> None:
    """Events, lines, and questions for acknowledgements."""
    for path in ("event", "raw", "ack"):
        for headers in ({}, _CHANNEL):
            _answered(f"/services/collector/{path}", data, headers=headers)


def fuzz_gelf(data: bytes) -> None:
    """Datagrams (two bytes of length in front of each), the same as a stream, and as a body."""
    datagrams, rest = [], data
    while len(rest) > 2:
        size = 1 + int.from_bytes(rest[:2], "big") % 600
        datagrams.append(rest[2 : 2 + size])
        rest = rest[2 + size :]
    intake = RecordingIntake()
    handler = GelfDatagrams(_GELF_UDP, intake)
    unit = Unit(_GELF_UDP, EventSource(b"192.0.2.7:1", b"192.0.2.7", b"gelf"))
    for datagram in datagrams:
        handler.received(unit, [datagram])
        intake.clock_ms += 100
        assert handler._assembly.size_bytes <= SENDER_BYTES_MAX
    handler.tick(intake.clock_ms + 10_000)
    assert not handler._assembly.size_bytes
    _check_records(intake)
    connection = RecordingConnection(_GELF_TCP)
    session = GelfSession(connection)
    for datagram in datagrams:
        session.received(datagram)
        assert session.buffered_bytes <= _FRAME_BYTES
    session.finished()
    _check_records(connection.intake)
    _answered("/gelf", data)


def _bulk_seeds() -> Iterator[bytes]:
    yield b"errors,items.*.error,items.*.status\0" + b'{"index":{"_index":"web"}}\n' + _DOCUMENT + b"\n"
    yield b'-took,**.status\0{"create":{"_id":"1","routing":"r"}}\n' + _DOCUMENT + b'\n\n{"delete":{"_id":"2"}}\n{"update":{"_id":"3"}}\n{"doc":{}}\n'
    yield b'\0{"index":{"_id":7,"pipeline":"p"}}\r\n{"a":[1,{"b":123456789012345678901234567890}],"c":NaN}\r\n{"index":{}}\n[]\n'


def _loki_seeds() -> Iterator[bytes]:
    yield b'{"streams":[{"stream":{"job":"nginx","level":"error"},"values":[["1760000000123456789","hello",{"a":"b"}],["1","x"]]}]}'
    yield b'{"streams":[{"labels":"{a=\\"b\\"}","entries":[{"ts":"2025-10-09T08:53:20.123Z","line":"hello"}]}]}'
    yield _PUSH
    yield bytes(cramjam.snappy.compress_raw(_PUSH))
    yield rb'{a="\"\u00e9\xc3\xa9", b=`c`,}'


def _splunk_seeds() -> Iterator[bytes]:
    yield b'{"time":1760000000.123,"host":"h","source":"s","sourcetype":"t","index":"i","fields":{"a":"b"},"event":{"message":"x"}}{"event":"}{"}'
    yield b'{"event":1}\n{"event":[1]} {"time":"1760000000.5","event":"x"}'
    yield b'{"acks":[1,2,3]}'
    yield b"one\r\n\ntwo\n"


def _gelf_seeds() -> Iterator[bytes]:
    def framed(*datagrams: bytes) -> bytes:
        return b"".join((len(datagram) - 1).to_bytes(2, "big") + datagram for datagram in datagrams)

    packed = zlib.compress(_GELF)
    parts = [MAGIC + b"01234567" + bytes((index, 3)) + packed[index * 40 : (index + 1) * 40] for index in range(3)]
    yield framed(_GELF, packed, gzip.compress(_GELF), b"\0" + _GELF + b"\0")
    yield framed(parts[2], parts[0], parts[0], parts[1])
    yield framed(parts[0], MAGIC, MAGIC + b"01234567\x04\x02", b"x" * 300, b"\0" + _GELF)
    yield _GELF + b"\n" + _GELF


PUSH_TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterator[bytes]], int]] = {
    "elasticsearch_bulk": (fuzz_elasticsearch_bulk, _bulk_seeds, 2048),
    "loki_push": (fuzz_loki_push, _loki_seeds, 1024),
    "splunk_hec": (fuzz_splunk_hec, _splunk_seeds, 1024),
    "gelf": (fuzz_gelf, _gelf_seeds, 2048),
}
"""Function, seeds, longest input."""
