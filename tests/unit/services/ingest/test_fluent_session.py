"""Fluent's forward protocol frame by frame: its four forms, acknowledgements, the handshake, and what strangers send instead."""

from __future__ import annotations

import gzip
import hashlib
from typing import Any

import msgpack
import orjson
import pytest
import zstandard

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.fluent.fluent_session import FluentSession
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.intake import Oddity, RefusedReason
from tests.golden.capture_senders import read_stream, stream_names
from tests.support.recording_connection import RecordingConnection

LISTENER = Listener("fluent", Protocol.FLUENT, ListenerTransport.TCP, 24224)
TIME = msgpack.ExtType(0, (1_700_000_000).to_bytes(4, "big") + (123_456_789).to_bytes(4, "big"))
ENTRIES = [[TIME, {"log": f"line {number}", "level": "warn"}] for number in range(3)]
PACKED = b"".join(map(msgpack.packb, ENTRIES))
IN_TWO = gzip.compress(PACKED[:9], mtime=0) + gzip.compress(PACKED[9:], mtime=0)
NOTHINGS = gzip.compress(b"\xc0" * 3_000_000, mtime=0)
FLUENT_STREAMS = [name for name in stream_names() if name.startswith("fluent")]


class Talk:
    """A session and what it answered."""

    def __init__(self, listener: Listener = LISTENER) -> None:
        self.connection = RecordingConnection(listener)
        self.intake = self.connection.intake
        self.session = FluentSession(self.connection, lambda count: bytes(count))

    def say(self, *values: Any, step: int = 0) -> Talk:
        self.send(b"".join(map(msgpack.packb, values)), step)
        return self

    def send(self, data: bytes, step: int = 0) -> Talk:
        step = step or max(1, len(data))
        for start in range(0, len(data), step):
            self.session.received(memoryview(data)[start : start + step])
        return self

    def answers(self) -> list[Any]:
        unpacker = msgpack.Unpacker()
        unpacker.feed(self.connection.take_sent())
        return list(unpacker)

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [orjson.loads(record.value) for record in self.intake.records]

    @property
    def messages(self) -> list[Any]:
        return [document["message"] for document in self.documents]


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        pytest.param(["web", TIME, {"message": "one"}], ["one"], id="Message"),
        pytest.param(["web", ENTRIES], ["line 0", "line 1", "line 2"], id="Forward"),
        pytest.param(["web", PACKED], ["line 0", "line 1", "line 2"], id="PackedForward"),
        pytest.param(["web", PACKED, {"compressed": "text"}], ["line 0", "line 1", "line 2"], id="PackedForward-text"),
        pytest.param(["web", gzip.compress(PACKED, mtime=0), {"compressed": "gzip"}], ["line 0", "line 1", "line 2"], id="CompressedPackedForward"),
        pytest.param(["web", IN_TWO, {"compressed": "gzip"}], ["line 0", "line 1", "line 2"], id="two-members"),
        pytest.param(["web", zstandard.compress(PACKED), {"compressed": "zstd"}], ["line 0", "line 1", "line 2"], id="zstd"),
        pytest.param(["web", [TIME, {"meta": 1}], {"message": "one"}, {}], ["one"], id="Message-with-metadata"),
        pytest.param(["web", [[[TIME, {"meta": 1}], {"message": "one"}]], {}], ["one"], id="Forward-with-metadata"),
    ],
)
@pytest.mark.parametrize("step", [0, 1, 7])
def test_each_form_in_pieces_of_any_size(message: list[Any], lines: list[str], step: int) -> None:
    talk = Talk().say(None, message, message, step=step)
    assert talk.messages == lines * 2
    first = talk.documents[0]
    assert (first["tag"], first["time"], first["event_time_ns"]) == ("web", "2023-11-14T22:13:20.123Z", 1_700_000_000_123_456_789)
    assert not talk.connection.closed and not talk.intake.refused and not talk.intake.oddities
    if "meta" in str(message):
        assert first["metadata"] == {"meta": 1}


@pytest.mark.parametrize("name", FLUENT_STREAMS)
def test_captured_streams_give_the_same_whether_whole_or_in_pieces(name: str) -> None:
    stream = read_stream(name)
    whole = Talk().send(stream)
    assert whole.messages == ["line 0", "line 1", "line 2"]
    for step in (1, 2, 13, 100):
        assert Talk().send(stream, step).documents == whole.documents


def test_a_chunk_is_acknowledged_when_it_is_stored_and_not_before() -> None:
    talk = Talk().say(["web", PACKED, {"chunk": "YQ==", "size": 3}])
    assert talk.answers() == [] and talk.session.unacknowledged_bytes > len(PACKED)
    talk.intake.complete_all()
    assert talk.answers() == [{"ack": "YQ=="}] and talk.session.unacknowledged_bytes == 0


def test_pipelined_chunks_are_acknowledged_as_each_settles() -> None:
    talk = Talk().say(["web", PACKED, {"chunk": "a"}], ["web", ENTRIES, {"chunk": b"\xffb"}], ["web", 7, {"x": 1}, {"chunk": 3}])
    first, second, third = talk.intake.closed
    talk.intake.complete(third, AckOutcome.DUPLICATE)
    talk.intake.complete(first)
    assert talk.answers() == [{"ack": 3}, {"ack": "a"}]
    talk.intake.complete(second, rejected=[(0, "too_large")])
    assert talk.answers() == [{"ack": b"\xffb"}], "what can never be stored must not be sent again"


def test_a_chunk_has_the_same_identity_on_every_connection_of_its_listener() -> None:
    units = [Talk(listener).say(["web", PACKED, {"chunk": "a"}]).intake.closed[0] for listener in (LISTENER, LISTENER, LISTENER._replace(name="other"))]
    assert units[0].identities == units[1].identities != units[2].identities
    assert Talk().say(["web", PACKED, {"chunk": b"a"}]).intake.closed[0].identities != units[0].identities


def test_a_refused_chunk_is_not_acknowledged_and_ends_the_connection() -> None:
    talk = Talk().say(["web", PACKED, {"chunk": "a"}], ["web", PACKED, {"chunk": "b"}])
    talk.intake.complete_all(AckOutcome.REFUSED)
    assert talk.answers() == [] and talk.connection.closed == "refused"


def test_messages_without_a_chunk_are_not_acknowledged() -> None:
    talk = Talk().say(["web", TIME, {"a": 1}], ["web", ENTRIES], ["web", PACKED, {"size": 3}])
    assert len(talk.intake.records) == 7 and not talk.intake.closed
    assert len({id(unit) for unit, _ in talk.intake.taken}) == 1, "one unit for the connection"


@pytest.mark.parametrize("chunk", ["", b""])
def test_an_empty_chunk_is_none(chunk: str | bytes) -> None:
    talk = Talk().say(["web", PACKED, {"chunk": chunk}], ["web", ENTRIES, {"chunk": chunk}])
    assert talk.intake.records and not talk.intake.closed and all(unit.identities is None for unit, _ in talk.intake.taken)


@pytest.mark.parametrize(
    ("time", "text", "time_ms"),
    [
        (1_700_000_000, "2023-11-14T22:13:20.000Z", 1_700_000_000_000),
        (1_700_000_000.25, "2023-11-14T22:13:20.250Z", 1_700_000_000_250),
        (1_700_000_000_250, "2023-11-14T22:13:20.250Z", 1_700_000_000_250),
        (msgpack.Timestamp(1_700_000_000, 5_000_000), "2023-11-14T22:13:20.005Z", 1_700_000_000_005),
        (None, None, None),
    ],
)
def test_times_in_their_forms(time: Any, text: str | None, time_ms: int | None) -> None:
    talk = Talk().say(["web", time, {"message": "x"}])
    assert talk.documents[0]["time"] == text and talk.intake.records[0].time_ms == time_ms


def test_what_is_no_entry_is_kept_as_it_came() -> None:
    talk = Talk().say(["web", [[1, 2, 3], 7, [TIME, "text"], [TIME, {"message": "good"}]], {"chunk": "a"}])
    assert [document.get("raw") for document in talk.documents[:2]] == ["[1,2,3]", "7"]
    assert [document.get("parsed", True) for document in talk.documents] == [False, False, False, True]
    assert talk.intake.oddities == {Oddity.UNPARSED: 3} and not talk.connection.closed


@pytest.mark.parametrize(
    ("packed", "option", "good", "problem"),
    [
        (PACKED[:-2], {}, 2, "msgpack that ends too early"),
        (PACKED + b"\xc1", {}, 3, "no msgpack"),
        (b"junk", {"compressed": "gzip"}, 0, "a compressed stream is broken"),
        (gzip.compress(PACKED, mtime=0)[:-9], {"compressed": "gzip"}, 0, "a compressed stream ends too early"),
        (PACKED, {"compressed": "lzma"}, 0, 'compressed: "lzma" is not known'),
        (b"metrics", {"fluent_signal": 1}, 0, "not logs"),
    ],
)
def test_a_chunk_that_cannot_be_opened_is_kept_and_acknowledged(packed: bytes, option: dict[str, Any], good: int, problem: str) -> None:
    talk = Talk().say(["web", packed, {"chunk": "a", **option}])
    *whole, broken = talk.documents
    assert len(whole) == good and broken["parsed"] is False and problem in broken["parse_error"] and broken["tag"] == "web"
    talk.intake.complete_all()
    assert talk.answers() == [{"ack": "a"}]


def test_records_with_everything_that_msgpack_has_and_json_has_not() -> None:
    fields = {1: "one", "nan": float("nan"), "bytes": b"\xff\x00", "ext": msgpack.ExtType(7, b"x"), "large": (1 << 64) - 1, "small": -(1 << 63)}
    packed = msgpack.packb([TIME, {**fields, "text": "plain"}]).replace(b"plain", b"pl\xffin")
    talk = Talk().send(msgpack.packb(["web", packed, {"chunk": "a"}]))
    document = talk.documents[0]
    assert document["fields"] == {
        "1": "one",
        "nan": "NaN",
        "bytes": "\ufffd\0",
        "ext": {"ext": 7, "base64": "eA=="},
        "large": (1 << 64) - 1,
        "small": -(1 << 63),
    }
    assert document["message"] == "pl\ufffdin"
    assert document["bytes_base64"] == {"/fields/bytes": "/wA=", "/message": "cGz/aW4="}


def test_maps_and_lists_as_keys_and_keys_that_are_all_the_same_cost_no_more_than_they_are() -> None:
    nested = b"\x81" * 60 + b"\xc0" * 61
    same = b"\xde\xff\xff" + b"\x01\xc0" * 0xFFFF
    talk = Talk().send(b"\x93\xa1t\xc0\x82\xa6nested" + nested + b"\x01\x02").send(b"\x93\xa1t\xc0\x81\xa4same" + same)
    first, second = talk.documents
    assert first["fields"]["1"] == 2 and len(orjson.dumps(first)) < 1500
    assert first["fields"]["nested"]["map"][0][0]["map"][0][1] is None
    assert len(second["fields"]["same"]) == 0xFFFF and "1#65535" in second["fields"]["same"]


def test_the_raw_form_is_the_json_of_the_record_alone() -> None:
    talk = Talk(LISTENER._replace(raw=True)).say(["web", TIME, {"message": "x", "level": "warn"}])
    assert talk.documents == [{"message": "x", "level": "warn"}]
    assert (talk.intake.records[0].severity, talk.intake.records[0].tag) == (4, "web"), "routes know it nevertheless"


@pytest.mark.parametrize("stream", [b"\xc1", b'{"a": 1}', msgpack.packb([1]), msgpack.packb({"a": 1}), b"\x91" * 3000, b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_message_ends_the_connection_and_is_counted(stream: bytes) -> None:
    talk = Talk().say(["web", TIME, {"message": "before"}]).send(stream).say(["web", TIME, {"message": "behind"}])
    assert talk.messages == ["before"]
    assert talk.connection.closed == "fluent-malformed" and talk.intake.refused == {RefusedReason.MALFORMED: 1}


def test_a_claimed_length_takes_no_memory_and_a_sent_one_ends_at_the_limit() -> None:
    talk = Talk(LISTENER._replace(frame_bytes_max=1 << 20)).send(b"\x92\xa1t\xc6\xff\xff\xff\xff")
    assert talk.session.buffered_bytes == 8
    for _ in range(40):
        talk.send(b"x" * 65536)
    assert talk.connection.closed == "fluent-too-large" and talk.intake.refused == {RefusedReason.TOO_LARGE: 1}
    assert talk.session.buffered_bytes <= (1 << 20) + 65536


def test_a_list_of_four_billion_elements_is_only_a_claim() -> None:
    talk = Talk().send(b"\x93\xa1t\xdd\xff\xff\xff\xff" + b"\xdd\xff\xff\xff\xff" * 500)
    assert not talk.documents and not talk.connection.closed, "it waits for the rest"


def test_a_large_message_with_an_empty_list_is_an_empty_chunk() -> None:
    talk = Talk().say(["t" * 300_000, []], ["web", PACKED, {"chunk": "a"}])
    talk.intake.complete_all(AckOutcome.STORED)
    assert talk.answers() == [{"ack": "a"}] and len(talk.intake.records) == 3 and not talk.connection.closed


def test_a_bomb_is_refused() -> None:
    listener = LISTENER._replace(decompressed_bytes_max=1 << 20)
    talk = Talk(listener).say(["web", gzip.compress(bytes(8 << 20), mtime=0), {"compressed": "gzip", "chunk": "a"}])
    assert talk.connection.closed == "fluent-too-large" and talk.intake.refused == {RefusedReason.TOO_LARGE: 1} and not talk.documents


@pytest.mark.parametrize(
    "message",
    [["web", NOTHINGS, {"compressed": "gzip"}], ["web", b"\xc0" * 600_000], ["web", [[]] * 600_000], ["web", [None] * 600_000]],
)
def test_a_chunk_of_more_entries_than_its_bytes_are_worth_is_refused(message: list[Any]) -> None:
    talk = Talk().say(message)
    assert talk.connection.closed == "fluent-too-large" and talk.intake.refused == {RefusedReason.TOO_LARGE: 1} and not talk.intake.taken


def test_a_frame_that_does_not_go_on_is_given_up() -> None:
    talk = Talk()
    for now_ms in (0, 1_000):
        talk.session.tick(now_ms)
    talk.send(b"\x93\xa1t")
    for now_ms in (2_000, 60_000, 62_000):
        assert not talk.connection.closed
        talk.session.tick(now_ms)
    talk.session.tick(62_001)
    assert talk.connection.closed == "idle" and talk.intake.refused == {RefusedReason.TIMED_OUT: 1}


def test_half_a_message_at_the_end_is_counted() -> None:
    talk = Talk().say(["web", TIME, {"message": "x"}]).send(b"\x93\xa1t")
    talk.session.finished()
    assert talk.intake.refused == {RefusedReason.INCOMPLETE: 1}


class TestHandshake:
    listener = LISTENER._replace(shared_key="secret")

    def ping(self, key: bytes) -> list[Any]:
        digest = hashlib.sha512(b"salt" + b"client.example" + bytes(16) + key).hexdigest()
        return ["PING", "client.example", b"salt", digest, "", ""]

    def test_both_sides_prove_the_key_and_then_messages_are_taken(self) -> None:
        talk = Talk(self.listener)
        assert talk.answers() == [["HELO", {"nonce": bytes(16), "auth": b"", "keepalive": True}]]
        talk.say(self.ping(b"secret"), ["web", TIME, {"message": "x"}], step=5)
        proof = hashlib.sha512(b"salt" + b"millrace" + bytes(16) + b"secret").hexdigest()
        assert talk.answers() == [["PONG", True, "", "millrace", proof]] and talk.messages == ["x"]

    def test_a_wrong_key_is_refused_and_nothing_is_taken(self) -> None:
        talk = Talk(self.listener).say(self.ping(b"wrong"), ["web", TIME, {"message": "x"}])
        assert talk.answers()[1][:3] == ["PONG", False, "shared_key mismatch"]
        assert talk.connection.closed == "fluent-wrong-key" and talk.intake.refused == {RefusedReason.UNAUTHORIZED: 1} and not talk.documents

    def test_messages_before_the_handshake_are_refused(self) -> None:
        talk = Talk(self.listener).say(["web", TIME, {"message": "x"}])
        assert talk.connection.closed == "fluent-no-handshake" and talk.intake.refused == {RefusedReason.UNAUTHORIZED: 1} and not talk.documents

    def test_a_handshake_has_a_time(self) -> None:
        talk = Talk(self.listener)
        talk.session.tick(0)
        talk.session.tick(60_001)
        assert talk.connection.closed == "idle"
