"""Look-ups by offset and time, and the text of a segment."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode, StorageFailed
from appliance.records.batch import read_batch_header, stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec, CorruptBatch
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from appliance.storage import file_io
from appliance.storage.dump import dump_file
from appliance.storage.indexes import OFFSET_ENTRY, OffsetIndex
from appliance.storage.log_config import LogConfig
from appliance.storage.reading import INDEX_BLOCK_ENTRIES, READS_AHEAD, LogReading, OffsetOutOfRange, ReadAhead
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


@pytest.mark.parametrize("step_bytes", [1, 100, 150, 300, 440, 1_000])
def test_a_look_up_returns_where_the_next_reads_of_so_many_bytes_begin(reading: LogReading, step_bytes: int) -> None:
    """As a consumer goes on: it takes whole batches of what it got (the first one in any case), and asks for the offset behind them."""
    for limit in (40, 33, 8):
        for first in range(0, limit, 3):
            found = read = reading.locate(first, limit, step_bytes)
            ahead = []
            while True:
                end, offset = read.position + max(step_bytes, read.batch_size_bytes), first
                at = read
                while at.batch_size_bytes and at.segment_base_offset == found.segment_base_offset and at.position + at.batch_size_bytes <= end:
                    offset = at.base_offset + 2
                    at = reading.locate(offset, limit) if offset < limit else at._replace(batch_size_bytes=0)
                if not at.batch_size_bytes or at.segment_base_offset != found.segment_base_offset or len(ahead) == READS_AHEAD:
                    break
                ahead.append(ReadAhead(offset, at.position, at.batch_size_bytes))
                read = at
            assert list(found.ahead) == ahead, (first, limit)


def test_nothing_is_looked_for_ahead_unless_it_is_asked_for(reading: LogReading) -> None:
    assert reading.locate(0, 40).ahead == () and reading.locate(0, 40, 100).ahead


def test_an_index_is_read_by_blocks_and_as_far_as_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up with reads ahead takes a hundred entries; each by a read of its own was a tenth of a consumer's cost."""
    path = tmp_path / "00000000000000000100.index"
    path.write_bytes(b"".join(OFFSET_ENTRY.pack(10 * number, 1000 * number) for number in range(1400)))
    reads: list[int] = []
    pread = file_io.pread
    monkeypatch.setattr(file_io, "pread", lambda fd, size, position: reads.append(position) or pread(fd, size, position))
    with path.open("rb") as file:
        index = OffsetIndex(file.fileno(), 100, INDEX_BLOCK_ENTRIES)
        assert [index.lookup(100 + 10 * number + 3) for number in range(1400)] == [(100 + 10 * number, 1000 * number) for number in range(1400)]
        assert [index.count_at_or_before(1000 * number + 1) for number in range(1400)] == list(range(1, 1401))
        assert sorted(set(reads)) == [0, 4096, 8192, 11200] and len(reads) == 4
        with path.open("ab") as growing:
            growing.write(OFFSET_ENTRY.pack(14_000, 1_400_000))
        assert index.lookup(20_000) == (14_100, 1_400_000) and len(reads) == 6


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
    assert reading.offset_for_timestamp(0, 40) == (0, NOW_MS, 0)
    for number in (0, 1, 5, 11, 13, 19):
        for early in (0, 1) if number not in (0, 13) else (0,):
            assert reading.offset_for_timestamp(NOW_MS + 2 * number - early, 40) == (2 * number, NOW_MS + 2 * number, 0)
    assert reading.offset_for_timestamp(NOW_MS + 39, 40) is None
    assert reading.offset_for_timestamp(NOW_MS + 38, 38) is None
    assert reading.offset_for_timestamp(NOW_MS + 24, 40) == (26, NOW_MS + 26, 0)  # number 12 came late with an older time


def test_the_largest_time_is_found_below_the_limit(reading: LogReading) -> None:
    assert reading.offset_of_max_timestamp(40) == (38, NOW_MS + 38, 0)
    assert reading.offset_of_max_timestamp(26) == (22, NOW_MS + 22, 0)
    assert reading.offset_of_max_timestamp(0) is None


@pytest.mark.parametrize("index_interval_bytes", [0, 300, 4096])
def test_the_largest_time_is_found_at_every_limit_however_sparse_the_index(tmp_path: Path, index_interval_bytes: int) -> None:
    delays = [0, 7, 3, 7, 12, 1, 12, 12, 30, 2, 2, 5, 31, 4, 31, 0]
    log = open_log(tmp_path, LogConfig(segment_bytes=900, index_interval_bytes=index_interval_bytes))
    for delay in delays:
        log.append_as_leader([batch(b"one", b"two" + b"x" * 60, timestamp_ms=NOW_MS + delay)], 3, NOW_MS)
    assert 1 < len(log.segment_base_offsets) < 8
    log.abandon()
    reading = LogReading(str(tmp_path))
    for limit in range(2, 2 * len(delays) + 1, 2):
        stamps = [NOW_MS + delay for delay in delays[: limit // 2] for _ in range(2)]
        assert reading.offset_of_max_timestamp(limit) == (stamps.index(max(stamps)), max(stamps), 3), limit


@pytest.mark.parametrize("index_interval_bytes", [0, 300, 4096])
def test_a_marker_is_no_record_however_young_it_is(tmp_path: Path, index_interval_bytes: int) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=index_interval_bytes))
    for delay in (0, 9, 4):
        log.append_as_leader([batch(b"x" * 60, timestamp_ms=NOW_MS + delay)], 3, NOW_MS)
    marker = build_end_transaction_batch(7, 0, EndTransactionMarker(True, 4), NOW_MS + 1000)
    stamp_batch(marker, 0, log.log_end_offset, 3)
    log.append_as_follower([memoryview(marker)])
    log.append_as_leader([batch(b"x", timestamp_ms=NOW_MS + 5)], 3, NOW_MS)
    log.close()
    assert LogReading(str(tmp_path)).offset_of_max_timestamp(5) == (1, NOW_MS + 9, 3)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("append_time", [False, True])
def test_a_time_is_found_to_the_record_in_compressed_batches_and_with_append_times(tmp_path: Path, codec: Codec, append_time: bool) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=600, message_timestamp_type="LogAppendTime" if append_time else "CreateTime"))
    stamps: list[int] = []
    for number in range(12):
        builder = BatchBuilder(codec)
        for delay in (5, 0, 9, 9):
            builder.append(NOW_MS + 20 * number + delay, None, b"x" * 40)
            stamps.append(NOW_MS + 7 * number if append_time else NOW_MS + 20 * number + delay)
        log.append_as_leader([memoryview(bytearray(builder.build()))], 2, NOW_MS + 7 * number)
    assert append_time or len(log.segment_base_offsets) > 1
    log.abandon()
    reading = LogReading(str(tmp_path))
    for wanted in range(NOW_MS - 2, max(stamps) + 3):
        first = next(((offset, stamp, 2) for offset, stamp in enumerate(stamps) if stamp >= wanted), None)
        assert reading.offset_for_timestamp(wanted, len(stamps)) == first
        if first is not None:
            limit = first[0] // 4 * 4  # of the batch that holds it: nothing of it may be read
            assert reading.offset_for_timestamp(wanted, limit) is None
    assert reading.offset_of_max_timestamp(len(stamps)) == (stamps.index(max(stamps)), max(stamps), 2)


def test_segments_are_listed_from_the_newest_that_is_old_enough(reading: LogReading, tmp_path: Path) -> None:
    bases = reading.segments()
    for number, base in enumerate(bases):
        os.utime(tmp_path / f"{base:020}.log", (1000 + number, 1000 + number))
    os.utime(tmp_path / f"{bases[0]:020}.log", (9999, 9999))  # what lies before one that is old enough counts, however young
    assert reading.segments_modified_by(2**62, 100) == bases[::-1]
    assert reading.segments_modified_by(1_002_000, 100) == bases[2::-1]
    assert reading.segments_modified_by(1_001_999, 1) == [bases[1]]
    assert reading.segments_modified_by(999_000, 100) == []


def test_leader_epochs_are_read_as_they_are_now(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    reading = LogReading(str(tmp_path))
    assert (reading.epoch_end(0, 0), reading.epoch_at(0)) == ((-1, -1), -1)
    for leader_epoch in (1, 4):
        log.append_as_leader([batch(b"x")], leader_epoch, NOW_MS)
    log.abandon()
    assert [reading.epoch_end(leader_epoch, 2) for leader_epoch in range(6)] == [(0, 0), (1, 1), (1, 1), (1, 1), (4, 2), (-1, -1)]
    assert [reading.epoch_at(offset) for offset in (0, 1)] == [1, 4]
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n9\n1 5\n")
    with pytest.raises(StorageFailed, match="does not hold together"):
        reading.epoch_end(1, 2)


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
    with pytest.raises(ValueError, match="no file of a log"):
        list(dump_file("/etc/hostname"))


def test_a_small_batch_that_would_become_a_large_one_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    builder = BatchBuilder(codec=Codec.ZSTD)
    builder.append(NOW_MS, None, bytes(128 << 20))
    bomb = builder.build()
    assert len(bomb) < 16 << 10
    log = open_log(tmp_path, LogConfig())
    log.append_as_leader([memoryview(bytearray(bomb))], 0, NOW_MS)
    assert log.log_end_offset == 1
    log.abandon()
    reading = LogReading(str(tmp_path))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="more than the limit"):
            reading.offset_for_timestamp(NOW_MS, 1)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
