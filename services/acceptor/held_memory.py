"""What the heap of one acceptor holds for its clients, in total, and who has to go when that is too much.

Charged to a connection: input that is no whole request yet or has to wait, replies that it does not take, and the request that is being
served or parked (`REQUEST_EXPANSION` bytes for each of its own). Clients that behave hold next to nothing for next to no time. Over the
limit the oldest holders of at least the average leave, until an eighth is free: many pay little each before one that holds little does.
Owned by one acceptor. Weak spot: what a request costs while it is served is an estimate; see the test that holds it against decoders.
"""

from __future__ import annotations

from services.acceptor.connection import Connection

REQUEST_EXPANSION = 16
"""Heap bytes for each byte of a request that is no produce, decoded: most for a Fetch of many partitions."""
SHED_SHARE = 8


class HeldMemory:
    """The sum over all connections, and those that add to it in the order in which they began to."""

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
        """It is closed."""
        if connection.held_bytes:
            self.total_bytes -= connection.held_bytes
            connection.held_bytes = 0
            del self._holders[connection]

    def plan_shedding(self) -> list[Connection]:
        """Whom to close so that an eighth of the limit is free again; nobody while the limit holds."""
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
