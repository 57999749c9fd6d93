"""After a power cut: what lies below the recovery point is not read again, whatever the files above it look like; and how far recovery says it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.model import TopicPartition
from appliance.storage.log_config import LogConfig
from appliance.storage.recovery import Unclean
from services.log_writer.recovery_progress import OPEN_BYTES, RecoveryProgress, share_of
from tests.unit.storage.storage_support import batch, open_log, stored_bytes, stored_records

CONFIG = LogConfig(index_interval_bytes=150)
FIRST = f"{0:020d}"


def _write(path: Path, flushed: int, more: int) -> tuple[int, dict[str, bytes]]:
    """A log that was flushed after so many batches, and got `more` behind; its recovery point, and its files as they were."""
    log = open_log(path, CONFIG)
    for number in range(flushed):
        log.append_as_leader([batch(b"%d" % number * 20)], 0, 0)
    log.flush()
    recovery_point = log.recovery_point
    for number in range(flushed, flushed + more):
        log.append_as_leader([batch(b"%d" % number * 20)], 0, 0)
    log.abandon()
    return recovery_point, stored_bytes(path)


def _recover(path: Path, recovery_point: int) -> int:
    """Open after a power cut; the bytes that were read."""
    read: list[int] = []
    log = open_log(path, CONFIG, Unclean(recovery_point), on_scanned=read.append)
    log.abandon()
    return sum(read)


def test_only_what_lies_above_the_recovery_point_is_read(tmp_path: Path) -> None:
    recovery_point, before = _write(tmp_path, 300, 5)
    unflushed = len(before[f"{FIRST}.log"]) * 5 // 305
    assert unflushed <= _recover(tmp_path, recovery_point) < unflushed + 1500
    assert stored_bytes(tmp_path) == before


def _hole(path: Path, flushed_bytes: int) -> None:
    with open(path, "r+b") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        file.seek(flushed_bytes)
        file.write(bytes(size_bytes - flushed_bytes))


def _cut(path: Path, flushed_bytes: int) -> None:
    os.truncate(path, flushed_bytes + 3)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", [_hole, _cut])
def test_torn_indexes_above_the_recovery_point_are_made_anew(tmp_path: Path, suffix: str, damage: Callable[[Path, int], None]) -> None:
    recovery_point, flushed = _write(tmp_path / "a", 60, 0) if (tmp_path / "a").mkdir() is None else (0, {})
    (tmp_path / "b").mkdir()
    same, before = _write(tmp_path / "b", 60, 60)
    assert same == recovery_point
    damage(tmp_path / "b" / f"{FIRST}{suffix}", len(flushed[f"{FIRST}{suffix}"]))
    _recover(tmp_path / "b", recovery_point)
    assert stored_bytes(tmp_path / "b") == before


def test_a_torn_batch_above_the_recovery_point_ends_the_log(tmp_path: Path) -> None:
    recovery_point, before = _write(tmp_path, 50, 10)
    log = tmp_path / f"{FIRST}.log"
    os.truncate(log, len(before[log.name]) - 1)
    _recover(tmp_path, recovery_point)
    assert [offset for offset, _ in stored_records(tmp_path)] == list(range(59))


@pytest.mark.parametrize("recovery_point", [0, 7, 49, 50])
def test_a_recovery_point_anywhere_gives_the_same_log(tmp_path: Path, recovery_point: int) -> None:
    _, before = _write(tmp_path, 50, 0)
    _recover(tmp_path, recovery_point)
    assert stored_bytes(tmp_path) == before


def test_a_recovery_point_that_the_segment_does_not_reach_reads_it_whole_and_keeps_what_is_there(tmp_path: Path) -> None:
    _, before = _write(tmp_path, 50, 0)
    assert _recover(tmp_path, 5_000) >= len(before[f"{FIRST}.log"])
    assert stored_bytes(tmp_path) == before


class _Table:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def set_recovery_progress(self, done: int, total: int) -> None:
        self.seen.append((done, total))


def test_progress_is_reported_in_bytes_with_the_remaining_time() -> None:
    clock, table, told = ManualClock(), _Table(), []
    names = [TopicPartition("t", number) for number in range(3)]
    fake: Any = table
    progress = RecoveryProgress(dict.fromkeys(names, 1000), fake, clock, told.append)
    assert str(progress) == "0 %"
    progress.begin(names[0])
    clock.advance_ms(500)
    progress.on_scanned(600)
    progress.on_scanned(900)  # more than was thought
    assert table.seen[-1] == (1000, 3000) and str(progress) == "33 %, 1 s left"
    progress.end()
    progress.begin(names[1])
    progress.on_scanned(500)
    progress.put_off(names[1])
    assert table.seen[-1] == (1000, 3000)
    progress.skip(names[2])
    progress.skip(names[1])
    assert table.seen[-1] == (3000, 3000)
    assert told == ["20 %, 2 s left"]


def test_a_logs_share_is_what_it_holds_above_its_recovery_point(tmp_path: Path) -> None:
    recovery_point, before = _write(tmp_path, 50, 10)
    whole = len(before[f"{FIRST}.log"])
    assert share_of(str(tmp_path), 0, 1000) == OPEN_BYTES + whole
    assert share_of(str(tmp_path), recovery_point, 1000) == OPEN_BYTES + 1000
    assert share_of(str(tmp_path / "missing"), 0, 1000) == OPEN_BYTES
