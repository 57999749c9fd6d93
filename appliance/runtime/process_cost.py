"""CPU time and memory of a process from /proc: resident memory, and its proportional share of
shared pages (PSS).

The processes of a box map the same arenas and libraries, so only PSS attributes memory. Weak: PSS
takes the kernel milliseconds for a large process; it walks the page tables under a lock that a
thread may hold while it waits for a hung disk; and only its own user or root may read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessCost(NamedTuple):
    """Cost of the present incarnation; resident memory counts shared pages in full."""

    cpu_seconds: float
    resident_bytes: int


def read_cost(pid: int) -> ProcessCost | None:
    """Return the cost of a process; None if it does not exist. Takes no lock of its memory."""
    try:
        # the name before it may contain blanks and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessCost((int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND, int(fields[21]) * _PAGE_BYTES)


def read_pss_bytes(pid: int) -> int | None:
    """Return the PSS; None if the process does not exist or the kernel refuses. May block while a
    disk blocks the process."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), None)
