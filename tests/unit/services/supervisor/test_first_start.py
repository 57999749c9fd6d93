"""The fork server as a real process: reports and exit codes of its forks, and its own death."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.runtime.children import Child, ChildState
from appliance.runtime.service_main import EXIT_FAILED
from lab.running_box import eventually
from services.supervisor.child_start import NotifySocket
from services.supervisor.first_start import FORKS_MS, PATIENCE_MS, STARTED, FirstStart
from services.supervisor.supervisor import is_child


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    receiver = NotifySocket(str(tmp_path / "notify"))
    yield receiver
    receiver.close()


@pytest.fixture
def children() -> list[Child]:
    return [Child("log-reader@d0"), Child("replica-fetcher")]


@pytest.fixture
def first(tmp_path: Path, notify: NotifySocket, children: list[Child]) -> Iterator[FirstStart]:
    """Of processes whose box does not exist: each says so, and ends."""
    first = FirstStart(children, str(tmp_path / "box"), notify.path, {}, 0)
    yield first
    first.close()
    eventually(lambda: first.turn(0) == [] and not first.is_running, "the fork server has ended")


@pytest.mark.slow
def test_forks_report_themselves_and_end_with_their_exit_code(
    tmp_path: Path, children: list[Child], notify: NotifySocket, capfd: pytest.CaptureFixture[str]
) -> None:
    first = FirstStart(children, str(tmp_path / "box"), notify.path, {}, 0)
    assert [child.state for child in children] == [ChildState.STARTING] * 2, "no turn of the supervisor starts them, too"
    pids: dict[str, int] = {}

    def all_reported() -> bool:
        for pid, name, value in notify.receive():
            assert name == STARTED and is_child(pid)
            pids[value] = pid
        return len(pids) == len(children)

    eventually(all_reported, "all report")
    assert [first.take(child.name) for child in children] == children
    assert first.take(children[0].name) is None, "a process reports once"
    assert {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids.values()} == {EXIT_FAILED}
    said = capfd.readouterr().err
    assert all(f"{child.name}: failed with FileNotFoundError" in said for child in children)
    eventually(lambda: first.turn(PATIENCE_MS) == [] and not first.is_running, "the fork server has ended, and nothing is missing")


def test_what_a_killed_fork_server_has_not_started_is_returned_once(first: FirstStart, children: list[Child]) -> None:
    pid = first.pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: first.turn(0) == [] and not first.is_running, "its death is seen")
    assert not is_child(pid)
    assert first.turn(FORKS_MS - 1) == [], "a fork may be about to report itself"
    assert first.turn(FORKS_MS) == children
    assert first.turn(PATIENCE_MS) == [] and first.take(children[0].name) is None


def test_a_fork_server_that_hangs_is_killed(first: FirstStart, children: list[Child]) -> None:
    os.kill(first.pid, signal.SIGSTOP)
    assert first.turn(PATIENCE_MS - 1) == [] and first.is_running
    assert first.turn(PATIENCE_MS) == children
    eventually(lambda: first.turn(PATIENCE_MS) == [] and not first.is_running, "it is killed")
