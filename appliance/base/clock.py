"""Time as an argument (STYLE.md, habit 13): the only module that asks the operating system for the
time.

Whether wall clock and monotonic clock have advanced equally since the process started.

Used before deletions that depend on a wall time: if the wall clock jumped ahead by a month,
retention would delete all records. Pure; the clock is an argument. Weak: a wrong wall clock that is
corrected later, and a machine that slept (the monotonic clock stops meanwhile), count as a
disagreement until the process restarts; both keep records longer. A clock that was wrong from the
start is not detected.
"""

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

    def thread_cpu_ns(self) -> int:
        """Return the CPU time of the calling thread (a system call, 0.5 µs)."""


class SystemClock:
    """The machine's clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    """Without a function around it: a produce asks for it twenty times."""

    @staticmethod
    def monotonic_ms() -> int:
        return time.monotonic_ns() // 1_000_000

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000

    @staticmethod
    def boottime_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    @staticmethod
    def thread_cpu_ns() -> int:
        return time.thread_time_ns()


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

    def thread_cpu_ns(self) -> int:
        return self._monotonic_ns

    def advance_ms(self, milliseconds: int) -> None:
        self._monotonic_ns += milliseconds * 1_000_000
        self._wall_ms += milliseconds

    def jump_wall_ms(self, milliseconds: int) -> None:
        """Move the wall clock alone, as an operator or NTP does."""
        self._wall_ms += milliseconds


TOLERANCE_MS = 3_600_000
"""One hour: a manual change to summer time is accepted."""


class ClockAgreement:
    """Remembers both clocks at its creation."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._difference_ms = clock.wall_ms() - clock.monotonic_ms()

    def disagreement_ms(self) -> int:
        """Return by how many milliseconds the wall clock is ahead of the monotonic clock; negative
        if it went back."""
        return self._clock.wall_ms() - self._clock.monotonic_ms() - self._difference_ms

    def holds(self) -> bool:
        """Return whether the clocks differ by no more than the tolerance."""
        return abs(self.disagreement_ms()) <= TOLERANCE_MS
