"""What is remembered of identities: new, under way, unsure, stored, or in part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.ingest.records.ack_group import digest_of, identity_of
from services.ingest.replay.replay_memory import NUMBERS_MAX, Known, Ordinals, ReplayMemory

CHUNK, OTHER = digest_of(b"chunk"), digest_of(b"other")


def test_a_chunk_is_new_then_under_way_then_stored() -> None:
    memory = ReplayMemory(10, 1000)
    assert memory.lookup(CHUNK) is Known.NEW
    memory.begin(CHUNK)
    assert memory.lookup(CHUNK) is Known.IN_FLIGHT
    memory.add_stored("syslog", [(CHUNK, 0, 3)])
    memory.completed(CHUNK, True, 0)
    assert memory.lookup(CHUNK) is Known.STORED
    assert memory.has(CHUNK, "syslog", 99) and memory.has(CHUNK, "anywhere", 0)


def test_a_chunk_of_which_a_part_was_refused_is_stored_where_it_was_not() -> None:
    memory = ReplayMemory(10, 1000)
    memory.begin(CHUNK)
    memory.add_stored("syslog", [(CHUNK, 2, 2), (CHUNK, 7, 1)])
    memory.completed(CHUNK, False, 0)
    assert memory.lookup(CHUNK) is Known.PARTLY
    assert [ordinal for ordinal in range(10) if memory.has(CHUNK, "syslog", ordinal)] == [2, 3, 7]
    assert not memory.has(CHUNK, "errors", 2)
    memory.begin(CHUNK)
    memory.completed(CHUNK, True, 0)
    assert memory.lookup(CHUNK) is Known.STORED


def test_a_chunk_of_which_nothing_was_stored_is_new_again() -> None:
    memory = ReplayMemory(10, 1000)
    memory.begin(CHUNK)
    memory.completed(CHUNK, False, 0)
    assert memory.lookup(CHUNK) is Known.NEW and len(memory) == 0


def test_waiting_replays_are_notified_after_the_first_one_completes_and_not_from_within() -> None:
    memory = ReplayMemory(10, 1000)
    told: list[Known] = []
    memory.begin(CHUNK)
    memory.when_known(CHUNK, lambda: told.append(memory.lookup(CHUNK)))
    assert memory.notify() == 0
    memory.completed(CHUNK, True, 0)
    assert len(told) == 0 and memory.has_callbacks
    assert memory.notify() == 1
    assert told == [Known.STORED]


def test_identities_of_a_previous_incarnation_are_unresolved_until_every_batch_is_known() -> None:
    memory = ReplayMemory(10, 1000)
    told: list[Known] = []
    first, second = [(CHUNK, 0, 2), (OTHER, 0, 1)], [(CHUNK, 2, 2), (CHUNK, 9, 1)]
    memory.add_unresolved(first)
    memory.add_unresolved(second)
    assert memory.lookup(CHUNK) is memory.lookup(OTHER) is Known.UNRESOLVED
    memory.when_known(CHUNK, lambda: told.append(memory.lookup(CHUNK)))
    memory.resolve("syslog", first, True, 0)
    assert memory.lookup(CHUNK) is Known.UNRESOLVED and memory.lookup(OTHER) is Known.PARTLY
    memory.resolve("syslog", second, False, 0)
    memory.notify()
    assert told == [Known.PARTLY]
    assert [ordinal for ordinal in range(10) if memory.has(CHUNK, "syslog", ordinal)] == [0, 1]


def test_what_no_leader_has_is_new() -> None:
    memory = ReplayMemory(10, 1000)
    memory.add_unresolved([(CHUNK, 0, 2)])
    memory.resolve("syslog", [(CHUNK, 0, 2)], False, 0)
    assert memory.lookup(CHUNK) is Known.NEW and len(memory) == 0


def test_the_oldest_go_first_by_number_and_by_age_and_what_is_under_way_stays() -> None:
    memory = ReplayMemory(3, 1000)
    chunks = [digest_of(b"%d" % number) for number in range(5)]
    memory.begin(CHUNK)
    for now_ms, chunk in enumerate(chunks):
        memory.begin(chunk)
        memory.completed(chunk, True, now_ms)
    assert [memory.lookup(chunk) for chunk in chunks] == [Known.NEW, Known.NEW, Known.STORED, Known.STORED, Known.STORED]
    memory.expire(1003)
    assert [memory.lookup(chunk) for chunk in chunks[3:]] == [Known.NEW, Known.STORED]
    assert memory.lookup(CHUNK) is Known.IN_FLIGHT


def test_streams_are_kept_until_they_are_forgotten() -> None:
    memory = ReplayMemory(3, 1000)
    memory.keep(CHUNK)
    memory.add_unresolved([(CHUNK, 5, 2)])
    memory.resolve("syslog", [(CHUNK, 5, 2)], True, 0)
    memory.remember_found(0)
    memory.expire(10_000_000)
    assert memory.has(CHUNK, "syslog", 6)
    memory.forget(CHUNK)
    assert not memory.has(CHUNK, "syslog", 6) and len(memory) == 0


def test_a_long_stream_costs_little() -> None:
    memory = ReplayMemory(3, 1000)
    memory.keep(CHUNK)
    for serial in range(0, 5_000_000, 50_000):
        memory.add_stored("syslog", [(CHUNK, serial, 50_000)])
        memory.trim_stream(CHUNK)
    assert memory.has(CHUNK, "syslog", 4_999_999)
    assert memory.stored_of(CHUNK)["syslog"].bits.bit_length() <= 8192


def test_identities_depend_on_where_their_parts_end() -> None:
    assert identity_of(b"a", b"bc") != identity_of(b"ab", b"c")
    assert len(identity_of(b"a")) == len(digest_of(b"a")) == 16


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=20), st.integers(0, 300))
def test_ordinals_are_a_set(runs: list[tuple[int, int]], cut: int) -> None:
    ordinals = Ordinals()
    expected: set[int] = set()
    for first, count in runs:
        ordinals.add(first, count)
        expected |= set(range(first, first + count))
    assert {number for number in range(400) if number in ordinals} == expected
    assert len(ordinals) == len(expected)
    assert {number for first, count in ordinals.runs() for number in range(first, first + count)} == expected
    ordinals.forget_below(cut)
    assert {number for number in range(400) if number in ordinals} == {number for number in expected if number >= cut}


def test_ordinals_far_apart_take_bounded_memory() -> None:
    ordinals = Ordinals()
    ordinals.add(10 * NUMBERS_MAX, 1)
    ordinals.add(0, 1)
    ordinals.add(1 << 60, 5)
    assert ordinals.bits.bit_length() <= NUMBERS_MAX and (1 << 60) + 4 in ordinals
