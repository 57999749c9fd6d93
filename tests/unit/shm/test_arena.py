from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.base.layout import BoxLayout
from appliance.shm.arena import DATA_POSITION, MIN_ORDER, Arena, attach_arena
from lab.scratch_layout import purposes_left

SMALLEST = 1 << MIN_ORDER


@pytest.fixture
def arena(layout: BoxLayout) -> Iterator[Arena]:
    made = Arena.create(layout.shared_memory_name("arena", "acceptor@0", 7), 1 << 16, 7)
    yield made
    made.close()


def test_an_arena_is_rounded_up_to_a_power_of_two_of_at_least_64_kib(layout: BoxLayout) -> None:
    for wanted, given in ((1, 1 << 16), (1 << 16, 1 << 16), ((1 << 16) + 1, 1 << 17), (3 << 20, 4 << 20)):
        arena = Arena.create(layout.shared_memory_name("arena", "x", 1), wanted, 1)
        assert (arena.size_bytes, arena.free_bytes, len(arena.memory)) == (given, given, DATA_POSITION + given)
        arena.close()


def test_a_slot_is_charged_as_it_is_rounded(arena: Arena) -> None:
    for size in (0, 1, SMALLEST, SMALLEST + 1, 5_000, 1 << 15):
        before = arena.free_bytes
        position = arena.allocate(size)
        assert before - arena.free_bytes == Arena.rounded_size(size) >= size
        arena.free(position)
    assert arena.free_bytes == arena.size_bytes


def test_slots_are_aligned_to_their_size(arena: Arena) -> None:
    for size in (1_024, 2_048, 4_096, 8_192):
        assert (arena.allocate(size) - DATA_POSITION) % size == 0


def test_a_full_arena_answers_minus_one_and_serves_again_after_a_free(arena: Arena) -> None:
    taken = [arena.allocate(SMALLEST) for _ in range(arena.size_bytes // SMALLEST)]
    assert arena.allocate(1) == -1 and arena.free_bytes == 0
    arena.free(taken[17])
    assert arena.allocate(SMALLEST) == taken[17]


def test_more_than_the_whole_arena_is_never_there(arena: Arena) -> None:
    assert arena.allocate(arena.size_bytes + 1) == -1
    assert arena.allocate(arena.size_bytes) == DATA_POSITION


def test_slots_freed_in_any_order_are_merged_when_a_large_one_is_wanted(arena: Arena) -> None:
    taken = [arena.allocate(SMALLEST) for _ in range(arena.size_bytes // SMALLEST)]
    for position in taken[1::2] + taken[-2::-2]:
        arena.free(position)
    assert arena.allocate(arena.size_bytes) == DATA_POSITION
    assert arena.allocate(1) == -1, "what was merged is in no other list any more"


def test_a_slot_that_is_held_keeps_its_buddies_apart(arena: Arena) -> None:
    taken = [arena.allocate(SMALLEST) for _ in range(arena.size_bytes // SMALLEST)]
    held = taken.pop(40)
    for position in taken:
        arena.free(position)
    assert arena.allocate(arena.size_bytes) == -1
    assert arena.allocate(arena.size_bytes // 2) >= 0
    assert arena.slots_in_use() == 2
    arena.free(held)


def test_freeing_twice_or_what_was_never_given_out_is_a_violation(arena: Arena) -> None:
    position = arena.allocate(1)
    arena.free(position)
    for wrong in (position, position + 1, 0):
        with pytest.raises(InvariantViolation):
            arena.free(wrong)


def test_the_size_must_be_a_power_of_two(arena: Arena) -> None:
    with pytest.raises(InvariantViolation):
        Arena(arena.shared, 3 << 16)


def test_what_the_owner_writes_a_log_writer_reads_and_stamps(arena: Arena) -> None:
    position = arena.allocate(100)
    arena.memory[position : position + 5] = b"batch"
    mapped = attach_arena(arena.shared.descriptor)
    assert bytes(mapped.memory[position : position + 5]) == b"batch"
    mapped.memory[position : position + 1] = b"B"
    assert bytes(arena.memory[position : position + 5]) == b"Batch"
    mapped.close()


def test_a_closed_arena_leaves_no_name_but_maps_stay_usable(layout: BoxLayout) -> None:
    arena = Arena.create(layout.shared_memory_name("arena", "y", 1), 1 << 16, 1)
    mapped = attach_arena(arena.shared.descriptor)
    arena.close()
    assert purposes_left(layout) == []
    assert bytes(mapped.memory[DATA_POSITION : DATA_POSITION + 4]) == bytes(4)
    mapped.close()
