"""Appends, rolls, indexes, truncation and flushing of one log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode, StorageFailed
from appliance.base.invariants import InvariantViolation
from appliance.base.model import FIRST_OFFSET
from appliance.records.batch import read_batch_header, stamp_batch
from appliance.storage.append_plan import RefusedBatch
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY
from appliance.storage.log_config import LogConfig
from appliance.storage.recovery import SameBoot, Unclean
from appliance.storage.segment import SegmentTail
from tests.unit.storage.storage_support import NAME, NOW_MS, batch, open_log, stored_bytes, stored_records

ROOMY = LogConfig(index_interval_bytes=150)


def test_batches_get_the_next_offsets_and_the_leaders_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.append_as_leader([batch(b"a", b"b"), batch(b"c")], 6, NOW_MS) == [(0, 1, -1), (2, 2, -1)]
    assert stored_records(tmp_path) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert read_batch_header(stored_bytes(tmp_path)["00000000000000000000.log"]).partition_leader_epoch == 6
    assert log.leader_epochs.entries == ((6, 0),)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n6 0\n"
    log.close()


def test_more_batches_than_one_system_call_takes_are_written_in_order(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROOMY)
    log.append_as_leader([batch(b"%d" % number) for number in range(2500)], 0, NOW_MS)
    assert stored_records(tmp_path) == [(number, b"%d" % number) for number in range(2500)]
    log.close()


def test_a_roll_happens_before_the_batch_that_would_overflow(tmp_path: Path) -> None:
    size_bytes = len(batch(b"x"))
    log = open_log(tmp_path, LogConfig(segment_bytes=3 * size_bytes))
    log.append_as_leader([batch(b"x") for _ in range(3)], 0, NOW_MS)
    assert log.segment_base_offsets == [0]
    log.append_as_leader([batch(b"x")], 0, NOW_MS)
    assert (log.segment_base_offsets, log.segment_list_generation, log.active_position) == ([0, 3], 2, size_bytes)
    log.close()


def test_a_segment_rolls_when_its_first_record_is_too_old(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    for late_ms, bases in ((0, [0]), (1000, [0]), (1001, [0, 2]), (500, [0, 2]), (2001, [0, 2]), (2002, [0, 2, 5])):
        log.append_as_leader([batch(b"x", timestamp_ms=NOW_MS + late_ms)], 0, NOW_MS)
        assert log.segment_base_offsets == bases, late_ms
    log.close()


def test_segments_roll_earlier_by_a_jitter_of_their_own(tmp_path: Path) -> None:
    config = LogConfig(segment_ms=10_000, segment_jitter_ms=4_000)
    ages = [config.jittered(b"%d" % number).segment_ms for number in range(500)]
    assert 6_000 < min(ages) < 6_200 and 9_800 < max(ages) <= 10_000
    assert LogConfig(segment_ms=100, segment_jitter_ms=10**9).jittered(b"x").segment_ms >= 1
    limit = config.jittered(f"{NAME} 0".encode()).segment_ms
    log = open_log(tmp_path, config)
    for late_ms, bases in ((0, [0]), (limit, [0]), (limit + 1, [0, 2])):
        log.append_as_leader([batch(b"x", timestamp_ms=NOW_MS + late_ms)], 0, NOW_MS)
        assert log.segment_base_offsets == bases
    log.close()


def test_a_segment_without_timestamps_rolls_by_its_age(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    for now_ms, bases in ((NOW_MS + 5000, [0]), (NOW_MS + 1000, [0]), (NOW_MS + 1001, [0, 2])):
        log.append_as_leader([batch(b"x", timestamp_ms=-1)], 0, now_ms)
        assert log.segment_base_offsets == bases
    log.close()


def test_a_segment_rolls_when_its_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0, segment_index_bytes=3 * TIME_ENTRY.size))
    for number in range(6):
        log.append_as_leader([batch(b"x", timestamp_ms=NOW_MS + number)], 0, NOW_MS)
    # the first batch gets no entry, and the time index keeps its last slot for the final entry
    assert log.segment_base_offsets == [0, 3]
    assert len(stored_bytes(tmp_path)["00000000000000000000.timeindex"]) == 2 * TIME_ENTRY.size
    log.close()


def test_index_entries_follow_kafkas_rule(tmp_path: Path) -> None:
    size_bytes = len(batch(b"x" * 20))
    log = open_log(tmp_path, LogConfig(index_interval_bytes=2 * size_bytes))
    for number in range(8):
        log.append_as_leader([batch(b"x" * 20, timestamp_ms=NOW_MS - number % 4)], 0, NOW_MS)
    log.close()
    files = stored_bytes(tmp_path)
    assert list(OFFSET_ENTRY.iter_unpack(files["00000000000000000000.index"])) == [(3, 3 * size_bytes), (6, 6 * size_bytes)]
    assert list(TIME_ENTRY.iter_unpack(files["00000000000000000000.timeindex"])) == [(NOW_MS, 0)]
    open_log(tmp_path, LogConfig(index_interval_bytes=2 * size_bytes), Unclean(0)).close()
    assert stored_bytes(tmp_path) == files


def test_a_sealed_segment_ends_with_its_largest_timestamp(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"x" * 100, timestamp_ms=NOW_MS + (50 if number == 1 else number)) for number in range(4)], 0, NOW_MS)
    assert log.segment_base_offsets == [0, 3]
    entries = list(TIME_ENTRY.iter_unpack(stored_bytes(tmp_path)["00000000000000000000.timeindex"]))
    assert entries[-1] == (NOW_MS + 50, 1)
    log.close()


def test_log_append_time_is_stamped_and_returned(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    assert log.append_as_leader([batch(b"x", timestamp_ms=5)], 0, NOW_MS + 7) == [(0, 0, NOW_MS + 7)]
    log.close()
    header = read_batch_header(stored_bytes(tmp_path)["00000000000000000000.log"])
    assert header.max_timestamp == NOW_MS + 7 and header.uses_log_append_time
    assert stored_records(tmp_path) == [(0, b"x")]


def test_a_refused_batch_does_not_stop_the_others(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    cut = batch(b"cut")[:-1]
    results = log.append_as_leader([batch(b"a"), cut, batch(b"x" * 600), batch(b"b")], 0, NOW_MS)
    assert results == [(0, 0, -1), RefusedBatch(ErrorCode.CORRUPT_MESSAGE), RefusedBatch(ErrorCode.RECORD_LIST_TOO_LARGE), (1, 1, -1)]
    assert stored_records(tmp_path) == [(0, b"a"), (1, b"b")]
    log.close()


def test_a_leader_epoch_that_goes_back_is_our_own_fault(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"a")], 5, NOW_MS)
    with pytest.raises(InvariantViolation):
        log.append_as_leader([batch(b"b")], 4, NOW_MS)
    log.abandon()


def stamped(value: bytes, base_offset: int, leader_epoch: int) -> memoryview:
    raw = batch(value)
    stamp_batch(raw, 0, base_offset, leader_epoch)
    return raw


def test_a_follower_keeps_batches_and_epochs_as_they_come(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.append_as_follower([]) == (-1, -1)
    assert log.append_as_follower([stamped(b"a", 0, 2), stamped(b"b", 1, 2), stamped(b"c", 5, 4)]) == (0, 5)
    assert stored_records(tmp_path) == [(0, b"a"), (1, b"b"), (5, b"c")]
    assert log.leader_epochs.entries == ((2, 0), (4, 5))
    for wrong in (stamped(b"again", 5, 4), stamped(b"older epoch", 6, 3)):
        with pytest.raises(ValueError):
            log.append_as_follower([wrong])
    assert log.log_end_offset == 6
    log.close()


@pytest.mark.parametrize("offset", [0, 1, 3, 7, 10, 19, 20, 25])
def test_truncation_removes_everything_from_an_offset_on(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    for number in range(20):
        log.append_as_leader([batch(b"%d" % number + b"x" * 80)], number // 5, NOW_MS + number)
    assert len(log.segment_base_offsets) > 4
    end = min(offset, 20)
    assert log.truncate_to(offset) == end
    assert [found for found, _ in stored_records(tmp_path)] == list(range(end))
    assert [entry.start_offset for entry in log.leader_epochs.entries] == [start for start in (0, 5, 10, 15) if start < end]
    log.append_as_leader([batch(b"on")], 9, NOW_MS)
    log.close()
    files = stored_bytes(tmp_path)
    open_log(tmp_path, recovery=Unclean(0)).close()
    assert {name: files[name] for name in files if name.endswith("index")} == {
        name: content for name, content in stored_bytes(tmp_path).items() if name.endswith("index")
    }


def test_truncation_leaves_no_time_of_a_record_that_is_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROOMY)
    for number in range(20):
        log.append_as_leader([batch(b"x" * 200, timestamp_ms=NOW_MS + number)], 0, NOW_MS)
    log.truncate_to(5)
    entries = list(TIME_ENTRY.iter_unpack(stored_bytes(tmp_path)["00000000000000000000.timeindex"]))
    assert [offset for _, offset in entries] == [1, 2, 3, 4]
    log.append_as_leader([batch(b"x", timestamp_ms=NOW_MS + 5)], 0, NOW_MS)
    log.close()
    assert list(TIME_ENTRY.iter_unpack(stored_bytes(tmp_path)["00000000000000000000.timeindex"]))[-1] == (NOW_MS + 5, 5)


def test_segments_that_a_truncation_kept_are_still_to_be_flushed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"x" * 100) for _ in range(20)], 0, NOW_MS)
    log.truncate_to(10)
    flush = log.flush_files()
    assert flush is not None and len(flush.files) == 3 * len(log.segment_base_offsets) > 6
    flush.sync()
    log.close()


def test_truncation_takes_the_whole_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"a", b"b"), batch(b"c", b"d", b"e")], 0, NOW_MS)
    assert log.truncate_to(4) == 2
    assert log.truncate_to(1) == 0
    log.close()


def test_a_follower_can_start_over_at_its_leaders_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"x" * 100) for _ in range(9)], 0, NOW_MS)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (1000, 1000, [1000])
    assert log.append_as_follower([stamped(b"a", 1000, 3)]) == (1000, 1000)
    log.close()
    assert sorted(stored_bytes(tmp_path)) == [
        "00000000000000001000.index", "00000000000000001000.log", "00000000000000001000.timeindex", "leader-epoch-checkpoint",
    ]  # fmt: skip


def test_the_recovery_point_follows_a_flush_and_rolled_segments_are_part_of_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"x" * 100) for _ in range(9)], 0, NOW_MS)
    flush = log.flush_files()
    assert flush is not None and flush.end_offset == 9
    assert len(flush.files) == 3 * len(log.segment_base_offsets)
    assert flush.pinned is not None and os.path.samefile(flush.pinned.path, tmp_path) and flush.paths == [str(tmp_path / "leader-epoch-checkpoint")]
    log.append_as_leader([batch(b"later")], 0, NOW_MS)
    flush.sync()
    assert log.recovery_point == 0
    log.advance_recovery_point(flush.end_offset)
    assert log.recovery_point == 9
    second = log.flush_files()
    assert second is not None and (len(second.files), second.pinned, second.paths) == (3, None, [])
    second.sync()
    log.advance_recovery_point(second.end_offset)
    assert log.flush_files() is None
    log.assign_leader_epoch(1)
    third = log.flush_files()
    assert third is not None and third.paths and third.pinned  # a replaced file is durable only with its name
    third.sync()
    log.close()


def test_sealed_segments_of_a_former_incarnation_are_part_of_the_next_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"x" * 100) for _ in range(9)], 0, NOW_MS)
    position = SameBoot(log.log_end_offset, log.active_base_offset, log.active_position)
    count = len(log.segment_base_offsets)
    log.abandon()
    log = open_log(tmp_path, recovery=position)
    flush = log.flush_files()
    assert flush is not None and len(flush.files) == 3 * count
    flush.release()
    log.abandon()


def test_a_closed_log_refuses_appends(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    with pytest.raises(StorageFailed, match="is closed"):
        log.append_as_leader([batch(b"a")], 0, NOW_MS)


def test_settings_come_by_kafkas_names_over_the_boxs_defaults() -> None:
    config = LogConfig.from_topic_config({"segment.bytes": "2048", "message.timestamp.type": "LogAppendTime", "preallocate": "true"}, LogConfig(segment_ms=5))
    assert config == LogConfig(segment_bytes=2048, segment_ms=5, message_timestamp_type="LogAppendTime")
    assert LogConfig.from_topic_config({}) == LogConfig()


def test_timestamps_that_run_ahead_begin_no_segments_without_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.storage.log.TIMED_SEGMENTS_MAX", 4)
    log = open_log(tmp_path, LogConfig(segment_ms=1000, segment_bytes=10 * len(batch(b"x"))))
    for number in range(20):
        log.append_as_leader([batch(b"x", timestamp_ms=NOW_MS + number * 2000)], 0, NOW_MS)
    assert log.segment_base_offsets == [0, 1, 2, 3, 4, 14], "then by size"
    log.close()


def test_a_copy_of_the_end_of_a_segment_has_all_of_it() -> None:
    tail = SegmentTail(FIRST_OFFSET, 7)
    for number, name in enumerate(SegmentTail.__slots__):
        setattr(tail, name, 100 + number)
    copy = tail.copy()
    assert [getattr(copy, name) for name in SegmentTail.__slots__] == [100 + number for number in range(len(SegmentTail.__slots__))]
