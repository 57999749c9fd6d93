"""The bounds of connections: in total, for each address, and in the memory of incomplete frames.

Values only; owned by `SenderConnections`. Weak: all senders behind one translated address share its
limit, unless a trusted proxy reports their addresses. Memory of incomplete frames may exceed the
limit by one frame, and by one received piece of each connection (HTTP/2: by its windows). A slow
sender delays the others until its deadline.
"""

from __future__ import annotations

import resource
from collections import Counter as Tally

from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from services.ingest.listeners.sender_connection import PauseReason, SenderConnection

DESCRIPTORS_RESERVED = 256
"""For rings, journal, spool and other boxes: connections never take these."""


def connections_possible(wanted: int, log: Logger) -> int:
    """Return `wanted`, or less if the process may not open so many descriptors."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return wanted
    possible = max(allowed - DESCRIPTORS_RESERVED, allowed // 2)
    if possible < wanted:
        log.notice(f"accepts {possible} connections instead of {wanted} (max.connections): the process may open {allowed} descriptors (ulimit -Hn)")
    return min(wanted, possible)


class SenderLimits:
    """Counts the open connections."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._per_address: Tally[str] = Tally()
        self._count = 0

    def acquire(self, address: str) -> bool:
        """Count one more connection if the limits allow it."""
        if self._count >= self._connections_max or self._per_address[address] >= self._per_address_max:
            return False
        self._count += 1
        self._per_address[address] += 1
        return True

    def release(self, address: str) -> None:
        self._count -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def move(self, old: str, new: str) -> bool:
        """Count a connection for another address. False, and no change, if that address has reached
        its limit."""
        if old == new:
            return True
        if self._per_address[new] >= self._per_address_max:
            return False
        self.release(old)
        self._count += 1
        self._per_address[new] += 1
        return True


SMALL_BYTES = 16384
"""A connection that holds no more is always read, so that lines and small batches pass the large
ones."""
RELEASE_SHARE = 0.75


class UnfinishedFrames:
    """The memory of incomplete frames over all connections of an ingest, and which connections wait
    while it is exhausted.

    Above the limit, a connection with more than `SMALL_BYTES` of a frame is not read, except the
    one whose frame began first among those that nothing else stops (a blocked partition, a full
    window, its end). So one of them always finishes, or reaches its deadline. A stopped connection
    resumes before those that began later. Call `check` after each read, `remove` when the
    connection is gone; `released` may be read again.
    """

    def __init__(self, limit_bytes: int, counters: Counters) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._large: dict[SenderConnection, None] = {}  # with large frames, in the order in which they began
        self._waiting: dict[SenderConnection, None] = {}
        self._gauge = counters.gauge("ingest.unfinished_bytes")
        self._waits = counters.counter("ingest.connections_crowded")

    def check(self, connection: SenderConnection) -> None:
        """Update the bytes of a connection that was read, and pause it if it must wait."""
        held_bytes = connection.held_bytes
        if held_bytes != connection.unfinished_bytes:
            self._set(connection, held_bytes)
        if self._size_bytes <= self._limit_bytes or held_bytes <= SMALL_BYTES or connection is self._first():
            if connection.pauses:
                connection.pauses &= ~PauseReason.FRAMES
            return
        connection.pauses |= PauseReason.FRAMES
        if connection not in self._waiting:
            self._waiting[connection] = None
            self._waits.add()

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
