"""How long to wait before the next try, and when to stop trying. The waiting itself is an argument, so tests do not wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from appliance.base.clock import Clock

FIRST_PAUSE_MS = 20
LONGEST_PAUSE_MS = 1_000

Sleep = Callable[[float], None]


class Backoff:
    """Pauses that double from 20 ms to 1 s until `give_up_after_ms` have passed since the last success."""

    def __init__(self, clock: Clock, give_up_after_ms: int, sleep: Sleep = time.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._give_up_after_ms = give_up_after_ms
        self._pause_ms = FIRST_PAUSE_MS
        self._deadline_ms = clock.monotonic_ms() + give_up_after_ms
        self.tries = 0

    def succeeded(self) -> None:
        """Start over: the next failure is a first one."""
        self._pause_ms = FIRST_PAUSE_MS
        self._deadline_ms = self._clock.monotonic_ms() + self._give_up_after_ms
        self.tries = 0

    def pause_or_raise(self, error: Exception) -> None:
        """Wait before another try, or raise `error` if the time is over."""
        remaining_ms = self._deadline_ms - self._clock.monotonic_ms()
        if remaining_ms <= 0:
            raise error
        self.tries += 1
        self._sleep(min(self._pause_ms, remaining_ms) / 1000)
        self._pause_ms = min(self._pause_ms * 2, LONGEST_PAUSE_MS)
