"""Message sets of magic 0 and 1 as producers send them: what is taken, what is refused and with which of Kafka's codes."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.records import legacy
from appliance.records.compression import Codec, compress, decompress, with_old_header_checksum, with_right_header_checksum, xxhash32_short
from appliance.records.legacy import build_message, build_message_set, open_wrapper, read_message_set

LIMIT = 1 << 20
TIME = 1_700_000_000_000
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def refusal(message_set: bytes, limit: int = LIMIT) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestRefused) as caught:
        read_message_set(message_set, 0, len(message_set), limit)
    return caught.value.code, caught.value.message


def with_crc(entry: bytes) -> bytes:
    return entry[:12] + struct.pack(">I", crc32(entry[16:])) + entry[16:]


def wrapper(magic: int, codec: int, stream: bytes | None, offset: int = 0, timestamp: int = TIME) -> bytes:
    return build_message(offset, magic, codec, timestamp, None, stream)


def inner(magic: int, *offsets: int) -> bytes:
    return b"".join(build_message(offset, magic, 0, TIME + offset, None, b"value") for offset in offsets)


def test_a_message_of_each_magic_byte_by_byte() -> None:
    for magic, fields in ((0, b""), (1, struct.pack(">q", TIME))):
        body = bytes((magic, 0)) + fields + struct.pack(">i3si5s", 3, b"key", 5, b"value")
        entry = struct.pack(">qiI", 7, len(body) + 4, crc32(body)) + body
        assert build_message(7, magic, 0, TIME, b"key", b"value") == entry
        _, (message,), _ = read_message_set(entry, 0, len(entry), LIMIT)
        assert message == (7, magic, 0, TIME if magic else -1, b"key", b"value")


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_set_comes_back_as_it_was_built(magic: int, codec: Codec) -> None:
    records = [(5, TIME, b"key", b"value" * 50), (6, TIME + 1, None, None), (9, TIME - 1, b"", b"")]
    built = build_message_set(magic, codec, False, records)
    found_codec, messages, _ = read_message_set(built, 0, len(built), LIMIT)
    assert found_codec is codec
    assert [(m.offset, m.timestamp, m.key, m.value) for m in messages] == [(o, t if magic else -1, k, v) for o, t, k, v in records]


def test_a_wrapper_has_the_offset_of_its_last_message_and_the_largest_timestamp() -> None:
    built = build_message_set(1, Codec.GZIP, False, [(5, TIME + 8, None, b"a"), (7, TIME, None, b"b")])
    (entry,) = legacy.read_entries(built, 0, len(built), LIMIT, True)
    assert (entry.offset, entry.timestamp, entry.attributes, entry.key) == (7, TIME + 8, 1, None)
    opened = decompress(Codec.GZIP, entry.value or b"", LIMIT)
    assert [m.offset for m in legacy.read_entries(opened, 0, len(opened), LIMIT, False)] == [0, 2]


def test_a_wrapper_of_offset_0_counts_from_0_as_old_librdkafka_sends_it() -> None:
    built = wrapper(1, 1, compress(Codec.GZIP, inner(1, 0, 1, 2)))
    (entry,) = legacy.read_entries(built, 0, len(built), LIMIT, True)
    assert [message.offset for message in open_wrapper(entry)] == [0, 1, 2]
    later = entry._replace(offset=12)
    assert [message.offset for message in open_wrapper(later)] == [10, 11, 12]
    with pytest.raises(RequestRefused, match="ends with relative offset 2"):
        list(open_wrapper(entry._replace(offset=1)))


def test_messages_of_a_wrapper_with_append_time_take_its_timestamp() -> None:
    built = build_message(2, 1, Codec.GZIP | legacy.LOG_APPEND_TIME_FLAG, TIME + 99, None, compress(Codec.GZIP, inner(1, 0, 1, 2)))
    _, messages, says_append_time = read_message_set(built, 0, len(built), LIMIT)
    assert says_append_time
    assert [message.timestamp for message in messages] == [TIME + 99] * 3


@pytest.mark.parametrize("magic", [0, 1])
def test_a_last_message_that_is_cut_off_is_passed_over_and_one_inside_a_wrapper_is_not(magic: int) -> None:
    whole = inner(magic, 0, 1)
    for end in range(len(whole) // 2, len(whole)):
        _, messages, _ = read_message_set(whole, 0, end, LIMIT)
        assert len(messages) == 1
    assert read_message_set(whole, 0, 11, LIMIT)[1] == []
    cut = wrapper(magic, 1, compress(Codec.GZIP, whole[:-1]))
    assert refusal(cut)[0] == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_every_flipped_bit_behind_the_checksum_is_noticed(magic: int) -> None:
    entry = build_message(0, magic, 0, TIME, b"key", b"value")
    for position in range(12, len(entry)):
        flipped = bytearray(entry)
        flipped[position] ^= 4
        assert refusal(bytes(flipped))[0] == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_the_checksum_of_messages_inside_a_wrapper_is_looked_at_too(magic: int) -> None:
    broken = bytearray(inner(magic, 0, 1))
    broken[-1] ^= 1
    assert refusal(wrapper(magic, 2, compress(Codec.SNAPPY, broken)))[0] == ErrorCode.CORRUPT_MESSAGE


def test_sizes_and_lengths_that_lie_are_refused() -> None:
    entry = build_message(0, 0, 0, -1, b"key", b"value")
    for size in (-(2**31), -1, 0, 13):
        code, text = refusal(struct.pack(">qi", 0, size) + entry[12:])
        assert code == ErrorCode.CORRUPT_MESSAGE and str(size) in text
    assert read_message_set(struct.pack(">qi", 0, 2**31 - 1) + entry[12:], 0, len(entry), LIMIT)[1] == []  # it is not whole
    for at, name in ((18, "key"), (18 + 4 + 3, "value")):
        for length in (-(2**31), -2, 100, 2**31 - 1):
            code, text = refusal(with_crc(entry[:at] + struct.pack(">i", length) + entry[at + 4 :]))
            assert code == ErrorCode.INVALID_RECORD and f"claims {length} bytes" in text, name
    assert refusal(with_crc(entry[:25] + struct.pack(">i", 4) + entry[29:]))[1] == "1 bytes of a message follow its value"
    assert refusal(with_crc(entry[:18] + struct.pack(">i", -1) + entry[22:]))[0] == ErrorCode.INVALID_RECORD
    short = struct.pack(">qiI", 0, 14, 0) + bytes((1, 0)) + bytes(8)
    assert refusal(with_crc(short))[1] == "a message of magic 1 has 14 bytes, 22 are the least"


def test_what_may_not_stand_together_is_refused() -> None:
    gzipped = compress(Codec.GZIP, inner(1, 0))
    assert refusal(inner(0, 0) + inner(1, 1)) == (ErrorCode.INVALID_RECORD, "messages of magic 0 and 1 stand in one set")
    assert refusal(inner(1, 0) + wrapper(1, 1, gzipped)) == (ErrorCode.INVALID_RECORD, "a compressed set does not stand alone in its request")
    assert refusal(wrapper(1, 1, gzipped) * 2)[0] == ErrorCode.INVALID_RECORD
    code, text = refusal(wrapper(0, 1, gzipped))
    assert (code, text) == (ErrorCode.INVALID_RECORD, "a message of magic 1 stands in a compressed set of magic 0")
    assert refusal(wrapper(1, 1, compress(Codec.GZIP, wrapper(1, 1, gzipped)))) == (ErrorCode.INVALID_RECORD, "a compressed set stands in another")
    newer = bytearray(inner(1, 0))
    newer[16] = 2
    assert refusal(inner(1, 0) + with_crc(bytes(newer))) == (ErrorCode.INVALID_RECORD, "an entry of magic 2 stands in a message set")


@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_that_hold_nothing_or_what_does_not_exist_are_refused(magic: int) -> None:
    assert refusal(wrapper(magic, 1, None)) == (ErrorCode.INVALID_RECORD, "a compressed set has no value")
    assert refusal(wrapper(magic, 1, compress(Codec.GZIP, b""))) == (ErrorCode.INVALID_RECORD, "a compressed set is empty")
    assert refusal(wrapper(magic, 4, compress(Codec.ZSTD, inner(magic, 0))))[0] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    for codec in (5, 6, 7):
        assert refusal(wrapper(magic, codec, b"stream")) == (ErrorCode.INVALID_RECORD, f"compression codec {codec} is unknown")
    for codec in (1, 2, 3):
        assert refusal(wrapper(magic, codec, b"no stream of that codec"))[0] == ErrorCode.INVALID_RECORD


def test_large_messages_bombs_and_endless_sets_are_refused() -> None:
    entry = build_message(0, 1, 0, TIME, None, b"x" * 100)
    assert read_message_set(entry, 0, len(entry), len(entry))[1]
    assert refusal(entry, len(entry) - 1)[0] == ErrorCode.MESSAGE_TOO_LARGE
    bomb = wrapper(1, 1, compress(Codec.GZIP, bytes(17 << 20)))
    code, text = refusal(bomb)
    assert code == ErrorCode.MESSAGE_TOO_LARGE and "limit of 16777216 bytes" in text


@pytest.mark.slow
def test_more_messages_than_a_turn_can_take_are_refused() -> None:
    entry = build_message(0, 0, 0, -1, None, None)
    many = entry * (legacy.RECORDS_MAX + 1)
    assert len(read_message_set(many, 0, len(many) - len(entry), LIMIT)[1]) == legacy.RECORDS_MAX
    assert refusal(many)[0] == ErrorCode.RECORD_LIST_TOO_LARGE
    assert refusal(wrapper(0, 1, compress(Codec.GZIP, many)))[0] == ErrorCode.RECORD_LIST_TOO_LARGE


def test_the_checksum_of_lz4_headers_is_the_one_of_xxhash() -> None:
    # xxHash's own test values, and the byte that Kafka's frames carry
    assert xxhash32_short(b"") == 0x02CC5D05
    assert xxhash32_short(b"a") == 0x550D7456
    assert xxhash32_short(b"abc") == 0x32D153FF
    frame = compress(Codec.LZ4, b"value" * 100)
    assert with_right_header_checksum(frame) == frame
    old = with_old_header_checksum(frame)
    assert [position for position, (a, b) in enumerate(zip(frame, old, strict=True)) if a != b] == [6]
    assert with_right_header_checksum(old) == frame


def test_lz4_of_magic_0_is_opened_with_any_header_checksum_and_of_magic_1_with_the_right_one() -> None:
    for magic in (0, 1):
        stream = compress(Codec.LZ4, inner(magic, 0, 1))
        for checksum in (0x00, 0x82, 0xFF, with_old_header_checksum(stream)[6]):
            built = wrapper(magic, 3, stream[:6] + bytes((checksum,)) + stream[7:])
            if magic and checksum != 0x82:
                assert refusal(built)[0] == ErrorCode.INVALID_RECORD
            else:
                assert len(read_message_set(built, 0, len(built), LIMIT)[1]) == 2
    for frame in (b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x60\x40", b"\x04\x22\x4d\x18\x69\x40" + bytes(11)):
        assert refusal(wrapper(0, 3, frame))[0] == ErrorCode.INVALID_RECORD


def test_snappy_is_taken_bare_and_framed() -> None:
    import cramjam

    plain = inner(1, 0, 1)
    for stream in (compress(Codec.SNAPPY, plain), bytes(cramjam.snappy.compress_raw(plain))):
        built = wrapper(1, 2, stream)
        assert len(read_message_set(built, 0, len(built), LIMIT)[1]) == 2
