"""Arena, ring and partition table against models that are too simple to be wrong."""

from __future__ import annotations

from collections import deque
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from appliance.base.invariants import InvariantViolation
from appliance.shm.arena import DATA_POSITION, MIN_ORDER, Arena
from appliance.shm.mapping import SharedObject
from appliance.shm.partition_table import SIZE_BYTES, PartitionTableReader, PartitionTableWriter, Row, TornRow
from appliance.shm.ring import RingConsumer, RingProducer


class PrivateMemory:
    """Stands for a shared object: the same bytes as memory and words, in this process alone."""

    def __init__(self, size_bytes: int) -> None:
        self.memory = memoryview(bytearray(size_bytes))
        self.words = self.memory.cast("Q")
        self.name = "private"


ARENA_ORDER = MIN_ORDER + 3
SMALLEST = 1 << MIN_ORDER


class ArenaAgainstIntervals(RuleBasedStateMachine):
    """The model: a dictionary of taken intervals. Whether a slot exists is worked out by looking at every aligned place."""

    slots: Bundle[int] = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(PrivateMemory(DATA_POSITION + (1 << ARENA_ORDER)), 1 << ARENA_ORDER)  # type: ignore[arg-type]
        self.taken: dict[int, int] = {}

    def has_free_space(self, size: int) -> bool:
        """Buddies merge when it matters, so a slot exists exactly if some aligned place of its size is free."""
        if size > 1 << ARENA_ORDER:
            return False
        places = range(DATA_POSITION, DATA_POSITION + (1 << ARENA_ORDER), size)
        return any(all(start + length <= place or place + size <= start for start, length in self.taken.items()) for place in places)

    @rule(target=slots, size=st.one_of(st.integers(0, 4 * SMALLEST), st.integers(0, 1 << ARENA_ORDER)))
    def allocate(self, size: int) -> int:
        rounded = Arena.rounded_size(size)
        assert rounded >= max(size, SMALLEST) and rounded & (rounded - 1) == 0
        room = self.has_free_space(rounded)
        position = self.arena.allocate(size)
        assert (position >= 0) == room
        if position >= 0:
            assert DATA_POSITION <= position and position + rounded <= DATA_POSITION + (1 << ARENA_ORDER)
            assert (position - DATA_POSITION) % rounded == 0
            for start, length in self.taken.items():
                assert start + length <= position or position + rounded <= start, "two slots overlap"
            self.taken[position] = rounded
        return position

    @rule(position=consumes(slots))
    def free(self, position: int) -> None:
        if self.taken.pop(position, None) is not None:
            self.arena.free(position)

    @rule(position=st.integers(0, DATA_POSITION + (1 << ARENA_ORDER)))
    def free_what_was_not_given_out(self, position: int) -> None:
        if position not in self.taken:
            try:
                self.arena.free(position)
            except InvariantViolation:
                return
            raise AssertionError("an unallocated slot was freed")

    @invariant()
    def sums_agree(self) -> None:
        assert self.arena.free_bytes == (1 << ARENA_ORDER) - sum(self.taken.values())
        assert self.arena.slots_in_use() == len(self.taken)

    def teardown(self) -> None:
        """Whatever happened: when all is freed, in any order, the arena is one free block again."""
        for position in sorted(self.taken, key=lambda position: position * 7_919 % 104_729):
            self.arena.free(position)
        assert self.arena.allocate(1 << ARENA_ORDER) == DATA_POSITION
        assert self.arena.allocate(1) == -1


RING_ENTRY = Struct("@8Q")
TAIL, HEAD, RING_BASE = 0, 8, 128
WORD = st.integers(0, (1 << 64) - 1)


class RingAgainstDeque(RuleBasedStateMachine):
    """The model: a deque of at most `capacity` entries."""

    def __init__(self) -> None:
        super().__init__()
        self.model: deque[tuple[Any, ...]] = deque()
        self.number = 0

    @initialize(order=st.integers(0, 4), first=st.one_of(st.just(0), st.integers(0, 1 << 40)))
    def make(self, order: int, first: int) -> None:
        self.capacity = 1 << order
        private = PrivateMemory(RING_BASE + self.capacity * RING_ENTRY.size)
        private.words[TAIL] = private.words[HEAD] = first
        self.ends = (private.memory, private.words, RING_ENTRY, RING_BASE, self.capacity, TAIL, HEAD)
        self.producer, self.consumer = RingProducer(*self.ends), RingConsumer(*self.ends)

    def entry(self) -> tuple[Any, ...]:
        self.number += 1
        return (self.number, *(self.number * 0x9E3779B97F4A7C15 * word & (1 << 64) - 1 for word in range(1, 8)))

    @rule()
    def offer(self) -> None:
        entry = self.entry()
        assert self.producer.offer(*entry) == (len(self.model) < self.capacity)
        if len(self.model) < self.capacity:
            self.model.append(entry)

    @rule(count=st.integers(0, 20))
    def offer_a_burst(self, count: int) -> None:
        entries = [self.entry() for _ in range(count)]
        room = self.capacity - len(self.model)
        try:
            self.producer.offer_all(entries)
        except InvariantViolation:
            assert count > room
        else:
            assert count <= room
            self.model.extend(entries)

    @rule(limit=st.integers(0, 20))
    def poll(self, limit: int) -> None:
        expected = [self.model.popleft() for _ in range(min(limit, len(self.model)))]
        assert self.consumer.poll(limit) == expected

    @rule()
    def free_entries(self) -> None:
        assert self.producer.free_entries() == self.capacity - len(self.model)

    @rule()
    def another_mapping_of_both_ends(self) -> None:
        self.producer, self.consumer = RingProducer(*self.ends), RingConsumer(*self.ends)

    @invariant()
    @precondition(lambda self: hasattr(self, "consumer"))
    def emptiness_agrees(self) -> None:
        assert self.consumer.has_entries() == bool(self.model)


TestArenaAgainstIntervals = pytest.mark.slow(ArenaAgainstIntervals.TestCase)
TestRingAgainstDeque = pytest.mark.slow(RingAgainstDeque.TestCase)


OFFSET = st.integers(-1, (1 << 63) - 1)
HALF = st.integers(0, (1 << 32) - 1)
PLACE = st.integers(0, (1 << 63) - 1)
ROWS = st.builds(
    Row,
    topic_id=st.binary(min_size=16, max_size=16),
    partition=st.integers(0, (1 << 31) - 1),
    row_generation=HALF,
    role=st.integers(0, 3),
    leader_epoch=st.integers(-1, (1 << 31) - 1),
    log_start_offset=OFFSET,
    log_end_offset=OFFSET,
    high_watermark=OFFSET,
    last_stable_offset=OFFSET,
    isr_size=st.integers(0, (1 << 16) - 1),
    min_insync_replicas=st.integers(0, (1 << 16) - 1),
    config_generation=HALF,
    active_base_offset=PLACE,
    active_position=PLACE,
    watermark_base_offset=PLACE,
    watermark_position=PLACE,
    segment_list_generation=PLACE,
)


def private_table() -> tuple[PartitionTableWriter, PartitionTableReader]:
    private: Any = PrivateMemory(SIZE_BYTES)
    return PartitionTableWriter(private), PartitionTableReader(private)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_every_row_comes_back_as_it_was_stored(rows: list[Row]) -> None:
    writer, reader = private_table()
    for row in rows:
        index, generation = writer.add_row(row)
        assert reader.read(index) == row._replace(row_generation=generation)
        writer.store(index, row)
        assert reader.read(index) == row


@given(ROWS, ROWS, st.integers(0, 17))
@settings(max_examples=200)
def test_a_writer_that_dies_after_any_store_leaves_the_old_row_the_new_row_or_a_torn_one(old: Row, new: Row, stores: int) -> None:
    writer, reader = private_table()
    index, _ = writer.add_row(old)
    writer.store(index, old)

    class Dying:
        """Words that take `stores` stores."""

        left = stores

        def __getitem__(self, word: int) -> int:
            return int(writer.shared.words[word])

        def __setitem__(self, word: int, value: int) -> None:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            writer.shared.words[word] = value

    dying = PartitionTableWriter(cast(SharedObject, SimpleNamespace(words=Dying())))
    try:
        dying.store(index, new)
    except KeyboardInterrupt:
        pass
    try:
        found = reader.read(index)
    except TornRow:
        assert 1 <= stores <= 15
    else:
        assert found == (old if stores == 0 else new)


class TableAgainstDictionary(RuleBasedStateMachine):
    """The model: rows by index. Generations of rows never come twice."""

    indexes: Bundle[int] = Bundle("indexes")

    def __init__(self) -> None:
        super().__init__()
        self.writer, self.reader = private_table()
        self.model: dict[int, Row] = {}
        self.generations: set[int] = set()

    @rule(target=indexes, row=ROWS)
    def add(self, row: Row) -> int:
        index, generation = self.writer.add_row(row)
        assert index not in self.model and generation not in self.generations
        self.generations.add(generation)
        self.model[index] = row._replace(row_generation=generation)
        return index

    @rule(index=indexes, row=ROWS)
    def store(self, index: int, row: Row) -> None:
        if index in self.model:
            self.model[index] = row._replace(row_generation=self.model[index].row_generation)
            self.writer.store(index, self.model[index])

    @rule(index=indexes, end=PLACE, position=PLACE)
    def progress(self, index: int, end: int, position: int) -> None:
        if index in self.model:
            self.writer.store_progress(index, end, end, position)
            self.model[index] = self.model[index]._replace(
                log_end_offset=end, high_watermark=end, last_stable_offset=end, active_position=position, watermark_position=position
            )

    @rule(index=consumes(indexes))
    def remove(self, index: int) -> None:
        if self.model.pop(index, None) is not None:
            self.writer.remove_row(index)

    @invariant()
    def scan_agrees(self) -> None:
        assert dict(self.reader.rows()) == self.model and self.reader.torn_rows == 0
        assert len(self.reader.sequences()) % 8 == 0


TestTableAgainstDictionary = pytest.mark.slow(TableAgainstDictionary.TestCase)
