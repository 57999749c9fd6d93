"""Does every process of the box serve? Answered from the counters alone; no process is asked.

Pure but for reading counters and looking whether a pid lives. Weak spot: a process that hangs counts as serving until its heartbeat is
older than the watchdog allows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.settings import Box
from appliance.shm.counters import CounterSnapshot, read_counters


class Readiness(NamedTuple):
    """`missing`: name → why it does not serve."""

    processes: int
    missing: dict[str, str]

    @property
    def is_ready(self) -> bool:
        return not self.missing


def judge_process(snapshot: CounterSnapshot | None, alive: bool, now_ns: int, silence_ns_max: int) -> str | None:
    """Why a process does not serve, or None."""
    if snapshot is None:
        return "not started"
    if not alive:
        return "dead"
    if snapshot.state != "serving":
        return snapshot.state or "starting"
    if now_ns - snapshot.heartbeat_ns > silence_ns_max:
        return "hung"
    return None


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return pid > 0


def read_readiness(layout: BoxLayout, box: Box, clock: Clock, read: Callable[[BoxLayout, str], CounterSnapshot | None] = read_counters) -> Readiness:
    """Look at every process of the box."""
    silence_ns_max = box.integer("watchdog.timeout.ms") * 1_000_000
    missing = {}
    names = box.process_names()
    for name in names:
        snapshot = read(layout, name)
        reason = judge_process(snapshot, snapshot is not None and is_alive(snapshot.pid), clock.monotonic_ns(), silence_ns_max)
        if reason is not None:
            missing[name] = reason
    return Readiness(len(names), missing)
