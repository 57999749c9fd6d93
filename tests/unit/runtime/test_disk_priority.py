"""Which core and which place in a disk's queue the processes of a disk take."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from appliance.base.io_class import io_priority
from appliance.runtime.scheduling import core_of_disk, io_priority_of, take_disk_priority
from tests.unit.base.test_settings import make_box


def test_on_few_cores_no_process_is_bound_to_one() -> None:
    assert {core_of_disk(place, [0, 1, 2, 3]) for place in range(6)} == {None}


def test_with_more_disks_than_cores_each_core_has_about_as_many() -> None:
    cores = [0, 1, 2, 3, 8, 9]
    assert [core_of_disk(place, cores) for place in range(7)] == [0, 1, 2, 3, 8, 9, 0]
    loads = Counter(core_of_disk(place, cores) for place in range(20)).values()
    assert max(loads) - min(loads) == 1


def test_a_disk_may_have_a_class_of_its_own() -> None:
    box = make_box(settings={"disk.io.classes": "d1=idle"})
    assert io_priority_of(box, "log-writer", "d0") == io_priority("best-effort:2")
    assert io_priority_of(box, "log-reader", "d0") == io_priority("best-effort:5")
    assert io_priority_of(box, "log-writer", "d1") == io_priority_of(box, "log-reader", "d1") == io_priority("idle")


def in_a_child(take: str) -> str:
    """What a process has after it took what is its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            take_disk_priority(make_box(settings={"log.writer.io.class": take}), "log-writer", "d1")
            os.write(writing, f"{_io_priority_of_this_process()} {sorted(os.sched_getaffinity(0))}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as answer:
        return answer.read()


def _io_priority_of_this_process() -> int:
    import ctypes

    return int(ctypes.CDLL(None).syscall(252, 1, 0))  # ioprio_get, as x86-64 counts it


@pytest.mark.parametrize("io_class", ["best-effort:1", "idle"])
def test_a_process_has_what_it_took(io_class: str) -> None:
    priority, _, cores = in_a_child(io_class).partition(" ")
    available = sorted(os.sched_getaffinity(0))
    expected = core_of_disk(1, available)
    assert int(priority) == io_priority(io_class) and cores == str(available if expected is None else [expected])
