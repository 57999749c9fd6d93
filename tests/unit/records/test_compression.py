"""Codecs as other implementations write and read them, and bombs."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from time import process_time

import cramjam
import pytest

from appliance.records.compression import Codec, CorruptBatch, compress, decompress, opened_batch_limit

CODECS = [codec for codec in Codec if codec]
PLAIN = b"disk d3 is warm\n" * 20_000


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN, bytes(range(256)) * 300])
def test_a_stream_gives_back_what_was_put_in(codec: Codec, plain: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, plain), max(1, len(plain)))) == plain


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_that_holds_one_byte_more_than_the_limit_is_refused(codec: Codec) -> None:
    with pytest.raises(CorruptBatch, match="more than the limit"):
        decompress(codec, compress(codec, PLAIN), len(PLAIN) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_broken_or_cut_stream_is_refused(codec: Codec) -> None:
    stream = compress(codec, PLAIN)
    for broken in (stream[: len(stream) // 2], b"nonsense" * 10):
        with pytest.raises(CorruptBatch):
            decompress(codec, broken, len(PLAIN))


@pytest.mark.parametrize("codec", CODECS)
def test_a_guess_of_the_size_changes_nothing_but_the_time(codec: Codec) -> None:
    for guess_bytes in (1, 100, len(PLAIN) - 1, len(PLAIN), len(PLAIN) + 1, 10**9):
        assert bytes(decompress(codec, compress(codec, PLAIN), len(PLAIN), guess_bytes)) == PLAIN


def test_several_gzip_members_are_one_stream() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), 7) == b"one two"


def test_snappy_is_read_with_and_without_xerial_framing_and_written_with_it() -> None:
    bare = bytes(cramjam.snappy.compress_raw(PLAIN))
    framed = compress(Codec.SNAPPY, PLAIN)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    assert bytes(decompress(Codec.SNAPPY, bare, len(PLAIN))) == PLAIN
    assert bytes(decompress(Codec.SNAPPY, framed + framed, 2 * len(PLAIN))) == PLAIN + PLAIN


def test_a_snappy_block_that_lies_about_its_length_allocates_nothing() -> None:
    block = b"\xff\xff\xff\xff\x0f" + b"\x00"  # says four gigabytes
    for stream in (block, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + struct.pack(">i", len(block)) + block):
        with pytest.raises(CorruptBatch, match="more than the limit"):
            decompress(Codec.SNAPPY, stream, 1 << 20)


def test_lz4_frames_have_independent_blocks_as_javas_reader_demands() -> None:
    assert compress(Codec.LZ4, PLAIN)[:7] == bytes.fromhex("04224d18604082")


def test_lz4_stores_what_does_not_shrink() -> None:
    import random

    noise = random.Random(1).randbytes(100_000)
    stream = compress(Codec.LZ4, noise)
    assert len(stream) == 7 + 4 + 65536 + 4 + (100_000 - 65536) + 4
    assert bytes(decompress(Codec.LZ4, stream, 100_000)) == noise


def test_many_tiny_gzip_members_take_time_by_their_bytes_and_not_by_their_square() -> None:
    def seconds(members: int) -> float:
        stream = gzip.compress(b"x") * members
        started = process_time()
        assert decompress(Codec.GZIP, stream, members) == b"x" * members
        return process_time() - started

    few = min(seconds(2_000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(3)) < few * 8 * 3  # by the square it would be 64 times as long


def test_a_gzip_stream_that_is_cut_anywhere_is_refused() -> None:
    stream = gzip.compress(b"disk d3 is warm\n" * 40) + gzip.compress(bytes(range(256)) * 3)
    first = len(gzip.compress(b"disk d3 is warm\n" * 40))
    for end in range(len(stream)):
        if end != first:
            with pytest.raises(CorruptBatch):
                decompress(Codec.GZIP, stream[:end], 1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_more_memory_than_its_limit_allows(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    limit = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="more than the limit"):
            decompress(codec, bomb, limit)
        assert tracemalloc.get_traced_memory()[1] < 2 * limit
    finally:
        tracemalloc.stop()


def test_a_small_batch_may_hold_sixteen_mebibytes_and_a_large_one_thirty_two_times_its_size() -> None:
    assert opened_batch_limit(8192) == 16 << 20
    assert opened_batch_limit(1 << 20) == 32 << 20
