"""Frames: an int32 size and that many bytes. Cuts a received stream into them, and puts the size before a reply.

The acceptor reads the size of each frame privately and receives the body where it belongs (`read_frame_size`); everybody
else (clients, tests) feeds `FrameSplitter`, which owns the bytes of the one incomplete frame and nothing more. Weak spot:
the splitter copies every byte once, which is why the acceptor does not use it.
"""

from __future__ import annotations

from typing import Final

from appliance.base.errors import ProtocolViolation
from appliance.protocol.wire import INT32, Buffer

SIZE_PREFIX: Final = INT32
SIZE_PREFIX_BYTES: Final = SIZE_PREFIX.size
REQUEST_SIZE_MIN: Final = 2 + 2 + 4 + 2
"""api key, api version, correlation id and the length of a client id: no request this broker serves is shorter."""

assert SIZE_PREFIX_BYTES == 4


def read_frame_size(buffer: Buffer, position: int, size_bytes_max: int, size_bytes_min: int = REQUEST_SIZE_MIN) -> int:
    """The size of the frame whose prefix lies at `position`; a size outside the bounds is a `ProtocolViolation`."""
    size_bytes: int = SIZE_PREFIX.unpack_from(buffer, position)[0]
    if size_bytes > size_bytes_max:
        raise ProtocolViolation("frame-too-large", f"frame of {size_bytes} bytes is larger than the {size_bytes_max} bytes allowed")
    if size_bytes < size_bytes_min:
        raise ProtocolViolation("frame-too-small", f"frame of {size_bytes} bytes is smaller than the {size_bytes_min} bytes of a header")
    return size_bytes


def frame(body: bytes) -> bytes:
    """`body` with its size before it."""
    return SIZE_PREFIX.pack(len(body)) + body


class FrameSplitter:
    """Frames out of a byte stream. Holds at most one incomplete frame, of a size that was checked before its bytes are kept."""

    def __init__(self, size_bytes_max: int, size_bytes_min: int = REQUEST_SIZE_MIN) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes_min = size_bytes_min
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of the incomplete frame that were received."""
        return len(self._pending)

    def feed(self, received: Buffer) -> list[bytes]:
        """The frames (without their size) that `received` completes, in order."""
        pending = self._pending
        pending += received
        frames: list[bytes] = []
        position = 0
        while len(pending) - position >= SIZE_PREFIX_BYTES:
            body_position = position + SIZE_PREFIX_BYTES
            end = body_position + read_frame_size(pending, position, self._size_bytes_max, self._size_bytes_min)
            if end > len(pending):
                break
            frames.append(bytes(pending[body_position:end]))
            position = end
        if position:
            del pending[:position]
        return frames
