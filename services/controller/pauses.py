"""The pauses of operations (`services/controller/zookeeper/operation.py`): resume each in the turn
in which its time is over.

Owned by the controller process. Weak: a late turn extends the pauses that it ends.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.runtime.timers import Timers

RESUMED_A_TURN = 100


class Pauses:
    """`now_ms()`: the clock that measures them."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._timers = Timers()

    def pause(self, duration_ms: int, on_done: Callable[[None], None]) -> None:
        self._timers.schedule(self._now_ms() + duration_ms, lambda _now_ms: on_done(None))

    def do_work(self, now_ms: int) -> int:
        """End due pauses; return how many."""
        return self._timers.fire_due(now_ms, RESUMED_A_TURN)

    def park_ms(self, now_ms: int, most_ms: int) -> int:
        """Return how long no pause ends, at most `most_ms`."""
        deadline_ms = self._timers.next_deadline_ms()
        return most_ms if deadline_ms is None else max(0, min(most_ms, deadline_ms - now_ms))
