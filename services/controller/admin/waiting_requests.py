"""Requests to the controller that wait for the results of their parts.

Owned by the controller process. While ZooKeeper is away, requests that have begun wait until their
deadline, the others for `UNREACHED_MS`; then they are refused with the reason, and nothing was
changed. Weak: a response is encoded when the last part is done or the deadline has passed, so one
late part delays the response for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicId
from appliance.cluster.placement import TopicPlan
from appliance.ipc.request_frames import KAFKA_RESPONSE
from appliance.runtime.request_server import RequestClient
from appliance.security.principals import UNAUTHENTICATED, RequestOrigin
from services.controller.decisions.cluster import ControllerContext

UNREACHED_MS = 5_000
"""An ensemble elects a leader within one second. If it is away longer, it may stay away, and an
operator is waiting at a prompt.
"""
MESSAGE_MAX = 1000

Key: TypeAlias = str | int
Respond: TypeAlias = Callable[[RequestClient, int, int, bytes], None]


class Result(NamedTuple):
    """The outcome for one part of a request; `plan` and `topic_id` for a created (or validated) topic."""

    code: ErrorCode
    message: str | None = None
    plan: TopicPlan | None = None
    topic_id: TopicId | None = None

    @classmethod
    def of(cls, refused: RequestRefused | None) -> Result:
        """Return the result of a part that was refused, or done if `refused` is None."""
        return cls(ErrorCode.NONE) if refused is None else cls(refused.code, refused.message)


OnResult: TypeAlias = Callable[[Result], None]

NOT_CONTROLLER = Result(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")


class ControllerRequest(NamedTuple):
    """A Kafka request that an acceptor forwarded, and where its response goes."""

    client: RequestClient
    token: int
    version: int
    body: bytes
    origin: RequestOrigin = UNAUTHENTICATED
    client_host: str = ""
    client_id: str = ""


class WaitingRequest:
    """A request whose parts are under way or not started yet."""

    __slots__ = ("begin", "begun", "deadline_ms", "finish", "keys", "results")

    def __init__(self, keys: Iterable[Key], deadline_ms: int, begin: Callable[[WaitingRequest], None], finish: Callable[[dict[Key, Result]], None]) -> None:
        self.keys = list(keys)
        self.results: dict[Key, Result] = {}
        self.deadline_ms = deadline_ms
        self.begin = begin
        self.finish = finish
        self.begun = False

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.keys)

    def record(self, key: Key, result: Result) -> None:
        self.results.setdefault(key, result)

    def time_out(self, message: str = "The request timed out.") -> None:
        for key in self.keys:
            self.record(key, Result(ErrorCode.REQUEST_TIMED_OUT, message))


class WaitingRequests:
    """All requests that wait.

    `unreached()` names ZooKeeper servers whose connection is lost; `respond(client, kind, token,
    payload)` sends a response.
    """

    def __init__(self, context: ControllerContext, unreached: Callable[[], str], respond: Respond) -> None:
        self._context = context
        self._unreached = unreached
        self._unreached_since_ms: int | None = None
        self.respond = respond
        self._waiting: list[WaitingRequest] = []
        self._timed_out = context.counters.counter("controller.requests_timed_out")

    def wait(self, keys: Iterable[Key], timeout_ms: int, begin: Callable[[WaitingRequest], None], finish: Callable[[dict[Key, Result]], None]) -> None:
        """Add a request: `begin` it once the tree is loaded, and `finish` it with the results of all `keys`."""
        deadline_ms = self._context.clock.monotonic_ms() + max(0, timeout_ms)
        self._waiting.append(WaitingRequest(keys, deadline_ms, begin, finish))
        self.do_work()

    def answer(self, request: ControllerRequest, body: bytes) -> None:
        self.respond(request.client, KAFKA_RESPONSE, request.token, body)

    def do_work(self) -> int:
        """Begin requests, answer those that are done or have timed out; return how many were answered."""
        now_ms = self._context.clock.monotonic_ms()
        servers = self._unreached()
        if not servers:
            self._unreached_since_ms = None
        elif self._unreached_since_ms is None:
            self._unreached_since_ms = now_ms
        if not self._waiting:
            return 0
        can_begin = self._context.can_begin()
        away_ms = now_ms - self._unreached_since_ms if self._unreached_since_ms is not None else 0
        finished = []
        for waiting in list(self._waiting):
            if can_begin and not waiting.begun:
                waiting.begun = True
                waiting.begin(waiting)
            if not waiting.begun and away_ms >= UNREACHED_MS:
                waiting.time_out(
                    f"ZooKeeper ({servers}) has been unreachable for {away_ms // 1_000} s, so nothing was changed. Check that most of its servers run."
                )
            elif not waiting.is_done and now_ms >= waiting.deadline_ms:
                waiting.time_out()
                self._timed_out.add()
            if waiting.is_done:
                finished.append(waiting)
        for waiting in finished:
            self._waiting.remove(waiting)
            waiting.finish(waiting.results)
        return len(finished)


def truncated(message: str | None) -> str | None:
    """Return a message that fits into a string of the protocol: what it quotes may be longer."""
    return message if message is None else message[:MESSAGE_MAX]
