"""HTTP/2 on one connection (h2), for gRPC and for clients that negotiated it by TLS. Each stream is
a request; answers are sent in the order in which they are ready.

Owned by the `HttpSession` whose connection began with HTTP/2's preface. Flow control: a stream may
always send `STREAM_WINDOW_BYTES`, and more only while all incomplete bodies together have less than
`BODIES_BYTES_MAX`, or if it is the oldest of them. Frames that cost the receiver more than the
sender (pings, resets, settings, empty frames) have a budget for each second; above it the
connection is closed with ENHANCE_YOUR_CALM. Weak: header compression is pure Python, 0.3 ms a
request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from services.ingest.protocols.http.grpc_call import GRPC_TYPES, GrpcCall
from services.ingest.protocols.http.http2_stream import Stream, reply_of
from services.ingest.protocols.http.http_exchange import Exchange
from services.ingest.protocols.http.http_request import Request
from services.ingest.protocols.http.http_wire import split_target
from services.ingest.protocols.session import SessionConnection
from services.ingest.protocols.steps import Steps
from services.ingest.records.intake import RefusedReason

STREAMS_MAX = 64
STREAM_WINDOW_BYTES = 262_144
CONNECTION_WINDOW_BYTES = STREAMS_MAX * STREAM_WINDOW_BYTES
FRAME_BYTES_MAX = 65536
"""Four times the default: every frame costs 50 µs, whatever its size."""
CREDIT_BYTES_MIN = 65536
"""Windows are opened in steps of this size, not by every frame."""
BODIES_BYTES_MAX = 4 << 20
SILENT_BYTES_MAX = 262_144
"""Limit for received bytes without a whole frame or header block: h2 checks the length of a frame
only when it is complete.
"""
HEADER_LIST_BYTES_MAX = 16384
HEADERS_MAX = 100
"""Headers are decoded in pure Python, 10 µs each."""
CHEAP_FRAMES_A_SECOND_MAX = 1000
CHEAP_FRAMES_A_REQUEST = 8
UNSENT_BYTES_MAX = 262_144
KEPT_IDLE_FACTOR = 10
_RESET_COST, _SETTINGS_COST = 4, 4
FRAMES_A_STEP = 8
"""A frame with a header block costs 0.3 ms."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER_BYTES = 9


class _FrameCutter:
    """Cuts the stream of a connection into pieces of few frames, so that many small ones are
    several steps."""

    def __init__(self) -> None:
        self._skipped_bytes = len(_PREFACE)
        """Bytes before the next frame's header."""
        self._header = b""

    def cut(self, data: bytes) -> Iterator[bytes]:
        start = position = frames = 0
        while position < len(data):
            if self._skipped_bytes:
                skipped = min(self._skipped_bytes, len(data) - position)
                position += skipped
                self._skipped_bytes -= skipped
                continue
            wanted = _FRAME_HEADER_BYTES - len(self._header)
            self._header += data[position : position + wanted]
            position = min(position + wanted, len(data))
            if len(self._header) < _FRAME_HEADER_BYTES:
                break
            self._skipped_bytes = int.from_bytes(self._header[:3], "big")
            self._header = b""
            frames += 1
            if frames == FRAMES_A_STEP:
                yield data[start:position]
                start, frames = position, 0
        if start < len(data):
            yield data[start:]


class Http2Session:
    """One connection."""

    def __init__(self, connection: SessionConnection) -> None:
        self._connection = connection
        self._listener = connection.listener
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        codes = h2.settings.SettingCodes
        values = {
            codes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
            codes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            codes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            codes.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES_MAX,
        }
        self._h2.local_settings = h2.settings.Settings(client=False, initial_values=values)
        # h2 reads both from the settings when they change, and these never do.
        self._h2.max_inbound_frame_size = FRAME_BYTES_MAX
        self._h2.decoder.max_header_list_size = HEADER_LIST_BYTES_MAX
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - 65535)
        self._streams: dict[int, Stream] = {}
        self._connection_owed_bytes = 0
        self._frames = _FrameCutter()
        self._cheap_frames = 0
        self._silent_bytes = 0
        self._now_ms = self._heard_ms = connection.intake.monotonic_ms()
        self._is_held = self._is_closing = self._is_lost = False

    # -- from the listener

    @property
    def unacknowledged_bytes(self) -> int:
        return sum(stream.call.unacknowledged_bytes for stream in self._streams.values())

    @property
    def buffered_bytes(self) -> int:
        return sum(stream.call.buffered_bytes for stream in self._streams.values())

    @property
    def is_between_requests(self) -> bool:
        """Requests share the connection: only a body without an end stops its reading."""
        return not any(stream.call.is_stream for stream in self._streams.values())

    def received(self, data: bytes | memoryview) -> None:
        if self._is_closing:
            return
        self._heard_ms = self._now_ms
        self._connection.run(self._take_pieces(bytes(data)))

    def _take_pieces(self, data: bytes) -> Steps:
        for number, piece in enumerate(self._frames.cut(data)):
            if number:
                yield
            if not self._is_closing:
                self._take_piece(piece)

    def _take_piece(self, piece: bytes) -> None:
        try:
            events = self._h2.receive_data(piece)
            self._silent_bytes = 0 if events else self._silent_bytes + len(piece)
            if self._silent_bytes > SILENT_BYTES_MAX:
                raise h2.exceptions.FrameTooLargeError
        except h2.exceptions.ProtocolError:
            self._refuse(RefusedReason.MALFORMED)
            self._end("http2-protocol")
            return
        for event in events:
            self._on_event(event)
        if self._cheap_frames > CHEAP_FRAMES_A_SECOND_MAX:
            self._calm_down()
        self._flush()

    def finished(self) -> None:
        for stream_id in [stream_id for stream_id, stream in self._streams.items() if not stream.is_whole]:
            self._refuse(RefusedReason.INCOMPLETE)
            self._drop(stream_id)
        for stream_id in [stream_id for stream_id, stream in self._streams.items() if stream.rest]:
            self._drop(stream_id)  # the peer will never open its window
        self._is_closing = True
        self._flush()

    def lost(self) -> None:
        self._is_lost = self._is_closing = True
        for stream_id in list(self._streams):
            self._drop(stream_id)

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._cheap_frames = 0
        if self._is_closing:
            return
        idle_ms_max = self._listener.idle_ms_max
        waits_for_us = self._is_held or bool(self.unacknowledged_bytes) or self._connection.intake.blocked_by(self._listener)
        for stream_id, stream in list(self._streams.items()):
            if stream.is_whole or stream.call.is_stream or waits_for_us:
                stream.heard_ms = now_ms
            elif now_ms - stream.heard_ms > idle_ms_max:
                self._refuse(RefusedReason.TIMED_OUT)
                self._drop(stream_id)
                with suppress(h2.exceptions.ProtocolError):
                    self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
        if not self._streams and now_ms - self._heard_ms > KEPT_IDLE_FACTOR * idle_ms_max:
            self._h2.close_connection()
            self._end("idle")
            return
        self._flush()

    # -- events

    def _on_event(self, event: h2.events.Event) -> None:
        if self._is_closing:
            return
        if isinstance(event, h2.events.DataReceived):
            self._on_data(event)
        elif isinstance(event, h2.events.RequestReceived):
            self._on_request(event)
        elif isinstance(event, h2.events.StreamEnded):
            self._on_end(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self._cheap_frames += _RESET_COST
            self._drop(event.stream_id)
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._cheap_frames += 1 if isinstance(event, h2.events.WindowUpdated) else _SETTINGS_COST
            self._go_on_with_all()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.finished()
        else:
            self._cheap_frames += 1

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        if len(event.headers) > HEADERS_MAX:
            self._refuse(RefusedReason.TOO_LARGE)
            self._cheap_frames += _RESET_COST
            assert event.stream_id is not None
            self._h2.reset_stream(event.stream_id, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return
        headers: dict[bytes, bytes] = {}
        for name, value in event.headers:
            earlier = headers.get(name)
            headers[name] = value if earlier is None else b"%b, %b" % (earlier, value)
        connection = self._connection
        method, target = headers.get(b":method", b"").decode("latin-1"), headers.get(b":path", b"/").decode("latin-1")
        path, query = split_target(target)
        request = Request(method, path, query, headers, self._listener, connection.source, connection.intake)
        request.principal = connection.principal.encode()
        request.sender = request.principal or request.sender
        request.run, request.charge, request.quota_wait_ms = connection.run, connection.charge, connection.quota_wait_ms
        stream_id = event.stream_id
        assert stream_id is not None
        stream = self._streams[stream_id] = Stream(self._now_ms)
        on_answered = partial(self._on_answered, stream_id)
        stream.call = GrpcCall(request, on_answered) if request.media_type in GRPC_TYPES else Exchange(request, True, on_answered)
        stream.call.begin()

    def _on_data(self, event: h2.events.DataReceived) -> None:
        size_bytes = event.flow_controlled_length or 0
        self._connection_owed_bytes += size_bytes
        if self._connection_owed_bytes >= CREDIT_BYTES_MIN:
            self._h2.increment_flow_control_window(self._connection_owed_bytes)
            self._connection_owed_bytes = 0
        if not event.data:
            self._cheap_frames += 1
        assert event.stream_id is not None
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return  # answered, or reset: what is still in progress
        stream.heard_ms = self._now_ms
        stream.owed_bytes += size_bytes
        if event.data:
            stream.call.take(event.data)

    def _on_end(self, stream_id: int | None) -> None:
        stream = self._streams.get(stream_id or 0)
        if stream is not None:
            stream.is_whole = True
            stream.call.end()

    def _grant(self) -> None:
        """Open the windows of incomplete bodies, the oldest first."""
        unfinished = [(stream_id, stream) for stream_id, stream in self._streams.items() if not stream.is_whole]
        room_bytes = BODIES_BYTES_MAX - sum(stream.call.taken_bytes for _, stream in unfinished)
        for place, (stream_id, stream) in enumerate(unfinished):
            if stream.owed_bytes >= CREDIT_BYTES_MIN and (place == 0 or room_bytes > 0):
                with suppress(h2.exceptions.ProtocolError):  # it was reset, and the event follows
                    self._h2.increment_flow_control_window(stream.owed_bytes, stream_id)
                stream.owed_bytes = 0

    def _go_on_with_all(self) -> None:
        for stream_id, stream in [each for each in self._streams.items() if each[1].rest]:
            try:
                self._go_on(stream_id, stream)
            except h2.exceptions.ProtocolError:
                self._drop(stream_id)

    # -- answers

    def _on_answered(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or self._is_lost:
            return
        reply = stream.call.reply() if isinstance(stream.call, GrpcCall) else reply_of(stream.call)
        stream.rest, stream.trailers = reply.data, reply.trailers
        has_more = bool(reply.data or reply.trailers)
        try:
            self._h2.send_headers(stream_id, reply.headers, end_stream=not has_more)
            self._go_on(stream_id, stream)
        except h2.exceptions.ProtocolError:  # the stream was reset, or the peer sent GOAWAY: no client waits
            self._drop(stream_id)
        self._flush()

    def _go_on(self, stream_id: int, stream: Stream) -> None:
        """Send as much of an answer as the peer's window allows."""
        rest = stream.rest or b""
        while rest:
            room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
            if room <= 0:
                break
            piece, rest = rest[:room], rest[room:]
            self._h2.send_data(stream_id, piece, end_stream=not rest and not stream.trailers)
        stream.rest = rest
        if rest and self._is_closing:
            self._drop(stream_id)
        elif not rest:
            if stream.trailers:
                self._h2.send_headers(stream_id, stream.trailers, end_stream=True)
            del self._streams[stream_id]
            self._cheap_frames -= CHEAP_FRAMES_A_REQUEST
            if not stream.is_whole:
                stream.call.abandon()
                self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)  # no more of it is wanted

    def _flush(self) -> None:
        if self._is_lost:
            return
        self._grant()
        data = self._h2.data_to_send()
        if data:
            self._connection.send(data)
        if self._is_closing and not self._streams:
            self._connection.close("ended")
            return
        hold = self._connection.unsent_bytes > UNSENT_BYTES_MAX
        if hold != self._is_held:
            self._is_held = hold
            if hold:
                self._connection.hold()
            else:
                self._connection.release()

    # -- ends

    def _drop(self, stream_id: int | None) -> None:
        stream = self._streams.pop(stream_id or 0, None)
        if stream is not None:
            if not stream.is_whole:
                stream.call.abandon()
            stream.call.forget()

    def _calm_down(self) -> None:
        self._refuse(RefusedReason.MALFORMED)
        self._h2.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
        self._end("http2-flood")

    def _end(self, reason: str) -> None:
        self._is_closing = True
        for stream_id in list(self._streams):
            self._drop(stream_id)
        data = self._h2.data_to_send()
        if data:
            self._connection.send(data)
        self._connection.close(reason)

    def _refuse(self, reason: RefusedReason) -> None:
        self._connection.intake.refuse(self._listener, self._connection.source, reason)
