"""What all users have in common: a rate, a name, and a report of each request to locust. Imports locust, so only locustfiles may import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gevent
from locust import User, constant_pacing, events

from loadtest.users.crew import crew

REST_SECONDS = 0.1


class RequestFailed(Exception):
    """For the report; the message is what failures are grouped by, so it has no numbers of its own in it."""


class BoxUser(User):
    """Calls `act` at its rate, or without a pause if that is 0, as long as the crew is at it."""

    abstract = True
    kind: ClassVar[str]
    """as in a mix"""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.is_sending = False
        self.name = crew.join(self)
        rate = self.rate()
        if rate > 0:
            self._pace: Callable[[Any], float] = constant_pacing(1 / rate)
        else:
            self._pace = _no_pause

    def rate(self) -> float:
        """Calls of `act` a second."""
        return 0.0

    def wait_time(self) -> float:
        return self._pace(self)

    def may_act(self) -> bool:
        return crew.may_send

    def turn(self) -> None:
        """The one task."""
        if not self.may_act():
            gevent.sleep(REST_SECONDS)
            return
        self.is_sending = True
        try:
            self.act()
        finally:
            self.is_sending = False

    tasks = [turn]  # noqa: RUF012

    def act(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of its client; may be called twice."""

    def on_stop(self) -> None:
        self.close()

    def report(self, name: str, milliseconds: float | None, size_bytes: int, failure: str = "") -> None:
        """`milliseconds`: None for one that is counted and not timed."""
        exception = RequestFailed(failure) if failure else None
        events.request.fire(
            request_type=self.kind, name=name, response_time=milliseconds, response_length=size_bytes, exception=exception, context=self.context()
        )


def _no_pause(_user: Any) -> float:
    return 0.0
