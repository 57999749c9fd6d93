"""`GET /api/search`: searches the stored records of a topic; the answer is streamed as lines of JSON.

Parameters: `topic`, `query`, `since` and `until` (an age as 2h, an ISO 8601 time, or milliseconds),
`limit`, `order` (oldest, newest), `count`, `by` (names with commas), `partition` (with commas),
`follow`. A mistake is 400 with its column, an unknown topic 404, too many searches 429. A client
that closes the connection ends the search.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from appliance.base.time_texts import parse_moment
from services.console.search_processes import SearchAnswer, SearchProcesses

CONTENT_TYPE = "application/x-ndjson"
STREAMED = "millrace.streamed_bytes"
"""In the scope: the bytes of a streamed answer so far. While it grows, the answer has time."""
_NAMES = frozenset({"topic", "query", "since", "until", "limit", "order", "count", "by", "partition", "follow"})
_FLAGS = {"": True, "1": True, "true": True, "0": False, "false": False}


class WrongParameter(ValueError):
    """A parameter that is unknown or has no valid value."""


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
    numbers = {"limit": [parameters.get("limit", "0")], "partitions": parameters["partition"].split(",") if parameters.get("partition") else []}
    for name, texts in numbers.items():
        if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
            raise WrongParameter(f"{name.removesuffix('s')} is {','.join(texts)[:40]!r}; it must be a whole number")
    return request | {"limit": int(numbers["limit"][0]), "partitions": [int(text) for text in numbers["partitions"]]}


class SearchRoute:
    """The handler. `headers` go with each answer; `may_search` judges the client of a request."""

    def __init__(
        self, processes: SearchProcesses, wall_ms: Callable[[], int], headers: dict[str, str], may_search: Callable[[Request], bool] = lambda _request: True
    ) -> None:
        self._may_search = may_search
        self._processes = processes
        self._wall_ms = wall_ms
        self._headers = headers

    async def answer(self, request: Request) -> Response:
        """Answer a GET."""
        if not self._may_search(request):
            return self._refused(403, {"error": "this client may not search; use `millrace search` on the box, or see http.details.allowed.networks"})
        try:
            wanted = search_request(request.query_params, self._wall_ms())
        except WrongParameter as problem:
            return self._refused(400, {"error": str(problem)})
        if self._processes.is_busy:
            return self._refused(429, {"error": "as many searches run as search.processes.max allows; wait for one to end"})
        answer = await self._processes.start(orjson.dumps(wanted))
        first = await answer.first_line()
        if not first or b'"error"' in first[:10]:
            answer.close()
            error: dict[str, Any] = orjson.loads(first)["error"] if first else {"status": 500, "message": "the search process failed; the journal says why"}
            return self._refused(error["status"], {"error": error["message"], "column": error.get("column")})
        return StreamingResponse(self._stream(request, first, answer), media_type=CONTENT_TYPE, headers=self._headers)

    async def _stream(self, request: Request, first: bytes, answer: SearchAnswer) -> AsyncIterator[bytes]:
        request.scope[STREAMED] = len(first)
        try:
            yield first
            async for chunk in answer.rest():
                request.scope[STREAMED] += len(chunk)
                yield chunk
        finally:
            answer.close()

    def _refused(self, status: int, document: dict[str, Any]) -> Response:
        return Response(orjson.dumps(document) + b"\n", status, media_type="application/json", headers=self._headers)
