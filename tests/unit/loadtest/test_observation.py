"""What an observation says about the limit, and that CPU and memory of a real process are read right (our own)."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping

from loadtest.memory import process_memory
from loadtest.observation import Observation, Observer, accompanied, process_cpu_seconds

SIZE_BYTES = 8 << 20


def observation(box: dict[str, float], generators: dict[str, float] | None = None, busy: float = 0.0, seconds: float = 10.0) -> Observation:
    return Observation(seconds, 2, box, generators or {}, busy, 0.0)


def test_the_log_writers_of_all_disks_are_one_role() -> None:
    seen = observation({"log-writer@d0": 1.0, "log-writer@d1": 2.0, "log-reader@d0": 4.0, "acceptor@0": 8.0})
    assert seen.role("log-writer") == 3.0
    assert seen.role("acceptor", "log-writer") == 11.0


def test_a_process_that_uses_a_whole_core_is_what_limits() -> None:
    assert observation({"acceptor@0": 9.5, "log-writer@d0": 3.0}, busy=12.5).what_limits().startswith("acceptor@0 has no core left")


def test_cpu_time_of_other_processes_is_separated_from_ours() -> None:
    seen = observation({"acceptor@0": 5.0}, {"replayer": 3.0}, busy=19.0)
    assert seen.others == 11.0
    assert seen.what_limits().startswith("all 2 cores are busy")


def test_a_box_that_waits_is_said_to_wait() -> None:
    assert observation({"acceptor@0": 2.0}, busy=3.0).what_limits().startswith("no process and no core is full")


def test_cpu_time_of_a_process_grows_while_it_works() -> None:
    observer = Observer({"self": os.getpid()})
    until = process_cpu_seconds(os.getpid()) + 0.05
    while process_cpu_seconds(os.getpid()) < until:
        pass
    assert 0.04 <= observer.finish().box["self"] <= time.process_time()


def test_memory_in_arenas_is_separated_from_private_memory() -> None:
    before = process_memory(os.getpid())
    path = f"/dev/shm/millrace.test{os.getpid()}.arena.acceptor@0.1"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
    try:
        os.ftruncate(descriptor, SIZE_BYTES)
        with mmap.mmap(descriptor, SIZE_BYTES) as mapping:
            mapping.write(b"x" * SIZE_BYTES)
            during = process_memory(os.getpid())
    finally:
        os.close(descriptor)
        os.unlink(path)
    assert during.arenas - before.arenas == SIZE_BYTES
    assert during.other_shared == before.other_shared


def test_a_companion_sees_each_window_of_its_block_and_no_other() -> None:
    class Watcher:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def window_opens(self, pids: Mapping[str, int], label: str) -> None:
            self.seen.append((dict(pids), label))

        def window_closes(self) -> None:
            self.seen.append("closed")

    watcher, own = Watcher(), {"self": os.getpid()}
    with accompanied(watcher):
        Observer(own, "first").finish()
    Observer(own, "second").finish()
    assert watcher.seen == [(own, "first"), "closed"]
