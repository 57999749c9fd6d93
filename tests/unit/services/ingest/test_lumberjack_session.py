"""Lumberjack v2 frame by frame: windows, acknowledgements in parts, waiting, and what strangers send instead."""

from __future__ import annotations

import zlib
from struct import pack, unpack
from typing import Any

import orjson
import pytest

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.lumberjack.lumberjack_session import KEEP_ALIVE_MS, PART_EVENTS_MAX, LumberjackSession
from services.ingest.records.ack_group import AckOutcome, digest_of
from services.ingest.records.intake import Oddity, RefusedReason
from tests.golden.capture_senders import read_stream
from tests.support.recording_connection import RecordingConnection

LISTENER = Listener("beats", Protocol.LUMBERJACK, ListenerTransport.TCP, 5044, decompressed_bytes_max=4 << 20)


def window(count: int) -> bytes:
    return b"2W" + pack(">I", count)


def event(sequence: int, value: Any = None) -> bytes:
    payload = value if type(value) is bytes else orjson.dumps({"message": f"line {sequence}"} if value is None else value)
    return b"2J" + pack(">II", sequence, len(payload)) + payload


def compressed(frames: bytes) -> bytes:
    data = zlib.compress(frames)
    return b"2C" + pack(">I", len(data)) + data


def events(first: int, last: int) -> bytes:
    return b"".join(event(number) for number in range(first, last + 1))


class Talk:
    """A session and what it answered."""

    def __init__(self, listener: Listener = LISTENER) -> None:
        self.connection = RecordingConnection(listener)
        self.intake = self.connection.intake
        self.session = LumberjackSession(self.connection)

    def send(self, data: bytes, step: int = 0) -> Talk:
        step = step or max(1, len(data))
        for start in range(0, len(data), step):
            self.session.received(memoryview(data)[start : start + step])
        return self

    def acks(self) -> list[int]:
        sent = self.connection.take_sent()
        assert all(sent[start : start + 2] == b"2A" for start in range(0, len(sent), 6))
        return [unpack(">I", sent[start + 2 : start + 6])[0] for start in range(0, len(sent), 6)]

    @property
    def messages(self) -> list[Any]:
        return [orjson.loads(record.value)["message"] for record in self.intake.records]


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize(
    "frames",
    [events(1, 5), compressed(events(1, 5)), compressed(events(1, 2)) + event(3) + compressed(events(4, 5))],
    ids=["plain", "compressed", "both"],
)
def test_a_window_in_pieces_of_any_size(frames: bytes, step: int) -> None:
    talk = Talk().send(window(5) + frames, step)
    assert talk.messages == [f"line {number}" for number in range(1, 6)] and talk.acks() == []
    talk.intake.complete_all()
    assert talk.acks()[-1] == 5 and talk.session.unacknowledged_bytes == 0


@pytest.mark.parametrize("step", [0, 1, 11])
def test_a_captured_stream(step: int) -> None:
    talk = Talk().send(read_stream("pylogbeat"), step)
    assert talk.messages == ["line 0", "line 1", "line 2", "line 3"]


def test_a_long_window_is_acknowledged_in_parts_and_in_order() -> None:
    talk = Talk().send(window(3 * PART_EVENTS_MAX) + compressed(events(1, 3 * PART_EVENTS_MAX)))
    first, second, third = talk.intake.closed
    talk.intake.complete(second)
    assert talk.acks() == [], "the first is not settled"
    talk.intake.complete(first)
    assert talk.acks() == [2 * PART_EVENTS_MAX]
    talk.intake.complete(third, rejected=[(7, "too_large")])
    assert talk.acks() == [3 * PART_EVENTS_MAX], "what can never be stored must not be sent again"


def test_two_windows_under_way_are_acknowledged_each() -> None:
    talk = Talk().send(window(2) + events(1, 2) + window(3) + events(1, 3))
    first, second = talk.intake.closed
    talk.intake.complete(second)
    talk.intake.complete(first)
    assert talk.acks() == [2, 3]


def test_a_sender_that_waits_hears_that_we_live() -> None:
    talk = Talk()
    talk.send(window(4) + events(1, 2))
    talk.send(events(3, 4))
    first, second = talk.intake.closed
    start = talk.intake.clock_ms
    talk.session.tick(start + KEEP_ALIVE_MS - 1)
    assert talk.acks() == []
    talk.session.tick(start + KEEP_ALIVE_MS)
    assert talk.acks() == [0], "nothing of this window is stored yet"
    talk.intake.clock_ms = start + KEEP_ALIVE_MS
    talk.intake.complete(first)
    assert talk.acks() == [2]
    talk.session.tick(start + 2 * KEEP_ALIVE_MS)
    assert talk.acks() == [2]
    talk.intake.complete(second)
    assert talk.acks() == [4]
    talk.session.tick(start + 9 * KEEP_ALIVE_MS)
    assert talk.acks() == [], "no client waits"


def test_a_new_window_does_not_receive_the_sequence_of_the_one_before() -> None:
    talk = Talk().send(window(2) + events(1, 2))
    talk.intake.complete_all()
    talk.send(window(2) + events(1, 2))
    assert talk.acks() == [2]
    talk.session.tick(talk.intake.clock_ms + KEEP_ALIVE_MS)
    assert talk.acks() == [0]


def test_what_was_refused_is_not_acknowledged_and_ends_the_connection() -> None:
    talk = Talk().send(window(2) + event(1)).send(event(2))
    first, second = talk.intake.closed
    talk.intake.complete(first, AckOutcome.REFUSED)
    talk.intake.complete(second)
    assert talk.acks() == [] and talk.connection.closed == "refused" and talk.session.unacknowledged_bytes == 0


def test_events_are_known_by_their_content_and_the_stream_ends_clean_only_if_all_was_acknowledged() -> None:
    talk = Talk().send(window(1) + event(1))
    (unit,) = talk.intake.closed
    assert unit.identities == [digest_of(b'{"message":"line 1"}')] and unit.stream is talk.intake.streams[0]
    talk.session.finished()
    assert talk.intake.streams[0].ends == []
    talk.intake.complete_all()
    talk.session.lost()
    assert talk.intake.streams[0].ends == [False]
    clean = Talk().send(window(1) + event(1))
    clean.intake.complete_all()
    clean.session.finished()
    clean.session.lost()
    assert clean.intake.streams[0].ends[0] is True


@pytest.mark.parametrize("payload", [b"{broken", b"[1,2]", b'"text"', b"\xff\xfe", b"", b'{"a":' * 5000])
def test_what_is_no_json_object_is_kept_as_it_came(payload: bytes) -> None:
    talk = Talk().send(window(2) + event(1, payload) + event(2))
    document = orjson.loads(talk.intake.records[0].value)
    assert document["parsed"] is False and "JSON" in document["parse_error"] and document["raw"] == payload.decode("utf-8", "replace")
    assert talk.messages[1] == "line 2" and talk.intake.oddities == {Oddity.UNPARSED: 1}


def test_the_raw_form_is_the_bytes_of_the_sender() -> None:
    talk = Talk(LISTENER._replace(raw=True)).send(window(2) + event(1, b'{ "message" : "x" }') + event(2, b"{broken"))
    assert [record.value for record in talk.intake.records] == [b'{ "message" : "x" }', b"{broken"]


@pytest.mark.parametrize(
    ("stream", "reason", "closed"),
    [
        (b"1W\0\0\0\x01", RefusedReason.MALFORMED, "lumberjack-version-1"),
        (b"1D", RefusedReason.MALFORMED, "lumberjack-version-1"),
        (b"2X\0\0\0\x01", RefusedReason.MALFORMED, "lumberjack-malformed"),
        (b"GET / HTTP/1.1\r\n", RefusedReason.MALFORMED, "lumberjack-malformed"),
        (b"2J\0\0\0\x01\xff\xff\xff\xff", RefusedReason.TOO_LARGE, "lumberjack-too-large"),
        (b"2C\xff\xff\xff\xff", RefusedReason.TOO_LARGE, "lumberjack-too-large"),
        (b"2C\0\0\0\x04junk", RefusedReason.MALFORMED, "lumberjack-malformed"),
        (compressed(compressed(event(2))), RefusedReason.MALFORMED, "lumberjack-malformed"),
        (compressed(event(2)[:-1]), RefusedReason.MALFORMED, "lumberjack-malformed"),
        (compressed(bytes(5 << 20)), RefusedReason.TOO_LARGE, "lumberjack-too-large"),
        (compressed(event(2, b"") * 101_000), RefusedReason.TOO_LARGE, "lumberjack-too-large"),
        (compressed(event(2, b"") * 60_000) * 2, RefusedReason.TOO_LARGE, "lumberjack-too-large"),
    ],
)
def test_what_is_no_frame_ends_the_connection_and_is_counted(stream: bytes, reason: RefusedReason, closed: str) -> None:
    talk = Talk().send(window(2) + event(1)).send(stream).send(event(3))
    assert talk.messages == ["line 1"] and talk.connection.closed == closed and talk.intake.refused == {reason: 1}


def test_a_frame_that_does_not_go_on_is_given_up_and_half_of_one_at_the_end_is_counted() -> None:
    talk = Talk().send(window(1) + event(1)[:-1])
    talk.session.tick(1_000)
    talk.session.tick(61_001)
    assert talk.connection.closed == "idle" and talk.intake.refused == {RefusedReason.TIMED_OUT: 1}
    ended = Talk().send(window(1) + event(1)[:-1])
    ended.session.finished()
    assert ended.intake.refused == {RefusedReason.INCOMPLETE: 1} and ended.intake.streams[0].ends == []


def test_what_is_held_back_is_decided_when_the_sender_ends_inside_a_frame() -> None:
    talk = Talk().send(window(2) + event(1) + event(2)[:-1])
    talk.session.finished()
    assert talk.intake.streams[0].has_left and talk.intake.streams[0].ends == []
