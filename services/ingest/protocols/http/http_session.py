"""HTTP on one connection: parses requests, and sends the answers in their order.

Owned by one connection. Requests after one that waits for its ack group are accepted as well; the
connection is not read while there are `AHEAD_MAX` of them, or while the sender does not read its
answers. A connection that begins with HTTP/2's preface is passed to `http2_session`. Weak: answers
have no Date header, because a session has no clock.
"""

from __future__ import annotations

from collections import deque

from services.ingest.protocols.http.http_exchange import Exchange
from services.ingest.protocols.http.http_parser import BadRequest, HttpParser
from services.ingest.protocols.http.http_request import Request, refusal
from services.ingest.protocols.http.http_wire import CONTINUE, encode_answer, split_target
from services.ingest.protocols.session import AnsweringSession, SessionConnection
from services.ingest.records.intake import RefusedReason

AHEAD_MAX = 32
"""Limit for unanswered requests of one connection. There are more only if one received piece
contains them.
"""
UNSENT_BYTES_MAX = 262_144
BODY_BYTES_A_SECOND_MIN = 1024
"""A body may take the time for this rate, in addition to `idle_ms_max`; slower ones are given up.
"""
KEPT_IDLE_FACTOR = 10
"""A connection without requests is kept for this many times `idle_ms_max`."""
HTTP2_PREFACE_START = b"PRI"
"""No method of HTTP/1 begins like this."""
_REASONS = {400: RefusedReason.MALFORMED, 408: RefusedReason.TIMED_OUT, 431: RefusedReason.TOO_LARGE}


class HttpSession:
    """One connection."""

    def __init__(self, connection: SessionConnection) -> None:
        self._connection = connection
        self._listener = connection.listener
        self._http2: AnsweringSession | None = None
        self._first = b""
        self._parser: HttpParser | None = None
        self._exchanges: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._now_ms = self._began_ms = self._heard_ms = connection.intake.monotonic_ms()
        self._is_held = False
        self._is_closing = False
        """Nothing more is read; close when the answers are sent."""
        self._is_lost = False

    # -- from the listener

    @property
    def unacknowledged_bytes(self) -> int:
        if self._http2 is not None:
            return self._http2.unacknowledged_bytes
        return sum(exchange.unacknowledged_bytes for exchange in self._exchanges)

    @property
    def buffered_bytes(self) -> int:
        if self._http2 is not None:
            return self._http2.buffered_bytes
        return sum(exchange.buffered_bytes for exchange in self._exchanges)

    @property
    def is_between_requests(self) -> bool:
        if self._http2 is not None:
            return self._http2.is_between_requests
        return self._current is None or self._current.answer is not None

    def received(self, data: bytes | memoryview) -> None:
        if self._http2 is not None:
            self._http2.received(data)
            return
        if self._is_closing:
            return
        if self._parser is None:
            data = self._first = self._first + bytes(data)
            if len(data) < 3 and HTTP2_PREFACE_START.startswith(data):
                return
            self._first = b""
            if data.startswith(HTTP2_PREFACE_START):
                self._switch(data)
                return
            self._parser = HttpParser(self)
        self._heard_ms = self._now_ms
        try:
            self._parser.feed(data)
        except BadRequest as problem:
            self._refuse_bytes(problem.status, str(problem))
        self._flush()

    def finished(self) -> None:
        if self._http2 is not None:
            self._http2.finished()
            return
        if self._parser is not None and self._parser.is_in_request and not self._is_closing:
            self._abandon_current()
            self._refuse(RefusedReason.INCOMPLETE)
        self._is_closing = True
        self._flush()

    def lost(self) -> None:
        if self._http2 is not None:
            self._http2.lost()
            return
        self._is_lost = self._is_closing = True
        if self._current is not None:
            self._current.abandon()
            self._current = None
        for exchange in self._exchanges:
            exchange.forget()
        self._exchanges.clear()
        if self._parser is not None:
            self._parser.close()
            self._parser = None

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._http2 is not None:
            self._http2.tick(now_ms)
        elif not self._is_closing:
            self._look_at_time(now_ms)
            self._balance()

    # -- from the parser

    def on_header(self, method: str, target: str, headers: dict[bytes, bytes], keep_alive: bool) -> None:
        self._began_ms = self._now_ms
        if self._is_closing:
            return
        connection = self._connection
        path, query = split_target(target)
        request = Request(method, path, query, headers, self._listener, connection.source, connection.intake)
        request.principal = connection.principal.encode()
        request.sender = request.principal or request.sender
        request.run, request.charge, request.quota_wait_ms = connection.run, connection.charge, connection.quota_wait_ms
        exchange = self._current = Exchange(request, keep_alive, self._flush)
        self._exchanges.append(exchange)
        exchange.begin()
        if exchange.is_complete:
            self._is_closing = True

    def on_body(self, data: bytes) -> None:
        exchange = self._current
        if self._is_closing or exchange is None:
            return
        exchange.take(data)
        if exchange.answer is not None and exchange.taken_bytes > 2 * self._listener.frame_bytes_max:
            self._abandon_current()
            self._is_closing = True

    def on_end(self) -> None:
        exchange, self._current = self._current, None
        self._began_ms = self._now_ms
        if self._is_closing or exchange is None:
            return
        exchange.end()
        if not exchange.keep_alive:
            self._is_closing = True

    # -- answers

    def _flush(self) -> None:
        """Send what can be sent: answers from the front of the queue, and `100 Continue` to a
        request whose turn has come.
        """
        if self._is_lost:
            return
        exchanges = self._exchanges
        pieces = []
        while exchanges and exchanges[0].answer is not None:
            exchange = exchanges.popleft()
            pieces.append(encode_answer(exchange.answer, exchange.keep_alive, exchange.is_head))  # type: ignore[arg-type]
        if exchanges and exchanges[0].owes_continue and not self._is_closing:
            exchanges[0].owes_continue = False
            pieces.append(CONTINUE)
        if pieces:
            self._connection.send(b"".join(pieces))
        if self._is_closing and not exchanges:
            self._connection.close("ended")
        else:
            self._balance()

    def _balance(self) -> None:
        """Read as long as answers are accepted."""
        hold = len(self._exchanges) > AHEAD_MAX or self._connection.unsent_bytes > UNSENT_BYTES_MAX
        if hold != self._is_held:
            self._is_held = hold
            if hold:
                self._connection.hold()
            else:
                self._connection.release()

    # -- ends

    def _switch(self, data: bytes) -> None:
        from services.ingest.protocols.http.http2_session import Http2Session

        self._http2 = Http2Session(self._connection)
        self._http2.received(data)

    def _look_at_time(self, now_ms: int) -> None:
        idle_ms_max = self._listener.idle_ms_max
        current = self._current
        if self._is_held or self.unacknowledged_bytes or (current is not None and current.is_stream) or self._connection.intake.blocked_by(self._listener):
            self._heard_ms = self._began_ms = now_ms  # this side does not read, or a stream is silent
        elif self._parser is not None and self._parser.is_in_request:
            patience_ms = idle_ms_max + (current.taken_bytes * 1000 // BODY_BYTES_A_SECOND_MIN if current is not None else 0)
            if now_ms - self._heard_ms > idle_ms_max or now_ms - self._began_ms > patience_ms:
                self._refuse_bytes(408, f"the request did not come to its end in {idle_ms_max} ms")
                self._flush()
        elif now_ms - self._heard_ms > (idle_ms_max if self._parser is None else KEPT_IDLE_FACTOR * idle_ms_max):
            self._connection.close("idle")

    def _abandon_current(self) -> None:
        """The incomplete request will never be complete."""
        exchange, self._current = self._current, None
        if exchange is None:
            return
        exchange.abandon()
        if exchange.answer is None:
            exchange.forget()
            self._exchanges.remove(exchange)

    def _refuse_bytes(self, status: int, what: str) -> None:
        """The stream cannot be parsed, or no more of it is wanted: answer after the earlier
        requests, and close.
        """
        if self._is_closing:
            return  # what follows the last request
        self._refuse(_REASONS[status])
        had_answer = self._current is not None and self._current.answer is not None
        self._abandon_current()
        if not had_answer:
            exchange = Exchange(None, False, self._flush)
            exchange.answer = refusal(status, what, "", "see RFC 9112" if status == 400 else "")
            self._exchanges.append(exchange)
        self._is_closing = True

    def _refuse(self, reason: RefusedReason) -> None:
        self._connection.intake.refuse(self._listener, self._connection.source, reason)
