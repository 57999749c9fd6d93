"""The HTTP routes of topics, records, groups and boxes: rights, parameters, and what a refusal
of the cluster means in HTTP.

Each has a function in one of the modules of documents, which a thread of `KafkaWorkers` calls with a
client of Kafka. GET reads; POST changes something, takes a JSON object, and is refused unless
`Access` allows changes. Weak: a client that gives up leaves its thread to end by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode, MillraceError, ProtocolViolation, RequestRefused
from appliance.base.layout import BoxLayout
from services.console.access import Access
from services.console.box_sample import BoxSample
from services.console.kafka_workers import KafkaWorkers, WorkersBusy
from services.console.parameters import Parameters, WrongParameter
from services.console.person_guard import person_of
from services.console.person_rights import ALL, STALE, PersonRights, Visible, is_refused_login, require_alter, without_names
from services.console.persons import Person, role_needed

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient

RECORD_BODY_BYTES_MAX = 2 << 20
"""The body of a record to produce; others have `application.BODY_BYTES_MAX`."""
PRODUCE_PATH = "/api/records/produce"
GROUP_PATH = "/api/group"
DISKS_PATH = "/api/disks"
DRAIN_PATH = "/api/disk/drain"
KEPT_MS_BY_PATH = {
    DISKS_PATH: 1_000,
    "/api/groups": 4_000,
    "/api/transactions": 2_000,
    "/api/producers": 1_000,
    "/api/audit": 2_000,
    "/api/boxes": 15_000,
}
"""How long these answers are kept for other pages: to look at all groups, transactions or boxes is dear."""
OF_DISKS = "box_documents.DiskContents"
"""Its methods also need the console's samples."""

# Functions by name: their modules import the client library, which a console without such requests need not load.
READS = {
    "/api/topic": "topic_documents.topic_document",
    "/api/records": "topic_documents.records_document",
    "/api/groups": "group_documents.groups_document",
    GROUP_PATH: "group_documents.group_document",
    "/api/transactions": "transaction_documents.transactions_document",
    "/api/producers": "transaction_documents.producers_document",
    "/api/settings": "settings_documents.settings_document",
    "/api/audit": "settings_documents.audit_document",
    "/api/boxes": "box_documents.boxes_document",
    DISKS_PATH: f"{OF_DISKS}.document",
}
CHANGES = {
    "/api/topic/create": "topic_documents.create",
    "/api/topic/alter": "topic_documents.alter",
    "/api/topic/trim": "topic_documents.trim",
    "/api/topic/delete": "topic_documents.delete",
    PRODUCE_PATH: "topic_documents.produce",
    "/api/group/reset": "group_documents.reset",
    "/api/group/delete": "group_documents.delete",
    "/api/transaction/abort": "transaction_documents.abort",
    DRAIN_PATH: f"{OF_DISKS}.drain",
}

_NOT_FOUND = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_PARTITIONS, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND})
_CONFLICTS = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_TXN_STATE,
    }
)
_FORBIDDEN = frozenset(code for code in ErrorCode if code.name.endswith("AUTHORIZATION_FAILED"))


class SampledBox(Protocol):
    """What `BoxMonitor` has of the box."""

    layout: BoxLayout

    def last_sample(self) -> BoxSample: ...


def function_of(name: str, box: SampledBox) -> Callable[..., Any]:
    """Return `module.function` of this package; a method of `OF_DISKS` with an object of the box."""
    module, _, path = name.partition(".")
    found: Any = import_module(f"services.console.{module}")
    for part in path.split("."):
        found = getattr(found, part)
        found = found(box.layout, box.last_sample) if isinstance(found, type) else found
    function: Callable[..., Any] = found
    return function


POINT_MS = 10_000
KEPT_MS = 3_600_000
GROUPS_KEPT = 32
ANSWERS_KEPT = 16


class KeptAnswers:
    """Answers that all pages share: each is made once at a time, and if it is good kept for a while."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._kept: dict[Hashable, tuple[asyncio.Task[Response], list[int]]] = {}
        """with the time until which it is kept, in ms"""

    async def get(self, key: Hashable, kept_ms: int, make: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        task, until = self._kept.get(key, (None, [0]))
        if task is None or (task.done() and self._monotonic_ms() >= until[0]):
            self._drop_oldest(key)
            until = [0]
            task = asyncio.get_running_loop().create_task(self._make(make, kept_ms, until))
            self._kept[key] = task, until
        return await asyncio.shield(task)

    async def _make(self, make: Callable[[], Coroutine[Any, Any, Response]], kept_ms: int, until: list[int]) -> Response:
        response = await make()
        if response.status_code == 200:
            until[0] = self._monotonic_ms() + kept_ms
        return response

    def _drop_oldest(self, key: Hashable) -> None:
        self._kept.pop(key, None)
        done = [each for each, (task, _) in self._kept.items() if task.done()]
        for each in done[: max(0, len(self._kept) + 1 - ANSWERS_KEPT)]:
            del self._kept[each]

    def forget(self) -> None:
        """After a change, so that the page sees it."""
        self._kept.clear()


class LagHistory:
    """The lag of the groups whose pages were read in the last hour: a point every `POINT_MS` while a page
    is open. Of more than `GROUPS_KEPT` groups those are forgotten whose pages were read longest ago."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[int, int, int]]] = {}

    def add(self, group: str, now_ms: int, wall_ms: int, lag: int | None) -> list[tuple[int, int]]:
        """Add a point, unless one is younger than `POINT_MS`; return those of the last hour, with their
        wall times. `now_ms`, of the monotonic clock, is what ages are measured by."""
        points = self._points.pop(group, None) or deque(maxlen=KEPT_MS // POINT_MS)
        self._points[group] = points
        while len(self._points) > GROUPS_KEPT:
            del self._points[next(iter(self._points))]
        if lag is not None and (not points or now_ms - points[-1][0] >= POINT_MS):
            points.append((now_ms, wall_ms, lag))
        while points and now_ms - points[0][0] > KEPT_MS:
            points.popleft()
        return [(point_ms, point_lag) for _, point_ms, point_lag in points]


class KafkaRoutes:
    """The handlers. `headers` go with each answer; `on_refused` counts changes that `Access` refuses."""

    def __init__(
        self,
        workers: KafkaWorkers,
        access: Access,
        wall_ms: Callable[[], int],
        headers: dict[str, str],
        box: SampledBox,
        on_refused: Callable[[str], None],
    ) -> None:
        self._on_refused = on_refused
        self._workers = workers
        self._box = box
        self._access = access
        self._wall_ms = wall_ms
        self._headers = headers
        self._lags, self._lags_lock = LagHistory(), threading.Lock()
        self._kept = KeptAnswers(SystemClock.monotonic_ms)
        self.rights = PersonRights(workers, access.has_authorizer, SystemClock.monotonic_ms)

    def routes(self) -> list[Route]:
        reads = [Route(path, partial(self._read, name)) for path, name in READS.items()]
        changes = [Route(path, partial(self._change, name), methods=["POST"]) for path, name in CHANGES.items()]
        return [Route("/api/rights", self._rights), *reads, *changes]

    async def _rights(self, request: Request) -> Response:
        """Answer whether the page offers changes, and why not."""
        why, person = self._access.why_no_changes(request), person_of(request.scope)
        rights: dict[str, Any] = {"may_change": why is None, "why": why}
        if person is not None:
            refused = sorted(path for path in CHANGES if role_needed(path) > person.role)
            rights |= {"person": {"user": person.user, "role": person.role.word}, "token": person.token, "refused": refused}
        return self._answer(200, rights)

    async def _read(self, name: str, request: Request) -> Response:
        if (why := self._access.why_not_read(request)) is not None:
            return self._answer(403, {"error": why})
        person = person_of(request.scope)
        ask = partial(self._ask, name, Parameters(dict(request.query_params), self._wall_ms()), person)
        kept_ms, acting = KEPT_MS_BY_PATH.get(request.url.path), None if person is None else person.acting
        return await ask() if kept_ms is None else await self._kept.get((name, request.url.query, acting), kept_ms, ask)

    async def _change(self, name: str, request: Request) -> Response:
        if (refused := self._access.why_not_change(request)) is not None:
            self._on_refused("change")
            return self._answer(refused[0], {"error": refused[1]})
        try:
            given = orjson.loads(await request.body())
        except ClientDisconnect:
            return self._answer(400, {"error": "the body is not whole"})
        except orjson.JSONDecodeError as problem:
            return self._answer(400, {"error": f"the body is no JSON: {problem}"})
        if not isinstance(given, dict):
            return self._answer(400, {"error": "the body must be a JSON object"})
        try:
            return await self._ask(name, Parameters(given, self._wall_ms()), person_of(request.scope))
        finally:
            self._kept.forget()

    async def _ask(self, name: str, given: Parameters, person: Person | None = None) -> Response:
        acting = None if person is None else person.acting
        try:
            visible = await self.rights.visible(person) if name == READS[DISKS_PATH] else ALL
            content = await self._workers.ask(partial(self._content, name, given, visible, person), name != READS[DISKS_PATH], acting)
        except WrongParameter as problem:
            return self._answer(400, {"error": str(problem)})
        except RequestRefused as refused:
            return self._answer(status_of(refused.code, name in READS.values()), {"error": refused.message, "code": refused.code.name})
        except WorkersBusy as problem:
            return self._answer(503, {"error": str(problem)})
        except TimeoutError:
            return self._answer(504, {"error": "the cluster has not answered in time; look at `millrace status`. A change may still happen"})
        except ProtocolViolation as problem:
            return self._answer(502, {"error": str(problem)})
        except MillraceError as problem:
            if person is not None and is_refused_login(problem):
                self._access.end_session(person.session)
                return self._answer(401, {"error": STALE})
            return self._answer(503, {"error": f"the cluster does not answer: {problem}"})
        except Exception as problem:
            self._workers.on_failed(f"a request failed in {name}: {type(problem).__name__}: {problem}")
            return self._answer(500, {"error": "the console could not carry this out; its log says why"})
        return self._response(200, content)

    def _content(self, name: str, given: Parameters, visible: Visible, person: Person | None, cluster: ClusterClient) -> bytes:
        """Return the document as JSON; in the thread, because a page of records may be large. What does not go
        through the cluster is not judged by it: `visible` and a right of `person` are for that."""
        if name == CHANGES[DRAIN_PATH] and person is not None:
            require_alter(cluster)
            self._access.log_order(
                f"audit.disk.order: {person.principal} from {person.address} (listener console): drain {given.shown('disk', 'cancel', 'execute')}"
            )
        document = function_of(name, self._box)(cluster, given)
        if name == READS[DISKS_PATH]:
            document = without_names(document, visible)
        if name == READS[GROUP_PATH]:
            document["now_ms"] = given.now_ms
            with self._lags_lock:
                document["history"] = self._lags.add(document["group"], SystemClock.monotonic_ms(), given.now_ms, document["lag"])
        return orjson.dumps(document)

    def _answer(self, status: int, document: dict[str, Any]) -> Response:
        return self._response(status, orjson.dumps(document))

    def _response(self, status: int, content: bytes) -> Response:
        return Response(content, status, media_type="application/json", headers=self._headers)


def status_of(code: ErrorCode, is_read: bool) -> int:
    """Return the status of a refusal: what may heal by itself is 503. A partition that is not there is 404 for a
    read; a change has it, or a wrong number of partitions, in its body."""
    from appliance.client.errors import RETRIABLE

    if code in _NOT_FOUND and (is_read or code is not ErrorCode.INVALID_PARTITIONS):
        return 404
    if code in _CONFLICTS:
        return 409
    if code in _FORBIDDEN:
        return 403
    return 503 if code in RETRIABLE else 400
