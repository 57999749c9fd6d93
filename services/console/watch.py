"""The state of the console: samples every two seconds, chart history, alarms every ten seconds,
groups, and the documents made of them.

Owned by the console's loop; `turn` takes at most one sample (2 ms for a box of 2,000 partitions).
No request waits for a process or a disk: answers use the last sample, or a new one from shared
memory. Of its memory, alarms and minutes are kept over a restart (`state_files`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import nan
from typing import Any

from appliance.base.clock import Clock
from services.console.activity import EVERY_MS, Between, History, Slim, slim
from services.console.alarm import AlarmEvent, AlarmWatch
from services.console.alarms import ALARMS
from services.console.box_metrics import Exposition
from services.console.box_sample import BoxReader, BoxSample, Readiness
from services.console.console_groups import NOT_LOOKED, GroupsSample
from services.console.figure_history import FigureHistory, HistorySpan
from services.console.figures import gather
from services.console.overview import SENDERS_SHOWN, alarms_document, overview, senders_document, topic_list
from services.console.person_rights import ALL, Visible

ALARMS_EVERY_MS = 10_000
SENDERS_EVERY_MS = 10_000
SMOOTHED = 5
"""Rates in tables cover this many intervals."""


class BoxMonitor:
    """`groups` is the last round of consumer groups; `on_alarm` is called for alarms that begin and
    end."""

    def __init__(self, reader: BoxReader, clock: Clock, version: str, on_alarm: Callable[[AlarmEvent], None]) -> None:
        self._reader = reader
        self.layout = reader.layout
        self._clock = clock
        self._version = version
        self._on_alarm = on_alarm
        self.groups: Callable[[], GroupsSample] = lambda: NOT_LOOKED
        self.alarms = AlarmWatch(ALARMS)
        self.figures = FigureHistory()
        self.kept: Callable[[], dict[str, Any]] = dict
        """What the page of alarms shows besides: of the files that are kept, and of the server that gets alarms."""
        self._history = History()
        self._exposition = Exposition(version, clock.monotonic_ns)
        self.sample = reader.read()
        self._slims: deque[Slim] = deque([slim(self.sample)], maxlen=SMOOTHED + 1)
        self._minute_slim = self._slims[-1]
        self._next_ms = clock.monotonic_ms() + EVERY_MS
        self._next_alarms_ms = 0
        self._senders: tuple[BoxSample, dict[str, Any]] | None = None

    def turn(self) -> None:
        """Take a sample if it is time; call it several times a second."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + EVERY_MS
        self.sample = self._reader.read()
        self._slims.append(slim(self.sample))
        self._history.add(Between(self._slims[-2], self._slims[-1]))
        if self.figures.minute_ended(self.sample.wall_ms):
            groups = self.groups()
            lag_records = nan if groups is NOT_LOOKED else sum(group.records for group in groups.groups)
            self.figures.add(Between(self._minute_slim, self._slims[-1]), self.sample.fullest_disk_percent, lag_records)
            self._minute_slim = self._slims[-1]
        if now_ms >= self._next_alarms_ms:
            self._next_alarms_ms = now_ms + ALARMS_EVERY_MS
            for event in self.alarms.look(gather(self.sample, self.groups()), self.sample.monotonic_ns, self.sample.wall_ms):
                self._on_alarm(event)

    def last_sample(self) -> BoxSample:
        """Return the last sample, at most `EVERY_MS` old."""
        return self.sample

    def overview(self, since_ms: int, visible: Visible = ALL) -> dict[str, Any]:
        """Return the document of the page, with the points of its charts after `since_ms`."""
        between = Between(self._slims[0], self._slims[-1])
        document = overview(self.sample, between, self.groups(), self.alarms.events, self._version, visible)
        return document | {"history": self._history.document(since_ms)}

    def figures_between(self, span: HistorySpan) -> dict[str, Any]:
        """Return the points of a part of the last 30 days."""
        return self.figures.document(span, self.sample.wall_ms) | {"now_ms": self.sample.wall_ms}

    def alarms_document(self, visible: Visible = ALL) -> dict[str, Any]:
        """Return the alarms that last, those that ended, and the runbook of each."""
        return alarms_document(self.alarms, ALARMS, self.sample.wall_ms, visible) | self.kept()

    def topics(self, contained: str = "", with_internal: bool = False, visible: Visible = ALL) -> dict[str, Any]:
        """Return the topics whose names contain a text, by name."""
        return topic_list(self.sample.image, Between(self._slims[0], self._slims[-1]), contained, with_internal, visible)

    def senders(self) -> dict[str, Any]:
        """Return what senders brought, as of the last sample; of more senders than are shown, as of
        one of the last ten seconds: to read files of 8,192 senders takes 70 ms."""
        if self._senders is not None:
            sample, document = self._senders
            age_ms = (self.sample.monotonic_ns - sample.monotonic_ns) // 1_000_000
            if age_ms < (SENDERS_EVERY_MS if document["senders_count"] > SENDERS_SHOWN else 1):
                return document
        self._senders = self.sample, senders_document(self._reader.senders(self.sample.wall_ms), self.sample.box.integer("ingest.sender.silent.ms"))
        return self._senders[1]

    def metrics(self, shows_release: bool = True) -> bytes:
        """Take a new sample and return its scrape."""
        return self._exposition.text(self._reader.read(), self.groups(), self.alarms.looks, shows_release)

    def is_alive(self) -> bool:
        """Return whether a process of the box runs besides the console."""
        return self._reader.read().is_alive

    def readiness(self) -> Readiness:
        """Return which processes serve, from a new sample."""
        return self._reader.read().readiness
