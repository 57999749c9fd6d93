"""How long a frame has been unfinished: the answer to senders that send a byte a minute.

Owned by a stream session, looked at in its `tick`. The clock is an argument. Weak: it is looked at once a second, so a frame may be a second older.
"""

from __future__ import annotations


class Unfinished:
    """Frames may be minutes apart; one that has begun must end."""

    __slots__ = ("_frames_done", "_since_ms")

    def __init__(self) -> None:
        self._frames_done = -1
        self._since_ms = 0

    def is_overdue(self, frames_done: int, buffered_bytes: int, now_ms: int, limit_ms: int) -> bool:
        """`frames_done` is any number that changes with every finished frame, `buffered_bytes` what is here of the one that is not."""
        if not buffered_bytes or frames_done != self._frames_done:
            self._frames_done = frames_done
            self._since_ms = now_ms
            return False
        return now_ms - self._since_ms > limit_ms
