"""What processes cost, by /proc: processor time and resident memory at once, the proportional share (PSS) by a thread of its own.

For PSS the kernel walks a process's page tables under a lock that a thread of that process may hold while it waits for a hung disk; so the console's loop never
asks for it. The thread asks for every process once in `EVERY_SECONDS`; one that is kept waiting leaves the last figures as they are, older and older.
Weak spot: where a process has capabilities that the console has not, the kernel refuses PSS, and resident memory stands for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

EVERY_SECONDS = 10.0
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


class MemoryWatch:
    """`pss_bytes` by pid, as it was seen last."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        """`pids` is called by the thread."""
        self._pids = pids
        self._ended = threading.Event()
        self.pss_bytes: dict[int, int] = {}

    def start(self) -> None:
        threading.Thread(target=self._run, name="memory-watch", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.look()
            if self._ended.wait(EVERY_SECONDS):
                return

    def look(self) -> None:
        """Ask for every process, one after the other."""
        seen = {}
        for pid in self._pids():
            pss_bytes = read_pss_bytes(pid)
            if pss_bytes is not None:
                seen[pid] = pss_bytes
        self.pss_bytes = seen

    def close(self) -> None:
        """The thread ends by itself; nobody waits for it."""
        self._ended.set()
