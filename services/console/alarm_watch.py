"""Checks the alarms: which condition holds for which labels since when, and which held recently.

It uses the same rows as Prometheus, and works without Prometheus. Owned by the console's loop; time
is an argument. Weak: its memory ends with the process; a rise is counted from the start of the
console on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from appliance.base.invariants import check
from appliance.shm.histogram import HistogramReading, add_readings
from services.console.alarm import COMPARISONS, Alarm, AlarmCondition
from services.console.figures import Figures, Labels
from services.console.metric_row import COUNTER, MetricRow
from services.console.metric_rows import ROWS

EVENTS = 100
_BY_EXPOSED_NAME = {row.exposed_name: row for row in ROWS}


class AlarmEvent(NamedTuple):
    """One period of an alarm. `ended_wall_ms` is None while it lasts."""

    alarm: Alarm
    words: str
    began_wall_ms: int
    ended_wall_ms: int | None = None


class AlarmSample(NamedTuple):
    """The present state of an alarm."""

    alarm: Alarm
    is_firing: bool


class AlarmWatch:
    """The state of all alarms; call `look` with each sample, or less often."""

    def __init__(self, alarms: Iterable[Alarm]) -> None:
        self._alarms = [(alarm, _Series(alarm.condition)) for alarm in alarms if alarm.condition is not None]
        self._since: dict[tuple[str, Labels], int] = {}
        """When each present condition began, monotonic ns."""
        self._firing: dict[tuple[str, Labels], AlarmEvent] = {}
        self._ended: deque[AlarmEvent] = deque(maxlen=EVENTS)

    def look(self, figures: Figures, now_ns: int, wall_ms: int) -> list[AlarmEvent]:
        """Check all alarms; returns those that began or ended."""
        news = []
        holding = set()
        for alarm, series in self._alarms:
            for labels in series.holding(figures, now_ns):
                key = alarm.name, labels
                holding.add(key)
                since_ns = self._since.setdefault(key, now_ns)
                if key not in self._firing and now_ns - since_ns >= alarm.hold_seconds * 1_000_000_000:
                    self._firing[key] = event = AlarmEvent(alarm, alarm.words.format(**series.named(labels)), wall_ms)
                    news.append(event)
        for key in [key for key in self._since if key not in holding]:
            del self._since[key]
            begun = self._firing.pop(key, None)
            if begun is not None:
                ended = begun._replace(ended_wall_ms=wall_ms)
                self._ended.append(ended)
                news.append(ended)
        return news

    @property
    def looks(self) -> list[AlarmSample]:
        firing = {name for name, _ in self._firing}
        return [AlarmSample(alarm, alarm.name in firing) for alarm, _ in self._alarms]

    @property
    def events(self) -> list[AlarmEvent]:
        """Return the present alarms, then past ones, each the latest first."""
        firing = sorted(self._firing.values(), key=lambda event: -event.began_wall_ms)
        return [*firing, *reversed(self._ended)]


class _Series:
    """The series of one condition, and their values over its window."""

    def __init__(self, condition: AlarmCondition) -> None:
        self._condition = condition
        self._row: MetricRow = _BY_EXPOSED_NAME[condition.metric]
        self._labels = (condition.by,) if condition.by else self._row.labels
        check(self._row.kind == COUNTER or condition.quantile or not condition.over_seconds, f"{condition.metric} is no counter: it does not rise")
        self._past: deque[tuple[int, dict[Labels, float], dict[Labels, HistogramReading]]] = deque()

    def named(self, labels: Labels) -> dict[str, str]:
        return dict(zip(self._labels, labels))

    def holding(self, figures: Figures, now_ns: int) -> list[Labels]:
        """Return the labels for which the condition holds now."""
        condition = self._condition
        holds = COMPARISONS[condition.comparison]
        return [labels for labels, value in self._values(figures, now_ns).items() if holds(value, condition.threshold)]

    def _values(self, figures: Figures, now_ns: int) -> Mapping[Labels, float]:
        condition = self._condition
        if condition.quantile:
            return self._percentiles(figures, now_ns)
        values = self._picked(figures.values.get(self._row.name, {}))
        if condition.over_seconds:
            known = self._remember(now_ns, values, {})[1]
            return {labels: _rise(known.get(labels, 0), value) for labels, value in values.items()}
        if condition.divided_by:
            divisors = figures.values.get(_BY_EXPOSED_NAME[condition.divided_by].name, {})
            return {labels: value / divisors[labels] for labels, value in values.items() if divisors.get(labels)}
        return values

    def _percentiles(self, figures: Figures, now_ns: int) -> dict[Labels, float]:
        place = self._row.labels.index(self._condition.by)
        by: dict[Labels, list[HistogramReading]] = {}
        for labels, reading in figures.histograms.get(self._row.name, {}).items():
            by.setdefault((labels[place],), []).append(reading)
        now = {labels: add_readings(readings) for labels, readings in by.items()}
        earliest = self._remember(now_ns, {}, now)[2]
        found = {}
        for labels, reading in now.items():
            percentile_us = reading.since(earliest.get(labels)).percentile_us(100 * self._condition.quantile) if labels in earliest else None
            if percentile_us is not None:
                found[labels] = percentile_us / 1e6
        return found

    def _remember(
        self, now_ns: int, values: dict[Labels, float], readings: dict[Labels, HistogramReading]
    ) -> tuple[int, dict[Labels, float], dict[Labels, HistogramReading]]:
        """Store the values and return the oldest ones within the window."""
        past = self._past
        past.append((now_ns, values, readings))
        while past[0][0] < now_ns - self._condition.over_seconds * 1_000_000_000:
            past.popleft()
        return past[0]

    def _picked(self, values: Mapping[Labels, float]) -> dict[Labels, float]:
        wanted = [(self._row.labels.index(label), value) for label, value in self._condition.match]
        return {labels: value for labels, value in values.items() if all(labels[place] == value for place, value in wanted)}


def _rise(before: float, now: float) -> float:
    """Return the rise of a counter. One that fell, or is new, started at zero."""
    return now - before if now >= before else now
