"""One HTTP request as an endpoint sees it, and what the endpoint says to it.

A request is whole: its body is there, bounded, and its content encoding is off. An endpoint either answers at once, or opens a unit, gives it records and
returns `WAITING`; the answer is made when the unit has settled. Owned by one session (`http_session`, `http2_session`). Weak: a body is in memory twice for
a moment, as it came and opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import orjson

from appliance.base.invariants import check
from appliance.senders.listener import Listener
from services.ingest.records.ack_group import IDENTITY_BYTES, AckGroup, AckOutcome
from services.ingest.records.event import EventSource
from services.ingest.records.intake import Intake

JSON, TEXT = b"application/json", b"text/plain"
IDEMPOTENCY_KEY_HEADER = b"idempotency-key"
RECORDS_MAX = 100_000
"""Of one request: whoever takes it has a turn for itself, and nobody else is served meanwhile."""
BUSY_SECONDS = 1
"""What Retry-After says: a disk that is behind is usually back within a second, and a sender that comes too early is told so again."""
Headers = tuple[tuple[bytes, bytes], ...]


class HttpResponse(NamedTuple):
    """What goes back. The session adds Content-Type, Content-Length and Connection."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: Headers = ()


class PendingResponse:
    """The request is answered when its unit has settled."""


WAITING: Final = PendingResponse()


class Request:
    """One request. `arguments` are the names of the path's pattern, `headers` have lower-case names, `body` is without its content encoding."""

    __slots__ = (
        "_answer",
        "_query",
        "arguments",
        "body",
        "busy",
        "content_encoding",
        "headers",
        "intake",
        "is_answered",
        "listener",
        "method",
        "path",
        "pattern",
        "principal",
        "query_string",
        "source",
        "unit",
    )

    def __init__(self, method: str, path: str, query_string: str, headers: dict[bytes, bytes], listener: Listener, source: EventSource, intake: Intake) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        self.listener = listener
        self.source = source
        self.intake = intake
        self.pattern = ""
        self.arguments: dict[str, str] = {}
        self.principal = b""
        """Who showed the token, where its form has a name (basic); else nothing."""
        self.body = b""
        self.content_encoding = b""
        """What was taken off the body."""
        self.unit: AckGroup | None = None
        self.is_answered = False
        self.busy: Callable[[Request], HttpResponse] = busy_answer
        """How this input says "later"; also the answer to a unit that was refused."""
        self._answer: Callable[[HttpResponse], None] | None = None
        self._query: dict[str, str] | None = None

    # -- reading

    @property
    def query(self) -> dict[str, str]:
        """The query's names; the last of a repeated name wins, a name without a value has an empty one."""
        if self._query is None:
            self._query = _parse_query(self.query_string) if self.query_string else {}
        return self._query

    @property
    def media_type(self) -> bytes:
        """The content type without its parameters, in lower case."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def identity(self, *parts: bytes) -> bytes:
        """16 bytes that stand for `parts` as this sender means them: another listener, user or input with the same parts is another thing."""
        digest = hashlib.blake2b(digest_size=IDENTITY_BYTES)
        for part in (self.listener.name.encode(), self.principal, self.pattern.encode(), *(value.encode() for value in self.arguments.values()), *parts):
            digest.update(b"%d:" % len(part))
            digest.update(part)
        return digest.digest()

    def identities(self) -> Sequence[bytes] | None:
        """The identity that the header `Idempotency-Key` gives to the whole request, None without it."""
        key = self.headers.get(IDEMPOTENCY_KEY_HEADER)
        return [self.identity(key)] if key else None

    # -- answering

    def on_answer(self, answer: Callable[[HttpResponse], None] | None) -> None:
        """Who sends the answer; None: nobody is there any more."""
        self._answer = answer

    def open_unit(self, answer_of: Callable[[AckGroup], HttpResponse], identities: Sequence[bytes] | None = None, topic: str = "") -> AckGroup:
        """A unit whose settlement answers this request: by `answer_of` when its records are stored (now or before), by `busy` when they are refused.
        Without `identities` the header `Idempotency-Key` decides."""
        check(self.unit is None, "a request has one unit")

        def on_completed(unit: AckGroup) -> None:
            self.unit = None
            self.answer(self.busy(self) if unit.outcome is AckOutcome.REFUSED else answer_of(unit))

        self.unit = AckGroup(self.listener, self.source, self.identities() if identities is None else identities, on_completed, topic)
        return self.unit

    def answer(self, answer: HttpResponse) -> None:
        """Once. An answer to a sender that has gone is dropped."""
        check(not self.is_answered, "a request is answered once")
        self.is_answered = True
        send, self._answer = self._answer, None
        if send is not None:
            send(answer)


Endpoint = Callable[[Request], HttpResponse | PendingResponse]


def refusal(status: int, what: str, where: str = "", do: str = "", retry_after_s: int | None = None, headers: Headers = ()) -> HttpResponse:
    """A no in words: what is wrong, where, and what to do about it."""
    words = {"what": what, "where": where, "do": do}
    if retry_after_s is not None:
        headers = (*headers, (b"Retry-After", b"%d" % retry_after_s))
    return HttpResponse(status, orjson.dumps({name: text for name, text in words.items() if text}), JSON, headers)


def busy_answer(request: Request) -> HttpResponse:
    """503: nothing of the request was stored for sure; it may come again as it is."""
    do = "send the same request again, later"
    return refusal(503, "the records cannot be stored now: disks are behind, or a leader is away", request.path, do, BUSY_SECONDS)


def too_many_answer(request: Request) -> HttpResponse:
    """429, for senders whose protocol waits on that."""
    return busy_answer(request)._replace(status=429)


def _parse_query(text: str) -> dict[str, str]:
    from urllib.parse import parse_qsl

    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        return {}
