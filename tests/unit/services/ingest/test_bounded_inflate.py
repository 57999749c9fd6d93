"""Compressed streams in every form, whole and in pieces, broken ones, and bombs."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import cramjam
import pytest
import zstandard

from appliance.records.compression import Codec, compress
from services.ingest.protocols.bounded_inflate import CODINGS, Inflater, NotCompressed, TooLarge, inflate

TEXT = b"".join(b"line %d of a log that shrinks well\n" % number for number in range(4000))
LIMIT = 1 << 20


def _bare(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": lambda data: gzip.compress(data[:1000], mtime=0) + gzip.compress(data[1000:], mtime=0) + bytes(512),
    "zlib": zlib.compress,
    "deflate": _bare,
    "zstd": zstandard.compress,
    "snappy-framed": lambda data: bytes(cramjam.snappy.compress(data)),
    "identity": bytes,
}


@pytest.mark.parametrize("coding", sorted(CODINGS))
def test_streams_in_pieces_of_any_size(coding: str) -> None:
    data = COMPRESS[coding](TEXT)
    assert inflate(coding, data, LIMIT) == inflate(coding, memoryview(data), len(TEXT)) == TEXT
    for step in (1, 7, 1000, 70_000):
        inflater = Inflater(coding, LIMIT)
        assert b"".join(inflater.feed(data[start : start + step]) for start in range(0, len(data), step)) + inflater.finish() == TEXT


def test_deflate_is_also_zlibs_format_and_snappy_a_bare_block_and_xerials() -> None:
    assert inflate("deflate", zlib.compress(TEXT), LIMIT) == TEXT
    for data in (bytes(cramjam.snappy.compress_raw(TEXT)), bytes(cramjam.snappy.compress(TEXT)), compress(Codec.SNAPPY, TEXT)):
        assert inflate("snappy", data, LIMIT) == TEXT


@pytest.mark.parametrize("coding", sorted(CODINGS))
def test_one_byte_beyond_the_limit_is_too_large(coding: str) -> None:
    with pytest.raises(TooLarge):
        inflate(coding, COMPRESS[coding](TEXT), len(TEXT) - 1)


@pytest.mark.parametrize("coding", sorted(CODINGS - {"identity"}))
def test_bombs_end_at_the_limit(coding: str) -> None:
    with pytest.raises(TooLarge):
        inflate(coding, COMPRESS[coding](bytes(16 << 20)), LIMIT)


@pytest.mark.parametrize("coding", [*sorted(CODINGS - {"identity"}), "snappy"])
@pytest.mark.parametrize("data", [b"", b"j", b"no such stream, and longer than a header", bytes(40)])
def test_what_is_no_stream(coding: str, data: bytes) -> None:
    if coding == "snappy" and data == bytes(40):
        return  # a block that says it is empty, with something behind it, is snappy's to judge
    with pytest.raises((NotCompressed, TooLarge)):
        inflate(coding, data, LIMIT)


@pytest.mark.parametrize("coding", sorted(CODINGS - {"identity", "x-gzip"}))
def test_a_stream_that_ends_too_early_or_goes_on_too_long(coding: str) -> None:
    data = COMPRESS[coding](TEXT)
    with pytest.raises(NotCompressed):
        inflate(coding, data[:-3], LIMIT)
    with pytest.raises(NotCompressed):
        inflate(coding, data + b"behind it", LIMIT)


def test_a_framed_chunk_with_another_checksum() -> None:
    data = bytearray(cramjam.snappy.compress(TEXT))
    data[-1] ^= 1
    with pytest.raises(NotCompressed):
        inflate("snappy-framed", data, LIMIT)


def test_a_stream_of_very_many_tiny_members_is_read_in_time() -> None:
    assert inflate("gzip", gzip.compress(b"x", mtime=0) * 5000, LIMIT) == b"x" * 5000
