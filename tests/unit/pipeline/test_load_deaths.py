"""A load is killed before every single thing it does to the file system, and goes on. Another loader comes at every single step, where locks do not hold."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import MillraceError
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_manifest import Plan
from appliance.pipeline.problems import ConcurrentLoader
from appliance.storage import file_io
from tests.support.load_world import LoadWorld, dying_at, interrupted_at

pytestmark = pytest.mark.slow


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory that syncs cost nothing in: there are some twenty thousand."""
    with tempfile.TemporaryDirectory(prefix="millrace-load-", dir="/dev/shm") as path:
        yield Path(path)


def make_world(directory: Path) -> LoadWorld:
    world = LoadWorld(directory)
    world.append("syslog", 0, (b"zero-%d" % number for number in range(15)))
    world.append("syslog", 1, (b"one-%d" % number for number in range(4)))
    return world


def load_and_die(world: LoadWorld, number: int) -> list[str]:
    """One run that dies before its call `number`; its lock goes with it."""
    taken: list[int] = []
    lock = file_io.lock_exclusively

    def remembering(fd: int) -> bool:
        taken.append(fd)
        return lock(fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_io, "lock_exclusively", remembering)
        with dying_at(number) as made:
            world.load()
    for fd in taken:
        try:
            os.close(fd)
        except OSError:
            pass  # it lived long enough to do that itself
    return made


def test_wherever_a_load_dies_the_next_run_has_every_record_once(memory_path: Path) -> None:
    number, ended = 0, False
    while not ended:
        number += 1
        world = make_world(memory_path / str(number))
        made = load_and_die(world, number)
        ended = len(made) < number
        world.expect_nothing_wrong_in_sight()
        books = LoadDirectory(str(world.directory), "look")
        last = books.last_manifest()
        planned = books.plan(1 if last is None else last.number + 1) if world.directory.exists() else None
        world.append("syslog", 1, [b"later-%d" % each for each in range(3)])
        commits = world.load_commits()
        world.expect_exactly_once()
        if planned is not None:
            assert commits[0].ranges == planned.ranges, "the position of the run that died is where this one goes on"
    assert number > 100, "it was killed often enough"


def test_a_load_that_dies_again_and_again_comes_to_its_end(memory_path: Path) -> None:
    world = make_world(memory_path / "table")
    for number in (40, 47, 53, 59, 61, 67, 71, 73, 79, 83):
        load_and_die(world, number)
        world.expect_nothing_wrong_in_sight()
    world.load()
    world.expect_exactly_once()


def test_where_locks_do_not_hold_a_second_loader_at_any_step_costs_no_record(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "lock_exclusively", lambda fd: True)
    number, ended, stopped = 0, False, 0
    while not ended:
        number += 1
        world = make_world(memory_path / str(number))
        with interrupted_at(number, world.load) as made:
            try:
                world.load()
            except MillraceError:
                stopped += 1
        ended = len(made) < number
        world.expect_nothing_wrong_in_sight()
        world.append("syslog", 0, [b"later"])
        world.load()
        world.expect_exactly_once()
    assert stopped > 50, "the first one was stopped, most of the time"


def test_a_second_loader_is_refused_with_the_process_of_the_first(memory_path: Path) -> None:
    world = make_world(memory_path / "table")
    with world.opened(), pytest.raises(ConcurrentLoader, match=rf"another loader is at work in {world.directory} \(process {os.getpid()} on "):
        world.load()
    world.load()
    world.expect_exactly_once()


def test_a_plan_is_made_once(memory_path: Path) -> None:
    world = make_world(memory_path / "table")
    with world.opened() as directory:
        directory.keep_plan(Plan(1, ()))
        with pytest.raises(ConcurrentLoader, match="has planned commit 1"):
            directory.keep_plan(Plan(1, ()))
