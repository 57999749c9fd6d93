"""Keys land where Kafka's own producers put them."""

from __future__ import annotations

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.records.keys import partition_of_key
from services.ingest.records import partitioner as partitioner_module
from services.ingest.records.partitioner import CACHED_KEYS_MAX, Partitioner, next_live_partition


def test_a_key_has_one_partition() -> None:
    partitioner = Partitioner(7)
    for number in range(100):
        key = b"host-%d" % number
        assert partitioner.choose(key) == partitioner.choose(key) == partition_of_key(key, 7)


def test_keys_of_any_length_have_a_partition_and_long_ones_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner_module, "HASHED_BYTES_MAX", 2000)
    partitioner = Partitioner(7)
    long = [b"%d" % number + b"x" * 1000 for number in range(50)]
    assert [partitioner.choose(key) for key in long] == [partition_of_key(key, 7) for key in long]
    assert partitioner.cached_key_count == 0
    endless = b"x" * 2000
    assert partitioner.choose(endless + b"x") == partition_of_key(endless, 7) == partitioner.choose(endless + b"y")


def test_records_without_key_stay_until_a_batch_is_closed_and_take_turns() -> None:
    partitioner = Partitioner(3)
    chosen = []
    for _ in range(6):
        assert partitioner.choose(None) == partitioner.choose(None)
        chosen.append(partitioner.choose(None))
        partitioner.on_batch_closed(chosen[-1])
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_batch_closed_elsewhere_is_not_their_turn() -> None:
    partitioner = Partitioner(3)
    partitioner.on_batch_closed(2)
    assert partitioner.choose(None) == 0


def test_keys_move_when_the_topic_grows() -> None:
    partitioner = Partitioner(1)
    assert partitioner.choose(b"foobar") == 0
    partitioner.resize(8)
    assert partitioner.choose(b"foobar") == partition_of_key(b"foobar", 8) != 0


def test_a_topic_does_not_shrink() -> None:
    with pytest.raises(InvariantViolation):
        Partitioner(3).resize(2)


def test_remembered_keys_are_bounded() -> None:
    partitioner = Partitioner(2)
    for number in range(CACHED_KEYS_MAX + 1):
        partitioner.choose(b"%d" % number)
    assert partitioner.cached_key_count <= CACHED_KEYS_MAX


def test_keys_of_a_dead_partition_go_to_the_next_living_one_and_come_back() -> None:
    partitioner = Partitioner(4)
    keys = [b"host-%d" % number for number in range(100)]
    home = {key: partitioner.choose(key) for key in keys}
    partitioner.set_dead(frozenset({1, 2}))
    assert all(partitioner.choose(key) == (3 if home[key] in (1, 2) else home[key]) for key in keys)
    partitioner.set_dead(frozenset())
    assert all(partitioner.choose(key) == home[key] for key in keys)


def test_records_without_key_pass_by_a_dead_partition() -> None:
    partitioner = Partitioner(3)
    partitioner.set_dead(frozenset({0}))
    chosen = []
    for _ in range(4):
        chosen.append(partitioner.choose(None))
        partitioner.on_batch_closed(chosen[-1])
    assert chosen == [1, 2, 1, 2]
    partitioner.blocked = frozenset({1, 2})
    assert partitioner.choose(None) != 0


def test_no_partition_is_substituted_if_all_are_dead() -> None:
    assert [next_live_partition(partition, 3, frozenset({0, 1, 2})) for partition in range(3)] == [0, 1, 2]
    assert [next_live_partition(partition, 3, frozenset({2})) for partition in range(3)] == [0, 1, 0]
