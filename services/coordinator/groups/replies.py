"""Replies on their way out: what a change of state says to whom is settled at once, and said a slice at a time.

The end of a rebalance answers every member; thousands of answers are not one turn's work. Replies also never run in the middle of a change, so whoever
is answered may ask the next thing at once. Owned by the group coordinator. Weak spot: a short answer may stand behind a long row of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Response = TypeVar("Response")


class Replies:
    """First in, first out; each reply is called once."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Any], None], object]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def say(self, reply: Callable[[Response], None], response: Response) -> None:
        self._waiting.append((reply, response))

    def send(self, limit: int) -> int:
        """Send at most `limit`; returns how many."""
        waiting = self._waiting
        sent = 0
        while waiting and sent < limit:
            reply, response = waiting.popleft()
            sent += 1
            reply(response)
        return sent
