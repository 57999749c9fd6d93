"""The controller's decisions: creation, placement, election, epochs."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.placement import (
    BoundReached,
    BrokerPool,
    CreationDefaults,
    DiskSpace,
    PlacedReplicas,
    TopicCreation,
    bump_leader_epoch,
    elect_leader,
    first_partition_state,
    place_partitions,
    plan_topic_creation,
    request_problem,
    spread_replicas,
    wanted_partitions,
)
from appliance.cluster.znodes import PartitionState

DEFAULTS = CreationDefaults(3, 1)
GB = 1 << 30


def refusal(wanted: TopicCreation, existing: tuple[str, ...] = (), live: tuple[int, ...] = (1,)) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        plan_topic_creation(wanted, existing, BrokerPool(live), DEFAULTS)
    return refused.value.code


def test_a_topic_that_says_nothing_gets_the_brokers_defaults() -> None:
    plan = plan_topic_creation(TopicCreation("t"), (), BrokerPool((1,)), DEFAULTS)
    assert plan.assignment == {0: (1,), 1: (1,), 2: (1,)} and plan.replication_factor == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_names_that_kafka_does_not_allow_are_refused(name: str) -> None:
    assert refusal(TopicCreation(name)) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_taken_names_and_colliding_names_have_different_errors() -> None:
    assert refusal(TopicCreation("a.b"), ("x", "a.b")) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert refusal(TopicCreation("a_b"), ("x", "a.b")) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal(TopicCreation("a.b"), ("a_b", "a.b")) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_closed_broker_gets_only_what_names_it() -> None:
    chosen = plan_topic_creation(TopicCreation("t", 6, 2), (), BrokerPool((1, 2, 3), closed={2, 9}), DEFAULTS)
    assert {broker for replicas in chosen.assignment.values() for broker in replicas} == {1, 3}
    assert plan_topic_creation(TopicCreation("t", assignments=((0, (2, 1)),)), (), BrokerPool((1, 2, 3), closed={2}), DEFAULTS).assignment == {0: (2, 1)}
    with pytest.raises(RequestRefused, match=r"3 larger than available brokers: 2 \(2 is being emptied\)"):
        plan_topic_creation(TopicCreation("t", 1, 3), (), BrokerPool((1, 2, 3), closed={2}), DEFAULTS)


def test_numbers_are_checked_against_live_brokers() -> None:
    assert refusal(TopicCreation("t", 0)) is ErrorCode.INVALID_PARTITIONS
    assert refusal(TopicCreation("t", -2)) is ErrorCode.INVALID_PARTITIONS
    assert refusal(TopicCreation("t", 1, 0)) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert refusal(TopicCreation("t", 1, 2)) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert refusal(TopicCreation("t", 10_001)) is ErrorCode.INVALID_PARTITIONS


def test_numbers_are_checked_before_anything_is_made_for_each_partition() -> None:
    tracemalloc.start()
    try:
        assert refusal(TopicCreation("t", 2**31 - 1)) is ErrorCode.INVALID_PARTITIONS
        assert refusal(TopicCreation("t", assignments=tuple((0, (1,)) for _ in range(10_001)))) is ErrorCode.INVALID_PARTITIONS
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_one_request_asks_for_so_many_new_partitions_in_all() -> None:
    assert request_problem([10_000], DEFAULTS) is None and request_problem([5_000, 5_000], DEFAULTS) is None
    assert request_problem([10_000, 1], DEFAULTS) is not None and request_problem([10_000] * 400, DEFAULTS) is not None
    assert request_problem([2**31 - 1, 3], DEFAULTS) is None, "the first is refused by itself, and says so better"
    assert request_problem([-1] * 10_001, DEFAULTS) is not None, "nonsense costs its look, too"
    assert wanted_partitions(-1, 0, DEFAULTS) == 3 and wanted_partitions(-1, 7, DEFAULTS) == 7


@pytest.mark.parametrize(
    "assignments",
    [
        ((0, (1, 1)),),
        ((0, ()),),
        ((1, (1,)),),
        ((0, (1,)), (2, (1,))),
        ((0, (1,)), (0, (2,))),
        ((0, (1,)), (1, (1, 2))),
        ((0, (3,)),),
    ],
)
def test_assignments_that_cannot_be_are_refused(assignments: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
    assert refusal(TopicCreation("t", assignments=assignments), live=(1, 2)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_assignment_is_taken_as_given() -> None:
    plan = plan_topic_creation(TopicCreation("t", assignments=((1, (1, 2)), (0, (2, 1)))), (), BrokerPool((1, 2)), DEFAULTS)
    assert plan.assignment == {1: (1, 2), 0: (2, 1)}


def test_an_assignment_beside_numbers_is_a_contradiction() -> None:
    assert refusal(TopicCreation("t", 1, -1, ((0, (1,)),))) is ErrorCode.INVALID_REQUEST


def test_wrong_configs_are_refused() -> None:
    assert refusal(TopicCreation("t", configs=(("retention.ms", "soon"),))) is ErrorCode.INVALID_CONFIG
    assert refusal(TopicCreation("t", configs=(("retention.ms", None),))) is ErrorCode.INVALID_CONFIG


@given(st.integers(1, 6), st.integers(1, 30), st.data())
def test_replicas_are_spread_evenly_and_never_twice_on_a_broker(brokers: int, partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, brokers))
    assignment = spread_replicas(range(1, brokers + 1), partitions, factor, data.draw(st.integers(0, 50)))
    leaders = [replicas[0] for replicas in assignment.values()]
    assert all(len(set(replicas)) == factor for replicas in assignment.values())
    counts = [leaders.count(broker) for broker in range(1, brokers + 1)]
    assert max(counts) - min(counts) <= 1


def test_partitions_go_where_space_is_not_where_partitions_are_few() -> None:
    disks = [DiskSpace("big", 1000 * GB, 400), DiskSpace("small", 100 * GB, 0)]
    assert place_partitions([0, 1, 2, 3], disks) == dict.fromkeys(range(4), "big")


def test_disks_that_are_alike_take_turns() -> None:
    disks = [DiskSpace("a", 1000 * GB, 3), DiskSpace("b", 1001 * GB, 3)]
    placed = list(place_partitions(range(8), disks).values())
    assert (placed.count("a"), placed.count("b")) == (4, 4)
    assert place_partitions([0], [DiskSpace("a", 999 * GB, 0), DiskSpace("b", 1000 * GB, 9)]) == {0: "a"}


def test_disks_whose_space_is_unknown_take_turns_too() -> None:
    placed = list(place_partitions(range(4), [DiskSpace("a", 0, 0), DiskSpace("b", 0, 0)]).values())
    assert sorted(placed) == ["a", "a", "b", "b"]


def test_without_a_disk_nothing_is_placed() -> None:
    with pytest.raises(RequestRefused) as refused:
        place_partitions([0], [])
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=6), st.integers(1, 50))
def test_every_partition_is_placed_once_and_no_disk_is_overrun(free: list[int], count: int) -> None:
    disks = [DiskSpace(str(index), size, 0) for index, size in enumerate(free)]
    placement = place_partitions(range(count), disks)
    assert sorted(placement) == list(range(count))
    share, step = max(free) // (count + 1), max(1, max(free) // 100)
    for disk in disks:
        taken = sum(1 for directory in placement.values() if directory == disk.directory_id)
        assert disk.free_bytes - taken * share >= -step - share or taken == 0


def test_the_first_state_is_led_by_the_first_live_replica() -> None:
    assert first_partition_state((3, 1, 2), (1, 2), 7) == PartitionState(1, 0, 7, (1, 2))
    assert first_partition_state((3,), (1, 2), 7) is None


STATE = PartitionState(1, 4, 7, (1, 2))


def test_a_leader_is_elected_from_live_replicas_in_sync() -> None:
    assert elect_leader(STATE, (1, 2, 3), (2, 3), False, 8) == PartitionState(2, 5, 8, (2,))


def test_no_replica_out_of_sync_leads_unless_unclean_election_is_allowed() -> None:
    assert elect_leader(STATE, (1, 2, 3), (3,), False, 8) == PartitionState(-1, 5, 8, (1, 2))
    assert elect_leader(STATE, (1, 2, 3), (3,), True, 8) == PartitionState(3, 5, 8, (3,), 1)


def test_a_sole_replica_leads_again_under_a_new_epoch() -> None:
    assert elect_leader(PartitionState(-1, 5, 7, (1,)), (1,), (1,), False, 8) == PartitionState(1, 6, 8, (1,))


@given(st.sets(st.integers(1, 5), min_size=1), st.sets(st.integers(1, 5), min_size=1), st.sets(st.integers(1, 5)), st.booleans())
def test_an_election_never_keeps_an_epoch_and_never_invents_a_replica(replicas: set[int], isr: set[int], live: set[int], unclean: bool) -> None:
    state = PartitionState(min(isr), 3, 1, tuple(sorted(isr & replicas)))
    elected = elect_leader(state, sorted(replicas), live, unclean, 2)
    assert elected.leader_epoch == 4
    assert elected.leader == -1 or (elected.leader in live & replicas and elected.leader in elected.isr)
    assert unclean or set(elected.isr) <= set(state.isr)


def test_after_an_unclean_boot_the_epoch_moves_and_nothing_else() -> None:
    assert bump_leader_epoch(STATE, 9) == PartitionState(1, 5, 9, (1, 2))


# ---- bounds of what clients create by name


BOUNDS = CreationDefaults(topics_max=2, partitions_per_box_max=4)


def test_a_topic_beyond_the_bound_is_refused_and_internal_topics_are_not() -> None:
    placed = PlacedReplicas({"a": {0: (1,)}, "__consumer_offsets": {0: (1,)}}, BOUNDS)
    placed.admit("b", {0: (1,)}, is_new=True)
    with pytest.raises(BoundReached, match=r"has 2 topics and max\.topics is 2; delete topics, or raise the setting") as refused:
        placed.admit("c", {0: (2,)}, is_new=True)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    placed.admit("__transaction_state", {0: (1,)}, is_new=True)


def test_replicas_count_by_box_for_new_topics_and_for_grown_ones() -> None:
    placed = PlacedReplicas({"a": {0: (1, 2), 1: (1, 3)}}, BOUNDS)
    placed.admit("b", {0: (1,), 1: (3,)}, is_new=True)
    placed.admit("a", {2: (1,)}, is_new=False)
    with pytest.raises(BoundReached, match=r"1 partitions of topic 'a' are not created: broker 1 has 4 and max\.partitions\.per\.box is 4"):
        placed.admit("a", {3: (3, 1)}, is_new=False)
    placed.admit("a", {3: (3, 2)}, is_new=False)


def test_a_cluster_above_a_bound_keeps_what_it_has_and_gets_no_more() -> None:
    placed = PlacedReplicas({name: dict.fromkeys(range(3), (1,)) for name in "abc"}, BOUNDS)
    for is_new in (True, False):
        with pytest.raises(BoundReached):
            placed.admit("d" if is_new else "a", {3: (1,)}, is_new)
    placed.admit("a", {3: (2,)}, is_new=False)
