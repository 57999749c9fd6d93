"""`GET /api/search`: searches the stored records of a topic; the answer is streamed as lines of JSON.

Parameters: `topic`, `query`, `since` and `until` (an age as 2h, an ISO 8601 time, or milliseconds),
`limit`, `order` (oldest, newest), `count`, `by` (names with commas), `partition` (with commas),
`before` and `after` (records around each match), `follow`. A mistake is 400 with its column, an unknown topic 404, too many searches 429. A client
that closes the connection ends the search. `/api/search/check` parses `query` only, for a page that
shows mistakes while they are typed, and returns the texts that the page marks in the records.
Regular expressions are compiled by the search process alone: the loop here serves others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from appliance.base.time_texts import parse_moment
from appliance.senders.record_query import And, Contains, Equals, Node, Or, QueryProblem, Regex, parse_query
from services.console.parameters import WrongParameter
from services.console.search_processes import SearchAnswer, Searcher, SearchProcesses

CONTENT_TYPE = "application/x-ndjson"
STREAMED = "millrace.streamed_bytes"
"""In the scope: the bytes of a streamed answer so far. While it grows, the answer has time."""
FIRST_LINE_SECONDS = 25.0
"""Shorter than `console_connections.ANSWER_SECONDS`, so that the client learns the reason."""
_NAMES = frozenset({"topic", "query", "since", "until", "limit", "order", "count", "by", "partition", "before", "after", "follow"})
_FLAGS = {"": True, "1": True, "true": True, "0": False, "false": False}


async def _departure(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def search_request(parameters: QueryParams, now_ms: int) -> dict[str, Any]:
    """Return the request for the search process. Raises `WrongParameter`."""
    if unknown := sorted(set(parameters) - _NAMES):
        raise WrongParameter(f"there is no parameter {unknown[0]}; there are {', '.join(sorted(_NAMES))}")
    if not parameters.get("topic"):
        raise WrongParameter("the parameter topic is missing")
    request: dict[str, Any] = {"query": parameters.get("query", ""), "topic": parameters["topic"], "order": parameters.get("order", "oldest")}
    for name in ("since", "until"):
        if text := parameters.get(name):
            try:
                request[f"{name}_ms"] = parse_moment(text.replace(" ", "+"), now_ms)  # a + in a query string is a space
            except ValueError as problem:
                raise WrongParameter(f"{name}: {problem}") from problem
    for name, field in (("count", "is_count"), ("follow", "follow")):
        if (text := parameters.get(name, "false").lower()) not in _FLAGS:
            raise WrongParameter(f"{name} is {text!r}; it must be true or false")
        request[field] = _FLAGS[text]
    if by := parameters.get("by"):
        request["by"] = by.split(",")
    counts = ("limit", "before", "after")
    numbers = {name: [parameters.get(name) or "0"] for name in counts}
    numbers["partitions"] = parameters["partition"].split(",") if parameters.get("partition") else []
    for name, texts in numbers.items():
        if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
            raise WrongParameter(f"{name.removesuffix('s')} is {','.join(texts)[:40]!r}; it must be a whole number")
    return request | {name: int(numbers[name][0]) for name in counts} | {"partitions": [int(text) for text in numbers["partitions"]]}


def marks_of(node: Node) -> Iterator[dict[str, Any]]:
    """Yield the texts and expressions that a record of this query contains, for highlighting."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from marks_of(part)
        case Contains(field, pieces):
            yield {"field": field, "pieces": pieces}
        case Equals(field, pieces) if any(pieces):
            yield {"field": field, "pieces": pieces, "is_whole": True}
        case Regex(field, pattern):
            yield {"field": field, "regex": pattern}


class SearchStream(StreamingResponse):
    """An answer that ends its search however it ends: if a client leaves while the header waits
    to be sent, the content never starts, and its own `finally` would not run."""

    def __init__(self, content: AsyncIterator[bytes], answer: SearchAnswer, headers: dict[str, str]) -> None:
        super().__init__(content, media_type=CONTENT_TYPE, headers=headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


class SearchRoute:
    """The handlers. `headers` go with each answer; `may_search` judges the client of a request, `why_not_topic` the
    topic that it wants to search."""

    def __init__(
        self,
        processes: SearchProcesses,
        wall_ms: Callable[[], int],
        headers: dict[str, str],
        may_search: Callable[[Request], bool] = lambda _request: True,
        first_line_seconds: float = FIRST_LINE_SECONDS,
        why_not_topic: Callable[[Request, str], Awaitable[tuple[int, str] | None]] | None = None,
    ) -> None:
        self._why_not_topic = why_not_topic
        self._first_line_seconds = first_line_seconds
        self._may_search = may_search
        self._processes = processes
        self._wall_ms = wall_ms
        self._headers = headers

    async def answer(self, request: Request) -> Response:
        """Answer a GET of records."""
        if (why := self._why_not(request)) is not None:
            return why
        try:
            wanted = search_request(request.query_params, self._wall_ms())
            parse_query(wanted["query"], compiles=False)
        except WrongParameter as problem:
            return self._refused(400, {"error": str(problem)})
        except QueryProblem as problem:
            return self._wrong_query(problem)
        if self._why_not_topic is not None and (refused := await self._why_not_topic(request, wanted["topic"])) is not None:
            return self._refused(refused[0], {"error": refused[1]})
        searcher = Searcher(None if request.client is None else request.client.host, wanted["follow"])
        if (busy := self._processes.why_busy(searcher)) is not None:
            return self._refused(429, {"error": busy})
        answer = await self._processes.start(orjson.dumps(wanted), searcher)
        try:
            first = await self._first_line(request, answer)
        except BaseException:
            answer.close()
            raise
        if first is None:
            answer.close()
            return self._refused(504, {"error": "the search has not begun in time: a disk may hang; look at `millrace status`"})
        if not first or b'"error"' in first[:10]:
            answer.close()
            error: dict[str, Any] = orjson.loads(first)["error"] if first else {"status": 500, "message": "the search process failed; the journal says why"}
            return self._refused(error["status"], {"error": error["message"], "column": error.get("column")})
        return SearchStream(self._stream(request, first, answer), answer, self._headers)

    async def check(self, request: Request) -> Response:
        """Answer a GET of what a query means."""
        if (why := self._why_not(request)) is not None:
            return why
        try:
            node = parse_query(request.query_params.get("query", ""), compiles=False)
        except QueryProblem as problem:
            return self._wrong_query(problem)
        return Response(orjson.dumps({"marks": list(marks_of(node))}) + b"\n", media_type="application/json", headers=self._headers)

    def _why_not(self, request: Request) -> Response | None:
        if not self._may_search(request):
            return self._refused(403, {"error": "this client may not search; use `millrace search` on the box, or see http.details.allowed.networks"})
        if self._processes.is_off:
            return self._refused(503, {"error": "searching is switched off: search.processes.max is 0 in the settings of the box"})
        return None

    def _wrong_query(self, problem: QueryProblem) -> Response:
        return self._refused(400, {"error": str(problem), "column": problem.column})

    async def _first_line(self, request: Request, answer: SearchAnswer) -> bytes | None:
        """Return the first line; None if it does not come in time, or the client has gone."""
        line = asyncio.ensure_future(answer.first_line())
        gone = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait({line, gone}, timeout=self._first_line_seconds, return_when=asyncio.FIRST_COMPLETED)
            return line.result() if line.done() else None
        finally:
            line.cancel()
            gone.cancel()

    async def _stream(self, request: Request, first: bytes, answer: SearchAnswer) -> AsyncIterator[bytes]:
        request.scope[STREAMED] = len(first)
        yield first
        async for chunk in answer.rest():
            if not self._may_search(request):
                return  # its login is over
            request.scope[STREAMED] += len(chunk)
            yield chunk

    def _refused(self, status: int, document: dict[str, Any]) -> Response:
        return Response(orjson.dumps(document) + b"\n", status, media_type="application/json", headers=self._headers)
