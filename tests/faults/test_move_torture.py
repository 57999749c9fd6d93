"""Every file call of every step of a move fails, once and from then on, with EIO and with ENOSPC.

Then the mover restarts, all processes are killed, or both disks lose power. Each time one disk has the
whole log, and the move completes.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.base.errors import StorageFailed
from appliance.storage import file_io
from appliance.storage.log_config import LogConfig
from appliance.storage.move_source import SourceChanged, SourceFailed
from tests.faults.failing_calls import FailingCalls
from tests.faults.log_integrity import verify
from tests.faults.moved_log import MovedLog
from tests.faults.tortured_log import TorturedLog
from tests.support.volatile_files import VolatileFiles

PLAIN = LogConfig(segment_bytes=600, index_interval_bytes=150)
DEEP = bool(os.environ.get("MILLRACE_DEEP"))
POINTS_MAX = 12
ENDINGS = ("the mover is started again", "killed", "power")
ERRORS = (errno.EIO, errno.ENOSPC)
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
FAILURES = (StorageFailed, SourceFailed, SourceChanged, OSError)


class Step(NamedTuple):
    """One step of a move. `is_movers`: the process that does it does nothing else, and may simply begin again."""

    name: str
    act: Callable[[MovedLog], None]
    is_movers: bool = True


def _copy_with_retention(moved: MovedLog) -> None:
    """What the copy begins with is removed at the source before it is complete."""
    moved.source.retain(9)
    moved.flush()


def _follow(moved: MovedLog) -> None:
    moved.source.append([50, 70, 90], producer_id=2)
    moved.copy()


STEPS = [
    Step("begin", lambda moved: moved.begin(), is_movers=False),
    Step("copy", lambda moved: moved.copy()),
    Step("flush", lambda moved: moved.flush()),
    Step("follow", _follow, is_movers=False),
    Step("retention", _copy_with_retention, is_movers=False),
    Step("freeze", lambda moved: moved.freeze(), is_movers=False),
    Step("complete", lambda moved: moved.complete()),
    Step("commit", lambda moved: moved.commit(), is_movers=False),
    Step("promote", lambda moved: moved.promote(), is_movers=False),
]


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as directory:
        yield Path(os.path.realpath(directory))


@pytest.fixture(scope="module")
def prepared(disk: Path) -> tuple[Path, TorturedLog]:
    """Several segments, epochs, producers, transactions; a part of it flushed."""
    path = disk / "prepared"
    path.mkdir()
    with VolatileFiles(str(path)):
        log = TorturedLog(path, PLAIN, random.Random(1))
        log.create()
        log.append([10, 60, 60])
        log.append([60] * 3, producer_id=1)
        log.new_epoch()
        log.append([60], producer_id=2, records=3)
        log.append_transaction(4, 60, "commit")
        log.append_transaction(4, 60, "abort")
        log.append([90] * 5)
        log.flush()
        log.append([60] * 3, producer_id=1)
        log.append([30])
        log.abandon()
    log.memory.durable_end = log.memory.end_offset  # a copy is taken as synced
    return path, log


def run(number: int, prepared: tuple[Path, TorturedLog], path: Path, ending: str, fail_at: int, forever: bool, error: int) -> int:
    """One move, with calls of one step failing; how many calls that step made."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    shutil.copytree(prepared[0], path / "source")
    step = STEPS[number]
    with MovedLog(path, PLAIN, random.Random(f"{step.name} {fail_at}")) as moved:
        before = prepared[1]
        source = moved.source
        source.memory, source.serial, source.leader_epoch, source.row = before.memory.copy(), before.serial, before.leader_epoch, before.row
        source.open_as("killed")
        source.settle("killed")
        moved.open_target()
        for earlier in STEPS[:number]:
            earlier.act(moved)
        with FailingCalls(fail_at, forever, error, moved) as failing, suppress(*FAILURES):  # type: ignore[arg-type]
            step.act(moved)
        where = (step.name, ending, fail_at, failing.failed[:3])
        try:
            _go_on(moved, step, ending)
            _verify_final(moved)
        except Exception as problem:
            raise AssertionError(f"after {where}: {problem!r}") from problem
    return failing.calls


def _go_on(moved: MovedLog, step: Step, ending: str) -> None:
    if ending == "the mover is started again" and step.is_movers and moved.source.log is not None and not moved.source.log.failed:
        moved.end_mover()
        moved.finish_the_move()
        return
    moved.abandon()
    if ending == "power":
        moved.cut()
    moved.resolve("power" if ending == "power" else "killed")


def _verify_final(moved: MovedLog) -> None:
    """The log is on the target disk, and continues there."""
    assert not moved.source.path.exists()
    log = moved.final
    log.publish()
    log.settle("killed")
    verify(log, is_fresh=True)
    log.append([20, 20], producer_id=7)
    log.append([400])
    verify(log)
    log.close()
    log.open_as("clean")
    log.settle("clean")
    verify(log, is_fresh=True)
    log.abandon()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(STEPS)), ids=[step.name for step in STEPS])
def test_after_any_failed_file_call_one_disk_has_the_whole_log(number: int, prepared: tuple[Path, TorturedLog], disk: Path) -> None:
    """Without MILLRACE_DEEP the endings and the errors take turns, and of a long step not every call fails."""
    path = disk / "run"
    calls = run(number, prepared, path, "killed", 1 << 30, False, errno.EIO)
    assert calls > 2
    turns = itertools.cycle(itertools.product(ENDINGS, ERRORS))
    for fail_at in range(1, calls + 1, 1 if DEEP else calls // POINTS_MAX + 1):
        for forever in (False, True):
            for ending, error in itertools.product(ENDINGS, ERRORS) if DEEP else [next(turns)]:
                run(number, prepared, path, ending, fail_at, forever, error)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8 if DEEP else 2))
def test_a_power_cut_between_any_two_steps_leaves_one_whole_log(seed: int, prepared: tuple[Path, TorturedLog], disk: Path) -> None:
    for number in range(len(STEPS)):
        for ending in ("killed", "power"):
            run(number, prepared, disk / "run", ending, (1 << 30) + seed, False, errno.EIO)


def test_the_torture_fails_where_a_commit_does_not_wait_for_the_copy(prepared: tuple[Path, TorturedLog], disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail is none: with syncs that do nothing a power cut after the commit is noticed."""
    number = next(number for number, step in enumerate(STEPS) if step.name == "commit")
    problems = 0
    for seed in range(6):
        with monkeypatch.context() as broken:
            broken.setattr(file_io, "sync_data", lambda _fd: None)
            broken.setattr(file_io, "sync_all", lambda _fd: None)
            try:
                run(number, prepared, disk / "run", "power", (1 << 30) + seed, False, errno.EIO)
            except AssertionError:
                problems += 1
    assert problems
