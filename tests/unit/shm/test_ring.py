from __future__ import annotations

from struct import Struct
from struct import error as StructError

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.shm.ring import RingConsumer, RingProducer

ENTRY = Struct("@8Q")
TAIL, HEAD, BASE, CAPACITY = 0, 1, 64, 8


def make_ring(first: int = 0) -> tuple[memoryview, RingProducer, RingConsumer]:
    """A ring in private memory, as if `first` entries had passed already."""
    memory = memoryview(bytearray(BASE + CAPACITY * 64))
    words = memory.cast("Q")
    words[TAIL] = words[HEAD] = first
    return words, RingProducer(memory, words, ENTRY, BASE, CAPACITY, TAIL, HEAD), RingConsumer(memory, words, ENTRY, BASE, CAPACITY, TAIL, HEAD)


def entry(number: int) -> tuple[int, ...]:
    return (number, *range(7))


def test_entries_come_out_in_order_and_once() -> None:
    _, producer, consumer = make_ring()
    for number in range(5):
        assert producer.offer(*entry(number))
    assert consumer.has_entries()
    assert consumer.poll(3) + consumer.poll(3) == [entry(number) for number in range(5)]
    assert consumer.poll(3) == [] and not consumer.has_entries()


def test_a_full_ring_refuses_offers_until_the_consumer_polls() -> None:
    _, producer, consumer = make_ring()
    assert all(producer.offer(*entry(number)) for number in range(CAPACITY))
    assert not producer.offer(*entry(99)) and producer.free_entries() == 0
    assert consumer.poll(1) == [entry(0)]
    assert producer.free_entries() == 1
    assert producer.offer(*entry(8)) and not producer.offer(*entry(99))
    assert consumer.poll(99) == [entry(number) for number in range(1, 9)]


def test_a_burst_goes_around_the_end_in_one_piece() -> None:
    words, producer, consumer = make_ring(first=CAPACITY * 1000 - 3)
    producer.offer_all([entry(number) for number in range(6)])
    assert words[TAIL] == CAPACITY * 1000 + 3
    assert consumer.poll(99) == [entry(number) for number in range(6)]
    assert words[HEAD] == words[TAIL]


def test_a_burst_that_does_not_fit_is_a_violation_and_publishes_nothing() -> None:
    words, producer, consumer = make_ring()
    producer.offer_all([entry(0)] * 5)
    with pytest.raises(InvariantViolation):
        producer.offer_all([entry(1)] * 4)
    assert words[TAIL] == 5 and len(consumer.poll(99)) == 5


def test_the_tail_is_published_after_the_entry() -> None:
    words, producer, _ = make_ring()
    with pytest.raises(StructError):
        producer.offer(1, 2, 3, 4, 5, 6, 7, 1 << 64)
    assert words[TAIL] == 0
    assert producer.offer(*entry(1)) and words[TAIL] == 1


def test_the_head_is_published_after_the_entries_were_copied() -> None:
    _, producer, consumer = make_ring()
    producer.offer_all([entry(number) for number in range(CAPACITY)])
    entries = consumer.poll(CAPACITY)
    producer.offer_all([entry(100 + number) for number in range(CAPACITY)])
    assert entries == [entry(number) for number in range(CAPACITY)]


def test_both_sides_go_on_where_the_words_say() -> None:
    memory = memoryview(bytearray(BASE + CAPACITY * 64))
    words = memory.cast("Q")
    RingProducer(memory, words, ENTRY, BASE, CAPACITY, TAIL, HEAD).offer_all([entry(1), entry(2)])
    assert RingConsumer(memory, words, ENTRY, BASE, CAPACITY, TAIL, HEAD).poll(1) == [entry(1)]
    assert list(RingConsumer(memory, words, ENTRY, BASE, CAPACITY, TAIL, HEAD)) == [entry(2)]
    assert RingProducer(memory, words, ENTRY, BASE, CAPACITY, TAIL, HEAD).free_entries() == CAPACITY


@pytest.mark.parametrize("tail", [CAPACITY + 1, (1 << 64) - 1])
def test_a_tail_that_cannot_be_kills_the_reader(tail: int) -> None:
    words, _, consumer = make_ring(first=5 if tail > 100 else 0)
    words[TAIL] = tail if tail < 100 else 3  # far ahead, or behind the head
    with pytest.raises(InvariantViolation):
        consumer.poll(8)


@pytest.mark.parametrize(("struct", "base", "capacity"), [(Struct("@7Q"), BASE, 8), (ENTRY, BASE, 6), (ENTRY, BASE + 4, 8)])
def test_a_ring_has_a_power_of_two_of_aligned_64_byte_entries(struct: Struct, base: int, capacity: int) -> None:
    memory = memoryview(bytearray(BASE + 16 * 64))
    for end in (RingProducer, RingConsumer):
        with pytest.raises(InvariantViolation):
            end(memory, memory.cast("Q"), struct, base, capacity, TAIL, HEAD)
