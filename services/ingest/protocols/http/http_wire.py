"""The form of HTTP/1.1 answers, and what a request's header decides about it: status lines, tokens,
content encodings.

Pure functions. Weak: a body with several encodings (`gzip, zstd`) is refused; no known sender uses
them.
"""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Callable, Generator
from functools import cache

from appliance.senders.conditions import matcher
from appliance.senders.listener import Listener, Token
from services.ingest.protocols.bounded_inflate import NotCompressed, TooLarge, inflate_slowly
from services.ingest.protocols.http.http_request import HttpResponse, Request, refusal

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {
    200: b"OK",
    201: b"Created",
    202: b"Accepted",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    406: b"Not Acceptable",
    408: b"Request Timeout",
    411: b"Length Required",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    421: b"Misdirected Request",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}
_CODINGS = {b"gzip": "gzip", b"x-gzip": "gzip", b"deflate": "deflate", b"zstd": "zstd", b"snappy": "snappy", b"x-snappy-framed": "snappy"}
_EITHER = b"gzip,deflate"
"""pygelf's name for zlib: not two encodings, but one of two."""
_GZIP_BEGINNING = b"\x1f\x8b"
IDENTITY = frozenset((b"", b"identity"))


def encode_answer(answer: HttpResponse, keep_alive: bool, without_body: bool) -> bytes:
    """Encode a response. `without_body`: for HEAD, with the length of the body."""
    status, body, content_type, headers = answer
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Status"))]
    if status != 204:
        if body:
            lines.append(b"Content-Type: %b\r\n" % content_type)
        lines.append(b"Content-Length: %d\r\n" % len(body))
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"\r\n" if keep_alive else b"Connection: close\r\n\r\n")
    if not without_body and status != 204:
        lines.append(body)
    return b"".join(lines)


def has_token(request: Request) -> bool:
    """Whether the request presents one of the listener's tokens, in any form that senders use. Sets
    `request.principal`, `request.topics` and `request.writer`.
    """
    listener: Listener = request.listener
    if not listener.tokens:
        return True
    kind, _, shown = request.headers.get(b"authorization", b"").partition(b" ")
    kind, shown = kind.lower(), shown.strip()
    user = b""
    if kind in (b"basic", b"apikey"):
        try:
            user, _, shown = binascii.a2b_base64(shown).partition(b":")
        except binascii.Error:
            return False
    elif kind not in (b"bearer", b"splunk"):
        return False
    known: Token | None = None
    for token in listener.tokens:  # all of them are compared, so that the time reveals nothing
        if hmac.compare_digest(token.value.encode(), shown):
            known = token
    if known is None or (known.paths and not _path_matcher(known.paths)(request.path)):
        return False
    request.principal = user
    request.topics = known.topics or listener.topics
    request.writer = known.principal or listener.principal
    return True


@cache
def _path_matcher(paths: tuple[str, ...]) -> Callable[[str], bool]:
    return matcher(paths)


def split_target(target: str) -> tuple[str, str]:
    """Return the decoded path and the query of a request's target, also of an absolute one."""
    if target[:1] != "/" and "://" in target:
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    if "%" in path:
        from urllib.parse import unquote

        path = unquote(path)
    return path, query


def open_body(request: Request, body: bytes) -> Generator[None, None, HttpResponse | None]:
    """Put the body without its content encoding into the request, in steps; or return what is wrong
    with it."""
    limit_bytes = request.listener.decompressed_bytes_max
    coding = request.headers.get(b"content-encoding", b"").strip().lower()
    if coding in IDENTITY or not body:
        request.body = body
        return None
    name = _CODINGS.get(coding)
    if coding.replace(b" ", b"") == _EITHER:
        name = "gzip" if body[:2] == _GZIP_BEGINNING else "deflate"
    if name is None:
        known = ", ".join(sorted(text.decode() for text in _CODINGS))
        return refusal(415, f"content encoding {coding.decode('latin-1')[:40]} is not known", "Content-Encoding", f"use one of {known}, or none")
    try:
        request.body = yield from inflate_slowly(name, body, limit_bytes)
    except TooLarge:
        return refusal(413, f"the body holds more than {limit_bytes} bytes when it is opened", "Content-Encoding", "send smaller requests")
    except NotCompressed as problem:
        return refusal(400, f"the body is not what its Content-Encoding says: {problem}", "Content-Encoding", "send what the header says, or no such header")
    request.content_encoding = coding
    return None
