from __future__ import annotations

from struct import Struct
from types import SimpleNamespace

import pytest

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import SharedObject, SharedObjectAbsent
from appliance.shm.ring import CAPACITY_WORD, RingPair

ENTRY = Struct("@8Q")


def test_each_ring_has_its_own_entries_and_words(layout: BoxLayout) -> None:
    source = RingPair.create(layout.shared_memory_name("channel", "acceptor@0.d0.1", 5), 4, 5)
    sink = RingPair.attach(source.shared.descriptor)
    assert sink.capacity == 4
    down, up = source.descriptor_producer(ENTRY), sink.completion_producer(ENTRY)
    for number in range(4):
        assert down.offer(number, *range(7))
        assert up.offer(100 + number, *range(7))
    assert not down.offer(*range(8)) and not up.offer(*range(8))
    assert [entry[0] for entry in sink.descriptor_consumer(ENTRY).poll(9)] == [0, 1, 2, 3]
    assert [entry[0] for entry in source.completion_consumer(ENTRY).poll(9)] == [100, 101, 102, 103]
    sink.close()
    source.close()


def test_the_capacity_that_was_checked_is_used_whatever_its_word_says_later(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    source = RingPair.create(layout.shared_memory_name("channel", "acceptor@0.d0.1", 5), 8, 5)
    capacities = iter((8, 1 << 20))

    class _Words:
        def __getitem__(self, index: int) -> int:
            return next(capacities) if index == CAPACITY_WORD else 0

    attached = SimpleNamespace(words=_Words(), memory=source.shared.memory)
    monkeypatch.setattr(SharedObject, "attach_sealed", lambda *_arguments, **_more: attached)
    assert RingPair.attach(source.shared.descriptor).capacity == 8
    source.close()


def test_rings_whose_capacity_reaches_beyond_their_end_are_not_mapped(layout: BoxLayout) -> None:
    """Another user's process may have stored it."""
    source = RingPair.create(layout.shared_memory_name("channel", "acceptor@0.d0.1", 5), 8, 5)
    for capacity in (0, 7, 1 << 20, 1 << 63):
        source.shared.words[CAPACITY_WORD] = capacity
        with pytest.raises(SharedObjectAbsent):
            RingPair.attach(source.shared.descriptor)
    source.close()
