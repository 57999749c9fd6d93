"""Processor time and memory (PSS) of one process at one moment, and what it spent between two. Owns nothing."""

from __future__ import annotations

from typing import NamedTuple

from appliance.runtime.process_cost import read_cost, read_pss_bytes


class ProcessUsage(NamedTuple):
    """`pss_bytes` None: not asked, or not allowed."""

    cpu_seconds: float
    pss_bytes: int | None


def read_usage(pid: int, with_memory: bool = True) -> ProcessUsage | None:
    """None when there is no such process."""
    cost = read_cost(pid)
    return None if cost is None else ProcessUsage(cost.cpu_seconds, read_pss_bytes(pid) if with_memory else None)


def cpu_percent(before: ProcessUsage | None, after: ProcessUsage | None, seconds: float) -> float | None:
    """Of one core. None when either reading is missing; a process that was started in between counts from zero on."""
    if before is None or after is None or seconds <= 0:
        return None
    spent = after.cpu_seconds - before.cpu_seconds
    return round(100 * (spent if spent >= 0 else after.cpu_seconds) / seconds, 1)
