"""One HTTP request as an endpoint receives it, and the responses of endpoints.

A request is complete: its body is there, within the limit and without its content encoding. An
endpoint either answers at once, or opens an ack group, adds records to it and returns `WAITING`;
the answer is made when the group completes. Owned by one session (`http_session`, `http2_session`).
Weak: for a moment a compressed body is in memory twice, as it arrived and decompressed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from types import GeneratorType
from typing import Final, NamedTuple

import orjson

from appliance.base.invariants import check
from appliance.senders.conditions import matcher
from appliance.senders.listener import Listener
from services.ingest.protocols.steps import Steps, run_to_end
from services.ingest.records.ack_group import IDENTITY_BYTES, AckGroup, AckOutcome
from services.ingest.records.event import EventSource
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.intake import Intake, RefusedReason

JSON, TEXT = b"application/json", b"text/plain"
IDEMPOTENCY_KEY_HEADER = b"idempotency-key"
RECORDS_MAX = 100_000
"""Limit for the records of one request, which are in memory together."""
BUSY_SECONDS = 1
"""The value of Retry-After: a slow disk usually catches up within a second, and a sender that comes
too early gets the same answer again.
"""
Headers = tuple[tuple[bytes, bytes], ...]


class HttpResponse(NamedTuple):
    """A response. The session adds Content-Type, Content-Length and Connection."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: Headers = ()


SlowResponse = Generator[None, None, HttpResponse]
"""A large response that is made in steps."""


class PendingResponse:
    """The request is answered when its ack group completes."""


WAITING: Final = PendingResponse()


def _no_charge(_size_bytes: int) -> None: ...


class Request:
    """One request. `arguments` are the names in the path's pattern, `headers` have lower-case
    names, `body` has no content encoding.
    """

    __slots__ = (
        "_answer",
        "_query",
        "_seen",
        "arguments",
        "body",
        "busy",
        "charge",
        "content_encoding",
        "cors_headers",
        "forbidden",
        "headers",
        "intake",
        "is_answered",
        "listener",
        "method",
        "path",
        "pattern",
        "principal",
        "query_string",
        "quota_wait_ms",
        "run",
        "sender",
        "source",
        "topics",
        "unit",
        "writer",
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
        """The user that presented the token, if its form has one (basic); otherwise empty."""
        self.topics = listener.topics
        """Those of the token, if it has its own."""
        self.writer = listener.principal
        """Whose rights count: of the token, if it has its own; "" if none are needed."""
        self.forbidden: list[tuple[int, str]] = []
        """(number of the record in the request, topic) of records that `permitted` refused."""
        self._seen = 0
        self.sender = source.host
        """The name in the sender's certificate, otherwise its address: a token or user may be known
        to several senders."""
        self.body = b""
        self.content_encoding = b""
        """The content encoding that the body had."""
        self.cors_headers: Headers = ()
        """What each answer to a page of `allow-origin` has."""
        self.unit: AckGroup | None = None
        self.is_answered = False
        self.busy: Callable[[Request], HttpResponse] = busy_answer
        """This input's answer under back-pressure; also the answer to an ack group that was
        refused.
        """
        self.run: Callable[[Steps], None] = run_to_end
        """Runs work that takes longer than a turn (`SessionConnection.run`)."""
        self.charge: Callable[[int], None] = _no_charge
        self.quota_wait_ms = 0
        """How long until its sender is within its quota; 0: it is."""
        self._answer: Callable[[HttpResponse], None] | None = None
        self._query: dict[str, str] | None = None

    # -- reading

    @property
    def query(self) -> dict[str, str]:
        """Return the query's parameters; of a repeated name the last one counts, a name without a
        value has an empty one.
        """
        if self._query is None:
            self._query = _parse_query(self.query_string) if self.query_string else {}
        return self._query

    @property
    def media_type(self) -> bytes:
        """Return the content type in lower case, without its parameters."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def may_name(self, topic: str) -> bool:
        """Whether the sender may name this topic in the request."""
        return self._may_use(topic) if self.topics else topic in self.intake.topics_of(self.listener) and self._may_use(topic)

    def _may_use(self, topic: str) -> bool:
        if self.topics and not _matcher(self.topics)(topic):
            return False
        return not self.writer or self.intake.may_write(self.writer, self.source, topic)

    @property
    def is_limited(self) -> bool:
        """Whether some topics may be forbidden to the sender."""
        return bool(self.topics or self.writer)

    def forbidden_topic(self, record: IngestRecord) -> str:
        """Return a topic that the record goes to and the sender may not use; "" if there is none."""
        return next((topic for topic in self.intake.topics_of(self.listener, record) if not self._may_use(topic)), "")

    def permitted(self, records: Sequence[IngestRecord]) -> Sequence[IngestRecord]:
        """Return the records whose topics by the routes the sender may use. The others are refused,
        counted and noted in `forbidden`; the endpoint reports them in its answer."""
        positions = self.permitted_positions(records)
        return records if len(positions) == len(records) else [records[position] for position in positions]

    def permitted_positions(self, records: Sequence[IngestRecord]) -> Sequence[int]:
        """As `permitted`; return the positions of the records."""
        if not self.is_limited or all(map(self._may_use, self.intake.topics_of(self.listener))):
            return range(len(records))
        positions: list[int] = []
        for position, record in enumerate(records):
            if topic := self.forbidden_topic(record):
                self.forbidden.append((self._seen + position, topic))
            else:
                positions.append(position)
        self._seen += len(records)
        if refused := len(records) - len(positions):
            self.intake.refuse(self.listener, self.source, RefusedReason.FORBIDDEN_TOPIC, refused)
        return positions

    @property
    def forbidden_words(self) -> str:
        """Return how many records `permitted` refused, and a topic of them."""
        return f"{len(self.forbidden)} records may not be sent to topic {self.forbidden[0][1]} with these credentials, the others are stored"

    def identity(self, *parts: bytes) -> bytes:
        """Return an identity of 16 bytes for `parts`; it differs for another listener, sender, user
        or input.
        """
        digest = hashlib.blake2b(digest_size=IDENTITY_BYTES)
        for part in (
            self.listener.name.encode(),
            self.sender,
            self.principal,
            self.pattern.encode(),
            *(value.encode() for value in self.arguments.values()),
            *parts,
        ):
            digest.update(b"%d:" % len(part))
            digest.update(part)
        return digest.digest()

    def identities(self) -> Sequence[bytes] | None:
        """Return the identity of the whole request from its header `Idempotency-Key`; None without
        it.
        """
        key = self.headers.get(IDEMPOTENCY_KEY_HEADER)
        return [self.identity(key)] if key else None

    # -- answering

    def on_answer(self, answer: Callable[[HttpResponse], None] | None) -> None:
        """Sends the answer; None: the connection is closed."""
        self._answer = answer

    def open_unit(self, answer_of: Callable[[AckGroup], HttpResponse | SlowResponse], identities: Sequence[bytes] | None = None, topic: str = "") -> AckGroup:
        """Open an ack group that answers this request: `answer_of` when its records are stored (now
        or before), `busy` when they are refused. Without `identities` the header `Idempotency-Key`
        identifies it.
        """
        check(self.unit is None, "a request has one unit")

        def on_completed(unit: AckGroup) -> None:
            self.unit = None
            answer = self.busy(self) if unit.outcome is AckOutcome.REFUSED else answer_of(unit)
            if isinstance(answer, HttpResponse):
                self.answer(answer)
            else:
                self.run(self._answer_slowly(answer))

        self.unit = AckGroup(self.listener, self.source, self.identities() if identities is None else identities, on_completed, topic)
        return self.unit

    def _answer_slowly(self, steps: SlowResponse) -> Steps:
        self.answer((yield from steps))

    def abandon(self) -> None:
        """The rest of the body is not taken: the connection is gone, or the process stops."""
        if self.unit is not None:
            self.intake.abandon(self.unit)

    def answer(self, answer: HttpResponse) -> None:
        """Send the answer, once. It is dropped if the sender has disconnected."""
        check(not self.is_answered, "a request is answered once")
        self.is_answered = True
        send, self._answer = self._answer, None
        if send is not None:
            send(answer._replace(headers=(*answer.headers, *self.cors_headers)) if self.cors_headers else answer)


Result = HttpResponse | PendingResponse
SlowResult = Generator[None, None, Result]
"""An endpoint that takes the records of its request in steps."""
Endpoint = Callable[[Request], Result | SlowResult]


def finish_slowly(result: Result | SlowResult) -> SlowResult:
    """Run what an endpoint has returned to its result."""
    if isinstance(result, GeneratorType):
        result = yield from result
    return result  # type: ignore[return-value]


def refusal(status: int, what: str, where: str = "", do: str = "", retry_after_s: int | None = None, headers: Headers = ()) -> HttpResponse:
    """Return an error response: what is wrong, where, and what to do."""
    words = {"what": what, "where": where, "do": do}
    if retry_after_s is not None:
        headers = (*headers, (b"Retry-After", b"%d" % retry_after_s))
    return HttpResponse(status, orjson.dumps({name: text for name, text in words.items() if text}), JSON, headers)


def busy_answer(request: Request) -> HttpResponse:
    """Return 503: nothing of the request is certain to be stored; the sender may repeat it."""
    do = "send the same request again, later"
    return refusal(503, "the records cannot be stored now: disks are behind, or a leader is away", request.path, do, BUSY_SECONDS)


OVER_QUOTA_WORDS = "the sender, or all senders of this listener together, have exceeded their quota"


def over_quota_answer(request: Request) -> HttpResponse:
    """Return 429 with the time after which the sender is within its quota."""
    do = "send less, or raise ingest.sender.bytes.per.second or ingest.sender.records.per.second"
    return refusal(429, OVER_QUOTA_WORDS, request.path, do, -(-request.quota_wait_ms // 1000))


def too_many_answer(request: Request) -> HttpResponse:
    """Return 429, for senders whose protocol waits for it."""
    return busy_answer(request)._replace(status=429)


@lru_cache(maxsize=256)
def _matcher(topics: tuple[str, ...]) -> Callable[[str], bool]:
    return matcher(topics)


def _parse_query(text: str) -> dict[str, str]:
    from urllib.parse import parse_qsl

    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        return {}
