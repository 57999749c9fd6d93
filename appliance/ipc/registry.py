"""What links and proxies need of a poller, which lies above them (`runtime/poller.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Registry(Protocol):
    """The runtime's poller, and what tests step in its place."""

    def register(self, descriptor: int, events: int, callback: Callable[[int], None]) -> None: ...

    def modify(self, descriptor: int, events: int) -> None: ...

    def unregister(self, descriptor: int) -> None: ...
