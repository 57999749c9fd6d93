"""`kill -9` of either side of a channel at every step of its handshake and in the middle of traffic, in real processes.

After each death the other side must serve the next incarnation, nothing may be carried out that a dead one offered or that was offered to one,
every number ends exactly once, and in /dev/shm nothing unused may be left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from appliance.base.layout import RUNTIME_VARIABLE, BoxLayout
from appliance.ipc.log_writer_proxy import COMPLETED_COUNTER
from appliance.shm.counters import read_counters
from lab.running_box import eventually
from lab.scratch_layout import purposes_left, scratch_layout
from tests.conftest import ROOT
from tests.system.channel_sides import LOG_WRITER_STEPS, RING, SOURCE, SOURCE_STEPS

pytestmark = [pytest.mark.system, pytest.mark.slow]

SOME = 200
"""Numbers that pass before a pair of incarnations counts as serving."""


class TwoSides:
    """The processes of one channel, incarnation after incarnation, and the logs that they leave."""

    def __init__(self, layout: BoxLayout) -> None:
        self.layout = layout
        self.lives: dict[str, int] = {"source": 0, "log_writer": 100}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, side: str, *step: str) -> None:
        self.lives[side] += 1
        environment = {**os.environ, RUNTIME_VARIABLE: self.layout.runtime_directory}
        command = [sys.executable, "-m", "tests.system.channel_sides", side, str(self.lives[side]), *step]
        self.processes[side] = subprocess.Popen(command, cwd=ROOT, env=environment)

    def await_death(self, side: str) -> None:
        assert self.processes[side].wait(20) == -signal.SIGKILL

    def kill(self, side: str) -> None:
        self.processes[side].kill()
        self.await_death(side)

    def lines(self, side: str, life: int | None = None) -> list[list[str]]:
        """What an incarnation wrote; a last line that its death cut is whole, as every line is one
        write.
        """
        try:
            with open(f"{self.layout.runtime_directory}/{side}.{life or self.lives[side]}.log") as file:
                return [line.split() for line in file.read().splitlines()]
        except FileNotFoundError:
            return []

    def await_service(self) -> None:
        """The newest incarnations of both sides work with each other."""

        def served() -> bool:
            for side, process in self.processes.items():
                assert process.poll() is None, f"{side} ended with {process.returncode}"
            lines = self.lines("source")
            here = ["connected", str(self.lives["log_writer"])]
            return here in lines and sum(line[0] == "completed" for line in lines[lines.index(here) :]) >= SOME

        eventually(served, "both sides serve")

    def descriptors(self, side: str) -> int:
        return len(os.listdir(f"/proc/{self.processes[side].pid}/fd"))

    def stop(self) -> None:
        """A clean end, source first."""
        for side in ("source", "log_writer"):
            self.processes[side].send_signal(signal.SIGTERM)
            assert self.processes[side].wait(20) == 0

    def check_logs(self) -> None:
        """Every number of every incarnation against what was carried out."""
        executed = [line for life in range(101, self.lives["log_writer"] + 1) for line in self.lines("log_writer", life)]
        assert [line for line in executed if line[0] == "FOREIGN"] == []
        source_lives = [int(line[1]) for line in executed if line[0] == "executed"]
        assert source_lives == sorted(source_lives), "a descriptor of a dead incarnation was carried out after one of the next"
        numbers = Tally(line[2] for line in executed if line[0] == "executed")
        assert max(numbers.values(), default=0) <= 1
        for life in range(1, self.lives["source"] + 1):
            lines = self.lines("source", life)
            offered = {line[1] for line in lines if line[0] == "offering"} - {line[1] for line in lines if line[0] == "refused"}
            ended = Tally(line[1] for line in lines if line[0] in ("completed", "lost"))
            completed = {line[1] for line in lines if line[0] == "completed"}
            assert set(ended) <= offered and max(ended.values(), default=0) <= 1
            assert completed <= set(numbers)
            assert all(line[1] == line[2] for line in lines if line[0] == "completed"), "a completion brought another number's answer"
            if life == self.lives["source"]:
                assert set(ended) == offered, "a number that was offered has no end"

    def names(self) -> list[str]:
        return [name for name in purposes_left(self.layout) if not name.startswith("counters.")]

    def names_of_the_living(self) -> list[str]:
        return [f"table.d0.{self.lives['log_writer']:x}"]


@contextmanager
def two_sides() -> Iterator[TwoSides]:
    with scratch_layout() as layout:
        sides = TwoSides(layout)
        try:
            yield sides
        finally:
            for process in sides.processes.values():
                process.kill()
                process.wait()


def live_through(sides: TwoSides, victim: str, survivor: str) -> None:
    """After the planned death: the next incarnation serves, another death at any moment changes
    nothing, and all ends cleanly.
    """
    sides.start(victim)
    sides.await_service()
    assert sides.names() == sides.names_of_the_living()
    descriptors = sides.descriptors(survivor)
    sides.kill(victim)
    sides.start(victim)
    sides.await_service()
    assert sides.descriptors(survivor) == descriptors, f"a {survivor} keeps descriptors of dead incarnations"
    assert sides.names() == sides.names_of_the_living()
    sides.stop()
    assert sides.names() == []
    sides.check_logs()


@pytest.mark.parametrize("step", SOURCE_STEPS)
def test_a_source_killed_at_any_step_is_followed_by_its_next_incarnation(step: str) -> None:
    with two_sides() as sides:
        sides.start("log_writer")
        sides.start("source", step)
        sides.await_death("source")
        live_through(sides, "source", "log_writer")


@pytest.mark.parametrize("step", LOG_WRITER_STEPS)
def test_a_log_writer_killed_at_any_step_is_followed_by_its_next_incarnation(step: str) -> None:
    with two_sides() as sides:
        sides.start("source")
        sides.start("log_writer", step)
        sides.await_death("log_writer")
        live_through(sides, "log_writer", "source")


def test_both_sides_killed_at_once_leave_nothing_that_the_next_incarnations_do_not_sweep() -> None:
    with two_sides() as sides:
        for _ in range(3):
            sides.start("log_writer")
            sides.start("source")
            sides.await_service()
            for side in sides.processes:
                sides.processes[side].kill()
            for side in sides.processes:
                sides.await_death(side)
        sides.start("log_writer")
        sides.start("source")
        sides.await_service()
        assert sides.names() == sides.names_of_the_living()
        sides.stop()
        assert sides.names() == []
        sides.check_logs()


@pytest.mark.parametrize("dies_too", [False, True])
def test_completions_that_a_dead_source_did_not_read_are_counted(dies_too: bool) -> None:
    with two_sides() as sides:
        sides.start("log_writer")
        sides.start("source", "in the middle of completions")
        sides.await_death("source")
        if dies_too:
            sides.kill("log_writer")
        else:
            eventually(lambda: ["forgot", "1"] in sides.lines("log_writer"), "the log-writer forgets its source", 10)
        completed, taken = (read_counters(sides.layout, side) for side in ("log_writer", "source"))
        assert completed is not None and taken is not None
        executed = {line[2] for line in sides.lines("log_writer") if line[0] == "executed"}
        seen = {line[1] for line in sides.lines("source") if line[0] == "completed"}
        assert len(executed) - RING <= completed.values[f'log_writer.completed_records{{source="{SOURCE}"}}'] <= len(executed)
        assert taken.values[COMPLETED_COUNTER.format(disk="d0")] - len(seen) in (0, 1), "what is handled was counted, one at a time"
        if dies_too:
            sides.start("log_writer")
        sides.start("source")
        sides.await_service()
        sides.stop()
        sides.check_logs()
