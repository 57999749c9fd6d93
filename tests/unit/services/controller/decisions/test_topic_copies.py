"""Where the replicas of a topic go that had too few of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.controller.admin.topic_copies import plan_copies

BOXES = st.sets(st.integers(1, 5), min_size=1)


def test_all_boxes_get_a_copy_and_each_stands_first_somewhere() -> None:
    planned = plan_copies(dict.fromkeys(range(4), (1,)), (1, 2, 3), {}, 3)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in planned.values())
    assert sorted(replicas[0] for replicas in planned.values()) == [1, 1, 2, 3]


def test_as_many_as_there_are_boxes() -> None:
    assert plan_copies({0: (1,)}, (1, 2), {}, 3) == {0: (1, 2)}
    assert plan_copies({0: (1, 2)}, (1, 2, 3), {}, 3) == {0: (1, 2, 3)}
    assert plan_copies({0: (1,)}, (1,), {}, 3) == {}
    assert plan_copies({0: (1, 2, 3)}, (1, 2, 3), {}, 2) == {}, "nothing is taken away"


def test_a_rack_without_a_copy_comes_first() -> None:
    assert set(plan_copies({0: (1,)}, (1, 2, 3), {1: "a", 2: "a", 3: "b"}, 2)[0]) == {1, 3}


def test_a_box_that_holds_one_and_is_away_is_awaited() -> None:
    assert plan_copies({0: (1,), 1: (4,)}, (1, 2, 3), {}, 3) == {}


@given(BOXES, st.lists(st.lists(st.integers(1, 5), min_size=1, unique=True), min_size=1, max_size=12), st.integers(1, 5))
def test_a_plan_only_adds_registered_boxes_and_balances_preferred_leaders(boxes: set[int], partitions: list[list[int]], factor: int) -> None:
    held = {number: tuple(box for box in replicas if box in boxes) or (min(boxes),) for number, replicas in enumerate(partitions)}
    planned = plan_copies(held, boxes, {}, factor)
    for number, replicas in planned.items():
        assert len(set(replicas)) == len(replicas) == min(factor, len(boxes)) > len(held[number])
        assert set(held[number]) < set(replicas) <= boxes
    assert planned.keys() == {number for number, replicas in held.items() if len(replicas) < min(factor, len(boxes))}
