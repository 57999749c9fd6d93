"""Placement of replicas on boxes: one per box, across racks, within the free space, with as few
moves as possible.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from appliance.cluster.box_balance import (
    PARTITION_BYTES,
    BalancePlan,
    BoxCapacity,
    PlannedReassignment,
    ReplicatedPartition,
    plan_balance,
    plan_box_drain,
    plan_replication_factor,
)

GIB = 1 << 30


def box(broker_id: int, rack: str | None = None, free: int = 80 * GIB, total: int = 100 * GIB) -> BoxCapacity:
    return BoxCapacity(broker_id, rack, free, total)


def test_a_leaving_box_is_replaced_in_its_place() -> None:
    plan = plan_box_drain([ReplicatedPartition("t", 0, (1, 2), GIB), ReplicatedPartition("t", 1, (2, 3), GIB)], [box(1), box(2), box(3)], {1})
    assert plan == BalancePlan((PlannedReassignment("t", 0, (1, 2), (3, 2), GIB),))
    assert plan.bytes_to() == {3: GIB} and plan.moved_bytes == GIB


def test_a_rack_without_a_replica_is_preferred_to_more_free_space() -> None:
    boxes = [box(1, "a"), box(2, "b"), box(3, "b", free=90 * GIB), box(4, "a", free=20 * GIB)]
    assert plan_box_drain([ReplicatedPartition("t", 0, (1, 2), GIB)], boxes, {1}).changes[0].replicas == (4, 2)
    full = [*boxes[:3], box(4, "a", free=5 * GIB)]
    assert plan_box_drain([ReplicatedPartition("t", 0, (1, 2), GIB)], full, {1}).changes[0].replicas == (3, 2), "but free space is required"


def test_what_no_box_can_take_is_said() -> None:
    held = ReplicatedPartition("t", 0, (1, 2), GIB)
    assert plan_box_drain([held], [box(1), box(2)], {1}) == BalancePlan((), (held,))


def test_boxes_that_are_alike_take_turns() -> None:
    plan = plan_box_drain([ReplicatedPartition("t", number, (1,), 0) for number in range(6)], [box(1), box(2), box(3), box(4)], {1})
    assert sorted(change.replicas[0] for change in plan.changes) == [2, 2, 3, 3, 4, 4]


def test_a_new_box_gets_its_share_with_the_fewest_moves() -> None:
    held = [ReplicatedPartition("big", 0, (1, 2), 30 * GIB), *(ReplicatedPartition("small", number, (1, 2), GIB) for number in range(30))]
    plan = plan_balance(held, [box(1), box(2), box(3)], {3})
    assert 40 * GIB - 2 * GIB <= plan.moved_bytes <= 40 * GIB + 2 * GIB
    assert plan.changes[0].topic == "big" and len(plan.changes) <= 12


def test_a_balanced_cluster_stays_as_it_is() -> None:
    held = [ReplicatedPartition("t", number, (1 + number % 3, 1 + (number + 1) % 3), GIB) for number in range(9)]
    assert plan_balance(held, [box(1), box(2), box(3)], {1, 2, 3}) == BalancePlan(())


def test_a_lower_replication_factor_keeps_the_leader_and_removes_lagging_replicas_first() -> None:
    boxes = [box(1, "a"), box(2, "a"), box(3, "b")]
    held = ReplicatedPartition("t", 0, (1, 2, 3), GIB, isr=(1, 2))
    assert plan_replication_factor([held], boxes, 2).changes[0].replicas == (1, 2)
    assert plan_replication_factor([held._replace(isr=(1, 2, 3))], boxes, 2).changes[0].replicas == (1, 3), "and then the one that shares a rack"
    assert plan_replication_factor([held], boxes, 1).changes[0].replicas == (1,)


def test_a_higher_replication_factor_uses_racks_and_free_space() -> None:
    boxes = [box(1, "a"), box(2, "a", free=99 * GIB), box(3, "b")]
    assert plan_replication_factor([ReplicatedPartition("t", 0, (1,), GIB)], boxes, 2).changes[0].replicas == (1, 3)
    assert plan_replication_factor([ReplicatedPartition("t", 0, (1,), GIB)], boxes, 4).unplaced


def test_more_replicas_share_the_leading_among_the_boxes() -> None:
    """A topic that was made on one box is not led by it alone for ever."""
    boxes = [box(1), box(2), box(3)]
    changes = plan_replication_factor([ReplicatedPartition("t", number, (1,), GIB) for number in range(6)], boxes, 3).changes
    assert Counter(change.replicas[0] for change in changes) == {1: 2, 2: 2, 3: 2}
    grown = [ReplicatedPartition("t", 0, (1,), GIB), ReplicatedPartition("t", 1, (2, 1), GIB)]
    assert plan_replication_factor(grown, boxes, 2).changes[0].replicas[0] == 1, "box 2 leads the other one"


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[ReplicatedPartition], list[BoxCapacity]]:
    count = draw(st.integers(2, 6))
    with_racks = draw(st.booleans())
    boxes = [box(number, draw(st.sampled_from("abc")) if with_racks else None, draw(st.integers(0, 100)) * GIB) for number in range(1, count + 1)]
    held = []
    for number in range(draw(st.integers(0, 25))):
        replicas = draw(st.lists(st.integers(1, count), min_size=1, max_size=count, unique=True))
        held.append(ReplicatedPartition("t", number, tuple(replicas), draw(st.sampled_from([0, 1, GIB, 7 * GIB, 20 * GIB]))))
    return held, boxes


def racks_of(boxes: list[BoxCapacity], replicas: tuple[int, ...]) -> int:
    racks = {each.broker_id: each.rack for each in boxes}
    return len({racks[replica] for replica in replicas})


def check_plan(plan: BalancePlan, held: list[ReplicatedPartition], boxes: list[BoxCapacity]) -> None:
    former = {(each.topic, each.partition): each for each in held}
    free = {each.broker_id: each.usable_bytes for each in boxes}
    for change in plan.changes:
        assert change.former == former.pop((change.topic, change.partition)).replicas != change.replicas, "each partition once"
        assert len(set(change.replicas)) == len(change.replicas)
    for broker_id, received in plan.bytes_to().items():
        assert received <= max(0, free[broker_id])


@given(clusters(), st.data())
def test_a_drain_empties_the_box_within_the_free_space(cluster: tuple[list[ReplicatedPartition], list[BoxCapacity]], data: st.DataObject) -> None:
    held, boxes = cluster
    leaving = data.draw(st.integers(1, len(boxes)))
    plan = plan_box_drain(held, boxes, {leaving})
    check_plan(plan, held, boxes)
    assert len(plan.changes) + len(plan.unplaced) == sum(1 for each in held if leaving in each.replicas)
    for change in plan.changes:
        assert leaving in change.former and leaving not in change.replicas and len(change.coming) == 1
        assert change.replicas.index(change.coming[0]) == change.former.index(leaving)


@given(clusters(), st.data())
def test_balancing_brings_every_box_nearer_to_its_share(cluster: tuple[list[ReplicatedPartition], list[BoxCapacity]], data: st.DataObject) -> None:
    held, boxes = cluster
    onto = data.draw(st.sets(st.integers(1, len(boxes)), min_size=1))
    plan = plan_balance(held, boxes, onto)
    check_plan(plan, held, boxes)
    share = sum((each.size_bytes + PARTITION_BYTES) * len(each.replicas) for each in held) // len(boxes)

    def unevenness(replicas: dict[int, tuple[int, ...]]) -> int:
        weights = dict.fromkeys(range(1, len(boxes) + 1), 0)
        for each in held:
            for replica in replicas.get(each.partition, each.replicas):
                weights[replica] += each.size_bytes + PARTITION_BYTES
        return sum(abs(weight - share) for weight in weights.values())

    changed = {change.partition: change.replicas for change in plan.changes}
    assert not changed or unevenness(changed) < unevenness({})
    for change in plan.changes:
        assert set(change.coming) <= onto and len(change.replicas) == len(change.former)
        assert racks_of(boxes, change.replicas) >= racks_of(boxes, change.former)


@given(clusters(), st.integers(1, 4))
def test_every_partition_gets_its_number_of_replicas(cluster: tuple[list[ReplicatedPartition], list[BoxCapacity]], factor: int) -> None:
    held, boxes = cluster
    plan = plan_replication_factor(held, boxes, factor)
    check_plan(plan, held, boxes)
    changed = {change.partition: change.replicas for change in plan.changes}
    without = {each.partition for each in plan.unplaced}
    for each in held:
        replicas = changed.get(each.partition, each.replicas)
        assert len(replicas) == factor or each.partition in without
        assert replicas[0] == each.replicas[0] or len(each.replicas) < factor
