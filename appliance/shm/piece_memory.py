"""The memory of a log-reader for pieces of segments: equal slots, filled by it, sent from by
acceptors.

Unlike an arena it is allocated slot by slot at first use, and freed when no cold data was read for
a while: a box whose consumers keep up uses none. Owned by one incarnation of a log-reader; its heap
knows the users of each slot (`services/log_reader/cold_pieces.py`). Weak: if /dev/shm is full,
there is one slot fewer.
"""

from __future__ import annotations

import mmap

from appliance.shm.mapping import SharedObject

PIECES_PURPOSE = b"MLRpiece"
PIECES_POSITION = 4096
"""Start of the slots; direct reads require an aligned buffer."""
PIECE_BYTES = 1 << 20
assert PIECES_POSITION % mmap.PAGESIZE == 0 and PIECE_BYTES % mmap.PAGESIZE == 0


def size_bytes_of(arena_bytes: int) -> int:
    """Return the size of the object for a setting of `arena_bytes`."""
    return PIECES_POSITION + arena_bytes // PIECE_BYTES * PIECE_BYTES


class PieceMemory:
    """The owner's side: `view` to fill a slot. Positions are bytes from the start of the object."""

    def __init__(self, shared: SharedObject, slots: int) -> None:
        self.shared = shared
        self.slots = slots
        self._allocated = bytearray(slots)

    @classmethod
    def create(cls, name: str, arena_bytes: int, incarnation: int) -> PieceMemory:
        shared = SharedObject.create(name, PIECES_PURPOSE, size_bytes_of(arena_bytes), incarnation, PIECES_POSITION)
        return cls(shared, arena_bytes // PIECE_BYTES)

    @staticmethod
    def position(slot: int) -> int:
        return PIECES_POSITION + slot * PIECE_BYTES

    def allocate(self, slot: int) -> bool:
        """Allocate the memory of a slot. False if /dev/shm is full."""
        if not self._allocated[slot]:
            self._allocated[slot] = self.shared.allocate(self.position(slot), PIECE_BYTES)
        return bool(self._allocated[slot])

    def view(self, slot: int, size_bytes: int) -> memoryview:
        position = self.position(slot)
        return self.shared.memory[position : position + size_bytes]

    def give_back(self, slot: int) -> None:
        """Free the memory of an unused slot."""
        if self._allocated[slot]:
            self.shared.give_back(self.position(slot), PIECE_BYTES)
            self._allocated[slot] = 0

    @property
    def allocated_slots(self) -> int:
        return sum(self._allocated)

    def close(self) -> None:
        self.shared.close()
        self.shared.unlink()


def attach_pieces(name: str) -> SharedObject:
    """Map the memory read-only in an acceptor. Raises SharedObjectAbsent, LayoutMismatch."""
    return SharedObject.attach(name, PIECES_PURPOSE, writable=False)
