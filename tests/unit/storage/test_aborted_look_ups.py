"""Which aborted transactions a range of a log has, as a log-reader finds it beside a log that grows and is compacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.reading import LogReading
from appliance.storage.verification import Verifications
from tests.unit.storage.storage_support import NOW_MS, batch, open_log, with_attributes

CONFIG = LogConfig(segment_bytes=1_000, index_interval_bytes=200)


def write(log: Log, producer_id: int, sequence: int) -> int:
    raw = with_attributes(batch(b"x" * 50, producer=(producer_id, 0, sequence)), 0x10)
    return int(log.append_as_leader([raw], 0, NOW_MS)[0][0])


def end(log: Log, producer_id: int, is_commit: bool) -> int:
    raw = build_end_transaction_batch(producer_id, 0, EndTransactionMarker(is_commit, 0), NOW_MS)
    return int(log.append_as_leader([memoryview(raw)], 0, NOW_MS)[0][0])


def test_every_range_has_its_aborted_transactions_and_none_that_ended_before(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG)
    log.verifications = Verifications(is_enabled=False)
    aborted = []
    for round_number in range(20):
        first = {producer_id: write(log, producer_id, round_number) for producer_id in (1, 2, 3)}
        for producer_id in (3, 1, 2):
            marker = end(log, producer_id, is_commit=producer_id == 2)
            if producer_id != 2:
                aborted.append((producer_id, first[producer_id], marker))
    open_since = write(log, 1, 20)
    assert len(log.segment_base_offsets) > 8
    reading = LogReading(str(tmp_path))
    bases = [*log.segment_base_offsets, log.log_end_offset]
    for number, base in enumerate(bases[:-1]):
        size_bytes = (tmp_path / f"{base:020d}.log").stat().st_size
        for end_position in (1, size_bytes // 2, size_bytes):
            limit = min(log.log_end_offset, open_since)
            for offset in range(base, min(bases[number + 1], limit)):
                end_offset, found = reading.aborted_in(offset, base, end_position, limit)
                told = [(each.producer_id, each.first_offset, each.last_offset) for each in found]
                assert told == [each for each in aborted if each[2] >= offset and each[1] < end_offset]
                assert end_offset <= min(limit, bases[number + 1])
                at = reading.locate(end_offset, log.log_end_offset)
                assert end_offset == limit or (at.segment_base_offset, at.position) >= (base, min(end_position, size_bytes)) or end_position == 1
    log.close()


def test_an_abort_behind_the_look_at_the_segments_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    log.verifications = Verifications(is_enabled=False)
    reading = LogReading(str(tmp_path))
    assert reading.aborted_in(0, 0, 100, 10) == (10, [])
    first = write(log, 1, 0)
    marker = end(log, 1, is_commit=False)
    (found,) = reading.aborted_in(0, 0, log.active_position, 2)[1]
    assert (found.first_offset, found.last_offset) == (first, marker)
    log.close()


@pytest.mark.parametrize("torn_bytes", [1, 33])
def test_part_of_an_entry_at_the_end_of_an_index_says_nothing(tmp_path: Path, torn_bytes: int) -> None:
    log = open_log(tmp_path, LogConfig())
    log.verifications = Verifications(is_enabled=False)
    write(log, 1, 0)
    end(log, 1, is_commit=False)
    with open(tmp_path / f"{0:020d}.txnindex", "ab") as file:
        file.write(bytes(torn_bytes))
    assert len(LogReading(str(tmp_path)).aborted_in(0, 0, 1, 2)[1]) == 1
    log.abandon()
