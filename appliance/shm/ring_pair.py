"""The memory of a channel: a descriptor ring and a completion ring between one incarnation of a
source and one of a log-writer.

Created by the source, mapped by both. A source that died may have unread completions here: its next
incarnation reads them (`completions`), once the log-writer has set the retired flag or has itself
been replaced. Weak: the name outlives its source by design, so old names have to be removed
(`appliance.ipc.channel`).
"""

from __future__ import annotations

from struct import Struct

from appliance.shm.atomic import WORD_BYTES
from appliance.shm.mapping import HEADER_BYTES, SharedObject
from appliance.shm.ring import ENTRY_BYTES, RingConsumer, RingProducer

PURPOSE = b"MLRrings"

# Control words, each on its own cache line.
_FIRST = HEADER_BYTES // WORD_BYTES
DESCRIPTOR_TAIL_WORD = _FIRST
DESCRIPTOR_HEAD_WORD = _FIRST + 8
COMPLETION_TAIL_WORD = _FIRST + 16
COMPLETION_HEAD_WORD = _FIRST + 24
CAPACITY_WORD = _FIRST + 32
WRITER_INCARNATION_WORD = _FIRST + 33
RETIRED_WORD = _FIRST + 40
RINGS_POSITION = 512
assert (RETIRED_WORD + 1) * WORD_BYTES <= RINGS_POSITION


class RingPair:
    """Both rings; each side uses two of the four ends."""

    def __init__(self, shared: SharedObject) -> None:
        self.shared = shared
        self.capacity = int(shared.words[CAPACITY_WORD])

    @classmethod
    def create(cls, name: str, capacity: int, incarnation: int) -> RingPair:
        """Create empty rings of `capacity` entries each (a power of two)."""
        shared = SharedObject.create(name, PURPOSE, RINGS_POSITION + 2 * capacity * ENTRY_BYTES, incarnation)
        shared.words[CAPACITY_WORD] = capacity
        return cls(shared)

    @classmethod
    def attach(cls, name: str) -> RingPair:
        return cls(SharedObject.attach(name, PURPOSE, writable=True))

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
    def writer_incarnation(self) -> int:
        return self.shared.words[WRITER_INCARNATION_WORD]

    def claim(self, writer_incarnation: int) -> None:
        """Store the incarnation of the log-writer that publishes completions here."""
        self.shared.words[WRITER_INCARNATION_WORD] = writer_incarnation

    def retire(self) -> None:
        """Mark that the log-writer publishes nothing more here."""
        self.shared.words[RETIRED_WORD] = 1

    @property
    def retired(self) -> bool:
        return bool(self.shared.words[RETIRED_WORD])

    def close(self) -> None:
        self.shared.close()
