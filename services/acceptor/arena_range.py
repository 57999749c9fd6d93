"""Bytes of a response that lie in a log-reader's memory: what of a segment was not in the page cache.

As long as this exists the log-reader keeps its hands off them. Owned by one response; not shared. Weak spot: a client that takes nothing would hold a
log-reader's memory, which all consumers of the disk share: after a while the acceptor copies the rest to its heap (`Connection.move_to_heap`).
"""

from __future__ import annotations

from collections import deque

from appliance.ipc.reader_arena import ArenaPart


class ArenaRange:
    """What is left to send, in parts."""

    __slots__ = ("_parts", "_sent", "since_ns", "size_bytes")

    def __init__(self, parts: list[ArenaPart], since_ns: int) -> None:
        self._parts = deque(parts)
        self._sent = 0
        self.size_bytes = sum(len(part.memory) for part in parts)
        self.since_ns = since_ns

    @property
    def next_piece(self) -> memoryview:
        return self._parts[0].memory[self._sent :]

    @property
    def is_last(self) -> bool:
        return len(self._parts) == 1

    def on_sent(self, count: int) -> None:
        """So much of `next_piece` has left. A part that has left is let go at once."""
        self._sent += count
        self.size_bytes -= count
        if self._sent == len(self._parts[0].memory):
            self._parts.popleft()
            self._sent = 0

    def to_bytes(self) -> bytes:
        """A copy of what is left."""
        skipped = self._sent
        pieces = []
        for part in self._parts:
            pieces.append(part.memory[skipped:])
            skipped = 0
        return b"".join(pieces)
