"""One sender against the others of its ingest: what a few kilobytes could hold up or erase in release 0.1.0, done again.

The ingest is the real agent, stepped by hand, so that a turn can be measured; the senders have addresses of their own.
"""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Any

import h2.config
import h2.connection
import msgpack
import orjson
import pytest

from tests.support.otlp_requests import otlp_request
from tests.unit.services.ingest.stepped_ingest import SteppedIngest

RECORDS = 20_000
TURN_CPU_MS_MAX = 60
"""A turn took 1,700 ms for 1,200 bytes. Work of senders has 2 ms of a turn; the rest is what stores it, and a garbage collection."""
FLOODER, OTHER = "127.0.0.3", "127.0.0.2"
TABLE = {
    "listener": [
        {"name": "forward", "protocol": "fluent", "port": 1},
        {"name": "beats", "protocol": "lumberjack", "port": 2},
    ]
}


class FloodedBox(SteppedIngest):
    """Measures its turns."""

    longest_turn_ms = 0.0

    def step(self) -> None:
        assert self.ingest is not None
        began_ns = time.thread_time_ns()
        self.ingest.turn()
        self.longest_turn_ms = max(self.longest_turn_ms, (time.thread_time_ns() - began_ns) / 1e6)
        self.controller.poller.poll(0)
        self._turn_log_writers()

    def sender(self, listener: str, address: str = FLOODER) -> socket.socket:
        listening = self.http if listener == "http" else self.tcp if listener == "syslog" else self.listed[listener][1]
        sender = socket.create_connection(listening.getsockname(), source_address=(address, 0))
        self._senders.append(sender)
        sender.setblocking(False)
        return sender

    def send(self, sender: socket.socket, data: bytes) -> None:
        """Send all of it, while the box takes it."""
        left = memoryview(data)

        def is_sent() -> bool:
            nonlocal left
            try:
                left = left[sender.send(left) :]
            except BlockingIOError:
                pass
            return not left

        self.run_until(is_sent, "everything is sent")

    def answer(self, sender: socket.socket, end: bytes) -> bytes:
        received = bytearray()

        def has_come() -> bool:
            try:
                received.extend(sender.recv(1 << 20))
            except BlockingIOError:
                pass
            return end in received

        self.run_until(has_come, f"an answer with {end!r}")
        return bytes(received)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., FloodedBox]]:
    made: list[FloodedBox] = []

    def maker(**settings: Any) -> FloodedBox:
        made.append(FloodedBox(tmp_path, senders=TABLE, **{"ingest_arena_bytes": 64 << 20, "disk_budget_bytes": 64 << 20, **settings}))
        made[-1].start()
        return made[-1]

    yield maker
    for box in made:
        box.close()


@pytest.fixture
def box(make: Callable[..., FloodedBox]) -> FloodedBox:
    return make()


def request(path: str, body: bytes, media_type: str = "application/x-ndjson", encoding: str = "gzip", more: str = "") -> bytes:
    if encoding == "gzip":
        body, more = gzip.compress(body, 9), f"Content-Encoding: gzip\r\n{more}"
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media_type}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def frames(*payloads: bytes) -> bytes:
    """A window of Lumberjack in one compressed frame."""
    whole = zlib.compress(b"".join(b"2J" + pack(">II", number, len(payload)) + payload for number, payload in enumerate(payloads, 1)))
    return b"2W" + pack(">I", len(payloads)) + b"2C" + pack(">I", len(whole)) + whole


def chunk(*entries: object) -> bytes:
    packed = gzip.compress(b"".join(msgpack.packb(entry) for entry in entries))
    return bytes(msgpack.packb(["app", packed, {"chunk": "bomb", "compressed": "gzip"}]))


def tiny_frames(count: int) -> bytes:
    """HTTP/2: a request whose body is one byte a frame."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    path = "/ingest/syslog"
    client.send_headers(1, [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "127.0.0.1"), ("content-type", "text/plain")])
    for number in range(count):
        client.send_data(1, b"x", end_stream=number == count - 1)
    return bytes(client.data_to_send())


def journal(count: int) -> bytes:
    return b"".join(b"__CURSOR=%d\nMESSAGE=a\n\n" % number for number in range(count))


FLOODS: dict[str, tuple[str, Callable[[], bytes], bytes, int]] = {
    "ndjson": ("http", lambda: request("/ingest/syslog", b"{}\n" * RECORDS), b'"received"', RECORDS),
    "text": ("http", lambda: request("/ingest/syslog", b"a\n" * RECORDS, "text/plain"), b'"received"', RECORDS),
    "array": ("http", lambda: request("/ingest/syslog", b"[" + b",".join([b"{}"] * RECORDS) + b"]", "application/json"), b'"received"', RECORDS),
    "bulk": ("http", lambda: request("/_bulk", b'{"index":{"_index":"a"}}\n{}\n' * RECORDS), b'"errors"', RECORDS),
    "bulk with ids": (
        "http",
        lambda: request("/_bulk", b"".join(b'{"index":{"_index":"a","_id":"%d"}}\n{}\n' % number for number in range(RECORDS))),
        b'"errors"',
        RECORDS,
    ),
    "gelf": ("http", lambda: request("/gelf", b'{"short_message":"a"}\n' * RECORDS), b"HTTP/1.1 202", RECORDS),
    "splunk": ("http", lambda: request("/services/collector", b'{"event":"a"}' * RECORDS), b"Success", RECORDS),
    "splunk raw": ("http", lambda: request("/services/collector/raw", b"a\n" * RECORDS), b"Success", RECORDS),
    "loki": (
        "http",
        lambda: request("/loki/api/v1/push", orjson.dumps({"streams": [{"stream": {"job": "a"}, "values": [["1", "a"]] * RECORDS}]}), "application/json"),
        b"HTTP/1.1 204",
        RECORDS,
    ),
    "otlp": ("http", lambda: request("/v1/logs", otlp_request(["a"] * RECORDS).SerializeToString(), "application/x-protobuf"), b"HTTP/1.1 200", RECORDS),
    "journal": ("http", lambda: request("/upload", journal(RECORDS), "application/vnd.fdo.journal"), b"HTTP/1.1 202", RECORDS),
    "http2": ("http", lambda: tiny_frames(6_000), b'"received"', 1),
    "lumberjack": ("beats", lambda: frames(*[b'{"m":1}'] * RECORDS), b"2A" + pack(">I", RECORDS), RECORDS),
    "fluent": ("forward", lambda: chunk(*[[1, {"m": "a"}]] * RECORDS), b"bomb", RECORDS),
    "fluent, odd entries": ("forward", lambda: chunk(*[7] * RECORDS), b"bomb", RECORDS),
}


@pytest.mark.alone  # processor time of a turn is larger beside other tests, and while coverage is measured
@pytest.mark.parametrize("name", FLOODS)
def test_one_request_never_holds_ingest_for_long(box: FloodedBox, name: str) -> None:
    listener, make_flood, end, records = FLOODS[name]
    sender, other = box.sender(listener), box.sender("syslog", OTHER)
    flood = make_flood()
    box.send(sender, b"")
    box.step()
    box.longest_turn_ms = 0
    box.send(sender, flood)
    box.send(other, b"<13>a line of another sender\n")
    box.send_datagrams(b"<13>a datagram of another sender")
    box.run_until(lambda: box.ledger().stored >= 2, "the other senders' records")
    others_stored = box.ledger().received
    box.answer(sender, end)
    assert box.longest_turn_ms < TURN_CPU_MS_MAX
    assert box.ledger().stored == records + 2, "the answer comes after all its records are stored"
    assert others_stored < records or records == 1, "other senders do not wait for the end of the flood"


def test_a_request_whose_sender_disconnects_is_stored_whole_without_an_answer(box: FloodedBox) -> None:
    sender = box.sender("http")
    box.send(sender, request("/ingest/syslog", b"{}\n" * RECORDS))
    box.run_until(lambda: 0 < box.ledger().received < RECORDS, "the middle of the request")
    sender.close()
    box.run_until(lambda: box.ledger().stored == RECORDS, "the rest of it")
    assert box.ledger().in_flight == 0


def test_half_a_request_is_not_acknowledged(box: FloodedBox) -> None:
    sender = box.sender("http")
    box.send(sender, request("/ingest/syslog", b"{}\n" * RECORDS))
    box.run_until(lambda: 0 < box.ledger().stored < RECORDS, "the middle of the request")
    box.kill_ingest()
    assert sender.recv(1) == b"", "no answer"
    assert len(box.records()) < RECORDS
    box.start_ingest()
    box.run_until(lambda: box.is_ready and not box.ledger().in_flight, "what was in flight is accounted for")


# -- quotas

LINE = b"<13>1 - - - - - - " + b"x" * 480 + b"\n"
SLOW = {"ingest_sender_bytes_per_second": 1 << 20}
"""Two seconds of it are a burst."""
BURST_BYTES = 2 << 20


def test_a_stream_above_its_quota_is_not_read_and_no_other_sender_waits(make: Callable[..., FloodedBox]) -> None:
    box = make(**SLOW)
    flooder, other = box.sender("syslog"), box.sender("syslog", OTHER)
    left, began = memoryview(LINE * 40_000), time.monotonic()
    while box.counter("ingest.connections_over_quota") == 0:
        with suppress(BlockingIOError):
            left = left[flooder.send(left) :]
        box.step()
    stored = box.ledger().received * len(LINE)
    allowed = BURST_BYTES + (time.monotonic() - began) * (1 << 20)
    assert BURST_BYTES - (1 << 17) <= stored <= allowed + (1 << 17)
    before = box.ledger().received
    box.send(other, LINE)
    box.run_until(lambda: box.ledger().received > before, "the other sender's line")
    before = box.ledger().received
    box.run_until(lambda: box.ledger().received > before, "the flood goes on when there are tokens")


def test_http_above_its_quota_is_answered_429_with_retry_after(make: Callable[..., FloodedBox]) -> None:
    box = make(ingest_sender_bytes_per_second=1 << 14)  # four minutes for the first bomb
    sender, bomb = box.sender("http"), request("/ingest/syslog", b"x" * (4 << 20) + b"\n", "text/plain")
    box.send(sender, bomb)
    assert b"HTTP/1.1 4" in box.answer(sender, b"}"), "too large for the topic"
    box.send(sender, bomb)
    answer = box.answer(sender, b"}")
    assert answer.startswith(b"HTTP/1.1 429 ") and b"\r\nRetry-After: " in answer
    assert box.counter('ingest.refused{reason="over_quota"}') == 1
    other = box.sender("http", OTHER)
    box.send(other, request("/ingest/syslog", b"{}"))
    assert b"HTTP/1.1 200" in box.answer(other, b"}")


def test_datagrams_above_their_quota_are_dropped_and_counted(make: Callable[..., FloodedBox]) -> None:
    box = make(ingest_sender_bytes_per_second=10_000)
    for _ in range(100):
        box.send_datagrams(*[LINE[:-1]] * 20)
        box.step()
    refused = box.counter('ingest.refused{listener="syslog-udp",reason="over_quota"}')
    assert refused >= 1_500 and box.ledger().received + refused == 2_000


def test_a_listener_has_a_quota_for_all_its_senders(make: Callable[..., FloodedBox]) -> None:
    box = make(ingest_listener_records_per_second=50)
    for number in range(40):
        sender = box.sender("http", f"127.0.1.{number}")
        box.send(sender, request("/ingest/syslog", b"{}\n" * 100))
        box.answer(sender, b"}")
        box.send(sender, request("/ingest/syslog", b"{}\n" * 100))
        box.answer(sender, b"}")
    assert box.counter('ingest.refused{reason="over_quota"}') >= 20


@pytest.mark.parametrize("path", ["/ingest/syslog", "/upload"])
def test_compressed_content_has_at_most_32_times_its_size_above_16_mib(make: Callable[..., FloodedBox], path: str) -> None:
    box = make(ingest_decompressed_bytes_max=1 << 28, ingest_sender_bytes_per_second=0)
    sender = box.sender("http")
    media_type = "text/plain" if path != "/upload" else "application/vnd.fdo.journal"
    box.send(sender, request(path, b"MESSAGE=" + bytes(20 << 20), media_type))
    assert b"HTTP/1.1 413" in box.answer(sender, b"}")
    assert not box.ledger().stored


# -- what a sender claims


def test_a_stranger_with_the_key_of_a_request_does_not_make_it_a_duplicate(box: FloodedBox) -> None:
    forged = request("/ingest/syslog", b'{"message":"rubbish"}', more="Idempotency-Key: 2026-11-23\r\n")
    honest = request("/ingest/syslog", b'{"message":"evidence"}', more="Idempotency-Key: 2026-11-23\r\n")
    for address, data, stored in ((FLOODER, forged, 1), (OTHER, honest, 1), (OTHER, honest, 0)):
        sender = box.sender("http", address)
        box.send(sender, data)
        assert b'"stored":%d' % stored in box.answer(sender, b"}")
    for address in (FLOODER, OTHER, OTHER):
        sender = box.sender("forward", address)
        box.send(sender, chunk([1, {"message": address}]))
        box.answer(sender, b"bomb")
    assert sorted(box.messages()) == sorted(["rubbish", "evidence", FLOODER, OTHER])


def test_a_proxy_header_that_no_setting_asks_for_is_a_line_and_claims_nothing(box: FloodedBox) -> None:
    box.send(box.sender("syslog"), b"PROXY TCP4 10.9.9.9 10.0.0.1 4000 514\r\n<13>a line\n")
    box.run_until(lambda: box.ledger().stored == 2, "two lines")
    assert not any(name == "proxied_source" for record in box.records() for name, _ in record.headers)
