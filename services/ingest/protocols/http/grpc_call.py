"""One gRPC call: OTLP's LogsService/Export, unary, on a stream of HTTP/2.

Owned by one `Http2Session`. A message is limited by `frame_bytes_max` while it arrives and by
`decompressed_bytes_max` when it is decompressed. If no more records can be accepted, the status is
RESOURCE_EXHAUSTED with a RetryInfo, for which OTLP's senders wait; if records were refused, it is
UNAVAILABLE. Other services and methods, including traces and metrics, are UNIMPLEMENTED. Weak:
deadlines (grpc-timeout) are ignored, so the records of a call that its sender gave up are still
stored.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Generator
from struct import Struct

from services.ingest.protocols.bounded_inflate import NotCompressed, TooLarge, inflate_slowly
from services.ingest.protocols.http.http2_stream import Http2Response
from services.ingest.protocols.http.http_exchange import count
from services.ingest.protocols.http.http_origins import refuse_page
from services.ingest.protocols.http.http_request import BUSY_SECONDS, OVER_QUOTA_WORDS, HttpResponse, Request
from services.ingest.protocols.http.http_wire import has_token
from services.ingest.protocols.otlp.otlp import (
    BUSY_WORDS,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    as_any,
    encode_status,
    encode_success,
    rejected,
    retry_info,
    take,
)
from services.ingest.protocols.otlp.otlp_protobuf import read_protobuf_slowly
from services.ingest.protocols.otlp.otlp_record import BadPayload, TooManyRecords
from services.ingest.protocols.steps import Steps
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import RefusedReason

GRPC_TYPES = (b"application/grpc", b"application/grpc+proto")
EXPORT_PATH = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
PERMISSION_DENIED, UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = 7, 12, 13, 16
_PREFIX = Struct(">BI")
assert _PREFIX.size == 5
MESSAGE_CODINGS = {b"gzip": "gzip", b"deflate": "deflate", b"zstd": "zstd", b"snappy": "snappy"}
ACCEPTED_CODINGS = b"identity,gzip,deflate,zstd,snappy"


class GrpcCall:
    """One call. `reply()` returns the response after `on_answered` was called."""

    __slots__ = ("_body", "_error", "_message", "_on_answered", "_request", "_unacknowledged_bytes", "_waiting_bytes", "is_complete")

    def __init__(self, request: Request, on_answered: Callable[[], None]) -> None:
        self._request: Request | None = request
        self._on_answered = on_answered
        self._body = bytearray()
        self._unacknowledged_bytes = self._waiting_bytes = 0
        self._message = b""
        self._error: tuple[int, str, bytes] | None = None  # code, words, details
        self.is_complete = False
        request.on_answer(self._answered)
        request.busy = lambda _request: HttpResponse(UNAVAILABLE)

    is_stream = False

    @property
    def unacknowledged_bytes(self) -> int:
        return self._unacknowledged_bytes

    @property
    def taken_bytes(self) -> int:
        return len(self._body)

    @property
    def buffered_bytes(self) -> int:
        return len(self._body) + self._waiting_bytes

    def begin(self) -> None:
        """The header has arrived."""
        request = self._request
        assert request is not None
        if (refused := refuse_page(request)) is not None:
            self._fail(PERMISSION_DENIED, refused.body.decode())
            return
        if request.path != EXPORT_PATH or request.method != "POST":
            count(request, RefusedReason.NO_INPUT)
            self._fail(UNIMPLEMENTED, f"{request.path[:200]} is not served: only logs are taken here, by {EXPORT_PATH}")
            return
        request.pattern = EXPORT_PATH
        if not has_token(request):
            count(request, RefusedReason.UNAUTHORIZED)
            self._fail(UNAUTHENTICATED, "no token, or one that this listener does not know for this path: send metadata `authorization: Bearer TOKEN`")
        elif request.intake.blocked_by(request.listener):
            count(request, RefusedReason.BUSY)
            self._fail(RESOURCE_EXHAUSTED, BUSY_WORDS)
        elif request.quota_wait_ms:
            count(request, RefusedReason.OVER_QUOTA)
            self._fail(RESOURCE_EXHAUSTED, OVER_QUOTA_WORDS)

    def take(self, data: bytes) -> None:
        """A piece of the body has arrived."""
        request = self._request
        if request is None:
            return
        self._body += data
        if len(self._body) > request.listener.frame_bytes_max + _PREFIX.size:
            count(request, RefusedReason.TOO_LARGE)
            self._fail(INVALID_ARGUMENT, f"the message has more than {request.listener.frame_bytes_max} bytes: send smaller requests")

    def end(self) -> None:
        """The body is complete."""
        self.is_complete = True
        request = self._request
        if request is None:
            return
        body, self._body = bytes(self._body), bytearray()
        self._waiting_bytes = len(body)
        self._unacknowledged_bytes = max(1, len(body))
        request.run(self._take_message(request, body))

    def _take_message(self, request: Request, body: bytes) -> Steps:
        """Open the message and store its records; the answer follows when they are stored."""
        try:
            yield from self._take_records(request, body)
        except GeneratorExit:
            request.abandon()
            raise
        finally:
            self._waiting_bytes = 0

    def _take_records(self, request: Request, body: bytes) -> Steps:
        message = yield from self._open(request, body)
        if message is None:
            return
        request.charge(len(message) - len(body))
        try:
            reading = yield from read_protobuf_slowly(message, request.listener)
        except BadPayload as problem:
            count(request, RefusedReason.TOO_LARGE if isinstance(problem, TooManyRecords) else RefusedReason.MALFORMED)
            self._fail(INVALID_ARGUMENT, str(problem))
            return

        def answer(unit: AckGroup) -> HttpResponse:
            self._message = encode_success(*rejected(request, unit, reading))
            return HttpResponse(0)

        self._unacknowledged_bytes = max(1, len(message))
        unit = request.open_unit(answer)
        yield from take(request, unit, reading)

    def abandon(self) -> None:
        """The body will never be complete."""
        self._body = bytearray()

    def forget(self) -> None:
        """The sender no longer waits for the answer."""
        if self._request is not None:
            self._request.on_answer(None)

    def reply(self) -> Http2Response:
        """Return header, message and trailers; an error has only a header."""
        headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        if self._error is None:
            return Http2Response(headers, _PREFIX.pack(0, len(self._message)) + self._message, [(b"grpc-status", b"0")])
        code, words, info = self._error
        headers += [(b"grpc-status", b"%d" % code), (b"grpc-message", _percent(words))]
        if info:
            details = encode_status(code, words, as_any("google.rpc.RetryInfo", info))
            headers += [(b"grpc-status-details-bin", _base64(details)), (b"google.rpc.retryinfo-bin", _base64(info))]
        if code == UNIMPLEMENTED:
            headers.append((b"grpc-accept-encoding", ACCEPTED_CODINGS))
        return Http2Response(headers, b"", [])

    def _open(self, request: Request, body: bytes) -> Generator[None, None, bytes | None]:
        """Return the one message of the body; None if the call has failed."""
        if len(body) < _PREFIX.size or (size := _PREFIX.unpack_from(body)[1]) > len(body) - _PREFIX.size:
            self._malformed(request, "the call ended inside its message")
            return None
        if size < len(body) - _PREFIX.size:
            self._malformed(request, "Export takes one message")
            return None
        message = body[_PREFIX.size :]
        if not body[0]:
            return message
        coding = request.headers.get(b"grpc-encoding", b"identity").lower()
        name = MESSAGE_CODINGS.get(coding)
        if name is None:
            count(request, RefusedReason.MALFORMED)
            self._fail(UNIMPLEMENTED, f"grpc-encoding {coding.decode('latin-1')[:40]} is not known")
            return None
        try:
            return (yield from inflate_slowly(name, message, request.listener.decompressed_bytes_max))
        except TooLarge as problem:
            count(request, RefusedReason.TOO_LARGE)
            self._fail(INVALID_ARGUMENT, str(problem))
        except NotCompressed as problem:
            self._malformed(request, str(problem))
        return None

    def _malformed(self, request: Request, words: str) -> None:
        count(request, RefusedReason.MALFORMED)
        self._fail(INVALID_ARGUMENT, words)

    def _fail(self, code: int, words: str) -> None:
        assert self._request is not None
        self._error = (code, words, retry_info(BUSY_SECONDS) if code in (RESOURCE_EXHAUSTED, UNAVAILABLE) else b"")
        self._request.answer(HttpResponse(code))

    def _answered(self, answer: HttpResponse) -> None:
        if answer.status == UNAVAILABLE and self._error is None:
            self._error = (UNAVAILABLE, BUSY_WORDS, retry_info(BUSY_SECONDS))
        self._request = None
        self._unacknowledged_bytes = 0
        self._body = bytearray()
        self._on_answered()


def _percent(words: str) -> bytes:
    """Encode a status message as gRPC requires."""
    return b"".join(b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in words.encode())


def _base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False).rstrip(b"=")
