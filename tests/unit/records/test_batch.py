"""What the acceptor refuses, what the leader stamps."""

from __future__ import annotations

from struct import Struct

import pytest

from appliance.base.errors import ErrorCode
from appliance.records.batch import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BATCH_LENGTH_AT,
    CONTROL_FLAG,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME_FLAG,
    MAGIC_AT,
    PRODUCER_ID_AT,
    RECORDS_COUNT_AT,
    batch_problem,
    read_batch_header,
    stamp_batch,
    stamp_log_append_time,
    stamp_producer,
    stored_batch_problem,
)
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.crc32c import crc32c
from appliance.records.record import iterate_records

LIMIT = 1 << 20


def a_batch(count: int = 3) -> bytearray:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1000 + number, b"key", b"value %d" % number)
    return bytearray(builder.build())


def changed(at: int, layout: str, value: int, good_crc: bool = True) -> bytearray:
    raw = a_batch()
    Struct(">" + layout).pack_into(raw, at, value)
    if good_crc:
        raw[CRC_AT:ATTRIBUTES_AT] = crc32c(raw[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return raw


def code_of(raw: bytes | bytearray, max_message_bytes: int = LIMIT) -> ErrorCode | None:
    problem = batch_problem(raw, 0, len(raw), max_message_bytes)
    return None if problem is None else problem[0]


def test_a_good_batch_is_accepted_wherever_it_lies_in_a_buffer() -> None:
    raw = a_batch()
    assert batch_problem(memoryview(b"before" + raw + b"behind"), 6, 6 + len(raw), LIMIT) is None


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (changed(BASE_OFFSET_AT, "q", 1), ErrorCode.INVALID_RECORD),
        (changed(MAGIC_AT, "b", 1), ErrorCode.INVALID_RECORD),
        (changed(MAGIC_AT, "b", 3), ErrorCode.INVALID_RECORD),
        (changed(BATCH_LENGTH_AT, "i", 48), ErrorCode.CORRUPT_MESSAGE),
        (changed(BATCH_LENGTH_AT, "i", -1), ErrorCode.CORRUPT_MESSAGE),
        (changed(BATCH_LENGTH_AT, "i", 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
        (changed(ATTRIBUTES_AT, "h", CONTROL_FLAG), ErrorCode.INVALID_RECORD),
        (changed(ATTRIBUTES_AT, "h", LOG_APPEND_TIME_FLAG), ErrorCode.INVALID_TIMESTAMP),
        (changed(ATTRIBUTES_AT, "h", 5), ErrorCode.INVALID_RECORD),
        (changed(ATTRIBUTES_AT, "h", 0x40), ErrorCode.INVALID_RECORD),
        (changed(LAST_OFFSET_DELTA_AT, "i", 3), ErrorCode.INVALID_RECORD),
        (changed(RECORDS_COUNT_AT, "i", 0), ErrorCode.INVALID_RECORD),
        (changed(PRODUCER_ID_AT, "q", 7), ErrorCode.INVALID_RECORD),
        (changed(BASE_SEQUENCE_AT, "i", 5, good_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (a_batch() + a_batch(), ErrorCode.INVALID_RECORD),
        (a_batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (a_batch()[:60], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
    ],
)
def test_a_bad_batch_is_refused_with_kafkas_code(raw: bytes | bytearray, code: ErrorCode) -> None:
    assert code_of(raw) == code


def test_a_batch_larger_than_the_limit_is_refused_before_its_checksum_is_computed() -> None:
    raw = changed(BASE_SEQUENCE_AT, "i", 5, good_crc=False)
    assert code_of(raw, len(raw) - 1) == ErrorCode.MESSAGE_TOO_LARGE


def test_every_flipped_bit_behind_the_leader_epoch_is_noticed() -> None:
    raw = a_batch(1)
    for at in range(MAGIC_AT, len(raw)):
        for bit in range(8):
            raw[at] ^= 1 << bit
            assert code_of(raw) is not None and stored_batch_problem(raw, 0, len(raw)) is not None, (at, bit)
            raw[at] ^= 1 << bit


def test_a_stamp_changes_offset_and_leader_epoch_and_keeps_the_checksum_valid() -> None:
    raw = a_batch()
    before = bytes(raw)
    stamp_batch(raw, 0, 4711, 9)
    header = read_batch_header(raw)
    assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (4711, 9, 4713)
    assert stored_batch_problem(raw, 0, len(raw)) is None
    assert raw[MAGIC_AT:] == before[MAGIC_AT:] and raw[BATCH_LENGTH_AT:LEADER_EPOCH_AT] == before[BATCH_LENGTH_AT:LEADER_EPOCH_AT]


def test_log_append_time_becomes_the_time_of_every_record() -> None:
    raw = bytearray(b"..") + a_batch()
    stamp_log_append_time(memoryview(raw), 2, len(raw) - 2, 5000)
    header = read_batch_header(raw, 2)
    assert header.uses_log_append_time and header.codec is Codec.NONE
    assert [record.timestamp for record in iterate_records(raw[2:], LIMIT)] == [5000, 5000, 5000]


def test_a_stamped_producer_can_be_read_and_the_checksum_holds() -> None:
    original = a_batch()
    batch = bytearray(original)
    stamp_producer(batch, 2**40, 7, 2**31 - 1, True)
    header = read_batch_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (2**40, 7, 2**31 - 1, True)
    assert batch_problem(batch, 0, len(batch), LIMIT) is None
    stamp_producer(batch, -1, -1, -1, False)
    assert batch == original, "without a producer it is the batch that it was"


@pytest.mark.parametrize(("count", "codec", "code"), [(2**31 - 1, 0, ErrorCode.INVALID_RECORD), (2**31 - 1, 4, ErrorCode.INVALID_RECORD), (1_000_000, 4, None)])
def test_a_batch_claims_no_more_records_than_it_can_have(count: int, codec: int, code: ErrorCode | None) -> None:
    """Else a client of small batches uses up offsets, of which each segment has 2^31."""
    raw = a_batch()
    Struct(">hi").pack_into(raw, ATTRIBUTES_AT, codec, count - 1)
    Struct(">i").pack_into(raw, RECORDS_COUNT_AT, count)
    raw[CRC_AT:ATTRIBUTES_AT] = crc32c(raw[ATTRIBUTES_AT:]).to_bytes(4, "big")
    assert code_of(raw) == code


def test_a_batch_of_the_smallest_records_is_accepted() -> None:
    builder = BatchBuilder()
    for _ in range(60):
        builder.append(1000, None, None)
    assert code_of(builder.build()) is None
