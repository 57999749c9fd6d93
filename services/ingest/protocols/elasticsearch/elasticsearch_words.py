"""How Elasticsearch says things: its error objects, its content types, its header that clients insist on. Values and small functions.

Clients from 7.14 on stop at an answer without `X-Elastic-Product`, and those of 8 and 9 ask for a content type that names their version; they get the one
they asked for. Weak: only the words that senders read are here.
"""

from __future__ import annotations

from typing import Any, Final

from services.ingest.protocols.document import encode_document
from services.ingest.protocols.http.http_request import BUSY_SECONDS, JSON, Answer, Headers, Request

VERSION: Final = "8.19.0"
"""Whose API this is. Beats and Logstash of 8 and 9 go on with it; clients of 9 do not ask."""
PRODUCT: Final = (b"X-Elastic-Product", b"Elasticsearch")
_VENDOR_JSON: Final = b"application/vnd.elasticsearch+json"


def json_answer(request: Request, status: int, document: Any, headers: Headers = ()) -> Answer:
    """An answer with the header and the content type that the client wants."""
    return Answer(status, encode_document(document), _content_type(request), (PRODUCT, *headers))


def error_answer(request: Request, status: int, kind: str, reason: str, headers: Headers = ()) -> Answer:
    """A no to a whole request."""
    cause = {"type": kind, "reason": reason}
    return json_answer(request, status, {"error": {"root_cause": [cause], **cause}, "status": status}, headers)


def busy(request: Request) -> Answer:
    """429: clients wait and send the request again."""
    reason = "the records cannot be stored now: disks are behind, or a leader is away; send the same request again"
    return error_answer(request, 429, "es_rejected_execution_exception", reason, ((b"Retry-After", b"%d" % BUSY_SECONDS),))


def unauthorized(request: Request) -> Answer:
    """401."""
    reason = (
        f"missing or wrong credentials for REST request [{request.path[:200]}]: use basic authentication with a token as password, Bearer TOKEN, or an ApiKey"
    )
    return error_answer(request, 401, "security_exception", reason, ((b"WWW-Authenticate", b'Basic realm="millrace", charset="UTF-8"'),))


def _content_type(request: Request) -> bytes:
    for accepted in request.headers.get(b"accept", b"").split(b","):
        kind, _, parameters = accepted.partition(b";")
        if kind.strip().lower() == _VENDOR_JSON:
            version = parameters.strip()
            if version in (b"compatible-with=7", b"compatible-with=8", b"compatible-with=9"):
                return _VENDOR_JSON + b";" + version
    return JSON
