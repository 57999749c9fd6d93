"""The frames of Lumberjack v2 (Beats): splits a stream into events with their sequence numbers.

Owned by one connection; no socket. `2W` with a count begins a window, `2J` with a sequence and JSON
is an event, `2C` contains frames compressed by zlib (no `2C` inside). A frame is parsed when it is
whole, and is at most as large as the listener allows; the content of a `2C` is limited in bytes and
frames. Version 1 (`1W`, `1D`) is a problem. Weak: old data frames (`2D`, pairs of texts), which no
Beat sends, are a problem as well; events beyond the count of a window are accepted.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from typing import Final, NamedTuple

from services.ingest.protocols.bounded_inflate import NotCompressed, TooLarge, inflate_slowly
from services.ingest.protocols.steps import PARTS_A_STEP

_NUMBER = Struct(">I")
ACK: Final = Struct(">2sI")
ACK_KIND: Final = b"2A"
assert ACK.size == 6
FRAMES_MAX: Final = 100_000
"""Limit for the frames of one received piece: ten bytes of decompressed content can be a frame,
which costs hundreds of bytes here. A window usually has 2,048 events.
"""


class Event(NamedTuple):
    """One event; `payload` is its JSON."""

    sequence: int
    payload: bytes


class WindowSize(NamedTuple):
    """The number of events that the sender sends before it waits."""

    event_count: int


class LumberjackSplitter:
    """`feed` pieces of a stream. After a `problem` there is no more output."""

    __slots__ = ("_buffer", "_frame_bytes_max", "_opened_bytes_max", "frames_done", "opened_bytes", "problem")

    def __init__(self, frame_bytes_max: int, opened_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._opened_bytes_max = opened_bytes_max
        self._buffer = bytearray()
        self.frames_done = 0
        self.opened_bytes = 0
        """What compressed frames had beyond their size, until the session resets it."""
        self.problem = ""
        """Why the stream cannot be read further: "malformed", "too-large" or "version-1"."""

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> Generator[None, None, list[Event | WindowSize]]:
        """Return the frames that are complete now, in order. It works in steps; the next piece
        follows after the last one."""
        if self.problem:
            return []
        self._buffer += data
        found: list[Event | WindowSize] = []
        if end := (yield from self._read(self._buffer, found, False)):
            del self._buffer[:end]
        if self._buffer and self._buffer[:1] != b"2" and not self.problem:
            self.problem = _stranger(self._buffer)
        if len(found) > FRAMES_MAX:
            self.problem = "too-large"
            return []  # nothing of it is acknowledged
        return found

    def _read(self, data: bytes | bytearray, found: list[Event | WindowSize], is_opened: bool) -> Generator[None, None, int]:
        """Parse whole frames from the beginning; return where the last one ends."""
        position, size = 0, len(data)
        while position + 6 <= size and not self.problem:
            kind = data[position : position + 2]
            (number,) = _NUMBER.unpack_from(data, position + 2)
            start = position + 6
            if kind == b"2J":
                if start + 4 > size:
                    break
                (length,) = _NUMBER.unpack_from(data, start)
                end = start + 4 + length
                if self._is_too_large(length):
                    break
                if end > size:
                    break
                found.append(Event(number, bytes(data[start + 4 : end])))
            elif kind == b"2W":
                end = start
                found.append(WindowSize(number))
            elif kind == b"2C" and not is_opened:
                end = start + number
                if self._is_too_large(number):
                    break
                if end > size:
                    break
                yield from self._open(bytes(data[start:end]), found)
            else:
                self.problem = _stranger(kind)
                break
            self.frames_done += 1
            position = end
            if len(found) > FRAMES_MAX:
                break
            if not self.frames_done % PARTS_A_STEP:
                yield
        return position

    def _open(self, compressed: bytes, found: list[Event | WindowSize]) -> Generator[None, None, None]:
        try:
            opened = yield from inflate_slowly("zlib", compressed, self._opened_bytes_max)
        except TooLarge:
            self.problem = "too-large"
            return
        except NotCompressed:
            self.problem = "malformed"
            return
        self.opened_bytes += max(0, len(opened) - len(compressed))
        if (yield from self._read(opened, found, True)) != len(opened) and not self.problem and len(found) <= FRAMES_MAX:
            self.problem = "malformed"

    def _is_too_large(self, length: int) -> bool:
        if length > self._frame_bytes_max:
            self.problem = "too-large"
        return length > self._frame_bytes_max


def _stranger(data: bytes | bytearray) -> str:
    return "version-1" if data[:1] == b"1" else "malformed"
