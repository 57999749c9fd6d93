"""Where an offset is in a log's files, and what of a log's memory and checkpoints survives a cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import StorageFailed
from appliance.base.invariants import InvariantViolation
from appliance.base.model import TopicPartition
from appliance.storage import checkpoints, file_io
from appliance.storage.batch_boundary import BatchBoundary
from appliance.storage.log_directory import LogDirectory
from appliance.storage.segment_files import LOG_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentScan
from tests.unit.storage.storage_support import NAME, NOW_MS, TOPIC_ID, batch, open_log


def _boundaries(path: Path, bases: list[int]) -> dict[int, tuple[int, int]]:
    """Beginning of each batch."""
    found = {}
    for base in bases:
        with open(segment_path(str(path), base, LOG_SUFFIX), "rb") as file:
            for position, header in SegmentScan(file.fileno(), 0, os.fstat(file.fileno()).st_size):
                found[header.base_offset] = (base, position)
    return found


@pytest.mark.parametrize("is_flushed", [False, True])
def test_every_offset_is_found_at_the_beginning_of_its_batch(tmp_path: Path, is_flushed: bool) -> None:
    log = open_log(tmp_path)
    for number in range(40):
        log.append_as_leader([batch(*[b"v" * 20] * (1 + number % 3))], 0, NOW_MS)
    if is_flushed:
        log.flush()
    begins = _boundaries(tmp_path, log.segment_base_offsets)
    assert len(log.segment_base_offsets) > 3
    holder = -1
    for offset in range(log.log_end_offset):
        holder = offset if offset in begins else holder
        assert log.boundary_at(offset) == BatchBoundary(holder, *begins[holder])
        assert log.boundary_at(offset, log.boundary_at(max(0, offset - 5))) == BatchBoundary(holder, *begins[holder])
    assert log.boundary_at(log.log_end_offset) == log.end == (log.log_end_offset, log.active_base_offset, log.active_position)
    log.close()


def test_an_offset_in_a_gap_is_where_the_next_batch_begins(tmp_path: Path) -> None:
    follower = open_log(tmp_path)
    sent = batch(b"c")
    sent[0:8] = (9).to_bytes(8, "big")
    sent[12:16] = (0).to_bytes(4, "big")
    first = batch(b"a", b"b")
    first[12:16] = (0).to_bytes(4, "big")
    follower.append_as_follower([first, sent])
    assert follower.boundary_at(5) == BatchBoundary(5, 0, len(first))
    assert follower.boundary_at(1) == BatchBoundary(0, 0, 0)
    follower.begin_segment(20)
    assert follower.boundary_at(15) == BatchBoundary(15, 0, len(first) + len(sent))
    follower.advance_log_start_offset(20)
    with pytest.raises(InvariantViolation):
        follower.boundary_at(3)
    follower.close()


def test_a_disk_that_refuses_the_look_up_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"a", b"b")], 0, NOW_MS)

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(file_io, "pread", fails)
    with pytest.raises(StorageFailed, match="look up offset 1"):
        log.boundary_at(1)
    log.abandon()


def test_a_cut_is_counted_and_takes_epochs_that_brought_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"a")], 3, NOW_MS)
    log.assign_leader_epoch(5)
    assert (log.truncate_to(1), log.truncations, log.leader_epochs.latest) == (1, 0, 3)
    log.append_as_leader([batch(b"a")], 4, NOW_MS)
    assert (log.truncate_to(1), log.truncations, log.leader_epochs.latest) == (1, 1, 3)
    log.truncate_fully_and_start_at(70)
    assert (log.truncations, log.log_start_offset, log.leader_epochs.latest) == (2, 70, -1)
    log.close()


def test_no_checkpoint_says_more_of_a_log_than_a_cut_has_left(tmp_path: Path) -> None:
    other = TopicPartition("other", 0)
    directory = LogDirectory.open(str(tmp_path), 1, None, ManualClock(NOW_MS), str(TOPIC_ID))
    directory.checkpoints.save(checkpoints.RECOVERY_POINTS, lambda: {NAME: 100, other: 50})
    directory.checkpoints.save(checkpoints.HIGH_WATERMARKS, lambda: {NAME: 30, other: 50})
    directory.checkpoints.cap(NAME, 40)
    read = {name: checkpoints.read_offsets(f"{tmp_path}/{name}") for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS)}
    assert read == {checkpoints.RECOVERY_POINTS: {NAME: 40, other: 50}, checkpoints.HIGH_WATERMARKS: {NAME: 30, other: 50}}
    assert directory.checkpoints.lines[checkpoints.RECOVERY_POINTS] == {NAME: 40, other: 50}
    directory.abandon()


def test_as_a_rule_nothing_is_written_when_a_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LogDirectory.open(str(tmp_path), 1, None, ManualClock(NOW_MS), str(TOPIC_ID))
    directory.checkpoints.save(checkpoints.RECOVERY_POINTS, lambda: {NAME: 10})
    monkeypatch.setattr(checkpoints, "write_offsets", None)
    directory.checkpoints.cap(NAME, 10)
    directory.abandon()
