"""Every file call of every action of the storage fails, once and from then on, with EIO and with ENOSPC.

Then the process continues, is killed, or loses power. Each time the log opens and is a prefix of what was
appended, with everything that was acknowledged, and nothing else is left of it.
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
from appliance.storage.checkpoints import LOG_START_OFFSETS
from appliance.storage.log_config import LogConfig
from tests.faults.failing_calls import FailingCalls
from tests.faults.log_integrity import verify
from tests.faults.tortured_log import TorturedLog
from tests.support.volatile_files import VolatileFiles
from tests.unit.storage.compaction_support import COMPACTED

PLAIN = LogConfig(segment_bytes=600, index_interval_bytes=150)
KEYED = COMPACTED
DEEP = bool(os.environ.get("MILLRACE_DEEP"))
POINTS_MAX = 12
ENDINGS = ("continues", "killed", "power")
ERRORS = (errno.EIO, errno.ENOSPC)
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Nothing here needs a platter: the power is cut in the model."""


class Action(NamedTuple):
    """What is done while calls fail. `before` is done first and not synced."""

    name: str
    act: Callable[[TorturedLog], None]
    before: Callable[[TorturedLog], None] = lambda log: None
    config: LogConfig = PLAIN


def _write_unsynced(log: TorturedLog) -> None:
    log.append([40], keys=5 * log.config.is_compacted)
    log.append([60, 60], producer_id=1, keys=5 * log.config.is_compacted)


def _both(one: Callable[[TorturedLog], None], other: Callable[[TorturedLog], None]) -> Callable[[TorturedLog], None]:
    def act(log: TorturedLog) -> None:
        one(log)
        other(log)

    return act


def _reopen(how: str) -> Callable[[TorturedLog], None]:
    def act(log: TorturedLog) -> None:
        log.open_as(how)
        log.settle(how)

    return act


def _leave(log: TorturedLog) -> None:
    _write_unsynced(log)
    log.append([50] * 9, producer_id=2)
    log.abandon()


def _leave_torn(log: TorturedLog) -> None:
    path = log.path / f"{log.row.base_offset:020d}.log"
    _leave(log)
    with max(log.path.glob("*.log")).open("ab") as file:
        file.write(path.read_bytes()[:70])


def _damage_index(log: TorturedLog) -> None:
    log.damage_index()


def _checkpoint(log: TorturedLog) -> None:
    log.flush()
    assert log.directory is not None and log.log is not None
    log.directory.checkpoints.save(LOG_START_OFFSETS, dict)


_OPEN_AFTER_POWER_CUT = _reopen("power")
ACTIONS = [
    Action("append", lambda log: log.append([30]), _write_unsynced),
    Action("append of a producer", lambda log: log.append([30], producer_id=3), _write_unsynced),
    Action("append that rolls", lambda log: log.append([90] * 11, producer_id=3), _write_unsynced),
    Action("append under a new epoch", _both(lambda log: log.new_epoch(), lambda log: log.append([30])), _write_unsynced),
    Action("aborted transaction", lambda log: log.append_transaction(5, 300, "abort"), lambda log: log.append_transaction(5, 300, "")),
    Action("roll", lambda log: log.roll(), _write_unsynced),
    Action("checkpoint", _checkpoint, _write_unsynced),
    Action("flush of batches", _both(lambda log: log.flush_batches(), lambda log: log.append([30])), _write_unsynced),
    Action("retention", lambda log: log.retain(13), _write_unsynced),
    Action("retention of everything", lambda log: log.retain(1 << 40), _write_unsynced),
    Action("truncation", _both(lambda log: log.truncate(11), lambda log: log.append([30], producer_id=2)), _write_unsynced),
    Action("truncation of everything", _both(lambda log: log.start_over(100), lambda log: log.append([30])), _write_unsynced),
    Action("index rebuild", lambda log: log.rebuild_index(), _damage_index),
    Action("clean stop", lambda log: log.close(), _write_unsynced),
    Action("clean stop with one sync for all", lambda log: log.close(together_min=1), _write_unsynced),
    Action("open after a clean stop", _reopen("clean"), _both(_write_unsynced, lambda log: log.close())),
    Action("open after a kill", _reopen("killed"), _leave_torn),
    Action("open after a power cut", _OPEN_AFTER_POWER_CUT, _leave_torn),
    Action("compaction", lambda log: log.compact(), lambda log: log.append([40] * 6, keys=4), KEYED),
    Action("compaction with a small map", lambda log: log.compact(24 * 12), lambda log: log.append([40] * 6, keys=4), KEYED),
    Action("retention of a compacted log", lambda log: log.retain(13), _write_unsynced, KEYED),
]


class Prepared(NamedTuple):
    """A directory as a killed process left it, and what must be in it."""

    path: Path
    log: TorturedLog


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as directory:
        yield Path(os.path.realpath(directory))


@pytest.fixture(scope="module")
def prepared(disk: Path) -> dict[LogConfig, Prepared]:
    """A plain log and a compacted one: several segments, epochs, producers, transactions, a part of it flushed."""
    found = {}
    for number, config in enumerate((PLAIN, KEYED)):
        path = disk / f"prepared-{number}"
        path.mkdir()
        keys = 5 * config.is_compacted
        with VolatileFiles(str(path)):
            log = TorturedLog(path, config, random.Random(1))
            log.create()
            log.append([10, 60, 60], keys=keys)
            log.append([60] * 3, producer_id=1, keys=keys)
            log.new_epoch()
            log.append([60], producer_id=2, keys=keys, records=3)
            log.append_transaction(4, 60, "commit")
            log.append_transaction(4, 60, "abort")
            log.append([90] * 5, keys=keys)
            log.flush()
            log.append([60] * 3, producer_id=1, keys=keys)
            log.append([30], keys=keys)
            verify(log)
            log.abandon()
        log.memory.durable_end = log.memory.end_offset  # a copy is taken as synced
        found[config] = Prepared(path, log)
    return found


def _descriptors(path: Path) -> list[str]:
    """Open files below `path`, deleted ones too. Of these alone: what other tests of this process have left is closed by the collector at any moment."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(link for link in links if link.startswith(f"{path}/"))


def _go_on(log: TorturedLog) -> None:
    """The trouble is over, and the same process goes on; what its owner must try again is done first."""
    log.repeat_checkpoint()
    if log.damaged_index:
        log.rebuild_index()
    verify(log)
    log.append([33, 77, 200], producer_id=6, keys=5 * log.config.is_compacted)
    log.flush()
    verify(log)
    log.close()


def run(action: Action, prepared: Prepared, path: Path, ending: str, fail_at: int, forever: bool, error: int) -> int:
    """Run one log; return the number of file calls that the action made."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(prepared.path, path)
    chance = random.Random(f"{action.name} {fail_at}")
    open_files = _descriptors(path)
    with VolatileFiles(str(path)) as volatile:
        log = TorturedLog(path, action.config, chance, volatile)
        before = prepared.log
        log.memory, log.serial, log.leader_epoch, log.row = before.memory.copy(), before.serial, before.leader_epoch, before.row
        log.open_as("killed")
        log.settle("killed")
        action.before(log)
        with FailingCalls(fail_at, forever, error, volatile) as failing, suppress(StorageFailed, OSError):
            action.act(log)
        where = (action.name, ending, fail_at, failing.failed[:3])
        try:
            how = "killed" if ending == "continues" else ending
            if ending == "continues" and log.log is not None and not log.log.failed and log.directory is not None:
                _go_on(log)
                how = "clean"
            elif action.act is _OPEN_AFTER_POWER_CUT and log.log is None:
                how = "power"  # no row describes a boot in which a log was never open
            log.abandon()
            is_started_over = log.memory.may_be_empty
            if ending == "power":
                volatile.cut(chance)
            log.open_as(how)
            log.settle(how)
            if is_started_over:  # it was not finished: the follower does it again
                log.start_over(100)
            if log.damaged_index:
                log.rebuild_index()
            verify(log, is_fresh=True)
            log.append([20, 20], producer_id=7, keys=5 * log.config.is_compacted)
            log.append([400], keys=5 * log.config.is_compacted)
            verify(log)
            log.close()
            log.open_as("clean")
            log.settle("clean")
            verify(log, is_fresh=True)
            log.abandon()
        except Exception as problem:
            raise AssertionError(f"after {where}: {problem}") from problem
        finally:
            log.abandon()
    assert _descriptors(path) == open_files, f"{where}: descriptors are left open"
    return failing.calls


def _points(action: Action, prepared: Prepared, path: Path) -> range:
    """Which calls fail: every one; of a long action, without MILLRACE_DEEP, at most `POINTS_MAX`, evenly."""
    calls = run(action, prepared, path, "killed", 1 << 30, False, errno.EIO)
    return range(1, calls + 1, 1 if DEEP else calls // POINTS_MAX + 1)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS, ids=[action.name.replace(" ", "-") for action in ACTIONS])
def test_after_any_failed_file_call_everything_promised_is_there(action: Action, prepared: dict[LogConfig, Prepared], disk: Path) -> None:
    """Without MILLRACE_DEEP the endings and the errors take turns; the cut of a power cut is always the same one."""
    log, path = prepared[action.config], disk / "run"
    points = _points(action, log, path)
    assert len(points) > 2
    turns = itertools.cycle(itertools.product(ENDINGS, ERRORS))
    for fail_at in points:
        for forever in (False, True):
            for ending, error in itertools.product(ENDINGS, ERRORS) if DEEP else [next(turns)]:
                run(action, log, path, ending, fail_at, forever, error)


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True])
def test_a_deleted_partition_goes_whole_whatever_call_fails(forever: bool, prepared: dict[LogConfig, Prepared], disk: Path) -> None:
    """It is there whole, or not at all; renamed files are removed by the next start."""
    path = disk / "deleted"
    for fail_at in itertools.count(1):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(prepared[PLAIN].path, path)
        with VolatileFiles(str(path)) as volatile:
            log = TorturedLog(path, PLAIN, random.Random(fail_at), volatile)
            log.memory, log.row = prepared[PLAIN].log.memory.copy(), prepared[PLAIN].log.row
            log.open_as("killed")
            with FailingCalls(fail_at, forever, volatile=volatile) as failing, suppress(StorageFailed):
                log.delete()
            is_told = not failing.failed
            log.abandon()
            volatile.cut(random.Random(fail_at))
            if log.path.exists():
                assert not is_told
                log.open_as("power")
                log.settle("power")
                verify(log, is_fresh=True)
                log.delete()
            else:
                log.delete_rest()
            log.abandon()
            assert not [name for name in os.listdir(path) if name.startswith("torture")]
        if not failing.failed:
            assert fail_at > 20
            return
