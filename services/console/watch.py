"""What the console knows: samples every two seconds, the chart's history, alarms every ten, groups, and the documents made of them.

Owned by the console's loop; `turn` does at most one sample (2 ms for a box of 2,000 partitions). No request waits for a process or a disk: answers are
made from what was seen last, or from a fresh look at shared memory. Weak spot: what it remembers begins anew with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.base.clock import Clock
from services.console.activity import Between, Slim, slim
from services.console.alarm_watch import AlarmEvent, AlarmWatch
from services.console.alarms import ALARMS
from services.console.box_metrics import Exposition
from services.console.box_sample import BoxReader, BoxSample
from services.console.figures import gather
from services.console.group_lag import NOT_LOOKED, GroupsSample
from services.console.history import EVERY_MS, History
from services.console.overview import overview
from services.console.readiness import Readiness

ALARMS_EVERY_MS = 10_000
SMOOTHED = 5
"""Rates in tables are those of so many intervals."""


class BoxWatch:
    """`groups` gives the last look at consumer groups; `on_alarm` hears of what begins and ends."""

    def __init__(self, reader: BoxReader, clock: Clock, version: str, on_alarm: Callable[[AlarmEvent], None]) -> None:
        self._reader = reader
        self._clock = clock
        self._version = version
        self._on_alarm = on_alarm
        self.groups: Callable[[], GroupsSample] = lambda: NOT_LOOKED
        self._alarms = AlarmWatch(ALARMS)
        self._history = History()
        self._exposition = Exposition(version, clock.monotonic_ns)
        self.sample = reader.read()
        self._slims: deque[Slim] = deque([slim(self.sample)], maxlen=SMOOTHED + 1)
        self._next_ms = clock.monotonic_ms() + EVERY_MS
        self._next_alarms_ms = 0

    def turn(self) -> None:
        """Called several times a second: take a sample when it is time."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + EVERY_MS
        self.sample = self._reader.read()
        self._slims.append(slim(self.sample))
        self._history.add(Between(self._slims[-2], self._slims[-1]))
        if now_ms >= self._next_alarms_ms:
            self._next_alarms_ms = now_ms + ALARMS_EVERY_MS
            for event in self._alarms.look(gather(self.sample, self.groups()), self.sample.monotonic_ns, self.sample.wall_ms):
                self._on_alarm(event)

    def last_sample(self) -> BoxSample:
        return self.sample

    def overview(self, since_ms: int) -> dict[str, Any]:
        """The page's document, with the points of its charts that are later than `since_ms`."""
        between = Between(self._slims[0], self._slims[-1])
        document = overview(self.sample, between, self.groups(), self._alarms.events, self._version)
        return document | {"history": self._history.document(since_ms)}

    def metrics(self) -> bytes:
        """A scrape: a fresh look, written out."""
        return self._exposition.text(self._reader.read(), self.groups(), self._alarms.looks)

    def is_alive(self) -> bool:
        """Whether anybody of the box beside us is there, now."""
        return self._reader.read().is_alive

    def readiness(self) -> Readiness:
        """Who serves, now."""
        return self._reader.read().readiness
