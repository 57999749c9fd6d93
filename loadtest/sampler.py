"""Samples the stacks of some processes of the box while an observer's window is open, with py-spy.

Owned by `flames.py`, which makes it the observers' companion. One py-spy for each process, started before the window's figures begin and interrupted after its
end. Weak spots: py-spy counts a thread that the kernel calls runnable, whether it has a core or waits for one (`running` says how many samples its
CPU time alone would have given); it stops the process for each look, so a load is slower than without it; and it needs the right to trace (root, or
one's own processes where `kernel.yama.ptrace_scope` is 0).
"""

from __future__ import annotations

import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.benchmark import BenchmarkFailed
from loadtest.flame_graph import parse_stacks
from loadtest.observation import process_cpu_seconds, role_of

RATE = 200
READY = "Sampling process"
START_SECONDS = 20.0
END_SECONDS = 30.0


def find_py_spy() -> str | None:
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


class Profile(NamedTuple):
    """One kind of process in one window. `cores` is its CPU time a second, from its CPU clock."""

    label: str
    role: str
    stacks: Counter[tuple[str, ...]]
    cores: float
    seconds: float

    @property
    def samples(self) -> int:
        return self.stacks.total()

    @property
    def running(self) -> int:
        """Samples that its CPU time is worth."""
        return round(self.cores * self.seconds * RATE)


class _Spy:
    """A py-spy that samples one process."""

    def __init__(self, program: str, pid: int, file: Path) -> None:
        self._file = file
        command = [program, "record", "--native", "--function", "--format", "raw", "--rate", str(RATE), "--pid", str(pid), "--output", str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def await_start(self) -> None:
        assert self._process.stdout is not None
        deadline, said = time.monotonic() + START_SECONDS, ""
        while READY not in said:
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = self._process.stdout.readline().decode(errors="replace") if readable else ""
            said += line
            if not line:
                self.kill()
                raise BenchmarkFailed(f"py-spy does not start: {said}")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def result(self) -> Counter[tuple[str, ...]]:
        """Nothing if the process never ran while it was looked at: then py-spy writes no file."""
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BenchmarkFailed("py-spy does not end") from None
        return parse_stacks(self._file.read_text()) if self._file.exists() else Counter()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Sampler:
    """An observers' companion (see observation.py): `profiles` has one entry for each kind of process and label of a window."""

    def __init__(self, program: str, roles: Sequence[str], directory: Path) -> None:
        self.profiles: list[Profile] = []
        self._program, self._roles, self._directory = program, roles, directory
        self._spies: dict[str, _Spy] = {}
        self._pids: dict[str, int] = {}
        self._used: dict[str, float] = {}
        self._label = ""
        self._opened = 0.0
        self._windows = 0

    def window_opens(self, pids: Mapping[str, int], label: str) -> None:
        self._windows += 1
        self._label = label
        self._pids = {name: pid for name, pid in pids.items() if role_of(name) in self._roles}
        for name, pid in self._pids.items():
            self._spies[name] = _Spy(self._program, pid, self._directory / f"{self._windows}-{name}.raw")
        for spy in self._spies.values():
            spy.await_start()
        self._used = {name: process_cpu_seconds(pid) for name, pid in self._pids.items()}
        self._opened = time.monotonic()

    def window_closes(self) -> None:
        seconds = time.monotonic() - self._opened
        used = {name: process_cpu_seconds(pid) - self._used[name] for name, pid in self._pids.items()}
        for spy in self._spies.values():
            spy.interrupt()
        stacks = {name: spy.result() for name, spy in self._spies.items()}
        # A warm-up that is observed in the same way comes first, and is replaced by what it warms up for.
        self.profiles = [profile for profile in self.profiles if profile.label != self._label]
        for role in self._roles:
            names = [name for name in self._pids if role_of(name) == role]
            together = sum((stacks[name] for name in names), Counter[tuple[str, ...]]())
            self.profiles.append(Profile(self._label, role, together, sum(used[name] for name in names) / seconds, seconds))
        self.close()

    def close(self) -> None:
        for spy in self._spies.values():
            spy.kill()
        self._spies.clear()
