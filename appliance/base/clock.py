"""Time as an argument (STYLE.md, habit 13): the only module that asks the operating system for the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clocks that all other modules use."""

    def monotonic_ns(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def boottime_ns(self) -> int:
        """Return monotonic nanoseconds that include the time in which the machine sleeps."""


class SystemClock:
    """The machine's clocks."""

    @staticmethod
    def monotonic_ns() -> int:
        return time.monotonic_ns()

    @staticmethod
    def monotonic_ms() -> int:
        return time.monotonic_ns() // 1_000_000

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000

    @staticmethod
    def boottime_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ManualClock:
    """A clock that a test owns."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_ns = 1_000_000_000
        self._wall_ms = wall_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def monotonic_ms(self) -> int:
        return self._monotonic_ns // 1_000_000

    def wall_ms(self) -> int:
        return self._wall_ms

    def boottime_ns(self) -> int:
        return self._monotonic_ns

    def advance_ms(self, milliseconds: int) -> None:
        self._monotonic_ns += milliseconds * 1_000_000
        self._wall_ms += milliseconds
