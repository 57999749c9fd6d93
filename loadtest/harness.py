"""Runs a benchmark several times, each time on a fresh box in a directory of its own, and gathers the outcome.

Order of a run: directory made, memory warmed, box started (`lab/running_box.py`, the same as in the tests), benchmark, box
stopped, directory removed. A run fails if a process of the box was restarted meanwhile or the box did not end cleanly: figures of a broken
box are worth nothing. Weak spot: five runs one after the other see one state of the machine; the load average is kept with them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lab.running_box import RunningBox, start_box
from loadtest.benchmark import Benchmark, BenchmarkFailed, Run, Say
from loadtest.machine import load_average
from loadtest.warm_memory import WarmMemory

WARM_MARGIN = 1.25
"""Indexes, framing and the messages of the box come on top of what a benchmark says it writes."""


class Outcome(NamedTuple):
    """All runs of one benchmark that gave figures, and what went wrong in the others."""

    benchmark: Benchmark
    runs: list[Run]
    failures: list[str]
    load_before: float


def run_benchmark(benchmark: Benchmark, runs: int, scratch: Path, say: Say) -> Outcome:
    """`say` receives each step, prefixed with benchmark and run."""
    outcome = Outcome(benchmark, [], [], load_average())
    for number in range(1, runs + 1):
        say_here = _prefixed(say, f"[{benchmark.name} {number}/{runs}] ")
        started = time.monotonic()
        try:
            run = run_once(benchmark, scratch, say_here)
        except (BenchmarkFailed, AssertionError, OSError) as error:
            outcome.failures.append(f"{type(error).__name__}: {error}")
            say_here(f"FAILED: {error}")
            continue
        outcome.runs.append(run)
        figures = ", ".join(f"{figure.name} {run.figures[figure.name]:,.4g} {figure.unit}".rstrip() for figure in benchmark.figures)
        say_here(f"{figures}; took {time.monotonic() - started:.0f} s")
        say_here(run.observation.what_limits())
    return outcome


def run_once(benchmark: Benchmark, scratch: Path, say: Say) -> Run:
    """One run on a fresh box. Raises BenchmarkFailed, or AssertionError where the box does not start or stop."""
    directory = Path(tempfile.mkdtemp(prefix=f"{benchmark.name}-", dir=scratch))
    try:
        with WarmMemory(int(benchmark.written_bytes * WARM_MARGIN)) as memory:
            if memory.size_bytes:
                say(str(memory))
            box = start_box(directory / "box", **benchmark.box_arguments(directory))
            say(f"box ready after {box.ready_seconds:.1f} s")
            memory.feed()
            return _run_on(box, benchmark, say)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_on(box: RunningBox, benchmark: Benchmark, say: Say) -> Run:
    """Runs the benchmark and ends the box."""
    try:
        pids = box.pids()
        run = benchmark.run(box, say)
        _require_same_lives(box, pids)
    except BenchmarkFailed as error:
        raise BenchmarkFailed(f"{error}\n{_last_messages(box)}") from error
    finally:
        exit_code = box.stop()
    if exit_code:
        raise BenchmarkFailed(f"the box ended with {exit_code}\n{_last_messages(box)}")
    return run


def _require_same_lives(box: RunningBox, pids: dict[str, int]) -> None:
    now = box.pids()
    changed = [name for name in pids if now.get(name) != pids[name]]
    if changed:
        raise BenchmarkFailed(f"{', '.join(changed)} did not live through the run")


def _last_messages(box: RunningBox, lines: int = 15) -> str:
    return "\n".join(["the box said:", *box.messages.splitlines()[-lines:]])


def _prefixed(say: Say, prefix: str) -> Callable[[str], None]:
    return lambda words: say(prefix + words.replace("\n", "\n" + " " * len(prefix)))
