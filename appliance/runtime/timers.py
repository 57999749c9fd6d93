"""Deadlines of a coordinator (sessions, rebalances, transactions, clean-ups), in a heap in which
most deadlines move and few fire.

A session timer moves at each heartbeat. Moving to a later time costs nothing: the heap entry stays,
and is pushed again when it reaches the top. Owned by one coordinator; time is an argument. Weak: a
timer that moves later is checked once more at each old deadline; one that moves earlier leaves a
stale entry, so the heap is rebuilt when most entries are stale.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from appliance.base.invariants import check

OnDue = Callable[[int], None]
"""Called once with the time at which the timer was found due, in monotonic milliseconds."""

STALE_ENTRIES_MIN: Final = 64
"""The heap is not rebuilt for fewer stale entries than this."""


class Timer:
    """One deadline in monotonic ms. It is live until it fires or is cancelled.

    `on_due` is None once it is not live. `entry` is the number of its current heap entry.
    """

    __slots__ = ("deadline_ms", "entry", "on_due")

    def __init__(self, deadline_ms: int, on_due: OnDue) -> None:
        self.deadline_ms = deadline_ms
        self.on_due: OnDue | None = on_due
        self.entry = -1

    @property
    def is_live(self) -> bool:
        return self.on_due is not None


class Timers:
    """All deadlines of one coordinator, fired in the order of their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._entries = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    @property
    def heap_entries(self) -> int:
        """The entries in the heap, stale ones included."""
        return len(self._heap)

    def schedule(self, deadline_ms: int, on_due: OnDue) -> Timer:
        """Return a new timer, live until it fires or is cancelled."""
        timer = Timer(deadline_ms, on_due)
        self._live += 1
        self._push(timer)
        return timer

    def move(self, timer: Timer, deadline_ms: int) -> None:
        """Change the deadline of a live timer."""
        check(timer.is_live, f"a timer of {timer.deadline_ms} ms that has fired or was cancelled is moved")
        earlier = deadline_ms < timer.deadline_ms
        timer.deadline_ms = deadline_ms
        if earlier:
            self._push(timer)
            self._maybe_rebuild()

    def cancel(self, timer: Timer | None) -> None:
        """Cancel a timer; None and a cancelled one are ignored."""
        if timer is not None and timer.is_live:
            timer.on_due = None
            self._live -= 1
            self._maybe_rebuild()

    def next_deadline_ms(self) -> int | None:
        """Return when `fire_due` has work; None without timers."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def fire_due(self, now_ms: int, limit: int) -> int:
        """Fire due timers, at most `limit`; returns how many."""
        fired = 0
        while fired < limit:
            self._settle()
            if not self._heap or self._heap[0][0] > now_ms:
                break
            timer = heapq.heappop(self._heap)[2]
            on_due = timer.on_due
            assert on_due is not None
            timer.on_due = None
            self._live -= 1
            fired += 1
            on_due(now_ms)
        return fired

    # ---- the heap

    def _push(self, timer: Timer) -> None:
        self._entries += 1
        timer.entry = self._entries
        heapq.heappush(self._heap, (timer.deadline_ms, self._entries, timer))

    def _settle(self) -> None:
        """Bring a live entry with its current deadline to the top."""
        heap = self._heap
        while heap:
            deadline_ms, entry, timer = heap[0]
            if not timer.is_live or timer.entry != entry:
                heapq.heappop(heap)
            elif timer.deadline_ms > deadline_ms:
                heapq.heapreplace(heap, (timer.deadline_ms, entry, timer))
            else:
                return

    def _maybe_rebuild(self) -> None:
        if len(self._heap) > 2 * self._live + STALE_ENTRIES_MIN:
            self._heap = [(timer.deadline_ms, entry, timer) for _, entry, timer in self._heap if timer.is_live and timer.entry == entry]
            heapq.heapify(self._heap)
