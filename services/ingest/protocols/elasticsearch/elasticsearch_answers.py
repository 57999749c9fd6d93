"""The form of answers to Elasticsearch's clients: error objects, content types, a required header;
and `filter_path`, the parts of an answer that a client asks for.

Clients from 7.14 on stop at an answer without `X-Elastic-Product`; clients of 8 and 9 ask for a
content type with their version and get it. `filter_path` is a list such as `errors,items.*.error`:
`*` matches one name or a part of it, `**` any number of names, a leading `-` excludes. Elements of
lists are filtered under the name of the list. A filter is compiled once and cached, because a
client sends the same one with every request. Pure. Weak: patterns and their number are limited; a
filter above the limits is ignored, and the client gets everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from services.ingest.protocols.document import encode_document
from services.ingest.protocols.http.http_request import BUSY_SECONDS, JSON, Headers, HttpResponse, Request

VERSION: Final = "8.19.0"
"""The version of the API. Beats and Logstash of 8 and 9 accept it; clients of 9 do not check."""
PRODUCT: Final = (b"X-Elastic-Product", b"Elasticsearch")
_VENDOR_JSON: Final = b"application/vnd.elasticsearch+json"


def json_answer(request: Request, status: int, document: Any, headers: Headers = ()) -> HttpResponse:
    """Return a response with the header and content type that the client wants."""
    return HttpResponse(status, encode_document(document), _content_type(request), (PRODUCT, *headers))


def error_answer(request: Request, status: int, kind: str, reason: str, headers: Headers = ()) -> HttpResponse:
    """Return the error response to a whole request."""
    cause = {"type": kind, "reason": reason}
    return json_answer(request, status, {"error": {"root_cause": [cause], **cause}, "status": status}, headers)


def busy(request: Request) -> HttpResponse:
    """Return 429: clients wait and send the request again."""
    reason = "the records cannot be stored now: disks are behind, or a leader is away; send the same request again"
    return error_answer(request, 429, "es_rejected_execution_exception", reason, ((b"Retry-After", b"%d" % BUSY_SECONDS),))


def unauthorized(request: Request) -> HttpResponse:
    """Return 401."""
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


FILTER_BYTES_MAX = 1024
PATHS_MAX = 32
NAMES_MAX = 8
"""Limit for one path; each `**` multiplies the work."""
_ANY_DEPTH = "**"
_Path = tuple[re.Pattern[str] | None, ...]  # None: any number of names


class AnswerFilter:
    """The compiled `filter_path` of a request."""

    def __init__(self, wanted: Iterable[_Path], unwanted: Iterable[_Path]) -> None:
        self._wanted = tuple(wanted)
        self._unwanted = tuple(unwanted)

    def apply(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of the answer that are left; the argument is not changed."""
        kept: Any = answer
        if self._wanted:
            kept = _keep(answer, self._wanted)
        if self._unwanted and kept is not _NOTHING:
            kept = _leave_out(kept, self._unwanted)
        return kept if isinstance(kept, dict) else {}


@lru_cache(maxsize=64)
def answer_filter(text: str) -> AnswerFilter | None:
    """Compile a `filter_path`; None if there is none, or it is above the limits."""
    if not text or len(text) > FILTER_BYTES_MAX:
        return None
    paths = [path.strip() for path in text.split(",") if path.strip("- ")]
    if len(paths) > PATHS_MAX or any(path.count(".") >= NAMES_MAX for path in paths):
        return None
    wanted = (_compile(path) for path in paths if not path.startswith("-"))
    unwanted = (_compile(path[1:]) for path in paths if path.startswith("-"))
    return AnswerFilter(wanted, unwanted) if paths else None


def _compile(path: str) -> _Path:
    names = path.split(".")
    return tuple(None if name == _ANY_DEPTH else re.compile(".*".join(map(re.escape, re.split(r"\*+", name)))) for name in names)


_NOTHING = object()


def _next(name: str, paths: tuple[_Path, ...]) -> tuple[tuple[_Path, ...], bool]:
    """Return the paths that continue after `name`, and whether one of them ends there."""
    behind: dict[_Path, None] = {}
    ends = False
    for path in paths:
        head = path[0]
        if head is None:
            behind[path] = None
            if len(path) == 1:
                ends = True
                continue
            further, further_ends = _next(name, (path[1:],))
            behind.update(dict.fromkeys(further))
            ends = ends or further_ends
        elif head.fullmatch(name):
            if len(path) == 1:
                ends = True
            else:
                behind[path[1:]] = None
    return tuple(behind), ends


def _keep(value: Any, paths: tuple[_Path, ...]) -> Any:
    if isinstance(value, list):
        found = [kept for element in value if (kept := _keep(element, paths)) is not _NOTHING]
        return found or _NOTHING
    if not isinstance(value, dict):
        return _NOTHING
    kept_names: dict[str, Any] = {}
    for name, inner in value.items():
        behind, ends = _next(name, paths)
        if ends:
            kept_names[name] = inner
        elif behind and (kept := _keep(inner, behind)) is not _NOTHING:
            kept_names[name] = kept
    return kept_names or _NOTHING


def _leave_out(value: Any, paths: tuple[_Path, ...]) -> Any:
    if isinstance(value, list):
        return [_leave_out(element, paths) for element in value]
    if not isinstance(value, dict):
        return value
    left: dict[str, Any] = {}
    for name, inner in value.items():
        behind, ends = _next(name, paths)
        if not ends:
            left[name] = _leave_out(inner, behind) if behind else inner
    return left
