"""Between message sets and batches, both ways: what is kept, what is lost, where it stops."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.records import legacy
from appliance.records.batch import ATTRIBUTES_AT, CONTROL_FLAG, CRC_AT, RECORDS_COUNT_AT, batch_problem, read_batch_header, stamp_batch, stamp_log_append_time
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec, compress
from appliance.records.conversion import convert_down, convert_up
from appliance.records.legacy import LegacyMessage, build_message, build_message_set, read_entries, read_message_set
from appliance.records.record import iterate_records

LIMIT = 1 << 20
TIME = 1_700_000_000_000
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def up(message_set: bytes, limit: int = LIMIT, uses_log_append_time: bool = False) -> bytes:
    return convert_up(b"before" + message_set + b"behind", 6, 6 + len(message_set), limit, uses_log_append_time)


def refusal(message_set: bytes, limit: int = LIMIT, uses_log_append_time: bool = False) -> ErrorCode:
    with pytest.raises(RequestRefused) as caught:
        up(message_set, limit, uses_log_append_time)
    return caught.value.code


def stored(base_offset: int, count: int, codec: Codec = Codec.NONE, value: bytes = b"value %d") -> bytearray:
    builder = BatchBuilder(codec)
    for number in range(base_offset, base_offset + count):
        builder.append(TIME + number, b"key", value % number if b"%d" in value else value, (("name", b"header"),))
    batch = bytearray(builder.build())
    stamp_batch(batch, 0, base_offset, 3)
    return batch


def as_marker(batch: bytearray) -> bytearray:
    batch[ATTRIBUTES_AT + 1] |= CONTROL_FLAG
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return batch


def messages_of(sets: bytes) -> list[LegacyMessage]:
    found: list[LegacyMessage] = []
    for entry in read_entries(sets, 0, len(sets), len(sets), tolerates_tail=False):
        found += legacy.open_wrapper(entry) if entry.attributes & 7 else [entry]
    return found


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_message_set_becomes_one_batch_that_a_broker_takes(magic: int, codec: Codec) -> None:
    records = [(0, TIME, b"key", b"value"), (1, TIME - 5, None, b""), (2, TIME + 9, b"", None)]
    batch = up(build_message_set(magic, codec, False, records))
    assert batch_problem(batch, 0, len(batch), LIMIT) is None
    header = read_batch_header(batch)
    assert (header.codec, header.records_count, header.producer_id, header.max_timestamp) == (codec, 3, -1, TIME + 9 if magic else -1)
    assert [tuple(record) for record in iterate_records(batch, LIMIT)] == [(o, t if magic else -1, k, v, ()) for o, t, k, v in records]


def test_offsets_of_the_producer_do_not_matter() -> None:
    batch = up(b"".join(build_message(offset, 1, 0, TIME, None, b"v") for offset in (0, 0, 77, -3)))
    assert [record.offset for record in iterate_records(batch, LIMIT)] == [0, 1, 2, 3]


def test_a_set_of_nothing_whole_becomes_nothing() -> None:
    assert up(b"") == b""
    assert up(build_message(0, 1, 0, TIME, None, b"value")[:-1]) == b""


def test_the_append_time_of_the_topic_replaces_whatever_was_sent() -> None:
    batch = bytearray(up(build_message_set(0, Codec.GZIP, False, [(0, -1, None, b"a"), (1, -1, None, b"b")]), uses_log_append_time=True))
    stamp_log_append_time(batch, 0, len(batch), TIME)
    assert [record.timestamp for record in iterate_records(bytes(batch), LIMIT)] == [TIME, TIME]


def test_a_producer_may_claim_append_time_only_where_its_clock_counts_and_it_has_one() -> None:
    for compressed in (False, True):
        for timestamp in (TIME, -1):
            entry = build_message(0, 1, 8, timestamp, None, b"value")
            if compressed:
                entry = build_message(0, 1, 8 | 1, timestamp, None, compress(Codec.GZIP, build_message(0, 1, 0, TIME, None, b"value")))
            assert refusal(entry, uses_log_append_time=True) == ErrorCode.INVALID_TIMESTAMP
            if timestamp == -1:
                assert refusal(entry) == ErrorCode.INVALID_TIMESTAMP
            else:
                assert not read_batch_header(up(entry)).uses_log_append_time
    assert up(build_message(0, 0, 8, -1, None, b"value"), uses_log_append_time=True)  # the bit means nothing in magic 0


def test_timestamps_that_a_batch_cannot_hold_are_refused() -> None:
    assert refusal(build_message(0, 1, 0, -2, None, b"v")) == ErrorCode.INVALID_TIMESTAMP
    latest = 2**63 - 1
    assert refusal(build_message(0, 1, 0, -1, None, b"v") + build_message(1, 1, 0, latest, None, b"v")) == ErrorCode.INVALID_TIMESTAMP
    batch = up(build_message(0, 1, 0, 0, None, b"v") + build_message(1, 1, 0, latest, None, b"v"))
    assert [record.timestamp for record in iterate_records(batch, LIMIT)] == [0, latest]


def test_a_set_that_can_only_become_too_large_is_not_even_opened() -> None:
    assert refusal(build_message(0, 1, 0, TIME, None, None) * 200, limit=1000) == ErrorCode.MESSAGE_TOO_LARGE
    smallest = build_message(0, 1, 0, TIME, None, None) * 140
    assert len(smallest) < 5 * 1000 and len(up(smallest, limit=1000)) > 1000  # the caller's check of batches sees that


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_stored_batches_become_message_sets_in_their_codec(magic: int, codec: Codec) -> None:
    sets = convert_down(stored(40, 3, codec) + stored(50, 2, codec), magic, 40, LIMIT)
    entries = list(read_entries(sets, 0, len(sets), LIMIT, tolerates_tail=False))
    assert [entry.attributes & 7 for entry in entries] == [codec] * (2 if codec else 5)
    assert {entry.magic for entry in entries} == {magic}
    assert entries[-1].offset == 51
    expected = [(number, TIME + number if magic else -1, b"key", b"value %d" % number) for number in (40, 41, 42, 50, 51)]
    assert [(m.offset, m.timestamp, m.key, m.value) for m in messages_of(sets)] == expected


def test_records_before_the_fetch_offset_and_batches_before_it_are_left_out() -> None:
    for codec in OLD_CODECS:
        sets = convert_down(stored(0, 5, codec) + stored(5, 5, codec), 1, 7, LIMIT)
        assert [message.offset for message in messages_of(sets)] == [7, 8, 9]


def test_markers_are_dropped_and_may_be_all_there_is() -> None:
    both = as_marker(stored(0, 1)) + stored(1, 2) + as_marker(stored(3, 1))
    assert [message.offset for message in messages_of(convert_down(both, 1, 0, LIMIT))] == [1, 2]
    assert convert_down(as_marker(stored(0, 1)), 1, 0, LIMIT) == b""


def test_append_time_is_in_magic_1_and_absent_from_magic_0() -> None:
    for codec in OLD_CODECS:
        batch = stored(0, 2, codec)
        stamp_log_append_time(batch, 0, len(batch), TIME + 500)
        for magic in (0, 1):
            sets = convert_down(batch, magic, 0, LIMIT)
            (first, *_) = read_entries(sets, 0, len(sets), LIMIT, tolerates_tail=False)
            assert first.attributes & 8 == (8 if magic else 0)
            assert {message.timestamp for message in messages_of(sets)} == {TIME + 500 if magic else -1}


def test_a_batch_that_is_cut_off_is_passed_over() -> None:
    whole = stored(0, 2)
    cut = stored(2, 2)
    for end in range(len(cut)):
        assert [message.offset for message in messages_of(convert_down(whole + cut[:end], 1, 0, LIMIT))] == [0, 1]


def test_zstd_is_an_error_where_it_comes_first_and_an_end_where_it_comes_later() -> None:
    zstd = stored(3, 2, Codec.ZSTD)
    with pytest.raises(RequestRefused) as caught:
        convert_down(zstd, 1, 3, LIMIT)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert [message.offset for message in messages_of(convert_down(stored(0, 3) + zstd + stored(5, 1), 1, 0, LIMIT))] == [0, 1, 2]


def test_a_damaged_batch_is_an_error_where_it_comes_first_and_an_end_where_it_comes_later() -> None:
    damaged = stored(3, 2)
    damaged[-1] ^= 1
    with pytest.raises(RequestRefused) as caught:
        convert_down(damaged, 1, 3, LIMIT)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert [message.offset for message in messages_of(convert_down(stored(0, 3) + damaged, 1, 0, LIMIT))] == [0, 1, 2]
    for length in (-(2**31), -13, 0, 48):
        lying = stored(0, 1)
        struct.pack_into(">i", lying, 8, length)
        with pytest.raises(RequestRefused):
            convert_down(lying, 1, 0, LIMIT)


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_conversion_stops_at_its_bounds_and_goes_on_where_it_stopped(codec: Codec) -> None:
    log = stored(0, 10, codec, b"x" * 1000) + stored(10, 10, codec, b"x" * 1000)
    for bytes_max, records_max, counts in ((3000, 100, [3, 3, 3, 3, 3, 3, 2]), (LIMIT, 8, [8, 8, 4]), (1, 100, [1] * 20)):
        offset, found = 0, []
        while offset < 20:
            messages = messages_of(convert_down(log, 1, offset, bytes_max, records_max))
            found.append(len(messages))
            assert [message.offset for message in messages] == list(range(offset, offset + len(messages)))
            offset += len(messages)
        assert found == counts, (bytes_max, records_max)


def test_a_batch_of_more_records_than_a_turn_can_pass_is_refused() -> None:
    batch = stored(0, 1)
    struct.pack_into(">i", batch, RECORDS_COUNT_AT, legacy.RECORDS_MAX + 1)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    with pytest.raises(RequestRefused) as caught:
        convert_down(batch, 1, 0, LIMIT)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_there_and_back_again() -> None:
    for codec in OLD_CODECS:
        first = build_message_set(1, codec, False, [(number, TIME + number, b"k", b"v%d" % number) for number in range(20)])
        again = convert_down(up(first), 1, 0, LIMIT)
        assert again == first
        assert read_message_set(again, 0, len(again), LIMIT)[0] is codec
