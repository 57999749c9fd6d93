"""The interface of the poller for links and proxies; the poller itself is above them
(`runtime/poller.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Registry(Protocol):
    """The poller of the runtime, or its replacement in tests."""

    def register(self, descriptor: int, events: int, callback: Callable[[int], None]) -> None: ...

    def modify(self, descriptor: int, events: int) -> None: ...

    def unregister(self, descriptor: int) -> None: ...
