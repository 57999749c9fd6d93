"""A load generator: a process of its own, so that its CPU time is counted apart from the box's, and so that it cannot slow the harness down.

Owned by the benchmark that starts it. Standard output and error are collected; a generator that waits for a start signal prints a line "ready" and reads
a line. `finish` gives its CPU time, which the kernel reports to its parent (wait4). Weak spot: one that prints more than a pipe holds before
it is read would hang; ours print a line.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loadtest.benchmark import BenchmarkFailed

READY = "ready"


class Finished(NamedTuple):
    """How it ended."""

    output: str
    messages: str
    cpu_seconds: float


class LoadGenerator:
    """Starts it. Use it in a `with` block: whatever happens, the process is gone afterwards."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            list(arguments),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> LoadGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def await_ready(self, seconds: float = 30.0) -> None:
        """Until it has said that it waits for `go`."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline().decode() if readable else ""
        if line.strip() != READY:
            self._process.kill()
            raise BenchmarkFailed(f"{self.name} was not ready in {seconds:g} s: {line}{self._drain()[1]}")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def finish(self, seconds: float) -> Finished:
        """Wait for its end. Raises BenchmarkFailed with what it said if it takes too long or its exit code is not 0."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                output, messages = self._drain()
                raise BenchmarkFailed(f"{self.name} did not end in {seconds:g} s\n{output}{messages}")
            time.sleep(0.02)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        output, messages = self._drain()
        if self._process.returncode:
            raise BenchmarkFailed(f"{self.name} failed ({self._process.returncode})\n{output}{messages}")
        return Finished(output, messages, used.ru_utime + used.ru_stime)

    def _drain(self) -> tuple[str, str]:
        assert self._process.stdout is not None and self._process.stderr is not None
        return self._process.stdout.read().decode(errors="replace"), self._process.stderr.read().decode(errors="replace")
