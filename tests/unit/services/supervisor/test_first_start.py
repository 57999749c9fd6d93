"""The fork server as a real process: what becomes of its forks, and of those that it does not make."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from appliance.runtime.children import Child, ChildState
from appliance.runtime.poller import Poller
from appliance.runtime.service_main import EXIT_FAILED
from appliance.runtime.spawning import spawn
from lab.running_box import ROOT, eventually
from services.supervisor import first_start
from services.supervisor.child_start import module_of, start_program
from services.supervisor.first_start import AGENTS, PATIENCE_MS, FirstStart


class World:
    """A supervisor, reduced to what a fork server needs. Its box does not exist: each process says so, and ends."""

    def __init__(self, directory: Path, names: Sequence[str], hangs: bool) -> None:
        self.children = list(map(Child, names))
        self.forked: dict[str, int] = {}
        self.missing: list[Child] = []
        self._poller = Poller()
        program = [first_start.__name__, *(child.name for child in self.children)]

        def begin(further: Mapping[str, socket.socket]) -> int:
            if hangs:
                return spawn([sys.executable, "-c", "import signal; signal.pause()"], dict(os.environ), [each.fileno() for each in further.values()])
            return start_program(program, str(directory / "box"), str(directory / "notify"), further)

        self.first = FirstStart(self.children, begin, self._poller, self._on_forked)

    def _on_forked(self, child: Child, pid: int) -> None:
        self.forked[child.name] = pid

    def turn(self, since_ms: int = 0) -> None:
        self._poller.poll(10)
        self.missing += self.first.turn(since_ms)

    def has_ended(self) -> bool:
        self.turn()
        return not self.first.is_running

    def close(self) -> None:
        self.first.close()
        eventually(self.has_ended, "nothing of the fork server is left")
        for pid in self.forked.values():
            os.waitpid(pid, 0)
        self._poller.close()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., World]]:
    begun: list[World] = []

    def begin(*names: str, hangs: bool = False) -> World:
        begun.append(World(tmp_path, names or ("log-reader@d0", "replica-fetcher"), hangs))
        return begun[-1]

    yield begin
    for world in begun:
        world.close()


@pytest.mark.slow
def test_forks_are_delivered_with_their_pids_and_end_with_their_exit_code(begin: Callable[..., World], capfd: pytest.CaptureFixture[str]) -> None:
    world = begin()
    assert [child.state for child in world.children] == [ChildState.STARTING] * 2, "no turn of the supervisor starts them, too"
    eventually(world.has_ended, "the fork server has ended")
    eventually(lambda: (world.turn(PATIENCE_MS), len(world.forked) == 2)[1], "all are delivered")
    assert world.missing == []
    ended = {os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status for pid in world.forked.values()}  # type: ignore[union-attr]
    assert ended == {EXIT_FAILED}
    said = capfd.readouterr().err
    assert all(f"{child.name}: failed with FileNotFoundError" in said for child in world.children)


def test_what_a_killed_fork_server_has_not_forked_is_missing_at_once_and_once(begin: Callable[..., World]) -> None:
    world = begin(hangs=True)
    os.kill(world.first.pid, signal.SIGKILL)
    eventually(lambda: (world.turn(), len(world.missing) == 2)[1], "both are missing")
    eventually(world.has_ended, "it is reaped")
    world.turn(PATIENCE_MS)
    assert len(world.missing) == 2 and set(world.missing) == set(world.children) and world.forked == {}


@pytest.mark.slow
def test_a_fork_that_ends_before_it_runs_is_missing_and_the_others_are_delivered(begin: Callable[..., World]) -> None:
    """An acceptor cannot take its socket, because there is none."""
    world = begin("acceptor@0", "replica-fetcher")
    eventually(lambda: (world.turn(), len(world.missing) + len(world.forked) == 2)[1], "each is delivered or missing")
    assert [child.name for child in world.missing] == ["acceptor@0"] and list(world.forked) == ["replica-fetcher"]
    eventually(world.has_ended, "what is missing is reaped")


def test_a_fork_server_that_hangs_is_killed(begin: Callable[..., World]) -> None:
    world = begin(hangs=True)
    world.turn(PATIENCE_MS - 1)
    assert world.missing == [] and world.first.is_running
    world.turn(PATIENCE_MS)
    assert world.missing == world.children
    eventually(world.has_ended, "it is killed")


@pytest.mark.parametrize("kind", AGENTS)
def test_the_fork_server_imports_what_the_program_of_each_kind_imports(kind: str) -> None:
    program = ROOT.joinpath(*module_of(kind).split("."), "__main__.py").read_text()
    assert f"from {AGENTS[kind]} import " in program
