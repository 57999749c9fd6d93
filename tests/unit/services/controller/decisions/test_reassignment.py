"""Reassignment of partitions (KIP-455), as a state machine: for any sequence of orders, every
replica in sync is kept and one of them leads.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, TopicId
from appliance.cluster.znodes import PartitionState, TopicAssignment
from services.controller.decisions.reassignment import Reassignment, plan_order, plan_state, under_way, with_replicas

TOPIC_ID = TopicId(bytes(range(16)))
STATE = PartitionState(1, 4, 7, (1, 2, 3))


def test_an_order_keeps_the_old_replicas_until_the_new_ones_are_there() -> None:
    ordered = plan_order(Reassignment((1, 2, 3)), (4, 2), {1, 2, 3, 4})
    assert ordered == Reassignment((4, 2, 1, 3), (4,), (1, 3))
    assert ordered.target == (4, 2) and ordered.original == (2, 1, 3)
    assert not ordered.is_whole({1, 2, 3}) and ordered.is_whole({1, 2, 4})
    assert plan_state(STATE, Reassignment((1, 2, 3)), ordered, {1, 2, 3, 4}, 8) == STATE, "an added replica changes nothing for the others"


def test_the_end_leaves_the_target_alone_and_the_first_of_it_in_sync_leads() -> None:
    ordered = Reassignment((4, 2, 1, 3), (4,), (1, 3))
    assert plan_state(STATE._replace(isr=(1, 2, 4)), ordered, ordered.finished(), {1, 2, 4}, 8) == PartitionState(4, 5, 8, (2, 4))
    assert plan_state(STATE._replace(isr=(1, 2, 4)), ordered, ordered.finished(), {1, 2}, 8).leader == 2


def test_another_order_of_the_same_replicas_is_done_at_once() -> None:
    ordered = plan_order(Reassignment((1, 2, 3)), (3, 1, 2), {1, 2, 3})
    assert ordered == Reassignment((3, 1, 2)) and not ordered.is_under_way
    assert plan_state(STATE, Reassignment((1, 2, 3)), ordered, {1, 2, 3}, 8) == STATE, "the leader goes by election only"


def test_an_order_takes_the_place_of_one_under_way() -> None:
    first = plan_order(Reassignment((1, 2)), (3, 4), {1, 2, 3, 4})
    second = plan_order(first, (5,), {1, 2, 5})
    assert second == Reassignment((5, 1, 2), (5,), (1, 2))
    assert plan_state(PartitionState(3, 4, 7, (1, 3)), first, second, {1, 2, 3, 5}, 8) == PartitionState(1, 5, 8, (1,)), "a replica that is removed hands over"


def test_calling_off_brings_back_the_original_replicas() -> None:
    ordered = plan_order(Reassignment((1, 2)), (3, 2), {1, 2, 3})
    called_off = plan_order(ordered, None, {1, 2, 3})
    assert set(called_off.replicas) == {1, 2} and not called_off.is_under_way


@pytest.mark.parametrize(
    ("current", "target", "code"),
    [
        (Reassignment((1, 2)), None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (Reassignment((1, 2)), (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Reassignment((1, 2)), (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Reassignment((1, 2)), (-1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Reassignment((1, 2)), (1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_cannot_be_has_kafkas_code(current: Reassignment, target: tuple[int, ...] | None, code: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        plan_order(current, target, {1, 2, 3})
    assert refused.value.code is code


def test_a_replica_that_is_dead_may_stay_but_not_come() -> None:
    assert plan_order(Reassignment((1, 2)), (2, 1), {1}) == Reassignment((2, 1))


def test_the_last_replica_in_sync_is_never_removed() -> None:
    coming = Reassignment((3, 1), (3,), ())
    with pytest.raises(RequestRefused, match="in sync"):
        plan_state(PartitionState(3, 1, 1, (3,)), coming, plan_order(coming, None, {1, 3}), {1, 3}, 2)


def test_the_document_says_what_comes_and_what_goes_only_while_it_does() -> None:
    document = TopicAssignment.new(TOPIC_ID, {0: (1, 2), 1: (2, 1)})
    ordered = with_replicas(document, {1: Reassignment((2, 1)).to((3, 2))})
    assert ordered.partitions == {0: (1, 2), 1: (3, 2, 1)} and ordered.adding_replicas == {1: (3,)} and ordered.removing_replicas == {1: (1,)}
    assert under_way(ordered) == [1] and under_way(document) == []
    done = with_replicas(ordered, {1: Reassignment.of(ordered, 1).finished()})
    assert done == TopicAssignment.new(TOPIC_ID, {0: (1, 2), 1: (3, 2)})


class ReassignedPartition(RuleBasedStateMachine):
    """Orders, call-offs, ends, boxes that fall behind, catch up, die and return, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.live = {1, 2, 3, 4, 5}
        self.document = TopicAssignment.new(TOPIC_ID, {0: (1, 2, 3)})
        self.state = PartitionState(1, 0, 1, (1, 2, 3))
        self.holds = {1, 2, 3}
        """Boxes that have every acknowledged record."""

    def _write(self, wanted: Reassignment) -> None:
        try:
            state = plan_state(self.state, Reassignment.of(self.document, 0), wanted, self.live, 1)
        except RequestRefused:
            return
        somebody_goes = not set(self.document.partitions[0]) <= set(wanted.replicas)
        assert state.leader_epoch == self.state.leader_epoch + somebody_goes and (somebody_goes or state == self.state)
        self.state = state
        self.document = with_replicas(self.document, {0: wanted})
        self.holds &= set(wanted.replicas)

    @rule(wanted_replicas=st.one_of(st.none(), st.lists(st.integers(1, 5), max_size=4).map(tuple)))
    def order(self, wanted_replicas: tuple[int, ...] | None) -> None:
        try:
            wanted = plan_order(Reassignment.of(self.document, 0), wanted_replicas, self.live)
        except RequestRefused:
            return
        assert wanted.target == (wanted.original if wanted_replicas is None else wanted_replicas)
        self._write(wanted)

    @rule()
    def end(self) -> None:
        current = Reassignment.of(self.document, 0)
        if current.is_under_way and current.is_whole(self.state.isr):
            self._write(current.finished())
            assert Reassignment.of(self.document, 0) == Reassignment(current.target) and set(self.state.isr) <= set(current.target)

    @rule(box=st.integers(1, 5))
    def catch_up(self, box: int) -> None:
        if box in self.document.partitions[0] and box in self.live and self.state.leader in self.live and box not in self.state.isr:
            self.state = self.state._replace(isr=(*self.state.isr, box))
            self.holds.add(box)

    @rule(box=st.integers(1, 5))
    def fall_behind(self, box: int) -> None:
        if box in self.state.isr and box != self.state.leader:
            self.state = self.state._replace(isr=tuple(each for each in self.state.isr if each != box))
            self.holds.discard(box)

    @rule(box=st.integers(1, 5))
    def die_or_return(self, box: int) -> None:
        self.live ^= {box}

    @invariant()
    def in_sync_are_replicas_that_hold_everything(self) -> None:
        assert self.state.isr and set(self.state.isr) <= set(self.document.partitions[0]) and set(self.state.isr) <= self.holds

    @invariant()
    def the_leader_is_in_sync(self) -> None:
        assert self.state.leader == NO_LEADER or self.state.leader in self.state.isr

    @invariant()
    def the_document_is_whole(self) -> None:
        current = Reassignment.of(self.document, 0)
        assert len(set(current.replicas)) == len(current.replicas) and current.target and current.original
        assert set(current.target) | set(current.original) == set(current.replicas)
        assert TopicAssignment.decode("t", self.document.encode()) == self.document


TestReassignedPartition = ReassignedPartition.TestCase
