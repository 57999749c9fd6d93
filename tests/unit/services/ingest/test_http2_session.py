"""gRPC and HTTP over HTTP/2, spoken by h2's client half: answers, windows, and floods."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence

import h2.config
import h2.connection
import h2.events
import pytest
from h2.settings import SettingCodes
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from appliance.senders.listener import Listener, Token
from services.ingest.protocols.http import grpc_call
from services.ingest.protocols.http.http2_session import (
    BODIES_BYTES_MAX,
    FRAME_BYTES_MAX,
    HEADER_LIST_BYTES_MAX,
    HEADERS_MAX,
    SILENT_BYTES_MAX,
    STREAM_WINDOW_BYTES,
    STREAMS_MAX,
)
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.intake import RefusedReason
from tests.support.http_talk import LISTENER, HttpTalk
from tests.support.otlp_requests import otlp_request

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
MESSAGE = otlp_request(["a", "b"]).SerializeToString()


def framed(message: bytes, is_compressed: bool = False) -> bytes:
    return struct.pack(">BI", is_compressed, len(message)) + message


class Http2Talk(HttpTalk):
    """A client of h2 and the session it talks to."""

    def __init__(self, listener: Listener = LISTENER) -> None:
        super().__init__(listener)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.exchange()

    def exchange(self, step: int = 0) -> list[h2.events.Event]:
        """Bytes to and fro until both have said all."""
        while data := self.client.data_to_send():
            self.send(data, step)
            self.events += self.client.receive_data(self.connection.take_sent())
        self.events += self.client.receive_data(self.connection.take_sent())
        return self.events

    def call(self, body: bytes = b"", path: str = EXPORT, media_type: str = "application/grpc", more: Sequence[tuple[str, str]] = (), end: bool = True) -> int:
        stream_id = self.client.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", path), ("content-type", media_type), *more]
        self.client.send_headers(stream_id, headers)
        if body:
            self.client.send_data(stream_id, body)
        if end:
            self.client.end_stream(stream_id)
        return stream_id

    def headers_of(self, stream_id: int) -> dict[str, str]:
        """Of the answer, trailers among them; empty while there is none."""
        self.exchange()
        found: dict[str, str] = {}
        for event in self.events:
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived) and event.stream_id == stream_id:
                found.update(event.headers)  # type: ignore[arg-type]
        return found

    def data_of(self, stream_id: int) -> bytes:
        self.exchange()
        return b"".join(event.data or b"" for event in self.events if isinstance(event, h2.events.DataReceived) and event.stream_id == stream_id)


def test_an_export_is_answered_when_its_unit_has_settled() -> None:
    talk = Http2Talk()
    stream_id = talk.call(framed(MESSAGE))
    assert not talk.headers_of(stream_id) and talk.session.unacknowledged_bytes == len(MESSAGE)
    talk.intake.complete_all()
    assert talk.headers_of(stream_id) == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert talk.data_of(stream_id) == framed(b"") and len(talk.intake.records) == 2 and talk.session.unacknowledged_bytes == 0


def test_calls_split_at_every_byte_are_the_same_calls() -> None:
    talk = Http2Talk()
    first, second = talk.call(framed(MESSAGE)), talk.call(framed(gzip.compress(MESSAGE, mtime=0), True), more=[("grpc-encoding", "gzip")])
    talk.exchange(step=1)
    talk.intake.complete_all()
    assert talk.headers_of(first)["grpc-status"] == talk.headers_of(second)["grpc-status"] == "0" and len(talk.intake.records) == 4


def test_calls_are_answered_in_the_order_in_which_they_settle() -> None:
    talk = Http2Talk()
    first, second = talk.call(framed(MESSAGE)), talk.call(framed(MESSAGE))
    talk.exchange()
    talk.intake.complete(talk.intake.in_flight[1])
    assert talk.headers_of(second)["grpc-status"] == "0" and not talk.headers_of(first)


def test_records_that_can_never_be_stored_are_a_partial_success() -> None:
    talk = Http2Talk()
    stream_id = talk.call(framed(MESSAGE))
    talk.exchange()
    talk.intake.complete(talk.intake.in_flight[0], AckOutcome.STORED, [(0, "too large")])
    assert ExportLogsServiceResponse.FromString(talk.data_of(stream_id)[5:]).partial_success.rejected_log_records == 1


@pytest.mark.parametrize("is_refused", [False, True])
def test_back_pressure_returns_a_retry_delay(is_refused: bool) -> None:
    talk = Http2Talk()
    talk.intake.is_blocked = not is_refused
    stream_id = talk.call(framed(MESSAGE))
    talk.exchange()
    talk.intake.complete_all(AckOutcome.REFUSED)
    headers = talk.headers_of(stream_id)
    assert headers["grpc-status"] == ("14" if is_refused else "8") and headers["google.rpc.retryinfo-bin"] == "CgIIAQ"
    assert "grpc-status-details-bin" in headers


@pytest.mark.parametrize("path", ["/opentelemetry.proto.collector.trace.v1.TraceService/Export", "/grpc.health.v1.Health/Check", "/"])
def test_other_methods_are_unimplemented_in_words(path: str) -> None:
    talk = Http2Talk()
    headers = talk.headers_of(talk.call(framed(b""), path))
    assert headers["grpc-status"] == "12" and "only logs" in headers["grpc-message"]


@pytest.mark.parametrize(
    ("body", "more", "status"),
    [
        (b"", (), "3"),
        (framed(MESSAGE)[:-1], (), "3"),
        (framed(MESSAGE) * 2, (), "3"),
        (framed(b"\xff\xff"), (), "3"),
        (framed(b"no gzip", True), (("grpc-encoding", "gzip"),), "3"),
        (framed(MESSAGE, True), (("grpc-encoding", "br"),), "12"),
        (framed(gzip.compress(bytes(100_000), mtime=0), True), (("grpc-encoding", "gzip"),), "3"),
        (framed(bytes(10_000)), (), "3"),
    ],
)
def test_what_cannot_be_read_is_refused_and_counted(body: bytes, more: tuple[tuple[str, str], ...], status: str) -> None:
    talk = Http2Talk(LISTENER._replace(frame_bytes_max=5_000, decompressed_bytes_max=50_000))
    assert talk.headers_of(talk.call(body, more=more))["grpc-status"] == status
    assert sum(talk.intake.refused.values()) == 1 and not talk.intake.records


def test_a_token_is_metadata() -> None:
    talk = Http2Talk(LISTENER._replace(tokens=(Token("secret"),)))
    known, unknown = talk.call(framed(MESSAGE), more=[("authorization", "Bearer secret")]), talk.call(framed(MESSAGE))
    talk.exchange()
    talk.intake.complete_all()
    assert talk.headers_of(known)["grpc-status"] == "0" and talk.headers_of(unknown)["grpc-status"] == "16"


def test_an_idempotency_key_is_metadata() -> None:
    talk = Http2Talk()
    talk.call(framed(MESSAGE), more=[("idempotency-key", "k1")])
    talk.call(framed(MESSAGE), more=[("idempotency-key", "k1")])
    talk.exchange()
    first, second = talk.intake.closed
    assert first.identities == second.identities and first.identities is not None


def test_every_input_of_http_is_there_over_http_2_as_well() -> None:
    talk = Http2Talk()
    stored, missing = talk.call(b'{"a":1}\n', "/ingest/web", "application/x-ndjson"), talk.call(b"", "/v1/traces", "application/x-protobuf")
    talk.exchange()
    talk.intake.complete_all()
    assert talk.headers_of(stored)[":status"] == "200" and b'"stored":1' in talk.data_of(stored)
    assert talk.headers_of(missing)[":status"] == "404" and b"/v1/logs" in talk.data_of(missing)


def test_a_call_of_traces_is_unimplemented_and_counted() -> None:
    talk = Http2Talk()
    traces = talk.call(framed(MESSAGE), "/opentelemetry.proto.collector.trace.v1.TraceService/Export")
    talk.exchange()
    assert talk.headers_of(traces)["grpc-status"] == "12" and talk.intake.refused == {RefusedReason.NO_INPUT: 1}


@pytest.mark.parametrize("lengths", [("5", "5"), ("0", "0")])
def test_a_repeated_content_length_is_refused_and_affects_no_other_stream(lengths: tuple[str, str]) -> None:
    talk = Http2Talk()
    talk.client.config.validate_outbound_headers = talk.client.config.normalize_outbound_headers = False
    twice = talk.call(path="/ingest/web", media_type="text/plain", more=[("content-length", length) for length in lengths], end=False)
    assert talk.headers_of(twice)[":status"] == "400" and talk.intake.refused == {RefusedReason.MALFORMED: 1}
    assert talk.headers_of(talk.call(path="/health", media_type=""))[":status"] == "405" and not talk.connection.closed


def test_a_large_body_goes_through_the_window_and_two_do_not_hold_each_other_up() -> None:
    talk = Http2Talk(LISTENER._replace(frame_bytes_max=BODIES_BYTES_MAX))
    unknown_field = b"\x7a\x80\x80\xc0\x01" + bytes(3 << 20)
    assert talk.client.max_outbound_frame_size == FRAME_BYTES_MAX
    left = dict.fromkeys([talk.call(end=False), talk.call(end=False)], framed(unknown_field))
    while left:
        before = sum(map(len, left.values()))
        for stream_id in list(left):
            while stream_id in left and (
                room := min(talk.client.local_flow_control_window(stream_id), talk.client.max_outbound_frame_size, len(left[stream_id]))
            ):
                talk.client.send_data(stream_id, left[stream_id][:room], end_stream=room == len(left[stream_id]))
                left[stream_id] = left[stream_id][room:]
                if not left[stream_id]:
                    del left[stream_id]
        talk.exchange()
        assert sum(map(len, left.values())) < before, "a window is never opened again"
    assert len(talk.intake.closed) == 2


def test_streams_that_never_end_have_a_bounded_memory() -> None:
    talk = Http2Talk()
    streams = [talk.call(end=False) for _ in range(STREAMS_MAX)]
    sent = 0
    for _ in range(2_000):
        room = [stream_id for stream_id in streams[1:] if talk.client.local_flow_control_window(stream_id) > 16_000]
        if not room:
            break
        for stream_id in room:
            talk.client.send_data(stream_id, bytes(16_000))
            sent += 16_000
        talk.exchange()
    assert sent <= BODIES_BYTES_MAX + STREAMS_MAX * 2 * STREAM_WINDOW_BYTES


def test_an_answer_waits_for_the_window_of_a_client_that_takes_little() -> None:
    talk = Http2Talk()
    talk.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    talk.exchange()
    stream_id = talk.call(b"", "/nowhere/at/all", "text/plain")
    assert len(talk.data_of(stream_id)) == 10
    talk.client.increment_flow_control_window(10_000, stream_id)
    talk.exchange()
    assert talk.data_of(stream_id).endswith(b'only logs."}')


@pytest.mark.parametrize("kind", ["ping", "reset", "settings", "empty data"])
def test_a_flood_of_frames_that_cost_the_sender_nothing_ends_the_connection(kind: str) -> None:
    talk = Http2Talk()
    stream_id = talk.call(end=False)
    talk.exchange()
    for _ in range(1_200):
        if kind == "ping":
            talk.client.ping(bytes(8))
        elif kind == "reset":
            talk.client.reset_stream(talk.call(end=False))
        elif kind == "settings":
            talk.client.update_settings({SettingCodes.MAX_FRAME_SIZE: 16_384})
        else:
            talk.client.send_data(stream_id, b"")
    data = talk.client.data_to_send()
    for start in range(0, len(data), 65536):
        talk.send(data[start : start + 65536])
    assert talk.connection.closed == "http2-flood" and talk.intake.refused[RefusedReason.MALFORMED] == 1


def test_more_headers_than_a_request_needs_reset_its_stream_and_many_such_end_the_connection() -> None:
    talk = Http2Talk()
    many = [(f"h{number}", "") for number in range(HEADERS_MAX)]
    for number in range(1, 252):
        if talk.connection.closed:
            break
        talk.call(more=many, end=False)
        talk.exchange()
        assert talk.intake.refused[RefusedReason.TOO_LARGE] == number
    assert talk.connection.closed == "http2-flood" and not talk.session.buffered_bytes


def test_a_header_list_has_16_kib() -> None:
    talk = Http2Talk()
    talk.call(framed(MESSAGE), more=[("x", "y" * (HEADER_LIST_BYTES_MAX - 1_000))])
    talk.exchange()
    talk.intake.complete_all()
    assert len(talk.intake.records) == 2
    talk.call(framed(MESSAGE), more=[(f"x{number}", "y" * 4_000) for number in range(5)])
    talk.send(talk.client.data_to_send())
    assert talk.connection.closed == "http2-protocol" and talk.intake.refused == {RefusedReason.MALFORMED: 1}


def test_a_busy_client_that_pings_is_no_flood() -> None:
    talk = Http2Talk()
    for _ in range(200):
        talk.call(framed(MESSAGE))
        for _ in range(7):
            talk.client.ping(bytes(8))
        talk.exchange()
        talk.intake.complete_all()
        talk.exchange()
    assert not talk.connection.closed


def test_bytes_that_are_no_http_2_and_a_frame_that_is_too_large_end_the_connection() -> None:
    for data in (b"PRI * HTTP/1.1\r\nHost: box\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 2 * SILENT_BYTES_MAX):
        talk = HttpTalk()
        talk.send(data, 65536)
        assert talk.connection.closed == "http2-protocol" and talk.intake.refused == {RefusedReason.MALFORMED: 1}


def test_a_stream_that_stands_still_is_reset_and_counted() -> None:
    talk = Http2Talk()
    stream_id = talk.call(framed(MESSAGE)[:-1], end=False)
    talk.exchange()
    talk.session.tick(talk.intake.clock_ms + LISTENER.idle_ms_max + 1)
    talk.exchange()
    assert any(isinstance(event, h2.events.StreamReset) and event.stream_id == stream_id for event in talk.events)
    assert talk.intake.refused == {RefusedReason.TIMED_OUT: 1} and not talk.connection.closed


def test_a_call_that_its_sender_gave_up_is_stored_and_not_answered() -> None:
    talk = Http2Talk()
    stream_id = talk.call(framed(MESSAGE))
    talk.exchange()
    talk.client.reset_stream(stream_id)
    talk.exchange()
    talk.intake.complete_all()
    assert len(talk.intake.records) == 2 and not talk.headers_of(stream_id)


def test_a_sender_that_says_goodbye_is_let_go_when_its_calls_are_settled() -> None:
    talk = Http2Talk()
    talk.call(framed(MESSAGE))
    talk.client.close_connection()
    talk.exchange()
    talk.intake.complete_all()
    assert talk.connection.closed


def test_nothing_is_sent_after_the_connection_went() -> None:
    talk = Http2Talk()
    talk.call(framed(MESSAGE))
    talk.call(framed(MESSAGE)[:-1], end=False)
    talk.exchange()
    talk.session.lost()
    talk.intake.complete_all()
    assert not talk.connection.sent and len(talk.intake.records) == 2


def test_the_encodings_that_are_offered_are_known() -> None:
    assert set(grpc_call.ACCEPTED_CODINGS.split(b",")) == {b"identity", *grpc_call.MESSAGE_CODINGS}
