"""Requests to HTTP inputs without a connection: what an endpoint is given, and what it answers at once or when its unit settles."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.http.http_endpoints import FoundPath, find_path
from services.ingest.protocols.http.http_request import HttpResponse, PendingResponse, Request, finish_slowly
from services.ingest.protocols.steps import run_to_end
from services.ingest.records.ack_group import AckOutcome
from services.ingest.records.event import EventSource
from tests.support.recording_intake import RecordingIntake

HTTP = Listener("http", Protocol.HTTP, ListenerTransport.TCP, 0)
SOURCE = EventSource(b"192.0.2.7:40312", b"192.0.2.7", b"http")


class Asked(NamedTuple):
    """One request, and every answer to it so far."""

    request: Request
    answers: list[HttpResponse]

    @property
    def answer(self) -> HttpResponse:
        """The one answer."""
        (answer,) = self.answers
        return answer

    @property
    def json(self) -> Any:
        return orjson.loads(self.answer.body)


def ask(
    intake: RecordingIntake,
    path: str,
    body: bytes = b"",
    query: str = "",
    headers: dict[bytes, bytes] | None = None,
    method: str = "POST",
    listener: Listener = HTTP,
    content_encoding: bytes = b"",
) -> Asked:
    """The request through the table of paths."""
    request = Request(method, path, query, headers or {}, listener, SOURCE, intake)
    request.body, request.content_encoding = body, content_encoding
    found = find_path(method, path)
    assert isinstance(found, FoundPath), found
    request.pattern, request.arguments, request.busy = found.path.pattern, found.arguments, found.path.busy_answer
    asked = Asked(request, [])
    request.on_answer(asked.answers.append)
    answer = run_to_end(finish_slowly(found.path.endpoint(request)))
    if not isinstance(answer, PendingResponse):
        asked.answers.append(answer)
    return asked


def stored(intake: RecordingIntake, path: str, body: bytes = b"", **more: Any) -> Asked:
    """The same; what it waits for is stored."""
    asked = ask(intake, path, body, **more)
    intake.complete_all(AckOutcome.STORED)
    return asked


def documents(intake: RecordingIntake) -> list[dict[str, Any]]:
    """What the taken records are."""
    return [orjson.loads(record.value) for record in intake.records]
