"""Runs one agent: turns, waits when there is no work, a heartbeat per turn, and a stop with a
deadline.

Owned by `service_main`; one per process. Garbage is collected only when the agent has been idle for
a while, and each collection is counted with its duration. Weak: an agent that is never idle never
collects cycles, so connections must not create any.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from appliance.runtime.agent import Agent, Reloadable, ServiceContext
from appliance.runtime.background_thread import REFUSALS
from appliance.runtime.process_cost import CostReport
from appliance.runtime.settings_watch import SettingsWatch
from appliance.runtime.shared_memory import LOOK_NS, SharedMemoryWatch
from appliance.runtime.unit_process import UnitHeart

STOP_MS = 10_000
"""A stop is cut off after this time: the clients of unfinished requests have timed out by then."""

IDLE_NS_BEFORE_COLLECTING = 2_000_000_000
TOLD_NS = 10_000_000_000
"""Minimum interval between two log messages about refused threads."""


class Runner:
    """The loop of one process."""

    def __init__(
        self,
        agent: Agent,
        context: ServiceContext,
        collects_when_idle: bool = False,
        heart: UnitHeart | None = None,
        may_stop: Callable[[], bool] | None = None,
    ) -> None:
        """`heart` and `may_stop` (True when no process needs this one) are set for units of
        systemd."""
        self._agent = agent
        self._context = context
        self._clock = context.clock
        self._poller = context.poller
        self._counters = context.counters
        self._heart = heart
        self._may_stop = may_stop
        self._stop_requested = False
        self._collects_when_idle = collects_when_idle
        self._busy_since_collection = False
        self._last_busy_ns = 0
        self._threads_refused = context.counters.counter("runtime.threads_refused")
        self._refusals_seen = REFUSALS.count
        self._refusals_told_ns = -TOLD_NS
        log_writers = [f"log-writer@{disk.name}" for disk in context.box.disks]
        self._shared_memory = SharedMemoryWatch(context.layout, context.process_name, log_writers, context.clock, context.counters, context.log)
        self._settings = SettingsWatch(context.layout, context.box, context.log, agent.on_reloaded if isinstance(agent, Reloadable) else None)
        self._cost = CostReport(context.counters)
        self._next_look_ns = 0
        self._collections = context.counters.counter("runtime.gc_collections")
        self._collection_time = context.counters.counter("runtime.gc_pause_us")

    def request_stop(self) -> None:
        """Request a stop; safe in a signal handler. The loop sees it at its next turn
        (`service_main` ends a wait)."""
        self._stop_requested = True

    def run(self) -> None:
        """Run until a stop was requested and completed. The agent is closed in every case."""
        try:
            while not self._stop_requested:
                self.turn()
            if self._heart is not None:
                self._heart.stopping()
            while self._may_stop is not None and not self._may_stop():
                self.turn()
            self._stop()
        finally:
            if self._heart is not None:
                self._heart.closing()
            self._agent.close()

    def turn(self) -> int:
        """Run one turn; returns the work done. Tests step agents with it."""
        agent = self._agent
        now_ns = self._clock.monotonic_ns()
        self._counters.beat(now_ns)
        if self._heart is not None:
            self._heart.beat(now_ns, agent.status_line)
        work = agent.do_work()
        if now_ns >= self._next_look_ns:  # here, because a produce takes two turns
            self._next_look_ns = now_ns + LOOK_NS
            self._shared_memory.turn(now_ns)
            self._cost.turn(now_ns)
            self._settings.look()
        if REFUSALS.count != self._refusals_seen:
            self._on_refused_threads(now_ns)
        if work or not agent.may_park():
            self._poller.poll(0)
            self._busy_since_collection = True
            self._last_busy_ns = now_ns
        else:
            self._context.log.sweep(now_ns)
            if self._collects_when_idle and self._busy_since_collection and now_ns - self._last_busy_ns > IDLE_NS_BEFORE_COLLECTING:
                self._collect(now_ns)
            self._poller.poll(agent.park_ms())
            agent.unpark()
        return work

    def _on_refused_threads(self, now_ns: int) -> None:
        self._threads_refused.add(REFUSALS.count - self._refusals_seen)
        self._refusals_seen = REFUSALS.count
        if now_ns - self._refusals_told_ns >= TOLD_NS:
            self._refusals_told_ns = now_ns
            self._context.log.error(f"{REFUSALS.latest}; retrying, raise the limits of memory and tasks of this process", reason="threads")

    def _collect(self, now_ns: int) -> None:
        gc.collect()
        self._busy_since_collection = False
        self._collections.add()
        self._collection_time.add((self._clock.monotonic_ns() - now_ns) // 1000)

    def _stop(self) -> None:
        self._counters.set_state("stopping")
        self._agent.begin_stop()
        deadline_ms = self._clock.monotonic_ms() + STOP_MS
        while not self._agent.stopped():
            if self._clock.monotonic_ms() >= deadline_ms:
                self._context.log.warning(f"gave up on a clean stop after {STOP_MS // 1000} s: {self._agent.status_line()}")
                return
            self.turn()
