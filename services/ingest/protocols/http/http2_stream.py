"""One stream of HTTP/2: its request, and its answer while it is sent.

Owned by one `Http2Session`. Values, and the form of an answer; a request is an `Exchange` (HTTP) or
a `GrpcCall`. Weak: an answer is in memory as a whole until the peer's window has accepted it.
"""

from __future__ import annotations

from typing import Protocol

from services.ingest.protocols.http.http_exchange import Exchange

Headers = list[tuple[bytes, bytes]]


class Http2Response:
    """A response on a stream: header, data, trailers (empty: none)."""

    __slots__ = ("data", "headers", "trailers")

    def __init__(self, headers: Headers, data: bytes, trailers: Headers) -> None:
        self.headers = headers
        self.data = data
        self.trailers = trailers


class Call(Protocol):
    """A request on a stream: an `Exchange` or a `GrpcCall`."""

    @property
    def unacknowledged_bytes(self) -> int: ...

    @property
    def taken_bytes(self) -> int: ...

    @property
    def buffered_bytes(self) -> int: ...

    @property
    def is_stream(self) -> bool: ...

    def begin(self) -> None: ...

    def take(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def abandon(self) -> None: ...

    def forget(self) -> None: ...


class Stream:
    """One stream. `owed_bytes` were received, and the window is not yet opened for them again."""

    __slots__ = ("call", "heard_ms", "is_whole", "owed_bytes", "rest", "trailers")

    def __init__(self, now_ms: int) -> None:
        self.call: Call
        self.heard_ms = now_ms
        self.is_whole = False
        self.owed_bytes = 0
        self.rest: bytes | None = None  # of the answer, when the peer's window is full
        self.trailers: Headers = []


def reply_of(call: Call) -> Http2Response:
    """Return the answer of an exchange."""
    assert isinstance(call, Exchange) and call.answer is not None
    answer = call.answer
    headers: Headers = [(b":status", b"%d" % answer.status)]
    if answer.body:
        headers.append((b"content-type", answer.content_type))
    if answer.status != 204:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    headers += [(name.lower(), value) for name, value in answer.headers]
    return Http2Response(headers, b"" if call.is_head else answer.body, [])
