"""The remembered frames of one sender: their digests, under serials that continue over all its
sessions.

A value, owned by `FrameStreams`; the session that continues the stream changes it. Weak: the memory
of a stream grows with what its sender has in flight, which the window of its connection bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from services.ingest.replay.alignment import DIGEST_BYTES

REMEMBERED_FRAMES: Final = 1024

StreamKey = tuple[str, bytes]
"""(listener, host)"""


class FrameHolder(Protocol):
    """A session whose frames go into a stream."""

    is_closed: bool
    """No more of its frames may be taken."""


class FrameStream:
    """The frames of one sender: `digests` (the first bytes of each) of serials `base` to `end`."""

    __slots__ = ("answered_end", "base", "broke_ms", "digests", "holder", "identity", "in_flight", "is_over", "journalled_end", "key")

    def __init__(self, key: StreamKey, identity: bytes, base: int = 0, digests: bytes = b"") -> None:
        self.key = key
        self.identity = identity
        self.base = base
        self.digests = bytearray(digests)
        self.answered_end: int | None = base
        """No frame from this serial on was answered: its sender will repeat them. None (a stream of
        a previous incarnation): as far as its frames are stored."""
        self.in_flight = 0
        """Frames taken whose ack groups have not completed."""
        self.journalled_end = base
        """Frames below it are in the journal."""
        self.broke_ms = 0
        self.holder: FrameHolder | None = None
        """The session that continues it; None after that has ended."""
        self.is_over = False
        """Forgotten as soon as none of its frames is in flight."""

    @property
    def end(self) -> int:
        return self.base + len(self.digests) // DIGEST_BYTES

    def append(self, digests: Sequence[bytes]) -> int:
        """Append frames; return the serial of the first."""
        serial = self.end
        self.digests += b"".join([digest[:DIGEST_BYTES] for digest in digests])
        if len(self.digests) > 2 * REMEMBERED_FRAMES * DIGEST_BYTES:
            self._trim()
        return serial

    def take_unjournalled(self) -> tuple[int, bytes]:
        """Return the first serial and the digests that the journal lacks, and mark them as written."""
        first_serial = max(self.base, self.journalled_end)
        self.journalled_end = self.end
        return first_serial, bytes(self.digests[(first_serial - self.base) * DIGEST_BYTES :])

    def _trim(self) -> None:
        """Drop frames far before the end that have completed: they cannot be repeated."""
        surplus = min(self.end - self.base - REMEMBERED_FRAMES, self.end - self.base - self.in_flight)
        if surplus > 0:
            del self.digests[: surplus * DIGEST_BYTES]
            self.base += surplus
