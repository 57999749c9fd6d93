"""CPU time and memory of a process from /proc: resident memory, and its proportional share of
shared pages (PSS).

The processes of a box map the same arenas and libraries, so only PSS attributes memory. Each
process publishes its own figures (`CostReport`): the console, in a user namespace of its own, may
not read those of others. Weak: PSS takes the kernel milliseconds for a large process, and it walks
the page tables under a lock that a thread may hold while it waits for a hung disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.shm.counters import Counters

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


def read_private_bytes() -> int:
    """Return the resident memory of this process without what it maps of files and shared memory."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


HEAP_LOOK_NS = 100_000_000


class HeapBound:
    """Whether this process may keep more for its clients. Reads its memory at most every `HEAP_LOOK_NS`.

    Weak: memory that was freed in small pieces stays with the process, and counts until it is used again.
    """

    def __init__(self, limit_bytes: int, monotonic_ns: Callable[[], int], used_bytes: Callable[[], int] = read_private_bytes) -> None:
        self._limit_bytes = limit_bytes
        self._monotonic_ns = monotonic_ns
        self._used_bytes = used_bytes
        self._next_ns = 0
        self._has_room = True

    def has_room(self) -> bool:
        now_ns = self._monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + HEAP_LOOK_NS
            self._has_room = self._used_bytes() < self._limit_bytes
        return self._has_room


def read_pss_bytes(pid: int) -> int | None:
    """Return the PSS; None if the process does not exist or the kernel refuses. May block while a
    disk blocks the process."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), None)


CPU_COUNTER = "process.cpu_us"
RESIDENT_COUNTER = "process.resident_bytes"
PSS_COUNTER = "process.pss_bytes"
COST_NS = 1_000_000_000
PSS_NS = 10_000_000_000
PSS_AFTER_NS = 2_000_000_000
"""No process reads its page tables while it starts."""


class CostReport:
    """Publishes the cost of a process in its counters; their owner calls `turn` once a second or more
    often. A thread reads the PSS; while a disk blocks it, the last figure stays."""

    def __init__(self, counters: Counters, pid: int = 0) -> None:
        """`pid` 0: this process."""
        self._counters = counters
        self._pid = pid or os.getpid()
        self._next_ns = 0
        self._next_pss_ns = 0
        self._thread: BackgroundThread | None = None
        self._pss_bytes: int | None = None

    def turn(self, now_ns: int) -> None:
        """Publish the figures, at most once in `COST_NS`; `now_ns` is monotonic."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + COST_NS
        cost = read_cost(self._pid)
        if cost is None:
            return
        gauge = self._counters.gauge
        gauge(CPU_COUNTER).set(round(cost.cpu_seconds * 1e6))
        gauge(RESIDENT_COUNTER).set(cost.resident_bytes)
        gauge(PSS_COUNTER).set(self._pss_bytes or 0)
        self._next_pss_ns = self._next_pss_ns or now_ns + PSS_AFTER_NS
        if now_ns >= self._next_pss_ns and (self._thread is None or not self._thread.is_alive()):
            self._next_pss_ns = now_ns + PSS_NS
            self._thread = BackgroundThread(self._read_pss, "process-memory")
            with suppress(ThreadRefused):
                self._thread.start()

    def _read_pss(self) -> None:
        self._pss_bytes = read_pss_bytes(self._pid)


def published_cost(values: Mapping[str, int]) -> tuple[ProcessCost | None, int | None]:
    """Return the cost and PSS in the counters of a process; None for what it has not published."""
    if RESIDENT_COUNTER not in values:
        return None, None
    return ProcessCost(values[CPU_COUNTER] / 1e6, values[RESIDENT_COUNTER]), values.get(PSS_COUNTER) or None
