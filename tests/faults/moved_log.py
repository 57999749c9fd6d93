"""One partition on its way from one disk to another, handled as the two log-writers and the mover handle it, and what must be true of it after any end.

The source is a `TorturedLog`; what must be in the log is in its memory, and goes with it. Each disk loses by itself what a power cut takes. Afterwards
`resolve` does what the controller does when it arrives: it decides by what is there, and asserts that there is one truth.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from appliance.base.clock import ManualClock
from appliance.storage import file_io
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.future_directories import FutureDirectories, settle
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import LogDirectory
from appliance.storage.log_move import LogMove
from appliance.storage.move_record import Complete, MoveRecord, read_move
from appliance.storage.move_source import SourceState
from appliance.storage.recovery import CLEAN, Recovery, Unclean
from appliance.storage.retention import FreeSpaceReserve
from tests.faults.tortured_log import NAME, TOPIC_ID, TorturedLog
from tests.support.volatile_files import VolatileFiles
from tests.unit.storage.storage_support import NOW_MS


class MovedLog:
    """Use it as a context: it is entered when `root/source` holds the log, and everything there is durable."""

    def __init__(self, root: Path, config: LogConfig, chance: random.Random) -> None:
        self.root, self.config, self.chance = root, config, chance
        self.target_path = root / "target"
        self.target_path.mkdir()
        self.clock = ManualClock(NOW_MS)
        self.source = TorturedLog(root / "source", config, chance)
        self.final = TorturedLog(self.target_path, config, chance)
        self.target: LogDirectory | None = None
        self.futures: FutureDirectories | None = None
        self.mover: LogMove | None = None
        self.wanted: Complete | None = None
        self.life = 1
        self._stack = ExitStack()
        self._disks: list[VolatileFiles] = []

    def __enter__(self) -> MovedLog:
        self._disks = [self._stack.enter_context(VolatileFiles(str(path))) for path in (self.root / "source", self.target_path)]
        self.source.volatile, self.final.volatile = self._disks
        self._stack.enter_context(_SyncsOf(self._disks))
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()
        self._stack.close()

    def sync_failed(self, fd: int) -> None:
        """A failed sync, whichever disk it was of."""
        for disk in self._disks:
            disk.sync_failed(fd)

    # -- the steps, in their order

    def open_target(self) -> None:
        self.target = LogDirectory.open(str(self.target_path), 1, "cluster", self.clock, "00000000-0000-0000-0000-000000000002")
        assert not self.target.problems, self.target.problems
        self.futures = FutureDirectories(self.target)
        self.futures.load()

    def begin(self) -> None:
        self._futures.make(TOPIC_ID, MoveRecord(NAME.topic, NAME.partition, "source", "id", -1))
        self.start_mover()

    def start_mover(self) -> None:
        future = self._futures.futures[TOPIC_ID, NAME.partition]
        more = {"index.interval.bytes": str(self.config.index_interval_bytes)}
        self.mover = LogMove(future.path, str(self.source.path), TOPIC_ID, more, self.clock, FreeSpaceReserve(0, 0))

    @property
    def state(self) -> SourceState:
        log = self.source.opened
        return SourceState(self.life, log.log_start_offset, log.log_end_offset, log.active_base_offset, is_led=False)

    def copy(self) -> None:
        assert self.mover is not None
        self.mover.align(self.state)
        while self.mover.copy_some(self.state):
            pass

    def flush(self) -> None:
        assert self.mover is not None
        self.mover.flush(self.state)

    def freeze(self) -> None:
        log = self.source.opened
        log.snapshot_producers()
        self.wanted = Complete(log.log_end_offset, log.log_end_offset, log.log_start_offset)

    def complete(self) -> None:
        assert self.mover is not None and self.wanted is not None
        self.copy()
        self.mover.complete(self.state, self.wanted)

    def commit(self) -> None:
        assert self.source.directory is not None and self.source.log is not None
        self.source.directory.mark_deleted(NAME)
        self.source.log.abandon()

    def remove_source(self) -> None:
        while self.source.directory is not None and self.source.directory.is_deleting:
            self.source.directory.delete_some(200)

    def promote(self) -> None:
        """And what comes after it: the log is open, the checkpoints say so, the record is gone."""
        assert self.target is not None
        future = self._futures.look_again(self._futures.futures[TOPIC_ID, NAME.partition])
        assert future.complete is not None
        self._futures.promote(future)
        self._take(future.complete, CLEAN)

    def _take(self, complete: Complete | None, recovery: Recovery) -> None:
        directory = self.target
        assert directory is not None
        start = max(directory.checkpoints.lines[LOG_START_OFFSETS].get(NAME, 0), complete.log_start_offset if complete else 0)
        if complete is not None:
            directory.checkpoints.raise_to(NAME, complete.checkpoint_lines())
        log = Log.open(str(self.target_path / str(NAME)), NAME, TOPIC_ID, self.config, self.clock, recovery, start)
        self.final.log, self.final.directory = log, directory
        directory.checkpoints.save(RECOVERY_POINTS, lambda: {NAME: log.recovery_point})
        directory.checkpoints.save(HIGH_WATERMARKS, lambda: {NAME: log.log_end_offset})
        directory.checkpoints.save(LOG_START_OFFSETS, lambda: {NAME: log.log_start_offset})
        settle(log.directory)

    @property
    def _futures(self) -> FutureDirectories:
        assert self.futures is not None
        return self.futures

    # -- ends and beginnings

    def end_mover(self) -> None:
        if self.mover is not None:
            self.mover.close()
            self.mover = None

    def abandon(self) -> None:
        """All processes are gone."""
        self.end_mover()
        self.source.abandon()
        self.final.abandon()
        if self.target is not None:
            self.target.abandon()
        self.target = self.futures = None

    def cut(self) -> None:
        for disk in self._disks:
            disk.cut(self.chance)

    def resolve(self, how: str) -> None:
        """Restart all after a kill or a power cut; the move continues to its end, from what is
        there.
        """
        self.life += 1
        self.open_target()
        at_source, at_target = self.source.path.exists(), (self.target_path / str(NAME)).exists()
        future = self._futures.find(TOPIC_ID, NAME.partition)
        assert not (at_source and at_target), "two disks have the log"
        if at_source:
            self.source.open_as(how)
            self.source.settle(how)
            if how == "power":
                self.source.new_epoch()
                self.source.append([15])
            self.finish_the_move()
        elif at_target:
            self._go_over()
            record = read_move(str(self.target_path / str(NAME)))
            complete = record.complete if record is not None else None
            assert self.target is not None
            point = self.target.checkpoints.lines[RECOVERY_POINTS].get(NAME, 0)
            self._take(complete, Unclean(max(point, complete.log_end_offset if complete else 0)))
        else:
            assert future is not None and future.complete is not None, "no disk has the log"
            self._go_over()
            self.promote()

    def finish_the_move(self) -> None:
        """From a source that is served, whatever there is of a copy."""
        steps: list[Callable[[], None]] = [self.begin, self.copy, self.freeze, self.complete, self.commit]
        for step in steps:
            step()
        self._go_over()
        self.remove_source()
        self.promote()

    def _go_over(self) -> None:
        """What must be in the log is at the target from now on, and durable there."""
        self.final.memory = self.source.memory
        self.final.serial, self.final.leader_epoch = self.source.serial, self.source.leader_epoch
        memory = self.final.memory
        memory.in_doubt, memory.durable_end, memory.durable_start = [], memory.end_offset, memory.log_start
        self.source.abandon()


class _SyncsOf:
    """A sync is of one of several disks, and none of them forwards it."""

    def __init__(self, disks: list[VolatileFiles]) -> None:
        self._disks = disks
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> None:
        for name in ("fsync", "fdatasync"):
            self._originals[name] = getattr(file_io, name)
            setattr(file_io, name, self._sync)

    def __exit__(self, *_: object) -> None:
        for name, function in self._originals.items():
            setattr(file_io, name, function)

    def _sync(self, fd: int) -> None:
        for disk in self._disks:
            disk.fsync(fd)
