"""CPU time of the box's processes, of load generators and of the whole machine between two moments, and what it says about the limit.

Owned by the benchmark that is running. A process's time is read from its CPU clock (all its threads, ended ones too, in nanoseconds); it is what
/proc/PID/stat rounds to ticks of 10 ms, too coarse for a process that wakes ten times a second for 50 µs. Weak spots: what a kernel thread does for a
process (write-back) is charged to no process here but shows in `machine_busy`, which the kernel counts in ticks; and in a virtual machine that is short of
its host's cores (`stolen`) CPU seconds grow too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

_SCHEDULER_CLOCK = 2
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SATURATED = 0.9
"""A process that uses this share of a core can do no more: it has one thread that matters."""
HARNESS = "harness"
NAMED = 0.05
"""Processes below this share of a core are not worth a word."""

# Places in the first line of /proc/stat.
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(8)


def process_cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far. Raises OSError if it is gone."""
    # What clock_getcpuclockid(3) makes of a pid; Python has no function for it.
    return time.clock_gettime_ns((~pid << 3) | _SCHEDULER_CLOCK) / 1e9


class MachineTimes(NamedTuple):
    """CPU seconds of all cores since boot."""

    busy: float
    idle: float
    stolen: float


def machine_times() -> MachineTimes:
    ticks = [int(word) / TICKS_PER_SECOND for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    busy = ticks[_USER] + ticks[_NICE] + ticks[_SYSTEM] + ticks[_IRQ] + ticks[_SOFTIRQ]
    return MachineTimes(busy, ticks[_IDLE] + ticks[_IOWAIT], ticks[_STEAL])


class Observation(NamedTuple):
    """What was used in a window of `seconds`. Process names as the supervisor knows them (`log-writer@d0`)."""

    seconds: float
    cores: int
    box: dict[str, float]
    generators: dict[str, float]
    machine_busy: float
    stolen: float

    def role(self, *roles: str) -> float:
        """CPU seconds of all processes of these kinds: `role("acceptor", "log-writer")`."""
        return sum(used for name, used in self.box.items() if role_of(name) in roles)

    @property
    def others(self) -> float:
        """CPU seconds that neither the box nor a generator used: the kernel's own threads, and other programs on the machine."""
        return max(0.0, self.machine_busy - sum(self.box.values()) - sum(self.generators.values()))

    def shares(self) -> dict[str, float]:
        """Cores in use (1.0: one core, all the time), by process, the largest first."""
        used = {**self.box, **self.generators, "others": self.others}
        return {name: cpu / self.seconds for name, cpu in sorted(used.items(), key=lambda item: -item[1]) if cpu / self.seconds >= NAMED}

    def what_limits(self) -> str:
        """In words: which processes have no core left, or that none is short of one."""
        shares = self.shares()
        words = ", ".join(f"{name} {share:.2f}" for name, share in shares.items()) or "next to nothing"
        full = [name for name, share in shares.items() if share >= SATURATED and name != "others"]
        busy = self.machine_busy / self.seconds
        if full:
            verdict = f"{' and '.join(full)} {'has' if len(full) == 1 else 'have'} no core left"
        elif busy + self.stolen / self.seconds >= SATURATED * self.cores:
            verdict = f"all {self.cores} cores are busy"
        else:
            verdict = "no process and no core is full"
        stolen = f", stolen by the host {self.stolen / self.seconds:.2f}" if self.stolen / self.seconds >= NAMED else ""
        return f"{verdict} (cores in use: {words}{stolen})"


def role_of(process_name: str) -> str:
    return process_name.partition("@")[0]


class Companion(Protocol):
    """What measures the same windows as the observer, such as a profiler."""

    def window_opens(self, pids: Mapping[str, int], label: str) -> None: ...

    def window_closes(self) -> None: ...


_companions: list[Companion] = []


@contextmanager
def accompanied(companion: Companion) -> Iterator[None]:
    """Every window opened in this block is the companion's too; it looks before the figures begin, and hears of the end after them."""
    _companions.append(companion)
    try:
        yield
    finally:
        _companions.remove(companion)


class Observer:
    """Opens a window when made; `finish` closes it. `label` distinguishes the windows of a benchmark that has several."""

    def __init__(self, pids: dict[str, int], label: str = "") -> None:
        self.pids = dict(pids)
        for companion in _companions:
            companion.window_opens(self.pids, label)
        self._used = {name: process_cpu_seconds(pid) for name, pid in pids.items()}
        self._own = process_cpu_seconds(os.getpid())
        self._machine = machine_times()
        self._started = time.monotonic()

    def finish(self, generators: dict[str, float] | None = None) -> Observation:
        """`generators`: CPU seconds of load generators in the window; our own are added. Raises OSError if a process of the box has died."""
        seconds = time.monotonic() - self._started
        machine = machine_times()
        box = {name: process_cpu_seconds(pid) - self._used[name] for name, pid in self.pids.items()}
        busy, stolen = machine.busy - self._machine.busy, machine.stolen - self._machine.stolen
        load = {**(generators or {}), HARNESS: process_cpu_seconds(os.getpid()) - self._own}
        for companion in _companions:
            companion.window_closes()
        return Observation(seconds, os.cpu_count() or 1, box, load, busy, stolen)
