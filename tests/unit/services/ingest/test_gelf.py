"""GELF in its three transports: datagrams with chunks, NUL-framed streams, HTTP."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import orjson
import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.gelf.gelf_datagrams import DEADLINE_MS, MAGIC, UNFINISHED_OVERHEAD_BYTES, ChunkAssembly, ChunkLoss, GelfDatagrams
from services.ingest.protocols.gelf.gelf_session import GelfSession
from services.ingest.protocols.http.http_wire import open_body
from services.ingest.protocols.session import handler_of, session_of
from services.ingest.protocols.steps import run_to_end
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.event import EventSource
from services.ingest.records.intake import Oddity, RefusedReason
from tests.support.recording_connection import RecordingConnection
from tests.support.recording_intake import RecordingIntake
from tests.unit.services.ingest.http_requests import ask, documents, stored

UDP = Listener("gelf", Protocol.GELF, ListenerTransport.UDP, 0, frame_bytes_max=1 << 16, decompressed_bytes_max=1 << 16)
TCP = UDP._replace(transport=ListenerTransport.TCP, frame_bytes_max=1_000)
SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"gelf")
MESSAGE = {
    "version": "1.1",
    "host": "web-1",
    "short_message": "hello",
    "full_message": "hello\nworld",
    "timestamp": 1_760_000_000.123456,
    "level": 4,
    "_user": 7,
    "_deep": {"a": 1},
}
TEXT = orjson.dumps(MESSAGE)


def chunks(data: bytes, count: int, message_id: bytes = b"01234567") -> list[bytes]:
    """`data` in `count` datagrams."""
    size = -(-len(data) // count)
    return [MAGIC + message_id + bytes((index, count)) + data[index * size : (index + 1) * size] for index in range(count)]


def datagrams(*received: bytes, intake: RecordingIntake | None = None) -> RecordingIntake:
    intake = intake or RecordingIntake()
    GelfDatagrams(UDP, intake).received(AckGroup(UDP, SOURCE), list(received))
    return intake


def check_hello(intake: RecordingIntake) -> None:
    (record,), (document,) = intake.records, documents(intake)
    assert (record.host, record.severity, record.time_ms) == ("web-1", 4, 1_760_000_000_123)
    assert document["message"] == "hello" and document["event_time_ns"] == 1_760_000_000_123_456_000
    assert document["fields"] == {"version": "1.1", "full_message": "hello\nworld", "user": 7, "deep": {"a": 1}}


@pytest.mark.parametrize("datagram", [TEXT, zlib.compress(TEXT), zlib.compress(TEXT, 9), gzip.compress(TEXT, mtime=0), b" " + TEXT])
def test_a_message_is_plain_or_compressed(datagram: bytes) -> None:
    check_hello(datagrams(datagram))


def test_a_message_in_chunks_is_whole_in_any_order_and_with_some_twice() -> None:
    parts = chunks(zlib.compress(TEXT), 5)
    check_hello(datagrams(*reversed(parts), parts[2]))
    intake = datagrams(*parts[:3], parts[1])
    assert not intake.records


def test_chunks_that_never_come_are_counted_after_five_seconds() -> None:
    intake = RecordingIntake()
    handler = GelfDatagrams(UDP, intake)
    handler.received(AckGroup(UDP, SOURCE), chunks(TEXT, 3)[:2])
    handler.tick(intake.clock_ms + DEADLINE_MS - 1)
    assert not intake.refused
    handler.tick(intake.clock_ms + DEADLINE_MS)
    assert intake.refused == {RefusedReason.INCOMPLETE: 1}
    intake.clock_ms += DEADLINE_MS
    handler.received(AckGroup(UDP, SOURCE), chunks(TEXT, 3)[2:])
    assert not intake.records, "the others are forgotten"


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (MAGIC, RefusedReason.MALFORMED),
        (MAGIC + b"01234567" + b"\x03\x03x", RefusedReason.MALFORMED),
        (MAGIC + b"01234567" + b"\x00\x00x", RefusedReason.MALFORMED),
        (MAGIC + b"01234567" + b"\x00\x81x", RefusedReason.MALFORMED),
        (gzip.compress(TEXT, mtime=0)[:-3], RefusedReason.MALFORMED),
        (zlib.compress(bytes(1 << 17)), RefusedReason.TOO_LARGE),
    ],
)
def test_what_cannot_be_opened_is_counted(datagram: bytes, reason: RefusedReason) -> None:
    intake = datagrams(datagram)
    assert intake.refused == {reason: 1} and not intake.taken


@pytest.mark.parametrize("datagram", [b"no JSON \xff", b"[1]", b"{"])
def test_what_is_no_message_is_kept_as_it_came(datagram: bytes) -> None:
    intake = datagrams(datagram)
    (document,) = documents(intake)
    assert document["parsed"] is False and document["raw"] == datagram.decode("utf-8", "replace") and intake.oddities == {Oddity.UNPARSED: 1}


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [("level", "WARN", True), ("level", 3, False), ("facility", "myapp", True), ("facility", 4, False), ("timestamp", "yesterday", True)],
)
def test_what_syslog_has_no_place_for_stays_in_the_fields(name: str, value: object, kept: bool) -> None:
    (document,) = documents(datagrams(orjson.dumps({"host": "h", "short_message": "x", name: value})))
    assert (document.get("fields", {}).get(name) == value) is kept


def test_an_additional_field_keeps_its_underscore_where_its_name_is_taken() -> None:
    (document,) = documents(datagrams(b'{"short_message":"x","file":"a","_file":"b","_":1,"_line":2}'))
    assert document["fields"] == {"file": "a", "_file": "b", "_": 1, "line": 2}


def test_unfinished_messages_are_bounded_for_each_sender_and_in_all() -> None:
    piece = bytes(1_000)
    assembly = ChunkAssembly(sender_bytes_max=10_000, bytes_max=15_000)
    for sender in range(3):
        for number in range(100):
            assembly.take(MAGIC + b"%08d" % number + b"\x00\x02" + piece, b"sender-%d" % sender, 0)
            assert assembly.size_bytes <= 15_000
    assert len(assembly) <= 15_000 // (1_000 + UNFINISHED_OVERHEAD_BYTES)
    lost = assembly.take_lost()
    assert len(lost) + len(assembly) == 300 and {loss.reason for loss in lost} == {ChunkLoss.CROWDED_OUT}
    assembly.expire(DEADLINE_MS)
    assert not len(assembly) and not assembly.size_bytes and not assembly.sender_count


def test_chunks_of_two_senders_do_not_mix_and_counts_that_differ_are_a_broken_message() -> None:
    assembly = ChunkAssembly()
    first, second = chunks(b"abcdef", 2)
    assert assembly.take(first, b"a", 0) is None and assembly.take(second, b"b", 0) is None and len(assembly) == 2
    assert assembly.take(second[:11] + b"\x03" + b"x", b"a", 0) is None
    assert assembly.take_lost() == [(b"a", ChunkLoss.BROKEN)] and assembly.take(first, b"b", 0) == b"abcdef"


@pytest.mark.parametrize("step", [1, 7, 100, 10_000])
def test_a_stream_is_cut_at_its_nuls_however_it_comes(step: int) -> None:
    connection = RecordingConnection(TCP)
    session = GelfSession(connection)
    stream = b"\0" + TEXT + b"\0\0\n" + b'{"short_message":"two"}' + b"\0" + b'{"short_message":"three"}'
    for start in range(0, len(stream), step):
        session.received(memoryview(stream)[start : start + step])
    assert [document["message"] for document in documents(connection.intake)] == ["hello", "two"]
    session.finished()
    session.lost()
    assert documents(connection.intake)[2]["message"] == "three" and not connection.closed and not connection.intake.refused


@pytest.mark.parametrize("step", [10, 900, 5_000])
def test_a_message_without_an_end_takes_no_memory_and_is_counted_once(step: int) -> None:
    connection = RecordingConnection(TCP)
    session = GelfSession(connection)
    stream = b"x" * 4_000 + b"\0" + b'{"short_message":"next"}' + b"\0"
    for start in range(0, len(stream), step):
        session.received(stream[start : start + step])
        assert session.buffered_bytes <= 1_000 + step
    assert connection.intake.refused == {RefusedReason.TOO_LARGE: 1} and documents(connection.intake)[0]["message"] == "next"
    session.received(b"x" * 4_000)
    session.finished()
    session.lost()
    assert connection.intake.refused == {RefusedReason.TOO_LARGE: 2}


def test_a_message_that_does_not_go_on_closes_its_connection() -> None:
    connection = RecordingConnection(TCP)
    session = GelfSession(connection)
    session.tick(0)
    session.tick(1_000_000)
    session.received(b'{"short')
    session.tick(1_000_000 + TCP.idle_ms_max)
    assert not connection.closed
    session.tick(1_001_000 + TCP.idle_ms_max)
    assert connection.closed == "idle"
    session.lost()
    assert connection.intake.refused == {RefusedReason.INCOMPLETE: 1}


def test_http_takes_one_message_or_one_on_each_line() -> None:
    intake = RecordingIntake()
    asked = ask(intake, "/gelf", TEXT)
    assert not asked.answers
    intake.complete_all()
    assert asked.answer.status == 202
    check_hello(intake)
    asked = stored(intake, "/gelf", TEXT + b"\n\n" + b"not JSON\r\n")
    assert asked.answer.status == 202 and len(intake.records) == 3 and documents(intake)[2]["parsed"] is False
    assert ask(intake, "/gelf", b" \n").answer.status == 400
    asked = ask(intake, "/gelf", TEXT)
    intake.complete_all(AckOutcome.REFUSED)
    assert asked.answer.status == 503


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_http_opens_what_pygelf_calls_gzip_or_deflate(compress: Callable[[bytes], bytes]) -> None:
    intake = RecordingIntake()
    asked = ask(intake, "/gelf", b"", headers={b"content-encoding": b"gzip,deflate"})
    intake = RecordingIntake()
    assert run_to_end(open_body(asked.request, compress(TEXT))) is None
    assert stored(intake, "/gelf", asked.request.body).answer.status == 202
    check_hello(intake)


def test_both_transports_are_in_the_tables() -> None:
    assert handler_of(Protocol.GELF) is GelfDatagrams and session_of(Protocol.GELF) is GelfSession
