"""A ring of fixed 64-byte entries with one producer and one consumer in two processes.

Tail and head only grow; the index of an entry is their value modulo the capacity. The producer
writes entries, then publishes the tail with one 8-byte store; the consumer copies entries, then
publishes the head. A full ring is an answer (`offer` returns False), never a spin. Weak: the single
producer and consumer are not enforced; `appliance.ipc.channel` creates a new pair of rings for each
pair of incarnations.

The memory of a channel: a descriptor ring and a completion ring between one incarnation of a
source and one of a log-writer.

Created by the source, mapped by both, freed with both. Completions that a dead source did not read
are gone; an ingest's are counted by the log-writer (`ipc/channel.py: complete`).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

from appliance.base.invariants import InvariantViolation, check
from appliance.shm.mapping import HEADER_BYTES, WORD_BYTES, SharedObject, SharedObjectAbsent

ENTRY_BYTES = 64


class RingBroken(InvariantViolation):
    """The other side stored a tail that its ring cannot have."""


class RingProducer:
    """The producer's side. `base` is the byte position of the first entry; `*_index` are word
    indexes."""

    __slots__ = ("_base", "_head_index", "_known_head", "_mask", "_memory", "_pack_into", "_tail_index", "_words", "capacity", "tail")

    def __init__(self, memory: memoryview, words: memoryview, entry: Struct, base: int, capacity: int, tail_index: int, head_index: int) -> None:
        check(entry.size == ENTRY_BYTES and capacity & (capacity - 1) == 0 and base % WORD_BYTES == 0, "a ring has a power of two of aligned 64-byte entries")
        self._memory = memory
        self._words = words
        self._pack_into = entry.pack_into
        self._base = base
        self._mask = capacity - 1
        self._tail_index = tail_index
        self._head_index = head_index
        self.tail = words[tail_index]
        """Entries that were published so far."""
        self._known_head = words[head_index]
        self.capacity = capacity

    def offer(self, *fields: Any) -> bool:
        """Publish one entry. False if the ring is full."""
        tail = self.tail
        if tail - self._known_head > self._mask:
            self._known_head = self._words[self._head_index]
            if tail - self._known_head > self._mask:
                return False
        self._pack_into(self._memory, self._base + (tail & self._mask) * ENTRY_BYTES, *fields)
        self.tail = tail + 1
        self._words[self._tail_index] = tail + 1
        return True

    def offer_all(self, entries: list[tuple[Any, ...]]) -> None:
        """Publish several entries with one store of the tail. The caller has checked
        `free_entries`."""
        check(len(entries) <= self.free_entries(), "the entries must fit the ring")
        tail, mask, base, memory, pack_into = self.tail, self._mask, self._base, self._memory, self._pack_into
        for fields in entries:
            pack_into(memory, base + (tail & mask) * ENTRY_BYTES, *fields)
            tail += 1
        self.tail = tail
        self._words[self._tail_index] = tail

    def free_entries(self) -> int:
        """Return how many entries can be offered."""
        self._known_head = self._words[self._head_index]
        return self.capacity - (self.tail - self._known_head)


class RingConsumer:
    """The consumer's side."""

    __slots__ = ("_base", "_head_index", "_iter_unpack", "_mask", "_memory", "_tail_index", "_words", "capacity", "head")

    def __init__(self, memory: memoryview, words: memoryview, entry: Struct, base: int, capacity: int, tail_index: int, head_index: int) -> None:
        check(entry.size == ENTRY_BYTES and capacity & (capacity - 1) == 0 and base % WORD_BYTES == 0, "a ring has a power of two of aligned 64-byte entries")
        self._memory = memory
        self._words = words
        self._iter_unpack = entry.iter_unpack
        self._base = base
        self._mask = capacity - 1
        self._tail_index = tail_index
        self._head_index = head_index
        self.head = words[head_index]
        """Entries that were taken so far."""
        self.capacity = capacity

    def has_entries(self) -> bool:
        return bool(self._words[self._tail_index] != self.head)

    def poll(self, limit: int) -> list[tuple[Any, ...]]:
        """Return up to `limit` entries, copied out of shared memory before the head is published."""
        head = self.head
        count = self._words[self._tail_index] - head
        if count == 0:
            return []
        if not 0 < count <= self.capacity:  # not `check`, which would format its message on each call
            raise RingBroken(f"ring tail is {count} ahead of its head, capacity {self.capacity}")
        if count > limit:
            count = limit
        start = head & self._mask
        first = min(count, self.capacity - start)
        position = self._base + start * ENTRY_BYTES
        entries = list(self._iter_unpack(self._memory[position : position + first * ENTRY_BYTES]))
        if first < count:
            entries.extend(self._iter_unpack(self._memory[self._base : self._base + (count - first) * ENTRY_BYTES]))
        self.head = head + count
        self._words[self._head_index] = head + count
        return entries

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while entries := self.poll(self.capacity):
            yield from entries


# Ring pair of a channel: byte, name, meaning.
#
# │     0 │                        │ magic MLRrings in the header
# │    64 │ DESCRIPTOR_TAIL_WORD   │ stored by the source
# │   128 │ DESCRIPTOR_HEAD_WORD   │ stored by the log-writer
# │   192 │ COMPLETION_TAIL_WORD   │ stored by the log-writer
# │   256 │ COMPLETION_HEAD_WORD   │ stored by the source
# │   320 │ CAPACITY_WORD          │ entries in each ring, a power of two
# │   512 │ RINGS_POSITION         │ descriptors: capacity × 64 bytes, then completions likewise
#
#              head                tail
#               ▼                    ▼
#   ┄┬────┬────┬────┬────┬────┬────┬────┬────┬┄
#    │free│free│full│full│full│full│free│free│
#   ┄┴────┴────┴────┴────┴────┴────┴────┴────┴┄

PURPOSE = b"MLRrings"

# Control words, each on its own cache line.
_FIRST = HEADER_BYTES // WORD_BYTES
DESCRIPTOR_TAIL_WORD = _FIRST
DESCRIPTOR_HEAD_WORD = _FIRST + 8
COMPLETION_TAIL_WORD = _FIRST + 16
COMPLETION_HEAD_WORD = _FIRST + 24
CAPACITY_WORD = _FIRST + 32
RINGS_POSITION = 512
assert (CAPACITY_WORD + 1) * WORD_BYTES <= RINGS_POSITION
CAPACITY_MAX = 1 << 16
"""The largest that a setting allows."""


class RingPair:
    """Both rings; each side uses two of the four ends."""

    def __init__(self, shared: SharedObject, capacity: int) -> None:
        """`capacity` is not read again, because the other side can change its word."""
        self.shared = shared
        self.capacity = capacity

    @classmethod
    def create(cls, name: str, capacity: int, incarnation: int) -> RingPair:
        """Create empty rings of `capacity` entries each (a power of two)."""
        shared = SharedObject.create_sealed(name, PURPOSE, RINGS_POSITION + 2 * capacity * ENTRY_BYTES, incarnation)
        shared.words[CAPACITY_WORD] = capacity
        return cls(shared, capacity)

    @classmethod
    def attach(cls, descriptor: int) -> RingPair:
        """Map the rings that a source sent. Raises SharedObjectAbsent, LayoutMismatch."""
        shared = SharedObject.attach_sealed(descriptor, PURPOSE, RINGS_POSITION + 2 * CAPACITY_MAX * ENTRY_BYTES)
        capacity = int(shared.words[CAPACITY_WORD])
        if RINGS_POSITION + 2 * capacity * ENTRY_BYTES > len(shared.memory) or capacity < 1 or capacity & (capacity - 1):
            shared.close()
            raise SharedObjectAbsent(f"rings are too short for {capacity} entries")
        return cls(shared, capacity)

    def descriptor_producer(self, entry: Struct) -> RingProducer:
        shared = self.shared
        return RingProducer(shared.memory, shared.words, entry, RINGS_POSITION, self.capacity, DESCRIPTOR_TAIL_WORD, DESCRIPTOR_HEAD_WORD)

    def descriptor_consumer(self, entry: Struct) -> RingConsumer:
        shared = self.shared
        return RingConsumer(shared.memory, shared.words, entry, RINGS_POSITION, self.capacity, DESCRIPTOR_TAIL_WORD, DESCRIPTOR_HEAD_WORD)

    def completion_producer(self, entry: Struct) -> RingProducer:
        shared = self.shared
        base = RINGS_POSITION + self.capacity * ENTRY_BYTES
        return RingProducer(shared.memory, shared.words, entry, base, self.capacity, COMPLETION_TAIL_WORD, COMPLETION_HEAD_WORD)

    def completion_consumer(self, entry: Struct) -> RingConsumer:
        shared = self.shared
        base = RINGS_POSITION + self.capacity * ENTRY_BYTES
        return RingConsumer(shared.memory, shared.words, entry, base, self.capacity, COMPLETION_TAIL_WORD, COMPLETION_HEAD_WORD)

    @property
    def has_been_used(self) -> bool:
        """Return whether a word of either ring is not that of an empty new one."""
        words = self.shared.words
        return any(words[index] for index in (DESCRIPTOR_TAIL_WORD, DESCRIPTOR_HEAD_WORD, COMPLETION_TAIL_WORD, COMPLETION_HEAD_WORD))

    def close(self) -> None:
        self.shared.close()
