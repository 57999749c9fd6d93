"""Elections by order, and leadership that returns: Kafka's checks and codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER
from appliance.cluster.znodes import PartitionState
from services.controller.decisions.elections import LedPartition, plan_leadership_return, plan_preferred, plan_unclean

REPLICAS = (1, 2, 3)


def test_the_preferred_leader_leads_again_under_a_new_epoch_and_the_isr_stays() -> None:
    assert plan_preferred(PartitionState(2, 4, 7, (2, 1)), REPLICAS, {1, 2}, 8) == PartitionState(1, 5, 8, (2, 1))


@pytest.mark.parametrize(
    ("state", "live", "code"),
    [
        (PartitionState(1, 4, 7, (1, 2)), {1, 2}, ErrorCode.ELECTION_NOT_NEEDED),
        (PartitionState(2, 4, 7, (1, 2)), {2, 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (PartitionState(2, 4, 7, (2, 3)), {1, 2, 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ],
)
def test_a_preferred_election_that_cannot_be_has_kafkas_code(state: PartitionState, live: set[int], code: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        plan_preferred(state, REPLICAS, live, 8)
    assert refused.value.code is code


def test_an_unclean_election_prefers_a_replica_in_sync_to_any_other() -> None:
    assert plan_unclean(PartitionState(NO_LEADER, 4, 7, (3,)), REPLICAS, {1, 3}, 8) == PartitionState(3, 5, 8, (3,))
    assert plan_unclean(PartitionState(NO_LEADER, 4, 7, (3,)), REPLICAS, {1, 2}, 8) == PartitionState(1, 5, 8, (1,), 1)


@pytest.mark.parametrize(
    ("state", "live", "code"),
    [
        (PartitionState(2, 4, 7, (2,)), {1, 2}, ErrorCode.ELECTION_NOT_NEEDED),
        (PartitionState(2, 4, 7, (2,)), set(), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_an_unclean_election_that_cannot_be_has_kafkas_code(state: PartitionState, live: set[int], code: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        plan_unclean(state, REPLICAS, live, 8)
    assert refused.value.code is code


def led(partition: int, leader: int, replicas: tuple[int, ...] = REPLICAS, isr: tuple[int, ...] = REPLICAS, reassigned: bool = False) -> LedPartition:
    return LedPartition("t", partition, replicas, PartitionState(leader, 1, 1, isr), reassigned)


def test_leadership_returns_when_a_box_leads_too_few_of_its_own() -> None:
    partitions = [*(led(number, 1) for number in range(9)), led(9, 2)]
    assert plan_leadership_return(partitions, {1, 2, 3}, 10) == [], "one of ten is the tenth that may be away"
    assert plan_leadership_return([*partitions, led(10, 3)], {1, 2, 3}, 10) == [("t", 9), ("t", 10)]


def test_leadership_does_not_return_to_a_replica_that_cannot_lead() -> None:
    assert plan_leadership_return([led(0, 2)], {2, 3}, 10) == []
    assert plan_leadership_return([led(0, 2, isr=(2, 3)), led(1, 2, reassigned=True)], {1, 2, 3}, 10) == []


@given(st.lists(st.tuples(st.integers(1, 3), st.permutations(REPLICAS), st.sets(st.integers(1, 3), min_size=1)), max_size=30), st.integers(0, 100))
def test_whatever_returns_can_be_elected(drawn: list[tuple[int, list[int], set[int]]], percentage: int) -> None:
    partitions = [led(number, leader, tuple(replicas), tuple(isr | {leader})) for number, (leader, replicas, isr) in enumerate(drawn)]
    for _, number in plan_leadership_return(partitions, {1, 2}, percentage):
        elected = plan_preferred(partitions[number].state, partitions[number].replicas, {1, 2}, 2)
        assert elected.leader == partitions[number].replicas[0]
