"""msgpack of untrusted senders: finds where objects end in a stream, and decodes whole ones. Every
allocation is limited by the bytes that arrived.

`ObjectSplitter` is owned by one connection; the rest are pure functions. An object is skipped
before it is decoded, so a claimed length costs nothing: a list of four billion elements is
allocated only after its elements arrived. Texts that are not UTF-8 become `surrogateescape` texts.
Keys that are not texts become texts (slow; a map with maps or lists as keys becomes {"map": [[key,
value], …]}). Application-defined types become `Extension`. Only the first connection that needs
msgpack imports it (1 MB).

Weak: of a repeated key in a map the last value counts, unless another irregularity of that object
requires the slow decoder.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, cast

import msgpack

from services.ingest.protocols.document import Extension, FreeNames, key_text
from services.ingest.protocols.steps import PARTS_A_STEP

CONTAINERS_MAX: Final = 1_000_000
"""Limit for the maps and lists of one object: an empty one is one byte in the stream and eighty in
memory.
"""
_FEW_BYTES = CONTAINERS_MAX
_NOT_CONTAINERS = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
_FLOATS = (b"\xcb", b"\xca")
_ONES = (b"\x7f", b"\xff")
_STAMP, _NUMBERED = b"\x92\xd7\x00", b"\x93\xc0\xcf"
"""The first bytes of [EventTime, … and of [nil, 64 bits, …."""
PIECE_BYTES: Final = 1 << 16
"""Bytes decoded at a time, or one object."""
_RECEIVED_BYTES_MAX = 1 << 20
_FIRST_BUFFER_BYTES = 4096
"""For a connection; the default is one MB."""


class ObjectSplitter:
    """`feed` pieces of a stream; the output are runs of whole objects."""

    __slots__ = ("_buffer", "_limit_bytes", "_skipped", "_unpacker", "objects_done", "problem")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._unpacker = msgpack.Unpacker(read_size=_FIRST_BUFFER_BYTES, max_buffer_size=limit_bytes + _RECEIVED_BYTES_MAX)
        self._buffer = bytearray()
        self._skipped = 0
        """Where the buffer begins in the whole stream."""
        self.objects_done = 0
        self.problem = ""
        """Why the stream cannot be read further: "malformed" or "too-large"."""

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> tuple[bytes, list[int]]:
        """Return the objects that are complete now, and where each ends."""
        if len(data) <= _RECEIVED_BYTES_MAX:
            return self._feed(data)
        whole, ends = b"", []
        for start in range(0, len(data), _RECEIVED_BYTES_MAX):
            more, more_ends = self._feed(data[start : start + _RECEIVED_BYTES_MAX])
            ends += [len(whole) + end for end in more_ends]
            whole += more
        return whole, ends

    def _feed(self, data: bytes | memoryview) -> tuple[bytes, list[int]]:
        if self.problem:
            return b"", []
        try:
            self._unpacker.feed(data)
        except msgpack.BufferFull:
            self.problem = "too-large"
            return b"", []
        self._buffer += data
        return self._take()

    def _take(self) -> tuple[bytes, list[int]]:
        unpacker, ends = self._unpacker, []
        skip, tell, skipped = unpacker.skip, unpacker.tell, self._skipped
        try:
            while not self.problem:
                skip()
                ends.append(tell() - skipped)
        except msgpack.OutOfData:
            pass
        except (msgpack.UnpackException, ValueError):
            self.problem = "malformed"
        if not ends:
            whole = b""
        else:
            whole = bytes(self._buffer[: ends[-1]])
            del self._buffer[: ends[-1]]
            self._skipped += ends[-1]
            self.objects_done += len(ends)
        if len(self._buffer) > self._limit_bytes and not self.problem:
            self.problem = "too-large"
        return whole, ends


def split_objects(data: bytes, objects_max: int) -> Generator[None, None, tuple[list[int], str]]:
    """Return where each object of a whole payload ends, and the problem after the last one (or an
    empty text), in steps. Reads at most one object more than `objects_max`.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(data)
    skip, tell = unpacker.skip, unpacker.tell
    ends: list[int] = []
    try:
        while len(ends) <= objects_max:
            skip()
            ends.append(tell())
            if not len(ends) % PARTS_A_STEP:
                yield
        return ends, ""
    except msgpack.OutOfData:
        is_whole = (ends[-1] if ends else 0) == len(data)
        return ends, "" if is_whole else "msgpack that ends too early"
    except (msgpack.UnpackException, ValueError):
        return ends, "no msgpack"


def pieces_of(data: bytes, ends: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """Return all objects in slices: their bytes, and the number of the first object after the
    slice.
    """
    first = start = 0
    while first < len(ends):
        last = max(first + 1, bisect_right(ends, start + PIECE_BYTES))
        yield data[start : ends[last - 1]] if start or last < len(ends) else data, last
        first, start = last, ends[last - 1]


def read_stamped(data: bytes, ends: Sequence[int]) -> tuple[list[int], list[dict[str, Any]]] | None:
    """Decode objects that are all [EventTime, map], the form of most Fluent senders: nanoseconds
    and maps. None for any others.

    Each EventTime is changed in place to a 64-bit number of the same size: a Python object for each
    extension would cost as much as the rest of its map.
    """
    if not all(map(data.startswith, repeat(_STAMP), (0, *ends[:-1]))) or data.count(_STAMP) != len(ends):
        return None  # or the same bytes occur in a text
    objects = decode_objects(data.replace(_STAMP, _NUMBERED), ends)
    if None in objects:
        return None
    _, stamps, fields = zip(*objects, strict=True)
    if set(map(type, fields)) != {dict}:
        return None
    return [(stamp >> 32) * 1_000_000_000 + (stamp & 0xFFFFFFFF) for stamp in stamps], list(fields)


def has_many_containers(data: bytes) -> bool:
    """Whether decoding an object may cost many times its size. Counts bytes that may be containers,
    so a large binary text may be one as well.
    """
    return len(data) > _FEW_BYTES and len(data.translate(None, _NOT_CONTAINERS)) > CONTAINERS_MAX


def decode_objects(data: bytes, ends: Sequence[int]) -> list[Any]:
    """Decode the objects, each of which is whole."""
    unpacker = msgpack.Unpacker(max_buffer_size=0, unicode_errors="surrogateescape", ext_hook=Extension)
    unpacker.feed(data)
    objects: list[Any] = []
    try:
        objects.extend(unpacker)
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError):
        start = ends[len(objects) - 1] if objects else 0
        for end in ends[len(objects) :]:
            objects.append(decode_slowly(data[start:end]))
            start = end
    return objects


def decode_slowly(data: bytes) -> Any:
    """Decode one whole object with keys of any kind."""
    unpacker = msgpack.Unpacker(max_buffer_size=0, unicode_errors="surrogateescape", ext_hook=Extension, strict_map_key=False, object_pairs_hook=_map_of)
    unpacker.feed(data)
    try:
        return unpacker.unpack()
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError):  # an extension of type -1 that is not a time
        return None


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if any(type(key) in (dict, list) for key, _ in pairs):
        # A text of it would double its escapes at every level of nested keys.
        return {"map": [list(pair) for pair in pairs]}
    names = FreeNames()
    for key, value in pairs:
        made[names.free(made, key_text(key))] = value
    return made


def may_hold_nan(data: bytes) -> bool:
    """Whether a float of this msgpack may be NaN or infinite: its exponent begins with ones."""
    return any(_is_followed_by_ones(data, kind) for kind in _FLOATS)


def _is_followed_by_ones(data: bytes, kind: bytes) -> bool:
    position = data.find(kind)
    while position >= 0:
        if data[position + 1 : position + 2] in _ONES:
            return True
        position = data.find(kind, position + 1)
    return False


def pack(value: Any) -> bytes:
    """Encode an answer; a text that was not UTF-8 is returned byte by byte."""
    return cast("bytes", msgpack.packb(value, unicode_errors="surrogateescape"))
