from __future__ import annotations

import pytest

from appliance.base.errors import ProtocolViolation
from appliance.client import fetch
from appliance.client.fetch import PAGE_RECORD_BYTES_MAX, RecordPage, read_fetched
from appliance.records.batch import ATTRIBUTES_AT, BATCH_LENGTH_AT, CONTROL_FLAG, CRC_AT, MAGIC_AT, batch_crc, stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec


def make_batch(base_offset: int, count: int, codec: Codec = Codec.NONE) -> bytearray:
    builder = BatchBuilder(codec)
    for index in range(count):
        builder.append(1000 + index, None, b"%d" % (base_offset + index))
    batch = bytearray(builder.build())
    stamp_batch(batch, 0, base_offset, 3)
    return batch


def values_of(fetched: bytes, fetch_offset: int) -> list[int]:
    return [int(record.value or b"") for record in read_fetched(fetched, fetch_offset).records]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_before_the_fetch_offset_are_left_out(codec: Codec) -> None:
    fetched = bytes(make_batch(10, 5, codec) + make_batch(15, 5, codec))
    assert values_of(fetched, 12) == list(range(12, 20))
    assert read_fetched(fetched, 12).next_offset == 20


def test_a_batch_cut_off_by_the_brokers_limit_comes_again() -> None:
    whole = make_batch(0, 3)
    for end in range(len(whole) + 1, len(whole) + 70, 7):
        fetched = bytes(whole + make_batch(3, 3))[:end]
        assert read_fetched(fetched, 0).next_offset == 3


def test_a_batch_without_records_for_us_still_moves_the_offset() -> None:
    control = make_batch(4, 1)
    control[ATTRIBUTES_AT + 1] |= CONTROL_FLAG
    control[CRC_AT : CRC_AT + 4] = batch_crc(control, 0, len(control)).to_bytes(4, "big")
    read = read_fetched(bytes(control), 4)
    assert read.records == []
    assert read.next_offset == 5


def test_a_gap_between_batches_is_passed_over() -> None:
    assert values_of(bytes(make_batch(0, 2) + make_batch(7, 2)), 0) == [0, 1, 7, 8]


def page_of(fetched: bytes, offset: int, end: int = 100, wanted: int = 100) -> RecordPage:
    page = RecordPage(offset, end, wanted, lambda record: record.offset)
    page.add(fetched)
    return page


def test_as_many_records_as_wanted_are_read_and_the_next_ones_come_next() -> None:
    fetched = bytes(make_batch(0, 3, Codec.GZIP) + make_batch(7, 3))
    for wanted in range(1, 8):
        offset, values = 0, []
        while records := (page := page_of(fetched, offset, wanted=wanted)).records:
            assert len(records) <= wanted
            offset, values = page.next_offset, values + records
        assert values == [0, 1, 2, 7, 8, 9] and offset == 10


@pytest.mark.parametrize(("end", "offsets"), [(2, [0, 1]), (3, [0, 1, 2]), (5, [0, 1, 2]), (8, [0, 1, 2, 7])])
def test_a_page_has_no_record_at_or_after_its_end(end: int, offsets: list[int]) -> None:
    page = page_of(bytes(make_batch(0, 3, Codec.GZIP) + make_batch(7, 3)), 0, end)
    assert (page.records, page.next_offset) == (offsets, end)


def zeros(count: int, size_bytes: int) -> bytes:
    builder = BatchBuilder(Codec.ZSTD)
    for _ in range(count):
        builder.append(0, None, bytes(size_bytes))
    return bytes(builder.build())


def test_a_page_ends_with_the_record_that_crosses_its_bytes() -> None:
    page = page_of(zeros(10, PAGE_RECORD_BYTES_MAX // 4 + 1), 0)
    assert page.records == [0, 1, 2, 3] and page.next_offset == 4 and page.is_full


def test_a_batch_that_is_too_large_when_decompressed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAGE_BATCH_BYTES_MAX", 100_000)
    assert page_of(zeros(1, 99_000), 0).records == [0]
    with pytest.raises(ProtocolViolation, match="offset 0 is damaged"):
        page_of(zeros(1, 100_000), 0)


def test_a_damaged_batch_is_not_handed_out() -> None:
    batch = make_batch(0, 2)
    for position in range(ATTRIBUTES_AT, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x40
        with pytest.raises(ProtocolViolation, match="offset 0"):
            read_fetched(bytes(damaged), 0)


def test_another_format_or_an_impossible_size_is_refused() -> None:
    old = make_batch(0, 2)
    old[MAGIC_AT] = 1
    with pytest.raises(ProtocolViolation, match="format 1"):
        read_fetched(bytes(old), 0)
    tiny = make_batch(0, 2)
    tiny[BATCH_LENGTH_AT : BATCH_LENGTH_AT + 4] = bytes(4)
    with pytest.raises(ProtocolViolation, match="claims 12 bytes"):
        read_fetched(bytes(tiny), 0)
