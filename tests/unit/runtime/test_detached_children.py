"""Detached processes: real ones, so small that they do not count as a system."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from appliance.runtime.children import DetachedProcesses, is_in_kernel
from lab.running_box import eventually


def _process(ignores_term: bool = False) -> int:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN if ignores_term else signal.SIG_DFL)
            os.write(writing, b".")
            signal.pause()
        finally:
            os._exit(0)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return pid


@pytest.fixture
def detached() -> DetachedProcesses:
    return DetachedProcesses()


def test_a_process_whose_disk_is_given_up_is_killed_at_once_and_its_end_is_reported_once(detached: DetachedProcesses) -> None:
    pid = _process(ignores_term=True)
    detached.add("log-writer@d0", pid, 0, 1_000)
    assert not detached.may_end_by_itself(1_000)
    (ended,) = eventually(lambda: detached.turn(1_000), "it is gone")
    assert (ended.name, ended.pid, len(detached), detached.turn(1_000)) == ("log-writer@d0", pid, 0, [])


def test_one_with_patience_ends_by_itself(detached: DetachedProcesses) -> None:
    detached.add("log-writer@d0", _process(), 0, 1_000, 500)
    eventually(lambda: detached.turn(1_000), "it ends when it is asked")


def test_one_that_does_not_end_by_itself_is_killed_when_its_time_is_over(detached: DetachedProcesses) -> None:
    detached.add("log-writer@d0", _process(ignores_term=True), 0, 1_000, 500)
    assert detached.turn(1_499) == [] and detached.may_end_by_itself(1_499) and [process.name for process in detached.processes()] == ["log-writer@d0"]
    eventually(lambda: detached.turn(1_500), "it is killed")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_turns_is_not_in_the_kernel_and_one_that_is_gone_is_nowhere() -> None:
    assert not is_in_kernel(os.getpid())
    assert not is_in_kernel(2**22 + 1)
