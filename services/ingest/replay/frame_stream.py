"""What is remembered of one sender's frames: their digests, under serials that go on over any number of its sessions.

A value, owned by `FrameStreams`; changed by the session that has it. Weak: what is remembered of a stream grows with what its sender has under way
unacknowledged, which the window of its connection bounds.
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
    """Nothing more of it may be taken."""


class FrameStream:
    """The frames of one sender: `digests` (the first bytes of each) of serials `base` to `end`."""

    __slots__ = ("answered_end", "base", "broke_ms", "digests", "holder", "identity", "in_flight", "is_over", "journalled_end", "key")

    def __init__(self, key: StreamKey, identity: bytes, base: int = 0, digests: bytes = b"") -> None:
        self.key = key
        self.identity = identity
        self.base = base
        self.digests = bytearray(digests)
        self.answered_end: int | None = base
        """No frame from here on was answered: its sender will send them again. None: of a previous life; then none is that is not stored."""
        self.in_flight = 0
        """frames taken whose units are under way"""
        self.journalled_end = base
        """frames below it are in the journal"""
        self.broke_ms = 0
        self.holder: FrameHolder | None = None
        """The session that goes on with it; None when that has ended."""
        self.is_over = False
        """It is forgotten as soon as nothing of it is under way."""

    @property
    def end(self) -> int:
        return self.base + len(self.digests) // DIGEST_BYTES

    def append(self, digests: Sequence[bytes]) -> int:
        """The serial of the first."""
        serial = self.end
        self.digests += b"".join([digest[:DIGEST_BYTES] for digest in digests])
        if len(self.digests) > 2 * REMEMBERED_FRAMES * DIGEST_BYTES:
            self._trim()
        return serial

    def take_unjournalled(self) -> tuple[int, bytes]:
        """The first serial and the digests that the journal lacks; it is said to have them now."""
        first_serial = max(self.base, self.journalled_end)
        self.journalled_end = self.end
        return first_serial, bytes(self.digests[(first_serial - self.base) * DIGEST_BYTES :])

    def _trim(self) -> None:
        """What is settled and far behind the end cannot be sent again."""
        surplus = min(self.end - self.base - REMEMBERED_FRAMES, self.end - self.base - self.in_flight)
        if surplus > 0:
            del self.digests[: surplus * DIGEST_BYTES]
            self.base += surplus
