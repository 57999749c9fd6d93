"""msgpack of strangers: finds where objects end in a stream, and decodes what is whole; every size is bounded by bytes that have really come.

`ObjectSplitter` is owned by one connection, the rest are pure functions. An object is skipped through before it is decoded, so a length that a sender only
claims costs nothing: a list of four billion elements must have come before it is made. Texts that are not UTF-8 are `surrogateescape` texts, keys that are no
texts become texts (slowly; a map with maps or lists as keys is {"map": [[key, value], …]}), types that msgpack leaves to applications are `Extension`.
Imports msgpack (1 MB): only by the first connection that needs it.

Weak: of a key that is there twice in one map the last value counts, unless another oddity of that object has it decoded slowly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final, cast

import msgpack

from services.ingest.protocols.document import Extension, FreeNames, key_text

CONTAINERS_MAX: Final = 1_000_000
"""Maps and lists in one object: an empty one takes a byte to send and eighty to keep."""
_FEW_BYTES = CONTAINERS_MAX
_NOT_CONTAINERS = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
_FLOATS = (b"\xcb", b"\xca")
_ONES = (b"\x7f", b"\xff")
_STAMP, _NUMBERED = b"\x92\xd7\x00", b"\x93\xc0\xcf"
"""How [EventTime, … and [nil, 64 bits, … begin."""
PIECE_BYTES: Final = 1 << 18
"""As much is decoded at a time, or one object."""
_RECEIVED_BYTES_MAX = 1 << 20
_FIRST_BUFFER_BYTES = 4096
"""For a connection; the default is a megabyte."""


class ObjectSplitter:
    """`feed` pieces of a stream; what comes out are runs of whole objects."""

    __slots__ = ("_buffer", "_limit_bytes", "_skipped", "_unpacker", "objects_done", "problem")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._unpacker = msgpack.Unpacker(read_size=_FIRST_BUFFER_BYTES, max_buffer_size=limit_bytes + _RECEIVED_BYTES_MAX)
        self._buffer = bytearray()
        self._skipped = 0
        """Where in the whole stream the buffer begins."""
        self.objects_done = 0
        self.problem = ""
        """Why the stream cannot be read on: "malformed" or "too-large"."""

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> tuple[bytes, list[int]]:
        """The objects that are whole now, and where each ends in them."""
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


def split_objects(data: bytes, objects_max: int) -> tuple[list[int], str]:
    """Where each object of a whole payload ends; and what is wrong behind the last one: "" or what to say about it. Looks no further than one object
    more than `objects_max`."""
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(data)
    skip, tell = unpacker.skip, unpacker.tell
    ends: list[int] = []
    try:
        while len(ends) <= objects_max:
            skip()
            ends.append(tell())
        return ends, ""
    except msgpack.OutOfData:
        is_whole = (ends[-1] if ends else 0) == len(data)
        return ends, "" if is_whole else "msgpack that ends too early"
    except (msgpack.UnpackException, ValueError):
        return ends, "no msgpack"


def pieces_of(data: bytes, ends: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """All objects, some at a time: their bytes, and the number of the first object that is not among them."""
    first = start = 0
    while first < len(ends):
        last = max(first + 1, bisect_right(ends, start + PIECE_BYTES))
        yield data[start : ends[last - 1]] if start or last < len(ends) else data, last
        first, start = last, ends[last - 1]


def read_stamped(data: bytes, ends: Sequence[int]) -> tuple[list[int], list[dict[str, Any]]] | None:
    """Of objects that all are [EventTime, map], as most senders of Fluent's protocol write them: nanoseconds and maps. None for any others.

    Each EventTime is made a number of 64 bits in the bytes, where it takes no more room: an object of Python for each extension would cost as much as the
    rest of its map."""
    if not all(map(data.startswith, repeat(_STAMP), (0, *ends[:-1]))) or data.count(_STAMP) != len(ends):
        return None  # or the same bytes are in a text
    objects = decode_objects(data.replace(_STAMP, _NUMBERED), ends)
    if None in objects:
        return None
    _, stamps, fields = zip(*objects, strict=True)
    if set(map(type, fields)) != {dict}:
        return None
    return [(stamp >> 32) * 1_000_000_000 + (stamp & 0xFFFFFFFF) for stamp in stamps], list(fields)


def has_many_containers(data: bytes) -> bool:
    """Whether decoding an object may cost many times its bytes. Counts bytes that may be containers, so a large binary text may be one, too."""
    return len(data) > _FEW_BYTES and len(data.translate(None, _NOT_CONTAINERS)) > CONTAINERS_MAX


def decode_objects(data: bytes, ends: Sequence[int]) -> list[Any]:
    """The objects, of which each is whole."""
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
    """One whole object with keys of any kind."""
    unpacker = msgpack.Unpacker(max_buffer_size=0, unicode_errors="surrogateescape", ext_hook=Extension, strict_map_key=False, object_pairs_hook=_map_of)
    unpacker.feed(data)
    try:
        return unpacker.unpack()
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError):  # an extension of type -1 that is no time
        return None


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if any(type(key) in (dict, list) for key, _ in pairs):
        # A text of it would double its escapes at every level of keys in keys.
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
    """The msgpack of an answer; a text that was no UTF-8 is given back byte by byte."""
    return cast("bytes", msgpack.packb(value, unicode_errors="surrogateescape"))
