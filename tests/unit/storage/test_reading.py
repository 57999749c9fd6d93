"""Look-ups by offset and time, and the text of a segment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode, StorageFailed
from appliance.records.batch import read_batch_header, stamp_batch
from appliance.storage.dump import dump_file
from appliance.storage.log_config import LogConfig
from appliance.storage.reading import LogReading, OffsetOutOfRange
from tests.unit.storage.storage_support import NOW_MS, batch, failing_file_calls, open_log


@pytest.fixture
def reading(tmp_path: Path) -> LogReading:
    """20 batches of two records over several segments, two ms apart, one late."""
    log = open_log(tmp_path)
    for number in range(20):
        timestamp_ms = NOW_MS + 2 * number - (15 if number == 12 else 0)
        log.append_as_leader([batch(b"a%d" % number, b"b%d" % number + b"x" * 60, timestamp_ms=timestamp_ms)], 0, NOW_MS)
    assert len(log.segment_base_offsets) > 4
    log.abandon()
    return LogReading(str(tmp_path))


def test_every_offset_is_found_in_its_batch(reading: LogReading) -> None:
    for offset in range(40):
        found = reading.locate(offset, 40)
        fd = reading.open_segment(found.segment_base_offset)
        header = read_batch_header(os.pread(fd, 61, found.position))
        assert found.segment_size_bytes == os.fstat(fd).st_size
        os.close(fd)
        assert header.base_offset == found.base_offset <= offset <= header.last_offset
        assert header.size_bytes == found.batch_size_bytes


def test_the_limit_is_where_nothing_is_readable_yet(reading: LogReading) -> None:
    for limit in range(2, 41, 2):
        found = reading.locate(limit, limit)
        assert (found.batch_size_bytes, found.base_offset) == (0, limit)
    end = reading.locate(40, 40)
    assert end.position == end.segment_size_bytes


@pytest.mark.parametrize("offset", [-1, 41])
def test_an_offset_outside_is_out_of_range(reading: LogReading, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange) as refusal:
        reading.locate(offset, 40)
    assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_gap_that_compaction_left_leads_to_the_next_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=250))
    for base_offset in (0, 5, 9, 20):
        raw = batch(b"x" * 50)
        stamp_batch(raw, 0, base_offset, 0)
        log.append_as_follower([raw])
    assert log.segment_base_offsets == [0, 9, 20] or len(log.segment_base_offsets) > 1
    log.abandon()
    reading = LogReading(str(tmp_path))
    assert [reading.locate(offset, 21).base_offset for offset in (0, 3, 5, 7, 9, 15, 20)] == [0, 5, 5, 9, 9, 20, 20]


def test_new_segments_appear_after_a_refresh(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"x" * 100)], 0, NOW_MS)
    reading = LogReading(str(tmp_path))
    log.append_as_leader([batch(b"x" * 100) for _ in range(9)], 0, NOW_MS)
    assert reading.segments() == [0]
    reading.refresh()
    assert reading.segments() == log.segment_base_offsets
    log.abandon()


def test_a_time_leads_to_the_first_record_that_is_not_older(reading: LogReading) -> None:
    assert reading.offset_for_timestamp(0, 40) == (0, NOW_MS)
    for number in (0, 1, 5, 11, 13, 19):
        for early in (0, 1) if number not in (0, 13) else (0,):
            assert reading.offset_for_timestamp(NOW_MS + 2 * number - early, 40) == (2 * number, NOW_MS + 2 * number)
    assert reading.offset_for_timestamp(NOW_MS + 39, 40) is None
    assert reading.offset_for_timestamp(NOW_MS + 38, 38) is None
    assert reading.offset_for_timestamp(NOW_MS + 24, 40) == (26, NOW_MS + 26)  # number 12 came late with an older time


def test_the_largest_time_is_found_below_the_limit(reading: LogReading) -> None:
    assert reading.offset_of_max_timestamp(40) == (38, NOW_MS + 38)
    assert reading.offset_of_max_timestamp(26) == (22, NOW_MS + 22)
    assert reading.offset_of_max_timestamp(0) is None


def test_a_disk_that_fails_is_a_storage_failure(reading: LogReading) -> None:
    for fail_at in range(1, 6):
        with failing_file_calls(fail_at), pytest.raises(StorageFailed, match="could not look up an offset"):
            reading.locate(30, 40)


def test_a_segment_that_is_gone_is_out_of_range(reading: LogReading, tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").unlink()
    with pytest.raises(OffsetOutOfRange, match="is gone"):
        reading.open_segment(0)


def test_a_dump_shows_batches_records_and_where_the_log_breaks(reading: LogReading, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    with path.open("ab") as file:
        file.write(b"rubbish")
    lines = list(dump_file(str(path), with_records=True))
    assert lines[0].startswith("baseOffset: 0 lastOffset: 1 count: 2 partitionLeaderEpoch: 0 producerId: -1") and lines[0].endswith("isvalid: true")
    assert lines[1] == f"| offset: 0 timestamp: {NOW_MS} key: null value: a0 headers: []"
    assert "NOT A BATCH" in lines[-1] and lines[-1].endswith("7 bytes are left")
    raw = bytearray(path.read_bytes())
    raw[70] ^= 1
    path.write_bytes(raw)
    assert next(iter(dump_file(str(path)))).endswith("isvalid: false")
    assert next(iter(dump_file(str(tmp_path / "00000000000000000000.index")))).startswith("offset: ")
    assert next(iter(dump_file(str(tmp_path / "00000000000000000000.timeindex")))).startswith("timestamp: ")
    with pytest.raises(ValueError, match="no segment file"):
        list(dump_file(str(tmp_path / "leader-epoch-checkpoint")))
