"""Print the files of the product in which functions run while a box handles one produce: `.venv/bin/python -m lab.produce_path [--lists]`.

A real box with one disk runs with a profile function in every process (`sitecustomize`), which notes the file of each call with the time. The second
record of a warm client counts. Files that run as well while the box is idle (the loops of the processes) are counted apart. Owned by contributors, who
compare the figure before and after a change; no test runs it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.running_box import ROOT, start_box

TRACE = """
import os, sys, time
root, out = os.environ["PRODUCE_PATH_ROOT"], os.environ["PRODUCE_PATH_OUT"]
seen = set()
def note(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith((root + "/appliance", root + "/services")):
        key = (pid := os.getpid(), time.monotonic_ns() // 10_000_000, name[len(root) + 1:])
        if key not in seen:
            seen.add(key)
            with open(f"{out}/{pid}", "a") as file:  # a process may close what it inherits
                file.write(f"{key[1]} {key[2]}\\n")
sys.setprofile(note)
"""
BIN_NS = 10_000_000
"""The profile function notes a file once in this time."""
IDLE_SECONDS = 3.0
PROCESSES = ("acceptor@0", "log-writer@d0")


def files_of_one_produce(directory: Path) -> tuple[set[str], set[str]]:
    """Return the files that run in acceptor and log-writer while a record is produced, and while there is nothing to do."""
    hook, out = directory / "hook", directory / "out"
    hook.mkdir()
    out.mkdir()
    (hook / "sitecustomize.py").write_text(TRACE)
    variables = {"PYTHONPATH": f"{hook}{os.pathsep}{ROOT}", "PRODUCE_PATH_ROOT": str(ROOT), "PRODUCE_PATH_OUT": str(out)}
    box = start_box(directory / "box", disks=1, wrapper=["env", *(f"{name}={value}" for name, value in variables.items())])
    try:
        admin = AdminClient({"bootstrap.servers": box.bootstrap, "log_level": 1})
        admin.create_topics([NewTopic("one", 1)])["one"].result(30)
        producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 0, "log_level": 1})
        times = []
        for _ in range(2):
            time.sleep(IDLE_SECONDS)
            began = time.monotonic_ns() // BIN_NS
            producer.produce("one", b"x")
            assert producer.flush(30) == 0
            times.append((began, time.monotonic_ns() // BIN_NS))
        pids = {name: pid for name, pid in box.pids().items() if name in PROCESSES}
        assert pids.keys() == set(PROCESSES), sorted(box.pids())
    finally:
        box.stop()
    noted = [line.split(" ", 1) for pid in pids.values() for line in (out / str(pid)).read_text().splitlines()]
    (_, before), (began, ended) = times

    def between(first: int, last: int) -> set[str]:
        return {name for bin_, name in noted if first <= int(bin_) <= last}

    return between(began, ended), between(before + 100, began - 1)


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="millrace-") as directory:
        touched, idle = files_of_one_produce(Path(directory))
    print(f"files that one produce touches         {len(touched):>8,}")
    print(f"of them, not when the box is idle      {len(touched - idle):>8,}")
    if arguments == ["--lists"]:
        for name in sorted(touched):
            print(f"  {name}{' (idle, too)' if name in idle else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
