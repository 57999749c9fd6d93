"""The memory of incomplete frames over all connections of an ingest, and which connections wait
while it is exhausted.

Owned by `SenderConnections`, checked after each received piece. Above the limit, a connection with
more than `SMALL_BYTES` of a frame is not read, except the one whose frame began first among those
that nothing else stops (a blocked partition, a full window, its end). So one of them always
finishes, or reaches its deadline. A stopped connection resumes before those that began later.

Weak: memory may exceed the limit by one frame, and by one received piece of each connection
(HTTP/2: by its windows). A slow sender delays the others until its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.shm.counters import Counters

if TYPE_CHECKING:
    from services.ingest.listeners.sender_connection import SenderConnection

SMALL_BYTES = 16384
"""A connection that holds no more is always read, so that lines and small batches pass the large
ones."""
RELEASE_SHARE = 0.75


class UnfinishedFrames:
    """Call `must_wait` after each read, `remove` when the connection is gone; `released` may be
    read again."""

    def __init__(self, limit_bytes: int, counters: Counters) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._large: dict[SenderConnection, None] = {}  # with large frames, in the order in which they began
        self._waiting: dict[SenderConnection, None] = {}
        self._gauge = counters.gauge("ingest.unfinished_bytes")
        self._waits = counters.counter("ingest.connections_crowded")

    def must_wait(self, connection: SenderConnection) -> bool:
        """Update the bytes of a connection that was read; return True if it must wait now."""
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
        """Return the connection that may be read alone."""
        return next((connection for connection in self._large if not connection.is_stopped), None)

    def remove(self, connection: SenderConnection) -> None:
        """The connection is gone."""
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
        """Return the connections that may be read again: all below `RELEASE_SHARE`, otherwise the
        first one."""
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
