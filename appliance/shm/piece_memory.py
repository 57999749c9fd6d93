"""The memory from which a log-reader's pieces of segments are sent: equal slots, filled by it, read by acceptors.

Unlike a source's arena it is allocated slot by slot, when a slot is first used, and given back when nobody has read anything cold for a while: a box
whose consumers keep up has none of it. Owned by one life of a log-reader; who holds which slot is known in its heap (`services/log_reader/cold_pieces.py`).
Weak spot: /dev/shm may be full when a slot is wanted; then there is one slot fewer, which is an answer and not a death.
"""

from __future__ import annotations

import mmap

from appliance.shm.mapping import SharedObject

PURPOSE = b"MLRpiece"
DATA_POSITION = 4096
"""Slots begin here; direct reads want their buffer aligned."""
PIECE_BYTES = 1 << 20
assert DATA_POSITION % mmap.PAGESIZE == 0 and PIECE_BYTES % mmap.PAGESIZE == 0


def size_bytes_of(arena_bytes: int) -> int:
    """Bytes of the object for a setting of `arena_bytes`."""
    return DATA_POSITION + arena_bytes // PIECE_BYTES * PIECE_BYTES


class PieceMemory:
    """The owner's side: `view` to fill a slot. Positions count from the object's start."""

    def __init__(self, shared: SharedObject, slots: int) -> None:
        self.shared = shared
        self.slots = slots
        self._allocated = bytearray(slots)

    @classmethod
    def create(cls, name: str, arena_bytes: int, incarnation: int) -> PieceMemory:
        shared = SharedObject.create(name, PURPOSE, size_bytes_of(arena_bytes), incarnation, DATA_POSITION)
        return cls(shared, arena_bytes // PIECE_BYTES)

    @staticmethod
    def position(slot: int) -> int:
        return DATA_POSITION + slot * PIECE_BYTES

    def allocate(self, slot: int) -> bool:
        """Have memory behind a slot. False: /dev/shm is full."""
        if not self._allocated[slot]:
            self._allocated[slot] = self.shared.allocate(self.position(slot), PIECE_BYTES)
        return bool(self._allocated[slot])

    def view(self, slot: int, size_bytes: int) -> memoryview:
        position = self.position(slot)
        return self.shared.memory[position : position + size_bytes]

    def give_back(self, slot: int) -> None:
        """Nobody holds the slot: its memory is free for others."""
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
    """An acceptor's map, read-only. Raises SharedObjectAbsent, LayoutMismatch."""
    return SharedObject.attach(name, PURPOSE, writable=False)
