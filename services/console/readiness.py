"""Whether a process serves, judged by its counters alone.

Pure, apart from the check whether a pid exists. Weak: a process that hangs counts as serving until
its heartbeat is older than the watchdog allows.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from appliance.shm.counters import CounterSnapshot


class Readiness(NamedTuple):
    """`missing`: name → why it does not serve."""

    processes: int
    missing: dict[str, str]

    @property
    def is_ready(self) -> bool:
        return not self.missing


def judge_process(snapshot: CounterSnapshot | None, alive: bool, now_ns: int, silence_ns_max: int) -> str | None:
    """Return why a process does not serve, or None."""
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
