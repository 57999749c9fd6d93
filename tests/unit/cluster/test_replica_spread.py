"""Where replicas of new partitions go when boxes stand in racks: Kafka's own examples, and what must hold whatever the racks are."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from appliance.cluster.placement import known_racks, rack_alternated, spread_replicas

RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
"""The example in Kafka's own description of its algorithm."""


def test_racks_take_turns_in_the_order_of_boxes() -> None:
    assert rack_alternated(RACKS) == [0, 3, 1, 5, 4, 2]


def test_replicas_lie_as_in_kafkas_description() -> None:
    spread = spread_replicas(sorted(RACKS), 7, 3, 0, racks=RACKS)
    assert spread == {0: (0, 3, 1), 1: (3, 1, 5), 2: (1, 5, 4), 3: (5, 4, 2), 4: (4, 2, 0), 5: (2, 0, 3), 6: (0, 4, 2)}


def test_one_box_without_a_rack_makes_racks_not_count() -> None:
    mixed = {**RACKS, 3: None}
    assert known_racks(sorted(RACKS), mixed) == {}
    assert spread_replicas(sorted(RACKS), 7, 3, 2, racks=mixed) == spread_replicas(sorted(RACKS), 7, 3, 2)


@given(st.data())
def test_replicas_lie_in_as_many_racks_as_there_can_be(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    racks = {broker: data.draw(st.sampled_from("abcd")) for broker in range(1, count + 1)}
    factor = data.draw(st.integers(1, count))
    partitions, first = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 20))
    spread = spread_replicas(sorted(racks), partitions, factor, first, racks=dict(racks))
    assert sorted(spread) == list(range(partitions))
    for replicas in spread.values():
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in spread.values())
    assert max(leaders.values()) - min(leaders[broker] for broker in racks) <= 1


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 10))
def test_a_topic_grows_to_what_it_would_have_been(there: int, added: int, first: int) -> None:
    racks = dict(RACKS)
    whole = spread_replicas(sorted(RACKS), there + added, 2, first, racks=racks)
    grown = spread_replicas(sorted(RACKS), there + added, 2, first, there, racks)
    assert grown == {partition: whole[partition] for partition in range(there, there + added)}
