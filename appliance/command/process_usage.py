"""What a process costs: processor time and memory, as /proc tells it. Owns nothing.

Memory is PSS (shared pages are divided among those who map them), because every process of a box maps the same arenas and libraries. Weak spot: PSS takes
the kernel some milliseconds for a large process, and only its own user, or root, may ask.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessUsage(NamedTuple):
    """`pss_bytes` None: not asked, or not allowed."""

    cpu_seconds: float
    pss_bytes: int | None


def read_usage(pid: int, with_memory: bool = True) -> ProcessUsage | None:
    """None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
    return ProcessUsage((int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND, read_pss_bytes(pid) if with_memory else None)


def read_pss_bytes(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), None)


def cpu_percent(before: ProcessUsage | None, after: ProcessUsage | None, seconds: float) -> float | None:
    """Of one core. None when either reading is missing; a process that was started in between counts from zero on."""
    if before is None or after is None or seconds <= 0:
        return None
    spent = after.cpu_seconds - before.cpu_seconds
    return round(100 * (spent if spent >= 0 else after.cpu_seconds) / seconds, 1)
