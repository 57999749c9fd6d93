"""Which stored batches a reader of a range gets: none twice, none aborted, none damaged."""

from __future__ import annotations

import pytest

from appliance.pipeline.batch_scan import GROUP_RECORDS, AbortedRecords, BatchScan, RawBatches, ReadProgress, find_batch, grouped
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import CorruptBatchFound, CorruptRange
from tests.unit.pipeline.made_batches import made, marker, stored

TOPIC = "t"


def scan(log: bytes, start: int, end: int, **more: object) -> tuple[list[int], ReadProgress, list[CorruptRange]]:
    """Base offsets of the batches found, how far that got, and what was left out."""
    told: list[CorruptRange] = []
    progress = ReadProgress(start)
    reader = BatchScan(OffsetRange(TOPIC, 0, start, end), progress, told.append)
    raw = RawBatches(memoryview(log), 0, len(log))._replace(**more)
    return [batch.header.base_offset for batch in reader.batches(raw)], progress, told


def test_batches_from_the_start_up_to_the_end_are_found() -> None:
    log = made(0, [b"a"] * 3) + made(3, [b"b"] * 3) + made(6, [b"c"] * 3) + made(9, [b"d"])
    assert scan(log, 4, 8)[0] == [3, 6]
    assert scan(log, 0, 3)[0] == [0]
    assert scan(log, 0, 100)[1].next_offset == 10


def test_a_batch_that_is_cut_off_is_left_for_the_next_time() -> None:
    first, second = made(0, [b"a"] * 3), made(3, [b"b"] * 3)
    for kept in range(len(second)):
        found, progress, told = scan(first + second[:kept], 0, 6)
        assert (found, progress.next_offset, progress.position, told) == ([0], 3, len(first), [])


def test_a_range_ends_where_compaction_left_nothing_up_to_its_end() -> None:
    found, progress, _ = scan(made(0, [b"a"]) + made(20, [b"b"]), 0, 10)
    assert (found, progress.next_offset) == ([0], 10)


def test_control_batches_are_left_out() -> None:
    log = made(0, [b"a"], producer_id=7) + marker(1, 7, is_commit=True) + made(2, [b"b"])
    found, progress, _ = scan(log, 0, 3)
    assert (found, progress.next_offset) == ([0, 2], 3)


def test_records_of_aborted_transactions_are_left_out_with_read_committed_only() -> None:
    log = made(0, [b"a"], producer_id=7) + made(1, [b"other"], producer_id=8) + marker(2, 7, False) + made(3, [b"again"], producer_id=7)
    log += marker(4, 7, True) + made(5, [b"plain"]) + marker(6, 8, True) + made(7, [b"x"], producer_id=7) + marker(8, 7, False)
    assert scan(log, 0, 9)[0] == [0, 1, 3, 5, 7]
    assert scan(log, 0, 9, aborted=AbortedRecords([(7, 0), (7, 7)]))[0] == [1, 3, 5]


def test_what_is_known_of_aborted_transactions_holds_over_several_pieces_of_a_log() -> None:
    aborted = AbortedRecords([(7, 0)])
    pieces = [made(0, [b"a"], producer_id=7), made(1, [b"b"], producer_id=7) + marker(2, 7, False), made(3, [b"c"], producer_id=7) + marker(4, 7, True)]
    progress = ReadProgress(0)
    reader = BatchScan(OffsetRange(TOPIC, 0, 0, 5), progress)
    found = [each.header.base_offset for piece in pieces for each in reader.batches(RawBatches(memoryview(piece), 0, len(piece), aborted))]
    assert found == [3]


@pytest.mark.parametrize("position", [17, 23, 40, 58, 61, 70])
def test_a_damaged_batch_is_named_and_left_out_when_that_is_wanted(position: int) -> None:
    first, second, third = made(0, [b"a"] * 3), bytearray(made(3, [b"b"] * 3)), made(6, [b"c"] * 3)
    second[position] ^= 0x55
    log = first + second + third
    found, progress, told = scan(log, 0, 9)
    assert (found, progress.next_offset) == ([0, 6], 9)
    assert [each[:4] for each in told] == [(TOPIC, 0, 3, 6)]
    with pytest.raises(CorruptBatchFound, match=r"the batch at offset 3 of t-0 is corrupt: .*millrace.skipCorruptBatches"):
        list(BatchScan(OffsetRange(TOPIC, 0, 0, 9), ReadProgress(0)).batches(RawBatches(memoryview(log), 0, len(log))))


@pytest.mark.parametrize("position", [9, 10, 11, 16])
def test_behind_a_damaged_length_or_magic_the_next_good_batch_is_found(position: int) -> None:
    first, second, third = made(0, [b"a"] * 3), bytearray(made(3, [b"b"] * 3)), made(6, [b"c"] * 3)
    second[position] ^= 0x85
    found, progress, told = scan(first + second + third, 0, 9, resume_offset=9)
    # A length that reaches beyond the memory may be that of a batch whose rest is still to come.
    if progress.next_offset == 3:
        assert found == [0] and not told
        found, progress, told = scan(bytes(second) + third, 3, 9, resume_offset=9)
        found.insert(0, 0)
    assert (found, progress.next_offset) == ([0, 6], 9)
    assert [each[2:4] for each in told] == [(3, 6)]


def test_a_damaged_header_with_nothing_known_behind_it_cannot_be_passed_over() -> None:
    broken = bytearray(made(3, [b"b"] * 3))
    broken[16] = 9
    with pytest.raises(CorruptBatchFound):
        scan(bytes(broken), 3, 9)
    assert scan(bytes(broken), 3, 9, resume_offset=7)[1].next_offset == 7


def test_damage_before_the_range_is_nobodys_loss() -> None:
    first, second, third = made(0, [b"a"] * 3), bytearray(made(3, [b"b"] * 3)), made(6, [b"c"] * 3)
    second[16] = 9
    found, progress, told = scan(first + second + third, 7, 9)
    assert (found, progress.next_offset, told) == ([6], 9, [])


def test_a_batch_inside_a_records_value_is_not_taken_for_one() -> None:
    """A log of Kafka's own files has batches in its records."""
    inner = made(50, [b"inner"])
    second = bytearray(made(3, [inner]))
    second[17] ^= 1
    found, _, told = scan(bytes(second) + made(4, [b"c"]), 3, 100)
    assert found == [4] and [each[2:4] for each in told] == [(3, 4)]


def test_a_batch_is_found_by_its_checksum() -> None:
    log = b"\x02" * 100 + made(5, [b"x"]) + b"\x00" * 20
    assert find_batch(memoryview(log), 0, len(log), 0) == (100, 5)
    assert find_batch(memoryview(log), 0, len(log), 6) is None


def test_small_batches_are_put_together_and_none_is_forgotten() -> None:
    log = b"".join(made(number * 100, [b"x"] * 100) for number in range(250))
    groups = list(grouped(stored(log)))
    assert [sum(batch.header.records_count for batch in group) for group in groups] == [GROUP_RECORDS, GROUP_RECORDS, 5000]
