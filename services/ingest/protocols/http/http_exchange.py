"""One request of HTTP/1.1 or HTTP/2 from its header to its answer.

Owned by one `HttpSession`, which passes the header, the pieces of the body and its end. If the
header alone decides (path, method, token, size, back-pressure), the answer is sent before the body
arrives, and the body is discarded, up to the limit of a body. Weak: a discarded body was received,
and costs as much as a stored one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from appliance.base.invariants import check
from services.ingest.protocols.http.http_endpoints import Path, find_path
from services.ingest.protocols.http.http_origins import refuse_page
from services.ingest.protocols.http.http_request import HttpResponse, Request, finish_slowly, over_quota_answer, refusal
from services.ingest.protocols.http.http_wire import has_token, open_body
from services.ingest.protocols.steps import Steps
from services.ingest.records.intake import RefusedReason

_WITH_RECORDS = ("POST", "PUT")


class BodyStream(Protocol):
    """A body without an end, consumed as it arrives. It answers its request itself; after that no
    method is called.
    """

    @property
    def unacknowledged_bytes(self) -> int: ...

    @property
    def buffered_bytes(self) -> int: ...

    def received(self, data: bytes) -> None: ...

    def finished(self) -> None:
        """The body has ended."""

    def lost(self) -> None:
        """The connection ended inside the body."""


class Exchange:
    """One request and its answer. `keep_alive`: whether another request may follow on the
    connection.
    """

    __slots__ = (
        "_body",
        "_on_answered",
        "_path",
        "_stream",
        "_thrown_bytes",
        "_unacknowledged_bytes",
        "_waiting_bytes",
        "answer",
        "is_complete",
        "is_head",
        "keep_alive",
        "owes_continue",
        "request",
    )

    def __init__(self, request: Request | None, keep_alive: bool, on_answered: Callable[[], None]) -> None:
        self.request = request
        self.keep_alive = keep_alive
        self.answer: HttpResponse | None = None
        self.is_complete = False
        """Whether the body has ended, or is not read any more."""
        self.is_head = request is not None and request.method == "HEAD"
        self.owes_continue = False
        self._on_answered = on_answered
        self._body = bytearray()
        self._path: Path | None = None
        self._unacknowledged_bytes = 0
        self._waiting_bytes = 0
        self._stream: BodyStream | None = None
        self._thrown_bytes = 0
        if request is not None:
            request.on_answer(self._answered)

    @property
    def unacknowledged_bytes(self) -> int:
        return self._unacknowledged_bytes if self._stream is None else self._stream.unacknowledged_bytes

    @property
    def taken_bytes(self) -> int:
        """Bytes of the body so far."""
        return len(self._body) + self._thrown_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are kept of a body that is incomplete, or whose records are not taken yet."""
        return len(self._body) + self._waiting_bytes if self._stream is None else self._stream.buffered_bytes

    @property
    def is_stream(self) -> bool:
        return self._stream is not None

    def begin(self) -> None:
        """The header has arrived."""
        request = self.request
        assert request is not None
        self.owes_continue = request.headers.get(b"expect", b"").lower() == b"100-continue"
        refused = self._look_at_header(request)
        if refused is not None:
            if self.owes_continue:
                self.owes_continue = self.keep_alive = False  # it is unknown whether the body comes nevertheless
                self.is_complete = True
            request.answer(refused)

    def take(self, data: bytes) -> None:
        """A piece of the body has arrived."""
        request = self.request
        if self._stream is not None:
            self._stream.received(data)
        elif request is None:
            self._thrown_bytes += len(data)
        else:
            self._body += data
            if len(self._body) > request.listener.frame_bytes_max:
                self._thrown_bytes, self._body = len(self._body), bytearray()
                self.keep_alive = False
                request.answer(_too_large(request))

    def end(self) -> None:
        """The body has ended."""
        self.is_complete = True
        self.owes_continue = False
        if self._stream is not None:
            self._stream.finished()
        elif self.request is not None:
            self._run(self.request)

    def abandon(self) -> None:
        """The body will never be complete."""
        self.is_complete = True
        self.owes_continue = False
        if self._stream is not None:
            self._stream.lost()

    def forget(self) -> None:
        """The sender no longer waits for the answer."""
        if self.request is not None:
            self.request.on_answer(None)

    def _answered(self, answer: HttpResponse) -> None:
        self.answer = answer
        self.request = self._stream = None
        self._unacknowledged_bytes = 0
        self._on_answered()

    def _look_at_header(self, request: Request) -> HttpResponse | None:
        """Return the answer that the header alone decides; None: the body is wanted."""
        if (refused := refuse_page(request)) is not None:
            return refused
        found = find_path(request.method, request.path)
        if isinstance(found, HttpResponse):
            if request.method in _WITH_RECORDS:  # its records are lost if the sender ignores answers: they are counted
                count(request, RefusedReason.NO_INPUT)
            return found
        path = self._path = found.path
        request.pattern, request.arguments, request.busy = path.pattern, found.arguments, path.busy_answer
        if path.needs_token and not has_token(request):
            count(request, RefusedReason.UNAUTHORIZED)
            return path.unauthorized_answer(request)
        length = request.headers.get(b"content-length", b"0")
        if not length.isdigit():  # repeated over HTTP/2: h2 checks only the first
            count(request, RefusedReason.MALFORMED)
            return refusal(400, "the length of the body is no number, or is said twice", "Content-Length", "say it once, or not at all")
        size_bytes = int(length)
        if size_bytes > request.listener.frame_bytes_max and not path.is_stream:
            return _too_large(request)
        if path.stores and request.intake.blocked_by(request.listener, found.arguments.get("topic", "")):
            count(request, RefusedReason.BUSY)
            return request.busy(request)
        if path.stores and request.quota_wait_ms:
            count(request, RefusedReason.OVER_QUOTA)
            return over_quota_answer(request)
        if path.is_stream:
            opened = cast("BodyStream | HttpResponse", path.endpoint(request))
            if isinstance(opened, HttpResponse):
                return opened
            self._stream = opened
        return None

    def _run(self, request: Request) -> None:
        body, self._body = bytes(self._body), bytearray()
        self._waiting_bytes = len(body)
        self._unacknowledged_bytes = max(1, len(body))
        request.run(self._take_body(request, body))

    def _take_body(self, request: Request, body: bytes) -> Steps:
        """Open the body and store its records; the answer follows when they are stored. Once begun,
        it goes on although the sender has disconnected."""
        assert self._path is not None
        try:
            refused = yield from open_body(request, body)
            if refused is not None:
                count(request, RefusedReason.TOO_LARGE if refused.status == 413 else RefusedReason.MALFORMED)
                request.answer(refused)
                return
            if request.body is not body:
                request.charge(len(request.body) - len(body))
            self._unacknowledged_bytes = max(1, len(request.body))
            answer = yield from finish_slowly(self._path.endpoint(request))
        except GeneratorExit:
            request.abandon()
            raise
        finally:
            request.body = b""
            self._waiting_bytes = 0
        if isinstance(answer, HttpResponse):
            request.answer(answer)
        else:
            check(request.unit is not None, "an endpoint that waits has opened a unit")


def count(request: Request, reason: RefusedReason) -> None:
    """Count a request that is refused as a whole."""
    request.intake.refuse(request.listener, request.source, reason)


def _too_large(request: Request) -> HttpResponse:
    count(request, RefusedReason.TOO_LARGE)
    return refusal(413, f"the body has more than {request.listener.frame_bytes_max} bytes", request.path, "send smaller requests")
