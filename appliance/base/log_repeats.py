"""Holds back what a process says again and again: of the lines of one place in the code so many a period are told, the rest are counted.

Owned by one `Logger`; time is an argument. When the period is over the last line that was held back is told with the number of those like it, so an
operator learns that it goes on; a place that goes on gets longer periods. Weak spot: what differs between the lines that were held back (which partition,
say) is lost; counters know more.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

LINES_A_PERIOD = 50
PERIOD_NS_FIRST = 10_000_000_000
PERIOD_NS_MAX = 300_000_000_000
LOOK_NS = 1_000_000_000

Line = TypeVar("Line")
Place = tuple[str, int]
"""File and line of code."""


class Untold(NamedTuple, Generic[Line]):
    """The last line of those of a place that were held back, and how many they are."""

    last: Line
    lines: int


class _Told(Generic[Line]):
    """One period of one place."""

    __slots__ = ("count", "ends_ns", "last", "period_ns", "untold")

    def __init__(self, now_ns: int, period_ns: int) -> None:
        self.period_ns = period_ns
        self.ends_ns = now_ns + period_ns
        self.count = 0
        self.untold = 0
        self.last: Line | None = None


class LogRepeats(Generic[Line]):
    """Of all places that have spoken of late."""

    def __init__(self) -> None:
        self._places: dict[Place, _Told[Line]] = {}
        self._next_look_ns = 0

    def may_tell(self, place: Place, line: Line, now_ns: int) -> bool:
        """Whether to tell it now; if not, it is kept as the last of those that were held back. Call `take_untold` before."""
        told = self._places.get(place)
        if told is None:
            told = self._places[place] = _Told(now_ns, PERIOD_NS_FIRST)
        if told.count < LINES_A_PERIOD:
            told.count += 1
            return True
        told.untold += 1
        told.last = line
        return False

    def take_untold(self, now_ns: int) -> list[Untold[Line]]:
        """Of places whose period is over. Cheap: it looks once a second."""
        if now_ns < self._next_look_ns:
            return []
        self._next_look_ns = now_ns + LOOK_NS
        taken = []
        for place, told in list(self._places.items()):
            if now_ns < told.ends_ns:
                continue
            if told.last is None:
                del self._places[place]
            else:
                taken.append(Untold(told.last, told.untold))
                self._places[place] = _Told(now_ns, min(PERIOD_NS_MAX, told.period_ns * 2))
        return taken

    def take_all(self) -> list[Untold[Line]]:
        """At the end of the process."""
        ended, self._places = list(self._places.values()), {}
        return [Untold(told.last, told.untold) for told in ended if told.last is not None]
