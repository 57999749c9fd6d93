"""Keeps web pages of other sites out of an HTTP listener, and lets in those of `allow-origin`.

`refuse_page` is called with each request's header. A request of a program has no `Origin` and no
`Sec-Fetch-Site`, and passes. An allowed page gets the headers of CORS with every answer, also with
a refusal, and an answer to its preflight, which has no token. The name in `Host` is not checked
where a token or a certificate says more than it. Pure.
"""

from __future__ import annotations

import re

from appliance.base.http_hosts import is_allowed_origin, is_cross_site, is_known_host
from appliance.senders.listener import ListenerTransport
from services.ingest.protocols.http.http_request import Headers, HttpResponse, Request, refusal
from services.ingest.records.intake import RefusedReason

PREFLIGHT_SECONDS = 600
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,1000}\Z")


def refuse_page(request: Request) -> HttpResponse | None:
    """Return the answer to a request of a page that may not send here, or to a preflight; None for
    every other request. Counts what it refuses.
    """
    headers, listener = request.headers, request.listener
    host = headers.get(b":authority") or headers.get(b"host", b"")
    if not is_known_host(host, listener.host_names) and not listener.tokens and listener.transport is not ListenerTransport.TLS:
        request.intake.refuse(listener, request.source, RefusedReason.UNKNOWN_HOST)
        shown = host[:100].decode("latin-1")
        return refusal(421, f"this box is not known as {shown}", "Host", "use its address, or name it in http.allowed.hosts in the settings of the box")
    if b"origin" not in headers and b"sec-fetch-site" not in headers:
        return None
    return _admit_page(request, host)


def _admit_page(request: Request, host: bytes) -> HttpResponse | None:
    headers, listener = request.headers, request.listener
    origin = headers.get(b"origin")
    if origin is not None and is_allowed_origin(origin, listener.allow_origin):
        request.cors_headers = _answer_headers(origin)
        if request.method == "OPTIONS" and b"access-control-request-method" in headers:
            return HttpResponse(204, headers=_preflight_headers(headers.get(b"access-control-request-headers", b"")))
        return None
    if not is_cross_site(headers, host):
        return None
    request.intake.refuse(listener, request.source, RefusedReason.CROSS_SITE)
    shown = origin[:100].decode("latin-1") if origin else "another site"
    return refusal(403, f"a page of {shown} may not send here", "Origin", 'allow its origin with allow-origin = ["https://…"] in the table of the listener')


def _answer_headers(origin: bytes) -> Headers:
    return ((b"Access-Control-Allow-Origin", origin), (b"Access-Control-Expose-Headers", b"Retry-After"), (b"Vary", b"Origin"))


def _preflight_headers(wanted: bytes) -> Headers:
    """The answer to a preflight. A browser that asks before it leaves a public network (Private
    Network Access) gets its permission as well.
    """
    names = wanted if _HEADER_NAMES.match(wanted) else b"Content-Type"
    return (
        (b"Access-Control-Allow-Methods", b"GET, POST, PUT"),
        (b"Access-Control-Allow-Headers", names),
        (b"Access-Control-Allow-Private-Network", b"true"),
        (b"Access-Control-Max-Age", b"%d" % PREFLIGHT_SECONDS),
    )
