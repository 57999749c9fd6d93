"""Arena slots that several partitions of one request share: counted, and given back when the last one is done.

Owned by one acceptor. A slot that a hung log-writer was given stays here until its completion comes or its process is dead: quarantine
is nothing more than not being released.
"""

from __future__ import annotations

from appliance.shm.arena import Arena


class ArenaSlot:
    """A slot and how many still need it."""

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
    """A slot for `size_bytes`, or None when the arena has no room now."""
    position = arena.allocate(size_bytes)
    if position < 0:
        return None
    return ArenaSlot(arena, position, arena.rounded_size(size_bytes))
