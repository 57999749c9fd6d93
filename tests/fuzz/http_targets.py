"""Fuzzed HTTP itself, both versions, the inputs OTLP, NDJSON and journal upload, and the queries of searches.

Each function is given what a stranger sends, and asserts that the same comes of it whether it arrives whole or in pieces, that every answer is whole, and that
each record is JSON. Weak spot: frames of HTTP/2 are mutated as bytes, so most of what is compressed in them becomes nonsense soon; gRPC's calls are
a target by themselves.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress

import h2.config
import h2.connection
import zstandard

from appliance.senders.listener import Token
from appliance.senders.record_query import QueryProblem, parse_query
from services.ingest.protocols.http.grpc_call import EXPORT_PATH, GrpcCall
from services.ingest.protocols.http.http_endpoints import find_path
from services.ingest.protocols.http.http_request import Request
from services.ingest.protocols.http.http_wire import CONTINUE, has_token, open_body, split_target
from services.ingest.protocols.http.journal_export import BadExport, JournalExportReader
from services.ingest.protocols.otlp.otlp_json import read_otlp_json
from services.ingest.protocols.otlp.otlp_protobuf import read_protobuf
from services.ingest.protocols.otlp.otlp_record import BadPayload
from services.ingest.protocols.steps import run_to_end
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.event import EventSource
from services.ingest.records.intake import RefusedReason
from tests.fuzz.target import Target, Targets, check_records, whole_and_pieces
from tests.support.http_talk import LISTENER, HttpTalk, chunked, request
from tests.support.otlp_requests import SPAN_ID, TRACE_ID, otlp_request
from tests.support.recording_intake import RecordingIntake

_SMALL = LISTENER._replace(frame_bytes_max=600, decompressed_bytes_max=2_000, tokens=(Token("t"),))
_ENTRY_BYTES_MAX = 300
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"http")
_ENCODINGS = (b"identity", b"gzip", b"deflate", b"zstd", b"snappy", b"br", b"GZIP", b"")
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
        # A stored piece is acknowledged, but not to a client that disconnects inside the body
        # before.
        if b"/upload" in stream:
            talk.intake.complete_all()
        talk.session.finished()
        talk.intake.complete_all()
        check_records(talk.intake.records)
    if stream[:3] != b"PRI":
        found = [bytes(talk.connection.sent).replace(CONTINUE, b"") for talk in (whole, pieces)]
        records = [[record.value for record in talk.intake.records] for talk in (whole, pieces)]
        refused = [talk.intake.refused for talk in (whole, pieces)]
        if b"/upload" in stream:  # a journal that breaks: what came before the place in pieces of their own was taken, and comes again
            assert found[0].count(b"HTTP/1.1 ") == found[1].count(b"HTTP/1.1 ") and bool(refused[0]) == bool(refused[1])
            assert records[0] == records[1] or len(records[0]) < len(records[1])
        else:
            assert found[0] == found[1] and refused[0] == refused[1] and records[0] == records[1]
        whole.connection.sent = bytearray(found[0])
        if b"HEAD" not in stream:  # its answers have a length and no body
            assert all(200 <= answer.status < 600 for answer in whole.answers())
    for talk in (whole, pieces):
        talk.session.tick(talk.intake.clock_ms + 1_000_000)
        talk.session.lost()


def fuzz_http2(data: bytes) -> None:
    """What follows HTTP/2's preface; the same records however it is cut, unless its frames break the protocol: what came in one piece with that is dropped."""
    if (cut := whole_and_pieces(data, 8)) is None:
        return
    found = []
    for step in (0, cut[1][1]):
        talk = HttpTalk(_SMALL._replace(tokens=()))
        talk.send(_PREFACE + cut[0], step)
        talk.intake.complete_all()
        check_records(talk.intake.records)
        talk.session.tick(talk.intake.clock_ms + 1_000_000)
        talk.session.finished()
        assert talk.connection.closed and len(talk.connection.sent) < 1 << 16
        talk.session.lost()
        found.append(([record.value for record in talk.intake.records], talk.connection.closed))
    assert found[0] == found[1] or any(closed == "http2-protocol" for _, closed in found)


def fuzz_grpc_call(data: bytes) -> None:
    """One call: the first byte chooses its encoding and how it settles, the second the pieces. It is answered once, and OK only if all of it was stored."""
    if len(data) < 2:
        return
    encoding, outcome, body = _ENCODINGS[data[0] & 7], AckOutcome.REFUSED if data[0] & 8 else AckOutcome.STORED, data[2:]
    replies = []
    for step in (len(body) or 1, data[1] + 1):
        intake, answers = RecordingIntake(), list[int]()
        request = Request("POST", EXPORT_PATH, "", {b"grpc-encoding": encoding}, _SMALL._replace(tokens=()), _SOURCE, intake)
        call = GrpcCall(request, lambda answers=answers: answers.append(1))  # type: ignore[misc]
        call.begin()
        for start in range(0, len(body), step):
            call.take(body[start : start + step])
        call.end()
        intake.complete_all(outcome)
        check_records(intake.records)
        reply = call.reply()
        assert answers == [1] and not call.unacknowledged_bytes
        is_ok = (b"grpc-status", b"0") in reply.trailers
        assert is_ok == (not sum(intake.refused.values()) and outcome is AckOutcome.STORED)
        replies.append((reply.headers, reply.data, reply.trailers, [record.value for record in intake.records]))
    assert replies[0] == replies[1]


def fuzz_otlp(data: bytes) -> None:
    """The same records, read as documents or kept as they came."""
    with suppress(BadPayload):
        records = [record for records in read_protobuf(data, LISTENER).slices for record in records]
        check_records(records)
        raw = [record for records in read_protobuf(data, LISTENER._replace(raw=True)).slices for record in records]
        assert len(raw) == len(records) and all(record.value or record.fields is None for record in raw)


def fuzz_otlp_json(data: bytes) -> None:
    with suppress(BadPayload):
        for listener in (LISTENER, LISTENER._replace(raw=True)):
            for records in read_otlp_json(data, listener).slices:
                check_records(records)


def fuzz_ndjson(data: bytes) -> None:
    """The first byte chooses the content type. A line, a record."""
    kind = ("application/x-ndjson", "application/json", "text/plain")[data[0] % 3] if data else ""
    talk = HttpTalk()
    (answer,) = talk.ask(request("/ingest/web", data[1:], Content_Type=kind))
    assert answer.status in (200, 400)
    check_records(talk.intake.records)
    if answer.status == 200:
        lines = sum(1 for line in data[1:].split(b"\n") if line.strip(b"\r\n \t\x0b\x0c"))
        assert answer.words["received"] == len(talk.intake.records) and (kind == "application/json" or lines == len(talk.intake.records))


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


def fuzz_journal_upload(data: bytes) -> None:
    """A body in two chunks, the first byte says how it is compressed: it is 202 only if all of it was taken."""
    if len(data) < 2:
        return
    coding, at, body = ("identity", "gzip", "deflate", "zstd", "identity")[data[0] % 5], data[1], data[2:]
    talk = HttpTalk(LISTENER._replace(frame_bytes_max=_ENTRY_BYTES_MAX, decompressed_bytes_max=1 << 12))
    pieces = [piece for piece in (body[:at], body[at:]) if piece]
    answers = talk.ask(chunked("/upload", *pieces, Content_Type="application/vnd.fdo.journal", Content_Encoding=coding))
    for _ in range(1000):  # what a piece opens to may be taken a part at a time
        if answers:
            break
        talk.intake.complete_all()
        answers = talk.answers()
    (answer,) = answers
    check_records(talk.intake.records)
    refused = set(talk.intake.refused) - {RefusedReason.TOO_LARGE}
    assert answer.status in (202, 400) and (answer.status == 202) == (not refused)


def fuzz_http_words(data: bytes) -> None:
    """What is read of a request's first line and headers: target, query, token, content encoding."""
    text = data.decode("latin-1")
    path, query = split_target(text)
    find_path("POST", path)
    request = Request("POST", path, query, {b"authorization": data, b"content-encoding": data, b"content-type": data}, _SMALL, _SOURCE, RecordingIntake())
    assert len(request.query) <= 100
    assert has_token(request) == (bool(request.principal) or b"t" in data) or not has_token(request)
    assert run_to_end(open_body(request, b"x")) is not None or request.body == b"x"
    assert request.media_type == request.media_type.lower()


def _words() -> Iterator[bytes]:
    yield b"http://box/ingest/web%20x?a=b&c"
    yield b"Basic dXNlcjp0"
    yield b"bearer t"
    yield b"gzip, deflate"


def _calls() -> Iterator[bytes]:
    for index, packed in enumerate((_OTLP, gzip.compress(_OTLP, mtime=0), zlib.compress(_OTLP))):
        yield bytes([index, 50]) + bytes([index > 0]) + len(packed).to_bytes(4, "big") + packed
    yield b"\x08\x07\0" + len(_OTLP).to_bytes(4, "big") + _OTLP


def _uploads() -> Iterator[bytes]:
    yield b"\0\x20" + _EXPORT * 3
    yield b"\1\x09" + gzip.compress(_EXPORT, mtime=0)
    yield b"\2\x09" + zlib.compress(_EXPORT * 2)
    yield b"\3\x09" + zstandard.compress(_EXPORT)


def _streams() -> Iterator[bytes]:
    token = {"Authorization": "Bearer t"}
    requests = (
        request("/ingest/web", _LINES, **token),
        chunked("/ingest/web", _LINES[:9], _LINES[9:], **token),
        request("/ingest/web", gzip.compress(_LINES, mtime=0), Content_Encoding="gzip", **token),
        request("/v1/logs", _OTLP, Content_Type="application/x-protobuf", **token),
        request("/v1/logs", _JSON, Content_Type="application/json", Expect="100-continue", **token),
        request("/upload", _EXPORT, Content_Type="application/vnd.fdo.journal", **token),
        request("/health", method="GET"),
        request("/ingest/web", b"x" * 700, **token),
        request("/ingest/web", _LINES, Connection="Upgrade", Upgrade="h2c", **token),
        request("/ingest/web", _LINES, Connection="close"),
        request("/nowhere/at/all?a=b%20c", method="HEAD"),
    )
    for index, step in enumerate((0, 6, 16, 63, 255)):
        yield bytes([step]) + requests[index] + requests[index + 6]
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
            headers = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", path), ("content-type", kind)]
            client.send_headers(stream_id, headers)
            client.send_data(stream_id, body, end_stream=stream_id == 1)
        client.ping(bytes(8))
        client.reset_stream(3)
        client.close_connection()
        yield client.data_to_send()[len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") :]


def fuzz_search_query(data: bytes) -> None:
    """A tree, or QueryProblem with the column of the mistake."""
    text = data.decode(errors="replace")
    try:
        parse_query(text)
    except QueryProblem as problem:
        assert 1 <= problem.column <= len(text) + 1


def _queries() -> Iterator[bytes]:
    yield b'host=web* severity<=err "timed \\"out" -debug'
    yield b"(/took [0-9]{4,} ms/ or not message~/(?i)^Conn/) and fields.took>12"
    yield b"app!=a:b message:*x* time:>=-3"


HTTP_TARGETS: Targets = {
    "http": Target(fuzz_http, _streams, 1024),
    "http_words": Target(fuzz_http_words, _words, 128),
    "http2": Target(fuzz_http2, lambda: (b"\x40" + frames for frames in _frames()), 1024),
    "grpc_call": Target(fuzz_grpc_call, _calls, 512),
    "otlp": Target(fuzz_otlp, lambda: iter((_OTLP,)), 512),
    "otlp_json": Target(fuzz_otlp_json, lambda: iter((_JSON,)), 768),
    "ndjson": Target(fuzz_ndjson, lambda: iter((b"\0" + _LINES, b"\1[" + _LINES[:30] + b",7,null]", b"\2" + _LINES)), 256),
    "journal_export": Target(fuzz_journal_export, lambda: iter((b"\x09" + 2 * _EXPORT, b"\0" + _EXPORT + b"MESSAGE=" + b"x" * 400 + b"\n\nA=b\n\n")), 640),
    "journal_upload": Target(fuzz_journal_upload, _uploads, 512),
    "search_query": Target(fuzz_search_query, _queries, 128),
}
