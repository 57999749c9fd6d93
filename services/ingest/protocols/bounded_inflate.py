"""Decompresses streams of untrusted senders up to a limit: gzip, zlib, deflate, zstd, snappy.

Owned by the reader of the stream (a request body, a chunk, a frame). The limit is on the output and
is checked before memory is allocated: the reader's own, and 32 bytes for each compressed byte, but
at least 16 MiB (`opened_batch_limit`). Output comes in pieces of bounded size, so that a reader can
pause between them. A broken or truncated stream raises `NotCompressed`, one with too much content
`TooLarge`; nothing else is raised. gzip may have several members; zero bytes after the last one are
padding. "deflate" is zlib's format (RFC 9110), or the bare stream that some programs send. Weak:
zstd and unframed snappy are decompressed in one piece at their end (16 MiB: 20 ms), because
cramjam's streaming decoder takes whole frames only.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from struct import Struct
from typing import Final

import crc32c

from appliance.base.errors import MillraceError
from appliance.records.compression import Codec, CorruptBatch, OpenedTooLarge, decompress, opened_batch_limit
from services.ingest.protocols.steps import run_to_end

Data = bytes | bytearray | memoryview

SNAPPY_STREAM: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_CHUNK_BYTES_MAX = 65536
_CHUNKS_A_PIECE = 4
_COMPRESSED, _UNCOMPRESSED, _PADDING, _IDENTIFIER = 0x00, 0x01, 0xFE, 0xFF
_FIRST_SKIPPABLE = 0x80
_CHECKSUM = Struct("<I")
_GZIP, _ZLIB, _BARE = 31, 15, -15
_FIRST_PIECE_BYTES = 256
"""`unused_data` is a copy, made for each member; this limits the copies for a stream of tiny
members.
"""
_PIECE_BYTES_MAX = 65536
OPENED_PIECE_BYTES = 262_144
"""Output that is returned at once: half a millisecond."""
_MEMBERS_A_PIECE = 64


class TooLarge(MillraceError):
    """The content of a stream is larger than the limit."""


class NotCompressed(MillraceError):
    """A stream is not in the named format, is broken, or ends too early."""


def _limit(limit_bytes: int, stored_bytes: int) -> int:
    """Return how much may be opened of `stored_bytes`."""
    return min(limit_bytes, opened_batch_limit(stored_bytes))


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"a compressed stream holds more than the limit of {limit_bytes} bytes")


class Inflater:
    """Decompresses one stream: `feed` pieces, then `finish`; both return output."""

    def __init__(self, coding: str, limit_bytes: int) -> None:
        """`coding`: one of `CODINGS`; anything else raises KeyError."""
        self._opened = _STREAMS[coding](limit_bytes)

    @property
    def kept_bytes(self) -> int:
        """Input bytes without output so far."""
        return self._opened.kept_bytes

    def pieces(self, data: Data) -> Iterator[bytes]:
        """Return the output of `data` in pieces of about `OPENED_PIECE_BYTES`; some may be empty."""
        return self._opened.pieces(data)

    def feed(self, data: Data) -> bytes:
        return b"".join(self.pieces(data))

    def finish(self) -> bytes:
        return self._opened.finish()


def inflate(coding: str, data: Data, limit_bytes: int) -> bytes:
    """Decompress a whole stream at once: a small one, or for a reader that cannot pause. `coding`
    as in `inflate_slowly`.
    """
    return run_to_end(inflate_slowly(coding, data, limit_bytes))


def inflate_slowly(coding: str, data: Data, limit_bytes: int) -> Generator[None, None, bytes]:
    """Decompress a whole stream in steps, and return its content. `coding` may also be "snappy": a
    bare block, its framing format, or xerial's, recognised by the first bytes.
    """
    if coding == "snappy":
        if bytes(data[: len(SNAPPY_STREAM)]) == SNAPPY_STREAM:
            coding = "snappy-framed"
        else:
            return _whole(Codec.SNAPPY, data, limit_bytes)
    inflater = Inflater(coding, limit_bytes)
    pieces: list[bytes] = []
    for piece in inflater.pieces(data):
        if pieces:
            yield
        pieces.append(piece)
    pieces.append(inflater.finish())
    return b"".join(pieces)


def _whole(codec: Codec, data: Data, limit_bytes: int) -> bytes:
    if not data:
        raise NotCompressed("a compressed stream is empty")
    limit_bytes = _limit(limit_bytes, len(data))
    try:
        return bytes(decompress(codec, data, limit_bytes))
    except OpenedTooLarge as problem:
        raise _too_large(limit_bytes) from problem
    except CorruptBatch as problem:
        raise NotCompressed(str(problem)) from problem


class _Identity:
    """Not compressed; the limit applies as well."""

    kept_bytes = 0

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = self._room = limit_bytes

    def pieces(self, data: Data) -> Iterator[bytes]:
        self._room -= len(data)
        if self._room < 0:
            raise _too_large(self._limit_bytes)
        yield bytes(data)

    def finish(self) -> bytes:
        return b""


class _Zlib:
    """zlib's format and the bare stream (one stream), gzip (one or more members)."""

    kept_bytes = 0

    def __init__(self, limit_bytes: int, window_bits: int = _ZLIB) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = self._opened_bytes = 0
        self._window_bits = window_bits
        self._stream = zlib.decompressobj(wbits=window_bits)
        self._begun = False

    def pieces(self, data: Data) -> Iterator[bytes]:
        found: list[bytes] = []
        found_bytes = members = 0
        view = memoryview(data)
        piece_bytes = _FIRST_PIECE_BYTES
        is_pending = False
        while len(view) or is_pending:
            if self._stream.eof:
                is_pending = False
                if len(view):
                    view = self._next_member(view)
                    piece_bytes = _FIRST_PIECE_BYTES
                    members += 1
                continue
            self._begun = True
            plain, taken = self._open(view[:piece_bytes])
            is_pending = taken < min(piece_bytes, len(view)) or len(plain) == OPENED_PIECE_BYTES
            view = view[taken:]
            piece_bytes = min(2 * piece_bytes, _PIECE_BYTES_MAX)
            if plain:
                found.append(plain)
                found_bytes += len(plain)
            if found_bytes >= OPENED_PIECE_BYTES or members >= _MEMBERS_A_PIECE:
                yield b"".join(found)
                found, found_bytes, members = [], 0, 0
        yield b"".join(found)

    def _open(self, piece: memoryview) -> tuple[bytes, int]:
        """Return some output, and how many bytes of the piece it needed."""
        limit_bytes = _limit(self._limit_bytes, self._taken_bytes + len(piece))
        stream = self._stream
        try:
            # one byte above the limit distinguishes too large from just fitting
            plain = stream.decompress(piece, max(1, min(limit_bytes + 1 - self._opened_bytes, OPENED_PIECE_BYTES)))
        except zlib.error as problem:
            raise NotCompressed(f"a compressed stream is broken: {problem}") from problem
        taken = len(piece) - len(stream.unused_data) - len(stream.unconsumed_tail)
        self._taken_bytes += taken
        self._opened_bytes += len(plain)
        if self._opened_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        return plain, taken

    def _next_member(self, view: memoryview) -> memoryview:
        if self._window_bits != _GZIP:
            raise NotCompressed("something follows the end of a compressed stream")
        if not view[0]:  # padding of tapes and blocks
            rest = bytes(view).lstrip(b"\0")
            return view[len(view) - len(rest) :]
        self._stream = zlib.decompressobj(wbits=_GZIP)
        return view

    def finish(self) -> bytes:
        if not self._begun or not self._stream.eof:
            raise NotCompressed("a compressed stream ends too early")
        return b""


class _Gzip(_Zlib):
    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes, _GZIP)


class _Deflate:
    """zlib's format or the bare stream, recognised by the first two bytes."""

    kept_bytes = 0

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._first = b""
        self._stream: _Zlib | None = None

    def pieces(self, data: Data) -> Iterator[bytes]:
        if self._stream is None:
            self._first += bytes(data)
            if len(self._first) < 2:
                return iter(())
            is_zlib = self._first[0] & 15 == 8 and int.from_bytes(self._first[:2], "big") % 31 == 0
            self._stream = _Zlib(self._limit_bytes, _ZLIB if is_zlib else _BARE)
            data, self._first = self._first, b""
        return self._stream.pieces(data)

    def finish(self) -> bytes:
        if self._stream is None:
            raise NotCompressed("a compressed stream ends too early")
        return self._stream.finish()


class _Zstd:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._data = bytearray()

    @property
    def kept_bytes(self) -> int:
        return len(self._data)

    def pieces(self, data: Data) -> Iterator[bytes]:
        if len(self._data) + len(data) > self._limit_bytes + 1024:  # incompressible data is a few bytes longer than its content
            raise _too_large(self._limit_bytes)
        self._data += data
        return iter(())

    def finish(self) -> bytes:
        return _whole(Codec.ZSTD, self._data, self._limit_bytes)


class _SnappyFramed:
    """snappy's framing format: chunks of type, 24-bit length, masked CRC-32C, and at most 64 KiB of
    content.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = self._room = limit_bytes
        self._kept = bytearray()
        self._begun = False

    @property
    def kept_bytes(self) -> int:
        return len(self._kept)

    def pieces(self, data: Data) -> Iterator[bytes]:
        self._kept += data
        pieces: list[bytes] = []
        position = 0
        while position + 4 <= len(self._kept):
            kind = self._kept[position]
            end = position + 4 + int.from_bytes(self._kept[position + 1 : position + 4], "little")
            if end > len(self._kept):
                break
            pieces.append(self._chunk(kind, bytes(self._kept[position + 4 : end])))
            position = end
            if len(pieces) == _CHUNKS_A_PIECE:
                yield b"".join(pieces)
                pieces = []
        del self._kept[:position]
        yield b"".join(pieces)

    def _chunk(self, kind: int, content: bytes) -> bytes:
        if not self._begun:
            if kind != _IDENTIFIER or content != SNAPPY_STREAM[4:]:
                raise NotCompressed("a framed snappy stream does not begin with its identifier")
            self._begun = True
            return b""
        if kind >= _FIRST_SKIPPABLE:
            return b""  # the identifier again, padding, and chunks that may be skipped
        if kind not in (_COMPRESSED, _UNCOMPRESSED) or len(content) < _CHECKSUM.size:
            raise NotCompressed(f"a framed snappy stream has a chunk of type {kind} that cannot be read")
        plain = content[4:] if kind == _UNCOMPRESSED else _whole(Codec.SNAPPY, content[4:], _SNAPPY_CHUNK_BYTES_MAX)
        if len(plain) > _SNAPPY_CHUNK_BYTES_MAX:
            raise NotCompressed(f"a framed snappy stream has a chunk of {len(plain)} bytes; {_SNAPPY_CHUNK_BYTES_MAX} are allowed")
        self._room -= len(plain)
        if self._room < 0:
            raise _too_large(self._limit_bytes)
        checksum = crc32c.crc32c(plain)
        masked = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        if masked != _CHECKSUM.unpack_from(content)[0]:
            raise NotCompressed("a chunk of a framed snappy stream has another checksum than it says")
        return plain

    def finish(self) -> bytes:
        if not self._begun or self._kept:
            raise NotCompressed("a compressed stream ends too early")
        return b""


_Stream = _Identity | _Zlib | _Deflate | _Zstd | _SnappyFramed
_STREAMS: dict[str, type[_Stream]] = {
    "identity": _Identity,
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "zlib": _Zlib,
    "deflate": _Deflate,
    "zstd": _Zstd,
    "snappy-framed": _SnappyFramed,
}
CODINGS = frozenset(_STREAMS)
"""The formats of `Inflater`."""
