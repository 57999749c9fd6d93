"""Parses the bytes of an HTTP/1.1 connection into headers and pieces of bodies: httptools (llhttp),
with a limit on everything that it collects.

Owned by one `HttpSession`. llhttp keeps no more than a name or a value, but httptools collects them
without a callback: all bytes since its last callback count as header. Weak: extensions of chunks
count as well, so a sender with very long ones is refused.
"""

from __future__ import annotations

from typing import Protocol

import httptools

HEADER_BYTES_MAX = 65536


class HttpReader(Protocol):
    """Receives what was parsed."""

    def on_header(self, method: str, target: str, headers: dict[bytes, bytes], keep_alive: bool) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...


class BadRequest(Exception):
    """The bytes are not HTTP/1.1, or exceed a limit: nothing after them can be parsed. (status,
    reason)
    """

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class HttpParser:
    """`feed` bytes; it calls the reader. `is_in_request`: a request has begun and not ended."""

    def __init__(self, reader: HttpReader) -> None:
        self._reader = reader
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._silent_bytes = 0
        self._is_in_body = False
        self._unseen_body_bytes = 0
        self.is_in_request = False

    def feed(self, data: bytes | memoryview) -> None:
        """Raises `BadRequest`; the parser cannot be used afterwards."""
        self._silent_bytes += len(data)
        while data:
            if self._unseen_body_bytes:
                data = self._take_unseen(data)
                continue
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:  # to an unsupported protocol: HTTP/1.1 continues
                position = upgrade.args[0]
                if not position:
                    raise BadRequest(400, "an upgrade that is none") from None
                data = data[position:]
            except httptools.HttpParserError as problem:
                cause = problem.__context__
                if isinstance(cause, BadRequest):
                    raise cause from None
                if cause is not None and not isinstance(cause, httptools.HttpParserError):
                    raise cause from None  # our own exception
                raise BadRequest(400, f"this is no HTTP/1.1: {problem}") from None
        if self._silent_bytes > HEADER_BYTES_MAX:
            raise _header_too_large()

    def close(self) -> None:
        """Release the callbacks, which refer to this object."""
        del self._parser

    # -- called by httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._header_bytes = 0
        self.is_in_request = True

    def on_url(self, piece: bytes) -> None:
        self._url += piece
        self._count(len(piece))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if not self._is_in_body:  # otherwise a trailer
            name = name.lower()
            earlier = self._headers.get(name)
            self._headers[name] = value if earlier is None else b"%b, %b" % (earlier, value)

    def on_headers_complete(self) -> None:
        self._silent_bytes = 0
        self._is_in_body = True
        parser = self._parser
        keep_alive = parser.should_keep_alive() and parser.get_http_version() == "1.1"  # keep-alive of HTTP/1.0 is not supported
        if parser.should_upgrade():
            # llhttp finds no body in such a request (`curl --http2 -d …`) and takes what follows for another protocol.
            if b"transfer-encoding" in self._headers:
                raise BadRequest(400, "a request that wants another protocol has a chunked body")
            self._unseen_body_bytes = int(self._headers.get(b"content-length", b"0"))
        self._reader.on_header(parser.get_method().decode("latin-1"), self._url.decode("latin-1"), self._headers, keep_alive)

    def on_body(self, data: bytes) -> None:
        self._silent_bytes = 0
        self._reader.on_body(data)

    def on_message_complete(self) -> None:
        if not self._unseen_body_bytes:
            self._end()

    def _end(self) -> None:
        self._silent_bytes = 0
        self._is_in_body = self.is_in_request = False
        self._reader.on_end()

    def _take_unseen(self, data: bytes | memoryview) -> bytes | memoryview:
        self._silent_bytes = 0
        piece, rest = data[: self._unseen_body_bytes], data[self._unseen_body_bytes :]
        self._unseen_body_bytes -= len(piece)
        self._reader.on_body(bytes(piece))
        if not self._unseen_body_bytes:
            self._end()
        return rest

    def _count(self, size_bytes: int) -> None:
        self._silent_bytes = 0
        self._header_bytes += size_bytes
        if self._header_bytes > HEADER_BYTES_MAX:
            raise _header_too_large()


def _header_too_large() -> BadRequest:
    return BadRequest(431, f"a header has more than {HEADER_BYTES_MAX} bytes")
