"""An alarm as a row: which condition of which metric must hold for how long, its severity and its
text. The list is in `alarms`.

A row gives both a rule for Prometheus (`expression`) and the check of the console itself
(`AlarmWatch`). Weak: there are only four forms of condition (a value, a ratio, a rise over a time,
a percentile over a time), because both sides must agree.

Checks the alarms: which condition holds for which labels since when, and which held recently.

It uses the same rows as Prometheus, and works without Prometheus. Owned by the console's loop; time
is an argument. Weak: a rise is counted from the start of the console on; an alarm that ended while the
console did not run ends with its next look.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from appliance.base.invariants import check
from appliance.shm.histogram import HistogramReading, add_readings
from services.console.figures import Figures, Labels
from services.console.metric_row import COUNTER, MetricRow
from services.console.metric_rows import ROWS

CRITICAL, WARNING = "critical", "warning"

MINUTE = 60
HOUR = 60 * MINUTE

COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "==": operator.eq}


class AlarmCondition(NamedTuple):
    """`metric` is the exposed name; `match` selects series by labels. `divided_by` makes it a
    ratio, `over_seconds` a rise; with `quantile` it is a percentile by the label `by`."""

    metric: str
    comparison: str
    threshold: float
    match: tuple[tuple[str, str], ...] = ()
    divided_by: str = ""
    over_seconds: int = 0
    quantile: float = 0.0
    by: str = ""

    @property
    def expression(self) -> str:
        """The condition in Prometheus's query language."""
        picked = ",".join(f'{label}="{value}"' for label, value in self.match)
        braces = f"{{{picked}}}" if picked else ""
        window = f"[{_duration(self.over_seconds)}]"
        if self.quantile:
            what = f"histogram_quantile({self.quantile:g}, sum by (instance, {self.by}, le) (rate({self.metric}_bucket{braces}{window})))"
        elif self.over_seconds:
            what = f"increase({self.metric}{braces}{window})"
        elif self.divided_by:
            what = f"{self.metric}{braces} / {self.divided_by}{braces}"
        else:
            what = self.metric + braces
        return f"{what} {self.comparison} {self.threshold:g}"


class Alarm(NamedTuple):
    """`words` may contain labels of the metric in braces. Without `condition`, only Prometheus can
    check it, by `only_expression`."""

    name: str
    severity: str
    condition: AlarmCondition | None
    hold_seconds: int
    words: str
    meaning: str
    """What it means for users, in a sentence."""
    only_expression: str = ""
    check: str = ""
    """What the operator checks, and with which command. Markdown, as `act`; links from `docs/operate.md`."""
    act: str = ""
    """What the operator does then."""

    @property
    def expression(self) -> str:
        """The alarm's expression in Prometheus's query language."""
        return self.condition.expression if self.condition is not None else self.only_expression

    @property
    def runbook(self) -> str:
        """The section of the runbook with checks and actions."""
        return f"docs/operate.md#{self.name.lower()}"


def _duration(seconds: int) -> str:
    if seconds and not seconds % HOUR:
        return f"{seconds // HOUR}h"
    return f"{seconds // MINUTE}m" if seconds and not seconds % MINUTE else f"{seconds}s"


EVENTS = 300
"""Past alarms that are remembered, and kept over a restart; and present ones that are kept."""
TEXT_MAX = 300
"""Characters of each text that is kept."""
_BY_EXPOSED_NAME = {row.exposed_name: row for row in ROWS}


class AlarmEvent(NamedTuple):
    """One period of an alarm. `ended_wall_ms` is None while it lasts; `labels`: (name, value) of what it
    is about."""

    alarm: Alarm
    words: str
    began_wall_ms: int
    ended_wall_ms: int | None = None
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple[str, Labels]:
        """What distinguishes present alarms."""
        return self.alarm.name, tuple(value for _, value in self.labels)


class AlarmSample(NamedTuple):
    """Whether an alarm fires now, for any labels."""

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
                    named = series.named(labels)
                    self._firing[key] = event = AlarmEvent(alarm, alarm.words.format(**named), wall_ms, labels=tuple(named.items()))
                    news.append(event)
        for key in [key for key in self._since if key not in holding]:
            del self._since[key]
            begun = self._firing.pop(key, None)
            if begun is not None:
                ended = begun._replace(ended_wall_ms=wall_ms)
                self._ended.append(ended)
                news.append(ended)
        return news

    def restore(self, events: Iterable[AlarmEvent]) -> None:
        """Take the alarms of an earlier incarnation, the latest first. Those that lasted go on if their
        condition holds at the next `look`, and end otherwise."""
        ended = []
        for event in events:
            if event.ended_wall_ms is not None:
                ended.append(event)
            elif (present := self._firing.get(event.key)) is None or present.began_wall_ms > event.began_wall_ms:
                self._firing[event.key] = event
                self._since.setdefault(event.key, 0)
        self._ended = deque([*reversed(ended), *self._ended], maxlen=EVENTS)

    @property
    def looks(self) -> list[AlarmSample]:
        """The state of each alarm at the last `look`."""
        firing = {name for name, _ in self._firing}
        return [AlarmSample(alarm, alarm.name in firing) for alarm, _ in self._alarms]

    @property
    def present(self) -> Iterable[AlarmEvent]:
        """Return the alarms that last."""
        return self._firing.values()

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
