"""The four codecs of Kafka batches, with all framings that clients use and a limit on expansion.

Pure functions over bytes. `cramjam` is imported at the first use: acceptor and log-writer store
batches as they arrive and should not pay for codecs. Weak spot: the size of a decompressed zstd or
lz4 stream is not known beforehand, so decompression tries growing buffers (at most a third more
work).

* gzip: a plain gzip stream, one or more members.
* snappy: xerial framing (16 bytes of header, then int32 length and a raw block for every 32 KiB); a
  bare raw block is accepted too.
* lz4: a frame of *independent* 64 KiB blocks without checksums, with exactly the header that Kafka's
  own clients write. cramjam's frame compressor links its blocks, which Java's reader refuses, so
  frames are assembled here.
* lz4 in message sets of magic 0: Kafka's first writer computed the header checksum over the frame's
  magic and descriptor, where the format says the descriptor alone. Such clients write and expect
  that; lz4 libraries refuse it. So it is corrected before such a frame is opened, and made wrong in
  one that was built. A frame whose descriptor is broken otherwise is left as it is: opening it
  fails. Source: lz4's frame format 1.6, KIP-57.
* zstd: plain frames.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from types import ModuleType

from appliance.base.errors import MillraceError


class CorruptBatch(MillraceError):
    """A record batch whose header, checksum, compressed stream or records do not hold together."""


class OpenedTooLarge(CorruptBatch):
    """A compressed stream that holds more than its reader was ready to open: a bomb, or an honest
    batch that is too large.
    """


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


Buffer = bytes | bytearray | memoryview

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")

# magic, FLG (version 1, independent blocks), BD (64 KiB), second byte of xxHash32 over FLG and BD
_LZ4_FRAME_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_BLOCK_LENGTH = Struct("<I")
_LZ4_STORED = 0x8000_0000
_LZ4_END_MARK = bytes(4)

_GZIP_FIRST_PIECE_BYTES = 256
_GZIP_PIECE_BYTES_MAX = 64 * 1024

OPENED_BATCH_BYTES_MIN = 16 * 1024 * 1024
OPENED_BATCH_FACTOR = 32
"""What a server opens of a stranger's batch. Log lines shrink to a fifth or a twentieth, so an
honest batch is far below; a bomb (zstd: 8 KB that become 256 MiB) is refused before it costs more
than the larger of the two."""

_SMALLEST_GUESS_BYTES = 64 * 1024
_BUFFER_TOO_SMALL = "failed to write whole buffer"

assert len(_XERIAL_HEADER) == 16 and len(_LZ4_FRAME_HEADER) == 7


def opened_batch_limit(stored_bytes: int) -> int:
    """How many bytes a batch of `stored_bytes` may hold when a process that serves others opens it."""
    return max(OPENED_BATCH_BYTES_MIN, OPENED_BATCH_FACTOR * stored_bytes)


def compress(codec: Codec, data: Buffer) -> bytes:
    """`data` as one stream of `codec`, at the default level of Kafka's clients (lz4: fast, zstd:
    3).
    """
    if codec is Codec.NONE:
        return bytes(data)
    return _COMPRESSORS[codec](data)


def decompress(codec: Codec, data: Buffer, limit_bytes: int, guess_bytes: int = 0) -> Buffer:
    """Return the content of a stream. `guess_bytes`, its approximate size, saves attempts.

    Raises `CorruptBatch` if the stream is broken or holds more than `limit_bytes`."""
    if codec is Codec.NONE:
        return data
    return _DECOMPRESSORS[codec](data, limit_bytes, guess_bytes)


def _cramjam() -> ModuleType:
    import cramjam

    module: ModuleType = cramjam
    return module


def _too_large(limit_bytes: int) -> CorruptBatch:
    return OpenedTooLarge(f"a compressed batch holds more than the limit of {limit_bytes} bytes")


def _compress_gzip(data: Buffer) -> bytes:
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


def _decompress_gzip(data: Buffer, limit_bytes: int, _guess_bytes: int) -> Buffer:
    view = memoryview(data)
    if not view:
        raise CorruptBatch("a gzip stream is empty")
    opened: list[bytes] = []
    room = limit_bytes
    position = 0
    try:
        while position < len(view):
            member = zlib.decompressobj(wbits=31)
            piece_bytes = _GZIP_FIRST_PIECE_BYTES  # `unused_data` is a copy: of a stream of tiny members only as much as this is copied for each
            while not member.eof:
                if position == len(view):
                    raise CorruptBatch("a gzip stream ends too early")
                piece = view[position : position + piece_bytes]
                # one byte more than allowed distinguishes "too large" from "just fits"
                plain = member.decompress(piece, room + 1)
                room -= len(plain)
                if room < 0:
                    raise _too_large(limit_bytes)
                if plain:
                    opened.append(plain)
                position += len(piece) - len(member.unused_data)
                piece_bytes = min(2 * piece_bytes, _GZIP_PIECE_BYTES_MAX)
    except zlib.error as problem:
        raise CorruptBatch(f"a gzip stream is broken: {problem}") from problem
    return b"".join(opened)


def _compress_snappy(data: Buffer) -> bytes:
    compress_raw = _cramjam().snappy.compress_raw
    view = memoryview(data)
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        pieces.append(_BLOCK_LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(data: Buffer, limit_bytes: int, _guess_bytes: int) -> Buffer:
    view = memoryview(data)
    if view[:8] != XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit_bytes, limit_bytes)
    pieces: list[Buffer] = []
    room = limit_bytes
    position = 16
    while position < len(view):
        if view[position : position + 8] == XERIAL_MAGIC:  # streams put one behind the other
            position += 16
            continue
        if position + 4 > len(view):
            raise CorruptBatch("a snappy stream ends inside a block length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += 4
        if length < 0 or position + length > len(view):
            raise CorruptBatch(f"a snappy stream names a block of {length} bytes, {len(view) - position} are left")
        piece = _decompress_snappy_block(view[position : position + length], room, limit_bytes)
        pieces.append(piece)
        room -= len(piece)
        position += length
    return b"".join(pieces)


def _decompress_snappy_block(block: memoryview, room: int, limit_bytes: int) -> Buffer:
    cramjam = _cramjam()
    try:
        size_bytes = cramjam.snappy.decompress_raw_len(block)
        if size_bytes > room:  # what the block says of itself; nothing was allocated yet
            raise _too_large(limit_bytes)
        out = bytearray(size_bytes)
        written = cramjam.snappy.decompress_raw_into(block, out) if size_bytes else 0
    except cramjam.DecompressionError as problem:
        raise CorruptBatch(f"a snappy block is broken: {problem}") from problem
    if written != size_bytes:
        raise CorruptBatch(f"a snappy block says it holds {size_bytes} bytes and holds {written}")
    return out


def _compress_lz4(data: Buffer) -> bytes:
    compress_block = _cramjam().lz4.compress_block
    view = memoryview(data)
    pieces = [_LZ4_FRAME_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(compress_block(plain, store_size=False))
        if len(block) < len(plain):
            pieces.append(_LZ4_BLOCK_LENGTH.pack(len(block)))
            pieces.append(block)
        else:  # a block must not be longer than the frame's maximum
            pieces.append(_LZ4_BLOCK_LENGTH.pack(len(plain) | _LZ4_STORED))
            pieces.append(bytes(plain))
    pieces.append(_LZ4_END_MARK)
    return b"".join(pieces)


def _decompress_lz4(data: Buffer, limit_bytes: int, guess_bytes: int) -> Buffer:
    return _decompress_growing("lz4", _cramjam().lz4.decompress_into, data, limit_bytes, guess_bytes)


def _compress_zstd(data: Buffer) -> bytes:
    return bytes(_cramjam().zstd.compress(data, level=3))


def _decompress_zstd(data: Buffer, limit_bytes: int, guess_bytes: int) -> Buffer:
    return _decompress_growing("zstd", _cramjam().zstd.decompress_into, data, limit_bytes, guess_bytes)


def _decompress_growing(name: str, decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, limit_bytes: int, guess_bytes: int) -> Buffer:
    """Decompress into a buffer of guessed size, four times as large at each further try, never
    larger than the limit.
    """
    error = _cramjam().DecompressionError
    size_bytes = min(limit_bytes, guess_bytes or max(_SMALLEST_GUESS_BYTES, 4 * len(data)))
    while True:
        out = bytearray(size_bytes)
        try:
            written = decompress_into(data, out)
        except error as problem:
            if _BUFFER_TOO_SMALL not in str(problem):
                raise CorruptBatch(f"a {name} stream is broken: {problem}") from problem
            if size_bytes >= limit_bytes:
                raise _too_large(limit_bytes) from problem
            size_bytes = min(limit_bytes, 4 * size_bytes)
            continue
        del out[written:]
        return out


_COMPRESSORS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}
_DECOMPRESSORS: dict[Codec, Callable[[Buffer, int, int], Buffer]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}


_MAGIC_BYTES = 4
_DESCRIPTOR_BYTES_MIN = 2
_CONTENT_SIZE_BIT, _CONTENT_SIZE_BYTES = 0x08, 8
_DICTIONARY_BIT, _DICTIONARY_BYTES = 0x01, 4
_SHORT_INPUT_END = 16

_WORD = (1 << 32) - 1
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def xxhash32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes: a frame's header has at most 14 to hash, or 18
    where the old mistake adds the magic.
    """
    if len(data) >= _SHORT_INPUT_END:
        raise ValueError(f"{len(data)} bytes are no short input")
    value = _PRIME_5 + len(data)
    position = 0
    while position + 4 <= len(data):
        value = value + int.from_bytes(data[position : position + 4], "little") * _PRIME_3 & _WORD
        value = _rotated(value, 17) * _PRIME_4 & _WORD
        position += 4
    for byte in data[position:]:
        value = value + byte * _PRIME_5 & _WORD
        value = _rotated(value, 11) * _PRIME_1 & _WORD
    value = (value ^ value >> 15) * _PRIME_2 & _WORD
    value = (value ^ value >> 13) * _PRIME_3 & _WORD
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _WORD


def _checksum_at(frame: bytes) -> int:
    """Where the header checksum stands, or 0 if the frame ends before it."""
    if len(frame) <= _MAGIC_BYTES + _DESCRIPTOR_BYTES_MIN:
        return 0
    flags = frame[_MAGIC_BYTES]
    position = _MAGIC_BYTES + _DESCRIPTOR_BYTES_MIN
    position += _CONTENT_SIZE_BYTES if flags & _CONTENT_SIZE_BIT else 0
    position += _DICTIONARY_BYTES if flags & _DICTIONARY_BIT else 0
    return position if position < len(frame) else 0


def _with_checksum_over(frame: bytes, start: int) -> bytes:
    position = _checksum_at(frame)
    if not position or position - start >= _SHORT_INPUT_END:
        return frame
    checksum = xxhash32_short(frame[start:position]) >> 8 & 0xFF
    return frame[:position] + bytes((checksum,)) + frame[position + 1 :]


def with_right_header_checksum(frame: bytes) -> bytes:
    """The frame as lz4's format wants it, whatever checksum it had."""
    return _with_checksum_over(frame, _MAGIC_BYTES)


def with_old_header_checksum(frame: bytes) -> bytes:
    """The frame as readers of magic 0 expect it.

    It has no content size: those readers would not take one.
    """
    return _with_checksum_over(frame, 0)
