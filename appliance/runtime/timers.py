"""Deadlines of a coordinator: sessions, rebalances, transactions, clean-ups. A heap in which most deadlines are moved, not fired.

A session timer moves at every heartbeat, so a move to a later time costs nothing: the entry in the heap stays where it is and is put back when it
surfaces. Owned by one coordinator; time is an argument. Weak spot: a timer that moves later is looked at once more at each of its old deadlines; and a
timer that moves earlier leaves a stale entry behind, so the heap is made anew when most of it is stale.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from appliance.base.invariants import check

OnDue = Callable[[int], None]
"""Called once with the time at which it was found to be due."""

STALE_ENTRIES_MIN: Final = 64
"""Fewer stale entries than this are not worth a new heap."""


class Timer:
    """One deadline. It is live until it fires or is cancelled."""

    __slots__ = ("_entry", "_on_due", "deadline_ms")

    def __init__(self, deadline_ms: int, on_due: OnDue) -> None:
        self.deadline_ms = deadline_ms
        self._on_due: OnDue | None = on_due
        self._entry = -1

    @property
    def is_live(self) -> bool:
        return self._on_due is not None


class Timers:
    """All deadlines of one coordinator, fired in the order of their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._entries = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def schedule(self, deadline_ms: int, on_due: OnDue) -> Timer:
        """A new timer, live until it fires or is cancelled."""
        timer = Timer(deadline_ms, on_due)
        self._live += 1
        self._push(timer)
        return timer

    def move(self, timer: Timer, deadline_ms: int) -> None:
        """Another deadline for a live timer."""
        check(timer.is_live, f"a timer of {timer.deadline_ms} ms that has fired or was cancelled is moved")
        earlier = deadline_ms < timer.deadline_ms
        timer.deadline_ms = deadline_ms
        if earlier:
            self._push(timer)
            self._maybe_rebuild()

    def cancel(self, timer: Timer | None) -> None:
        """It never fires. Cancelling nothing, or again, is nothing."""
        if timer is not None and timer.is_live:
            timer._on_due = None
            self._live -= 1
            self._maybe_rebuild()

    def next_deadline_ms(self) -> int | None:
        """When `fire_due` has something to do; None without timers."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def fire_due(self, now_ms: int, limit: int) -> int:
        """Fire what is due, at most `limit` timers; returns how many."""
        fired = 0
        while fired < limit:
            self._settle()
            if not self._heap or self._heap[0][0] > now_ms:
                break
            timer = heapq.heappop(self._heap)[2]
            on_due = timer._on_due
            assert on_due is not None
            timer._on_due = None
            self._live -= 1
            fired += 1
            on_due(now_ms)
        return fired

    # ---- the heap

    def _push(self, timer: Timer) -> None:
        self._entries += 1
        timer._entry = self._entries
        heapq.heappush(self._heap, (timer.deadline_ms, self._entries, timer))

    def _settle(self) -> None:
        """Bring a live entry with its true deadline to the top."""
        heap = self._heap
        while heap:
            deadline_ms, entry, timer = heap[0]
            if not timer.is_live or timer._entry != entry:
                heapq.heappop(heap)
            elif timer.deadline_ms > deadline_ms:
                heapq.heapreplace(heap, (timer.deadline_ms, entry, timer))
            else:
                return

    def _maybe_rebuild(self) -> None:
        if len(self._heap) > 2 * self._live + STALE_ENTRIES_MIN:
            self._heap = [(timer.deadline_ms, entry, timer) for _, entry, timer in self._heap if timer.is_live and timer._entry == entry]
            heapq.heapify(self._heap)
