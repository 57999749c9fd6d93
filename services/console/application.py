"""The HTTP routes of the console: the first page and its JSON, `/metrics`, `/healthz` (a process
runs), `/readyz` (the whole box serves), `/api/search`.

It owns no socket; `services.console.agent` serves it. The page loads nothing from other sites; its
policy forbids that. Pages of other sites may link to it, and get nothing else. Rights are in
`access.py`; without users of the console (`person_guard.py`) there is no authentication, and each client
that reaches the port can read the names of topics and groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.base.clock import SystemClock
from appliance.base.errors import MillraceError
from appliance.base.http_hosts import is_cross_site, is_known_host, is_navigation
from services.console.access import Access
from services.console.box_metrics import CONTENT_TYPE
from services.console.box_sample import Readiness
from services.console.figure_history import DAY_MS, HistorySpan
from services.console.kafka_routes import PRODUCE_PATH, RECORD_BODY_BYTES_MAX, KafkaRoutes, SampledBox
from services.console.kafka_workers import KafkaWorkers
from services.console.login_routes import LoginRoutes, Users
from services.console.pages import ASSETS, PAGES, whole_page
from services.console.person_guard import PersonGuard, person_of
from services.console.person_rights import STALE, PersonRights, Visible, is_refused_login
from services.console.persons import Person
from services.console.search_processes import SearchProcesses
from services.console.search_route import SearchRoute

BODY_BYTES_MAX = 64 << 10
"""A larger body is refused before it is sent; of GET a small one is discarded."""
HEADER_BYTES_MAX = 16 << 10
PATH_BYTES_MAX = 4 << 10
HISTORY_MS_MAX = 31 * DAY_MS

_HTML = "text/html; charset=utf-8"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FROM_US = ("script-src", "style-src", "img-src", "connect-src")
_FROM_NOBODY = ("default-src", "base-uri", "form-action", "frame-ancestors")
_POLICY = "; ".join([f"{kind} 'self'" for kind in _FROM_US] + [f"{kind} 'none'" for kind in _FROM_NOBODY])
_PAGE_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
_PAGE_HEADERS["Cross-Origin-Resource-Policy"] = "same-origin"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


class Watch(SampledBox, Protocol):
    """The methods of `BoxMonitor` that the routes use."""

    def overview(self, since_ms: int, visible: Visible) -> dict[str, Any]: ...

    def topics(self, contained: str, with_internal: bool, visible: Visible) -> dict[str, Any]: ...

    def senders(self) -> dict[str, Any]: ...

    def alarms_document(self, visible: Visible) -> dict[str, Any]: ...

    def figures_between(self, span: HistorySpan) -> dict[str, Any]: ...

    def metrics(self, shows_release: bool) -> bytes: ...

    def is_alive(self) -> bool: ...

    def readiness(self) -> Readiness: ...


def make_application(
    watch: Watch,
    host_names: frozenset[str],
    access: Access,
    on_refused: Callable[[str], None],
    search: SearchProcesses | None = None,
    workers: KafkaWorkers | None = None,
    users: Users | None = None,
) -> Starlette:
    """Return the ASGI application. It answers to IP addresses and `host_names`; `on_refused` counts
    refused pages of other sites, by reason. Without `search` or `workers` there are no
    routes for them; without `users` there is no login.
    """
    kafka = None if workers is None else KafkaRoutes(workers, access, SystemClock.wall_ms, _HEADERS, watch, on_refused)
    rights = PersonRights(None, False, SystemClock.monotonic_ms) if kafka is None else kafka.rights

    async def why_not_topic(request: Request, topic: str) -> tuple[int, str] | None:
        person = person_of(request.scope)
        try:
            return await rights.why_not_read(person, topic)
        except (MillraceError, TimeoutError) as problem:
            return _unknown_rights(access, person, problem)

    def may_search(request: Request) -> bool:
        return request.method == "GET" and access.why_not_read(request) is None

    async def see(request: Request) -> Visible | Response:
        person = person_of(request.scope)
        try:
            return await rights.visible(person)
        except (MillraceError, TimeoutError) as problem:
            status, words = _unknown_rights(access, person, problem)
            return _answer(status, {"error": words})

    async def healthz(_request: Request) -> Response:
        alive = watch.is_alive()
        return _answer(200 if alive else 503, {"status": "alive" if alive else "no process of the box runs except the console"})

    async def readyz(_request: Request) -> Response:
        readiness = watch.readiness()
        status = "ready" if readiness.is_ready else "not ready"
        return _answer(200 if readiness.is_ready else 503, {"status": status, "processes": readiness.processes, "missing": readiness.missing})

    async def metrics(request: Request) -> Response:
        return Response(watch.metrics(access.sees_details(request)), media_type=CONTENT_TYPE, headers=_HEADERS)

    async def overview(request: Request) -> Response:
        visible = await see(request)
        if isinstance(visible, Response):
            return visible
        document = watch.overview(time_of(request, "since"), visible) | hidden_by(visible)
        return _answer(200, document if access.sees_details(request) else without_details(document))

    async def history(request: Request) -> Response:
        span = HistorySpan(time_of(request, "from"), time_of(request, "to"))
        if not 0 < span.end_ms - span.start_ms <= HISTORY_MS_MAX:
            return _answer(400, {"error": f"from must be before to, by at most {HISTORY_MS_MAX} ms"})
        visible = await see(request)  # they name nothing, but the login must hold
        return visible if isinstance(visible, Response) else _answer(200, watch.figures_between(span))

    async def alarms(request: Request) -> Response:
        visible = await see(request)
        if isinstance(visible, Response):
            return visible
        document = watch.alarms_document(visible) | hidden_by(visible)
        return _answer(200, document if access.sees_details(request) else document | {"push": {}, "problems": []})

    async def topics(request: Request) -> Response:
        contained, internal = request.query_params.get("contains", ""), request.query_params.get("internal", "") not in ("", "0", "false")
        visible = await see(request)
        return visible if isinstance(visible, Response) else _answer(200, watch.topics(contained, internal, visible) | hidden_by(visible))

    async def senders(request: Request) -> Response:
        if not access.sees_details(request):
            return _answer(
                403, {"error": "addresses of senders are shown to http.details.allowed.networks only; on the box: `millrace ingest status --senders`"}
            )
        visible = await see(request)
        return visible if isinstance(visible, Response) else _answer(200, watch.senders())

    routes = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/api/overview", overview),
        Route("/api/history", history),
        Route("/api/alarms", alarms),
        Route("/api/topics", topics),
        Route("/api/senders", senders),
        *(Route(page.path, _file(whole_page(page), _HTML)) for page in PAGES),
        *(Route(f"/assets/{path.name}", _file(path.read_bytes(), _TYPES[path.suffix])) for path in sorted(ASSETS.iterdir()) if path.suffix in _TYPES),
    ]
    if search is not None:
        route = SearchRoute(search, SystemClock.wall_ms, _HEADERS, may_search, why_not_topic=why_not_topic)
        routes += [Route("/api/search", route.answer), Route("/api/search/check", route.check)]
    if kafka is not None:
        routes += kafka.routes()
    guards = [Middleware(SizeGuard), Middleware(SiteGuard, host_names, on_refused)]
    if users is not None:
        pages = frozenset(page.path for page in PAGES)
        guards.append(Middleware(PersonGuard, users.persons, pages, _HEADERS, on_refused, SystemClock.monotonic_ms))
        routes += LoginRoutes(users, pages, _PAGE_HEADERS, on_refused, SystemClock.monotonic_ms).routes()
    application = Starlette(routes=routes, middleware=guards, exception_handlers={HTTPException: _on_refused})
    application.router.redirect_slashes = False
    return application


def time_of(request: Request, name: str) -> int:
    """Return a time in milliseconds; 0 without one. Raises HTTPException."""
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise HTTPException(400, f"{name} is {text[:40]!r}; it must be a time in milliseconds")
    return int(text)


def hidden_by(visible: Visible) -> dict[str, str]:
    """Return what a document says of names that it does not have."""
    return {"hidden": visible.why} if visible.why else {}


def _unknown_rights(access: Access, person: Person | None, problem: Exception) -> tuple[int, str]:
    """Return status and text, if it is not known what a person may see."""
    if person is not None and isinstance(problem, MillraceError) and is_refused_login(problem):
        access.end_session(person.session)
        return 401, STALE
    return 503, f"the box does not say what this user may see: {str(problem) or 'no answer in time'}"


def without_details(document: dict[str, Any]) -> dict[str, Any]:
    """Return the overview without paths of disks, process ids and release. A process that does not
    run keeps its pid 0."""
    disks = [{**disk, "path": None} for disk in document["disks"]]
    processes = [{**process, "pid": process["pid"] and None} for process in document["processes"]]
    return {**document, "version": None, "disks": disks, "processes": processes}


def _file(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    """Serve a file or page from memory; browsers revalidate it by its ETag."""
    tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
    headers = {**_PAGE_HEADERS, "ETag": tag}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return serve


class SizeGuard:
    """Refuses requests that are larger than any valid one: bodies, headers or paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _too_large(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await _answer(refused[0], {"error": refused[1]}, {"Connection": "close"})(scope, receive, send)


class SiteGuard:
    """Refuses what a page of another site requests: 421 for a name that is not the box's (DNS
    rebinding), 403 for another site. Following a link is neither.
    """

    def __init__(self, app: ASGIApp, host_names: frozenset[str], on_refused: Callable[[str], None]) -> None:
        self._app = app
        self._host_names = host_names
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope["method"], dict(scope["headers"])) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        host = headers.get(b"host", b"")
        if not is_known_host(host, self._host_names):
            self._on_refused("unknown_host")
            shown = host[:100].decode("latin-1")
            return _answer(421, {"error": f"this box is not known as {shown}; use its address, or name it in http.allowed.hosts in the settings of the box"})
        if is_cross_site(headers, host) and not (method in ("GET", "HEAD") and is_navigation(headers)):
            self._on_refused("cross_site")
            is_own = headers.get(b"sec-fetch-site") == b"same-origin"
            advice = "; the browser calls this page its own: let the proxy pass the header Host on" if is_own else ""
            return _answer(403, {"error": f"pages of other sites may not use the console{advice}"})
        return None


def _too_large(scope: Scope) -> tuple[int, str] | None:
    """Return status and text of the refusal, or None."""
    if len(scope["path"]) + len(scope["query_string"]) > PATH_BYTES_MAX:
        return 414, f"a path here has at most {PATH_BYTES_MAX} bytes"
    if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES_MAX:
        return 431, f"headers may have {HEADER_BYTES_MAX} bytes together"
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    most = RECORD_BODY_BYTES_MAX if scope["path"] == PRODUCE_PATH else BODY_BYTES_MAX
    if b"transfer-encoding" in headers or not length.isdigit() or int(length[:12]) > most:
        return 413, f"a body here has a length, of at most {most} bytes"
    return None


async def _on_refused(_request: Request, error: Exception) -> Response:
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    paths = ", ".join(page.path for page in PAGES)
    words = {404: f"there is no such page; try {paths}, /metrics, /healthz, /readyz", 405: "this is not answered here by that method"}
    if status == 400 and isinstance(error, HTTPException):
        words[400] = error.detail
    return _answer(status, {"error": words.get(status, "refused")}, headers)


def _answer(status: int, document: dict[str, Any], more: Any = None) -> Response:
    return Response(orjson.dumps(document) + b"\n", status, media_type="application/json", headers={**_HEADERS, **(more or {})})
