"""Fuzzed HTTP itself, both versions, and the inputs OTLP, NDJSON and journal upload.

Each function is given what a stranger sends, and asserts that the same comes of it whether it arrives whole or in pieces, that every answer is whole, and that
each record is JSON. Weak spot: frames of HTTP/2 are mutated as bytes, so most of what is compressed in them becomes nonsense soon.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import suppress

import h2.config
import h2.connection
import orjson

from appliance.ingest.http.http_wire import CONTINUE
from appliance.ingest.http.journal_export import BadExport, JournalExportReader
from appliance.ingest.otlp.otlp_json import read_otlp_json
from appliance.ingest.otlp.otlp_protobuf import read_protobuf
from appliance.ingest.otlp.otlp_reading import BadPayload
from appliance.ingest.record import Record
from tests.support.http_talk import LISTENER, HttpTalk, chunked, request
from tests.support.otlp_requests import SPAN_ID, TRACE_ID, otlp_request

_SMALL = LISTENER._replace(frame_bytes_max=600, decompressed_bytes_max=2_000, tokens=("t",))
_ENTRY_BYTES_MAX = 300
_LINES = b'{"message":"a","level":"warn"}\n{"n":1}\nno json\n'
_OTLP = otlp_request(
    ["it broke", {"n": [1, 2.5, True, b"x"]}, None],
    {"a": 1, "b": {"c": "d"}},
    {"service.name": "shop", "host.name": "web-1"},
    trace_id=TRACE_ID,
    span_id=SPAN_ID,
).SerializeToString()
_JSON = (
    b'{"resourceLogs":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},"scopeLogs":[{"scope":{"name":"l"},"logRecords":['
    b'{"timeUnixNano":"1760000000123456789","severityNumber":9,"body":{"kvlistValue":{"values":[{"key":"a","value":{"arrayValue":{"values":[{"intValue":"7"}]}}}]}},'
    b'"attributes":[{"key":"d","value":{"doubleValue":0.5}},{"key":"d","value":{"boolValue":true}}],"traceId":"00","flags":1}]}]}]}'
)
_EXPORT = b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1760000000123456\nMESSAGE\n\x05\0\0\0\0\0\0\0a\n\nb\n\nPRIORITY=3\nTAG=a\nTAG=b\n\n"


def fuzz_http(data: bytes) -> None:
    """A connection: the first byte says in which pieces it comes the second time."""
    if not data:
        return
    step, stream = data[0] + 1, data[1:]
    whole, pieces = HttpTalk(_SMALL), HttpTalk(_SMALL)
    for talk, size in ((whole, 0), (pieces, step)):
        talk.send(stream, size)
        talk.session.finished()
        talk.intake.settle_all()
        _check(talk.intake.records)
    if stream[:3] != b"PRI":
        found = [bytes(talk.connection.sent).replace(CONTINUE, b"") for talk in (whole, pieces)]
        assert found[0] == found[1] and whole.intake.refused == pieces.intake.refused
        assert [record.value for record in whole.intake.records] == [record.value for record in pieces.intake.records]
        whole.connection.sent = bytearray(found[0])
        if b"HEAD" not in stream:  # its answers have a length and no body
            assert all(200 <= answer.status < 600 for answer in whole.answers())
    for talk in (whole, pieces):
        talk.session.tick(talk.intake.clock_ms + 1_000_000)
        talk.session.lost()


def fuzz_http2(data: bytes) -> None:
    """What follows HTTP/2's preface."""
    talk = HttpTalk(LISTENER._replace(frame_bytes_max=600, decompressed_bytes_max=2_000))
    talk.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + data)
    talk.intake.settle_all()
    _check(talk.intake.records)
    talk.session.tick(talk.intake.clock_ms + 1_000_000)
    talk.session.finished()
    assert talk.connection.closed
    talk.session.lost()


def fuzz_otlp(data: bytes) -> None:
    with suppress(BadPayload):
        for records in read_protobuf(data, LISTENER).slices:
            _check(records)
        for records in read_protobuf(data, LISTENER._replace(raw=True)).slices:
            assert all(record.value for record in records)


def fuzz_otlp_json(data: bytes) -> None:
    with suppress(BadPayload):
        for listener in (LISTENER, LISTENER._replace(raw=True)):
            for records in read_otlp_json(data, listener).slices:
                _check(records)


def fuzz_ndjson(data: bytes) -> None:
    """The first byte chooses the content type."""
    kind = ("application/x-ndjson", "application/json", "text/plain")[data[0] % 3] if data else ""
    talk = HttpTalk()
    (answer,) = talk.ask(request("/ingest/web", data[1:], Content_Type=kind))
    assert answer.status in (200, 400)
    _check(talk.intake.records)
    if answer.status == 200:
        assert answer.words["received"] == len(talk.intake.records)


def fuzz_journal_export(data: bytes) -> None:
    """The same entries whether a journal comes whole or in pieces; never more kept than an entry."""
    if not data:
        return
    step, stream = data[0] + 1, data[1:]
    found = []
    for size in (len(stream) or 1, step):
        reader, entries = JournalExportReader(_ENTRY_BYTES_MAX), []
        bad = False
        try:
            for start in range(0, len(stream), size):
                entries += reader.feed(stream[start : start + size])
        except BadExport:
            bad = True
        found.append((bad, entries))
    (whole_bad, whole), (pieces_bad, pieces) = found
    if whole_bad:  # those before the bad place were lost with it
        assert len(whole) <= len(pieces)
    else:
        assert whole == pieces and not pieces_bad
    talk = HttpTalk()
    talk.ask(chunked("/upload", stream, Content_Type="application/vnd.fdo.journal"))
    _check(talk.intake.records)


def _check(records: list[Record]) -> None:
    for record in records:
        orjson.loads(record.value)


def _streams() -> Iterator[bytes]:
    token = {"Authorization": "Bearer t"}
    requests = (
        request("/ingest/web", _LINES, **token),
        chunked("/ingest/web", _LINES[:9], _LINES[9:], **token),
        request("/ingest/web", gzip.compress(_LINES), Content_Encoding="gzip", **token),
        request("/v1/logs", _OTLP, Content_Type="application/x-protobuf", **token),
        request("/v1/logs", _JSON, Content_Type="application/json", Expect="100-continue", **token),
        request("/upload", _EXPORT, Content_Type="application/vnd.fdo.journal", **token),
        request("/health", method="GET"),
        request("/ingest/web", b"x" * 700, **token),
        request("/ingest/web", _LINES, Connection="Upgrade", Upgrade="h2c", **token),
        request("/ingest/web", _LINES, Connection="close"),
        request("/nowhere/at/all?a=b%20c", method="HEAD"),
    )
    for step in (0, 6, 63, 255):
        yield bytes([step]) + b"".join(requests)
    for each in requests:
        yield b"\x10" + each


def _frames() -> Iterator[bytes]:
    for path, kind, body in (
        ("/opentelemetry.proto.collector.logs.v1.LogsService/Export", "application/grpc", b"\0" + len(_OTLP).to_bytes(4, "big") + _OTLP),
        ("/ingest/web", "application/x-ndjson", _LINES),
        ("/", "text/plain", b""),
    ):
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client.initiate_connection()
        for stream_id in (1, 3):
            headers = [(":method", "POST"), (":scheme", "http"), (":authority", "b"), (":path", path), ("content-type", kind)]
            client.send_headers(stream_id, headers)
            client.send_data(stream_id, body, end_stream=stream_id == 1)
        client.ping(bytes(8))
        client.reset_stream(3)
        client.close_connection()
        yield client.data_to_send()[len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") :]


HTTP_TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterator[bytes]], int]] = {
    "http": (fuzz_http, _streams, 4096),
    "http2": (fuzz_http2, _frames, 2048),
    "otlp": (fuzz_otlp, lambda: iter((_OTLP,)), 1024),
    "otlp_json": (fuzz_otlp_json, lambda: iter((_JSON,)), 2048),
    "ndjson": (fuzz_ndjson, lambda: iter((b"\0" + _LINES, b"\1[" + _LINES[:30] + b",7,null]", b"\2" + _LINES)), 1024),
    "journal_export": (fuzz_journal_export, lambda: iter((b"\x09" + 2 * _EXPORT, b"\0" + _EXPORT + b"MESSAGE=" + b"x" * 400 + b"\n\nA=b\n\n")), 1024),
}
