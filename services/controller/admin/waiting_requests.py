"""A request to the controller, waiting for the results of its parts.

Owned by the controller process. Weak: one late part delays the response for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from appliance.base.errors import ErrorCode
from appliance.runtime.request_server import RequestClient
from services.controller.admin.topic_administration import Result

Key: TypeAlias = str | int


class ControllerRequest(NamedTuple):
    """A Kafka request that an acceptor forwarded, and where its response goes."""

    client: RequestClient
    token: int
    version: int
    body: bytes


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


Wait: TypeAlias = Callable[[WaitingRequest], None]
Answer: TypeAlias = Callable[[ControllerRequest, bytes], None]

MESSAGE_MAX = 1000


def truncated(message: str | None) -> str | None:
    """Return a message that fits into a string of the protocol: what it quotes may be longer."""
    return message if message is None else message[:MESSAGE_MAX]


NOT_CONTROLLER = Result(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")
