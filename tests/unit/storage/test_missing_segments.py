"""A log without one of its segments: every file call of its check and of filling the gap fails once, then all fail from there on."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from appliance.base.errors import StorageFailed
from appliance.storage.known_segments import KnownSegments, look_at_segments
from appliance.storage.log import Log
from appliance.storage.log_damage import LostRange
from appliance.storage.recovery import Clean, Recovery, Unclean
from tests.unit.storage.storage_support import batch, failing_file_calls, open_log, stored_records

BATCHES = 18


def _written(path: Path) -> tuple[KnownSegments, list[int]]:
    path.mkdir()
    log = open_log(path)
    log.append_as_leader([batch(b"%d" % number + b"x" * 60) for number in range(BATCHES)], 0, 0)
    log.close()
    return look_at_segments(log.directory, log.segment_base_offsets), log.segment_base_offsets


def _open_and_fill(path: Path, recovery: Recovery) -> Log:
    log = open_log(path, recovery=recovery)
    try:
        log.damage.remember(log.lost_at_open)
        log.assign_leader_epoch(1)
        log.fill_gaps(1, 0)
    except StorageFailed:
        log.abandon()
        raise
    return log


def _cut(segment: Path) -> None:
    os.truncate(segment, segment.stat().st_size - 10)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [os.unlink, _cut])
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("is_clean", [True, False])
def test_after_any_failure_a_gap_is_found_and_filled_once(tmp_path: Path, harm: object, forever: bool, is_clean: bool) -> None:
    known, bases = _written(tmp_path / "whole")
    assert len(bases) >= 4
    assert callable(harm)
    harm(tmp_path / "whole" / f"{bases[1]:020d}.log")
    lost_from = bases[1] if harm is os.unlink else bases[2] - 1
    recovery: Recovery = Clean(known) if is_clean else Unclean(BATCHES, known, True)
    for fail_at in range(1, 2000):
        path = tmp_path / str(fail_at)
        shutil.copytree(tmp_path / "whole", path)
        with failing_file_calls(fail_at, forever, errno.EIO) as faults:
            try:
                _open_and_fill(path, recovery).abandon()
            except StorageFailed:
                pass
        log = _open_and_fill(path, Unclean(BATCHES, known, True))
        assert log.damage.ranges == (LostRange(lost_from, bases[2], is_settled=True),)
        log.append_as_leader([batch(b"more")], 1, 0)
        log.close()
        assert [offset for offset, _ in stored_records(path)] == [*range(lost_from), *range(bases[2], BATCHES + 1)]
        shutil.rmtree(path)
        if not faults.failed:
            return
    raise AssertionError("no run came through")


def test_a_sound_log_is_opened_by_a_clean_start_without_reading_its_sealed_segments(tmp_path: Path) -> None:
    known, bases = _written(tmp_path / "whole")
    for base in bases[:-2]:
        path = tmp_path / "whole" / f"{base:020d}.log"
        times = path.stat()
        path.write_bytes(b"?" * times.st_size)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert open_log(tmp_path / "whole", recovery=Clean(known)).lost_at_open == (), "size and time are as known"
