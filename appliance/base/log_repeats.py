"""Limits repeated log messages: per period, each place in the code writes a number of messages; the
rest are counted.

Owned by one `Logger`; time is an argument. At the end of the period the last suppressed message is
written with their number, so that an operator sees that the problem continues; the next period is
longer. Weak: what differs between suppressed messages (the partition, for example) is lost;
counters have more.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

LINES_A_PERIOD = 50
PERIOD_NS_FIRST = 10_000_000_000
PERIOD_NS_MAX = 300_000_000_000
LOOK_NS = 1_000_000_000

Line = TypeVar("Line")
Place = tuple[str, int]
"""File and line of the code."""


class Suppressed(NamedTuple, Generic[Line]):
    """The last suppressed message of a place, and how many were suppressed."""

    last: Line
    lines: int


class _Period(Generic[Line]):
    """One period of one place."""

    __slots__ = ("count", "ends_ns", "last", "period_ns", "suppressed")

    def __init__(self, now_ns: int, period_ns: int) -> None:
        self.period_ns = period_ns
        self.ends_ns = now_ns + period_ns
        self.count = 0
        self.suppressed = 0
        self.last: Line | None = None


class LogRepeats(Generic[Line]):
    """The limits of all places that logged recently."""

    def __init__(self) -> None:
        self._places: dict[Place, _Period[Line]] = {}
        self._next_look_ns = 0

    def may_log(self, place: Place, line: Line, now_ns: int) -> bool:
        """Return whether to write the message now. If not, it is kept as the last suppressed one.
        Call `take_suppressed` before."""
        period = self._places.get(place)
        if period is None:
            period = self._places[place] = _Period(now_ns, PERIOD_NS_FIRST)
        if period.count < LINES_A_PERIOD:
            period.count += 1
            return True
        period.suppressed += 1
        period.last = line
        return False

    def take_suppressed(self, now_ns: int) -> list[Suppressed[Line]]:
        """Return the suppressed messages of places whose period is over. Cheap: it checks once a
        second."""
        if now_ns < self._next_look_ns:
            return []
        self._next_look_ns = now_ns + LOOK_NS
        taken = []
        for place, period in list(self._places.items()):
            if now_ns < period.ends_ns:
                continue
            if period.last is None:
                del self._places[place]
            else:
                taken.append(Suppressed(period.last, period.suppressed))
                self._places[place] = _Period(now_ns, min(PERIOD_NS_MAX, period.period_ns * 2))
        return taken

    def take_all(self) -> list[Suppressed[Line]]:
        """Return all suppressed messages, at the end of the process."""
        ended, self._places = list(self._places.values()), {}
        return [Suppressed(period.last, period.suppressed) for period in ended if period.last is not None]
