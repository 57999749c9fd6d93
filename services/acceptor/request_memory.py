"""Memory that requests of clients hold in one acceptor: its heap, and slots of its arena.

Each connection is charged with its incomplete or waiting input, the responses that its client has not taken,
and the request under way (`REQUEST_EXPANSION` bytes for each of its own). Normal clients hold almost nothing,
briefly. Above the limit, the connections that have held at least the average for longest are closed, until an
eighth is free.

Partitions of one request share an arena slot: it is counted, and freed when the last one is done. A slot that
a hung log-writer has stays taken until its completion comes or its process is dead.
Owned by one acceptor. Weak spot: the heap of a request under way is an estimate; a test compares it with the
decoders.
"""

from __future__ import annotations

from appliance.shm.arena import Arena
from services.acceptor.connection import Connection

REQUEST_EXPANSION = 16
"""Heap bytes for each byte of a decoded request other than Produce: the most is a Fetch of many partitions."""
SHED_SHARE = 8


class HeldMemory:
    """The sum over all connections, and those with a charge in the order in which they began to have one."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._holders: dict[Connection, None] = {}

    @property
    def is_over(self) -> bool:
        return self.total_bytes > self.limit_bytes

    def update(self, connection: Connection) -> None:
        """Charge `connection` with what it holds now."""
        held = len(connection.pending) + connection.outgoing_bytes + connection.request_bytes * REQUEST_EXPANSION
        before = connection.held_bytes
        if held == before:
            return
        connection.held_bytes = held
        self.total_bytes += held - before
        if not before:
            self._holders[connection] = None
        elif not held:
            del self._holders[connection]

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        if connection.held_bytes:
            self.total_bytes -= connection.held_bytes
            connection.held_bytes = 0
            del self._holders[connection]

    def plan_shedding(self) -> list[Connection]:
        """Return the connections to close so that an eighth of the limit is free; none while below the limit."""
        if not self.is_over:
            return []
        average = self.total_bytes / len(self._holders)
        too_much = self.total_bytes - (self.limit_bytes - self.limit_bytes // SHED_SHARE)
        leaving = []
        for connection in self._holders:
            if connection.held_bytes >= average:
                leaving.append(connection)
                too_much -= connection.held_bytes
                if too_much <= 0:
                    break
        return leaving

    def __len__(self) -> int:
        return len(self._holders)


class ArenaSlot:
    """A slot and the number of its users."""

    __slots__ = ("arena", "charge", "position", "references")

    def __init__(self, arena: Arena, position: int, charge: int) -> None:
        self.arena = arena
        self.position = position
        self.charge = charge
        self.references = 1

    def release(self) -> None:
        self.references -= 1
        if not self.references:
            self.arena.free(self.position)


def allocate_slot(arena: Arena, size_bytes: int) -> ArenaSlot | None:
    """Return a slot for `size_bytes`, or None if the arena has no free slot now."""
    position = arena.allocate(size_bytes)
    if position < 0:
        return None
    return ArenaSlot(arena, position, arena.rounded_size(size_bytes))
