"""What all connections of an ingest hold of frames and requests that are not whole, and who waits while that is too much.

Owned by the room of the connections, looked at behind every piece that was received. Beyond the limit a connection with more than `SMALL_BYTES` of a frame is
not read, but for the one that began its frame first, of those that nothing else stops (a partition that takes no more, a full window, its end): so one of them
always comes to its end, or to its deadline. Who was stopped goes before those that began later when it goes on; it is stopped behind a piece that was whole,
so it holds little more than a piece of its next frame. Weak: memory may go beyond the limit by one frame, and by one received piece of each connection
(HTTP/2: by its windows); a sender that is slow itself holds up the others until its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.shm.counters import Counters

if TYPE_CHECKING:
    from services.ingest.listeners.sender_connection import SenderConnection

SMALL_BYTES = 16384
"""Whoever holds no more is always read: lines and small batches pass by the large ones."""
RELEASE_SHARE = 0.75


class UnfinishedFrames:
    """`look` at a connection when it was read, `leave` when it is gone; `released` go on reading."""

    def __init__(self, limit_bytes: int, counters: Counters) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._large: dict[SenderConnection, None] = {}  # those with large frames, by when they began
        self._waiting: dict[SenderConnection, None] = {}
        self._gauge = counters.gauge("ingest.unfinished_bytes")
        self._waits = counters.counter("ingest.connections_crowded")

    def look(self, connection: SenderConnection) -> bool:
        """It was read. Whether it has to wait now."""
        held_bytes = connection.held_bytes
        if held_bytes != connection.unfinished_bytes:
            self._set(connection, held_bytes)
        if self._size_bytes <= self._limit_bytes or held_bytes <= SMALL_BYTES or connection is self._first():
            return False
        if connection not in self._waiting:
            self._waiting[connection] = None
            self._waits.add()
        return True

    def _first(self) -> SenderConnection | None:
        """Whose turn it is to be read alone."""
        return next((connection for connection in self._large if not connection.is_stopped), None)

    def leave(self, connection: SenderConnection) -> None:
        """It is gone."""
        if connection.unfinished_bytes:
            self._set(connection, 0)
        self._waiting.pop(connection, None)

    def _set(self, connection: SenderConnection, held_bytes: int) -> None:
        self._size_bytes += held_bytes - connection.unfinished_bytes
        connection.unfinished_bytes = held_bytes
        if held_bytes > SMALL_BYTES:
            self._large.setdefault(connection)
        else:
            self._large.pop(connection, None)

    def released(self) -> list[SenderConnection]:
        """Those that may be read again: all when there is room, else the one whose turn it is."""
        self._gauge.set(self._size_bytes)
        if not self._waiting:
            return []
        if self._size_bytes <= self._limit_bytes * RELEASE_SHARE:
            released = list(self._waiting)
        else:
            first = self._first()
            released = [first] if first is not None and first in self._waiting else []
        for connection in released:
            del self._waiting[connection]
        return released
