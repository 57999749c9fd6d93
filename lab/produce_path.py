"""Print how much of the product one produce touches: `.venv/bin/python -m lab.produce_path [--lists]`.

A real box with one disk runs with a profile function in every process (`sitecustomize`), which notes the file of each call, and counts the calls, by the
time. Printed are the files in which functions run in acceptor and log-writer while the second record of a warm client is produced, and how many Python
functions each of the two calls for a produce (of `PRODUCES`, one after the other, less what it calls when idle). Compare two trees on one machine at the
same load: on a busy one the acceptor takes fewer turns for a produce (1.8 instead of 2.9), because the log-writer has answered before it looks. Owned by
contributors, who compare the figures before and after a change; no test runs it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.compiled import PURE_VARIABLE
from lab.running_box import ROOT, start_box

BIN_NS = 10_000_000
"""The profile function notes a file once in this time."""
TRACE = f"""
import os, sys, time
root, out = os.environ["PRODUCE_PATH_ROOT"], os.environ["PRODUCE_PATH_OUT"]
places = (root + "/appliance", root + "/services")
seen, calls, last = set(), 0, 0
def note(frame, event, argument):
    global calls, last
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(places):
        return
    now, pid = time.monotonic_ns() // {BIN_NS}, os.getpid()
    lines = ""
    if now != last:
        lines, last, calls = f"{{last}} calls {{calls}}\\n", now, 0
        seen.clear()
    calls += 1
    if name not in seen:
        seen.add(name)
        lines += f"{{now}} file {{name[len(root) + 1:]}}\\n"
    if lines:
        with open(f"{{out}}/{{pid}}", "a") as file:  # a process may close what it inherits
            file.write(lines)
sys.setprofile(note)
"""
IDLE_SECONDS = 3.0
PRODUCES = 500
PROCESSES = ("acceptor@0", "log-writer@d0")


class ProducePath(NamedTuple):
    """`touched`, `idle`: files that run for one produce, and when there is nothing to do. `calls`: of a process for one produce."""

    touched: set[str]
    idle: set[str]
    calls: dict[str, float]


class Trace:
    """What one process noted."""

    def __init__(self, text: str) -> None:
        self._noted = [(int(time_), kind, value) for time_, kind, value in (line.split(" ", 2) for line in text.splitlines())]

    def files(self, first: int, last: int) -> set[str]:
        return {value for time_, kind, value in self._noted if kind == "file" and first <= time_ <= last}

    def calls(self, first: int, last: int) -> int:
        return sum(int(value) for time_, kind, value in self._noted if kind == "calls" and first <= time_ <= last)


def path_of_one_produce(directory: Path) -> ProducePath:
    """Start a box below `directory` and measure."""
    hook, out = directory / "hook", directory / "out"
    hook.mkdir()
    out.mkdir()
    (hook / "sitecustomize.py").write_text(TRACE)
    variables = {"PYTHONPATH": f"{hook}:{ROOT}", PURE_VARIABLE: "1", "PRODUCE_PATH_ROOT": str(ROOT), "PRODUCE_PATH_OUT": str(out)}
    box = start_box(directory / "box", disks=1, wrapper=["env", *(f"{name}={value}" for name, value in variables.items())])
    spans: list[tuple[int, int]] = []
    try:
        admin = AdminClient({"bootstrap.servers": box.bootstrap, "log_level": 1})
        admin.create_topics([NewTopic("one", 1)])["one"].result(30)
        producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 0, "log_level": 1})
        for count in (1, 1, PRODUCES, 0):
            time.sleep(IDLE_SECONDS)
            began = time.monotonic_ns() // BIN_NS
            for _ in range(count):
                producer.produce("one", b"x")
                assert producer.flush(30) == 0
            spans.append((began, time.monotonic_ns() // BIN_NS))
        pids = box.pids()
        traces = {name: Trace((out / str(pids[name])).read_text()) for name in PROCESSES}
    finally:
        box.stop()
    (_, before), one, many, (_, end) = spans
    quiet = many[1] + 50, end  # half a second later
    touched: set[str] = set().union(*(trace.files(*one) for trace in traces.values()))
    idle: set[str] = set().union(*(trace.files(before + 100, one[0] - 1) for trace in traces.values()))
    share = (many[1] - many[0]) / (quiet[1] - quiet[0])
    return ProducePath(touched, idle, {name: (trace.calls(*many) - share * trace.calls(*quiet)) / PRODUCES for name, trace in traces.items()})


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="millrace-") as directory:
        path = path_of_one_produce(Path(directory))
    print(f"files that one produce touches         {len(path.touched):>8,}")
    print(f"of them, not when the box is idle      {len(path.touched - path.idle):>8,}")
    for name, calls in path.calls.items():
        print(f"{f'calls of functions, {name}':<39}{calls:>8,.1f}")
    if arguments == ["--lists"]:
        for name in sorted(path.touched):
            print(f"  {name}{' (idle, too)' if name in path.idle else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
