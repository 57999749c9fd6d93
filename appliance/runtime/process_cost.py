"""What a process costs, by /proc: processor time, resident memory, and its proportional share of what is shared (PSS). Owns nothing.

Every process of a box maps the same arenas and libraries, so PSS is what says whose memory it is. Weak spot: PSS takes the kernel some milliseconds for a
large process, it walks the page tables under a lock that a thread may hold while it waits for a hung disk, and only its own user, or root, may ask.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessCost(NamedTuple):
    """Of the process's present life; resident memory counts what is shared in full."""

    cpu_seconds: float
    resident_bytes: int


def read_cost(pid: int) -> ProcessCost | None:
    """None when there is no such process. Takes no lock of its memory."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
    except OSError:
        return None
    return ProcessCost((int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND, int(fields[21]) * _PAGE_BYTES)


def read_pss_bytes(pid: int) -> int | None:
    """None when there is no such process, or the kernel refuses. May wait as long as the process is held by its disk."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), None)
