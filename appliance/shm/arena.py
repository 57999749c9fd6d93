"""An arena: the memory of one source, from which log-writers read batches and stamp offsets. Slots
are powers of two, freed in any order.

The owner allocates and frees; its lists are in its own heap, because a new incarnation creates a
new arena. Free slots of one size are a stack, so that memory in the CPU cache is reused first.
Buddies are merged only when an allocation fails (180 ns otherwise). Weak: rounding wastes up to
half of a slot; budgets are charged with the rounded size.

The memory of a log-reader for pieces of segments: equal slots, filled by it, sent from by
acceptors.

Unlike an arena it is allocated slot by slot at first use, and freed when no cold data was read for
a while: a box whose consumers keep up uses none. Owned by one incarnation of a log-reader; its heap
knows the users of each slot (`services/log_reader/cold_pieces.py`). Weak: if /dev/shm is full,
there is one slot fewer.
"""

from __future__ import annotations

import mmap

from appliance.base.invariants import InvariantViolation, check
from appliance.shm.mapping import HEADER_BYTES, WORD_BYTES, SharedObject, list_names, unlink

# Arena: byte, name, meaning.
#
# │     0 │                        │ magic MLRarena in the header
# │    64 │ SLEEPING_WORD          │ 1 while the owner sleeps; log-writers check before they ring
# │   128 │ WATCHING_WORD          │ 1 while the owner waits for rows to change
# │  4096 │ DATA_POSITION          │ slots: 2^n bytes each, n ≥ 10, aligned to their size from
# │       │                        │ here; the free lists are in the owner's heap

PURPOSE = b"MLRarena"

# Control words after the header, on their own cache lines.
SLEEPING_WORD = HEADER_BYTES // WORD_BYTES
"""1 while the owner of the arena sleeps (the sleeping flag of its doorbell)."""
WATCHING_WORD = SLEEPING_WORD + 8
"""1 while the owner waits for changes of partition rows (parked acks=all produces and long polls).
"""

DATA_POSITION = 4096
ARENA_BYTES_MAX = 64 << 30
"""The largest that a setting allows."""
MIN_ORDER = 10
"""The smallest slot has 1 KiB."""


class Arena:
    """The owner's side: `allocate` and `free` slots, `memory` to fill them. Positions are bytes
    from the start of the object."""

    def __init__(self, shared: SharedObject, data_bytes: int) -> None:
        check(data_bytes & (data_bytes - 1) == 0, f"an arena's size is a power of two, not {data_bytes}")
        self.shared = shared
        self.memory = shared.memory
        self.size_bytes = data_bytes
        self.free_bytes = data_bytes
        self._max_order = data_bytes.bit_length() - 1
        self._free: list[list[int]] = [[] for _ in range(self._max_order + 1)]
        self._free[self._max_order].append(DATA_POSITION)
        self._orders: dict[int, int] = {}
        self._frees_since_merge = 0

    @classmethod
    def create(cls, name: str, data_bytes: int, incarnation: int) -> Arena:
        """Create an arena of `data_bytes`, rounded up to a power of two of at least 64 KiB."""
        rounded = 1 << max(16, (data_bytes - 1).bit_length())
        return cls(SharedObject.create_sealed(name, PURPOSE, DATA_POSITION + rounded, incarnation), rounded)

    @staticmethod
    def rounded_size(size_bytes: int) -> int:
        """Return the bytes that a slot for `size_bytes` occupies."""
        return 1 << max(MIN_ORDER, (size_bytes - 1).bit_length())

    def allocate(self, size_bytes: int) -> int:
        """Return the position of a slot of at least `size_bytes`; -1 if there is none now."""
        order = (size_bytes - 1).bit_length()
        if order < MIN_ORDER:
            order = MIN_ORDER
        elif order > self._max_order:
            return -1
        stack = self._free[order]
        if stack:
            position = stack.pop()
        else:
            position = self._split(order)
            if position < 0:
                return -1
        self._orders[position] = order
        self.free_bytes -= 1 << order
        return position

    def free(self, position: int) -> None:
        """Free a slot; in any order. Freeing it twice is an InvariantViolation."""
        order = self._orders.pop(position, -1)
        if order < 0:  # not `check`, which would format its message on each call
            raise InvariantViolation(f"arena slot at {position} was freed twice or never allocated")
        self._free[order].append(position)
        self.free_bytes += 1 << order
        self._frees_since_merge += 1

    def slots_in_use(self) -> int:
        return len(self._orders)

    def _split(self, order: int) -> int:
        larger = order + 1
        while larger <= self._max_order and not self._free[larger]:
            larger += 1
        if larger > self._max_order:
            if not self._frees_since_merge or self.free_bytes < 1 << order:
                return -1
            self._merge_buddies()
            if self._free[order]:
                return self._free[order].pop()
            return self._split(order)
        position = self._free[larger].pop()
        while larger > order:
            larger -= 1
            self._free[larger].append(position + (1 << larger))
        return position

    def _merge_buddies(self) -> None:
        self._frees_since_merge = 0
        for order in range(MIN_ORDER, self._max_order):
            slots = self._free[order]
            if len(slots) < 2:
                continue
            size = 1 << order
            present = set(slots)
            merged = []
            for position in slots:
                if position not in present:
                    continue
                buddy = DATA_POSITION + ((position - DATA_POSITION) ^ size)
                if buddy in present:
                    present.discard(position)
                    present.discard(buddy)
                    merged.append(min(position, buddy))
            self._free[order] = [position for position in slots if position in present]
            self._free[order + 1].extend(merged)

    def close(self) -> None:
        self.shared.close()


def attach_arena(descriptor: int) -> SharedObject:
    """Map the arena that a source sent to its log-writer, writable because offsets are stamped in
    place."""
    return SharedObject.attach_sealed(descriptor, PURPOSE, DATA_POSITION + ARENA_BYTES_MAX)


# Piece memory: byte, name, meaning.
#
# │     0 │                        │ magic MLRpiece in the header
# │  4096 │ PIECES_POSITION        │ slots of PIECE_BYTES (1 MiB); contents and holders are in
# │       │                        │ the owner's heap; no word is shared

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


def sweep_pieces(own_name: str) -> int:
    """Unlink the memory of other incarnations of a log-reader, of which none runs; returns how
    many. The name ends with one component: `d.1` is not an incarnation of `d`."""
    prefix = own_name.rpartition(".")[0] + "."
    swept = [name for name in list_names(prefix) if name != own_name and "." not in name[len(prefix) :]]
    for name in swept:
        unlink(name)
    return len(swept)


def attach_pieces(name: str) -> SharedObject:
    """Map the memory read-only in an acceptor. Raises SharedObjectAbsent, LayoutMismatch."""
    return SharedObject.attach(name, PIECES_PURPOSE, writable=False)
