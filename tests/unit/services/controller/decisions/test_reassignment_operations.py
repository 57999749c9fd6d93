"""Reassignments and elections, step by step on a tree: killed at every step, overtaken by others, each leaves something that the next controller ends."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicId
from appliance.cluster.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    CONTROLLER_EPOCH,
    BoxRecord,
    BrokerRegistration,
    DirectoryAssignment,
    PartitionState,
    TopicAssignment,
    box_path,
    partition_state_path,
    placement_path,
    topic_path,
)
from services.controller.admin.box_requests import forget_box
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.elections import hold_elections
from services.controller.decisions.reassignment import Reassignment, finish_reassignments, order_reassignments, whole_reassignments
from services.controller.zookeeper import topic_registry
from services.controller.zookeeper.change_log import CHANGES, ClusterChange
from services.controller.zookeeper.operation import Fence
from services.controller.zookeeper.requests import Multi
from tests.support.played_tree import Killed, PlayedTree

TOPIC_ID = TopicId(bytes(range(16)))


def new_tree() -> PlayedTree:
    tree = PlayedTree()
    for path in (CHANGES, CONTROLLER_EPOCH, BROKER_TOPICS):
        tree.put(path)
    tree.put(topic_path("t"), TopicAssignment.new(TOPIC_ID, {0: (1, 2), 1: (2, 1)}).encode())
    tree.put(partition_state_path("t", 0), PartitionState(1, 0, 1, (1, 2)).encode())
    tree.put(partition_state_path("t", 1), PartitionState(2, 0, 1, (2, 1)).encode())
    return tree


def no_id() -> TopicId:
    raise AssertionError("the topic has an id")


def new_controller(tree: PlayedTree, live: tuple[int, ...] = (1, 2, 3), broker_id: int = 1) -> Cluster:
    """What a box knows that has just become controller."""
    cluster = Cluster(broker_id, {}, [])
    cluster.fence = Fence(1, tree.version(CONTROLLER_EPOCH))
    cluster.brokers = {box: BrokerRegistration(box, (("PLAINTEXT", f"box{box}", 9092),), {"PLAINTEXT": "PLAINTEXT"}, None, 0) for box in live}
    cluster.topics = tree.run(topic_registry.load_topics(broker_id, no_id))
    return cluster


def replicas(tree: PlayedTree, partition: int) -> Reassignment:
    return Reassignment.of(TopicAssignment.decode("t", tree.data(topic_path("t"))), partition)


def state(tree: PlayedTree, partition: int) -> PartitionState:
    path = partition_state_path("t", partition)
    return PartitionState.decode(path, tree.data(path))


def write_isr(tree: PlayedTree, partition: int, *isr: int) -> None:
    """As a leader does, when followers have caught up or fallen behind."""
    tree.put(partition_state_path("t", partition), state(tree, partition)._replace(isr=isr).encode())


def news(tree: PlayedTree) -> list[ClusterChange]:
    return [ClusterChange.decode(path, tree.data(path)) for path in tree.paths() if path.startswith(f"{CHANGES}/")]


def codes(results: dict[Any, Any]) -> dict[Any, ErrorCode]:
    return {key: ErrorCode.NONE if refused is None else refused.code for key, refused in results.items()}


def test_an_order_and_its_end_are_one_transaction_each_and_are_published() -> None:
    tree = new_tree()
    cluster = new_controller(tree)
    assert codes(tree.run(order_reassignments(cluster, "t", {0: (3, 2), 1: (1, 2)}))) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    assert replicas(tree, 0) == Reassignment((3, 2, 1), (3,), (1,)) and replicas(tree, 1) == Reassignment((1, 2))
    assert news(tree) == [ClusterChange(1, topics=("t",))] and state(tree, 0) == PartitionState(1, 0, 1, (1, 2))
    assert whole_reassignments(cluster, cluster.topics["t"]) == []
    write_isr(tree, 0, 1, 2, 3)
    successor = new_controller(tree, broker_id=2)
    assert tree.run(finish_reassignments(successor, "t")) == [0]
    assert replicas(tree, 0) == Reassignment((3, 2)) and state(tree, 0) == PartitionState(3, 1, 1, (2, 3))
    assert [(row.state, row.version) for row in news(tree)[-1].states] == [(state(tree, 0), tree.version(partition_state_path("t", 0)))]
    assert successor.topics["t"].replicas[0] == (3, 2) and successor.topics["t"].states[0] == state(tree, 0)


def test_each_partition_is_refused_by_itself() -> None:
    tree = new_tree()
    cluster = new_controller(tree)
    results = codes(tree.run(order_reassignments(cluster, "t", {0: (3,), 1: (9,), 2: (1,), 7: None})))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert results == {0: ErrorCode.NONE, 1: ErrorCode.INVALID_REPLICA_ASSIGNMENT, 2: unknown, 7: unknown}
    assert codes(tree.run(order_reassignments(cluster, "t", {1: None}))) == {1: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    assert codes(tree.run(order_reassignments(cluster, "none", {0: (1,)}))) == {0: unknown}
    cluster.deleting.add("t")
    assert codes(tree.run(order_reassignments(cluster, "t", {0: None}))) == {0: unknown}


def test_what_a_leader_wrote_meanwhile_is_decided_on() -> None:
    tree = new_tree()
    cluster = new_controller(tree)
    tree.run(order_reassignments(cluster, "t", {0: (3,)}))
    write_isr(tree, 0, 1, 2, 3)
    cluster = new_controller(tree)
    once = [lambda: write_isr(tree, 0, 1, 3)]

    def meanwhile(step: object) -> None:
        if isinstance(step, Multi) and once:
            once.pop()()

    tree.before_step = meanwhile
    assert tree.run(finish_reassignments(cluster, "t")) == [0]
    assert state(tree, 0).isr == (3,) and replicas(tree, 0) == Reassignment((3,))


def test_a_replica_that_falls_behind_again_delays_the_end() -> None:
    tree = new_tree()
    tree.run(order_reassignments(new_controller(tree), "t", {0: (3,)}))
    write_isr(tree, 0, 1, 2, 3)
    cluster = new_controller(tree)
    write_isr(tree, 0, 1, 2)
    assert tree.run(finish_reassignments(cluster, "t")) == []
    assert replicas(tree, 0).is_under_way and cluster.topics["t"].states[0].isr == (1, 2)


def test_a_leader_does_not_go_while_none_of_those_who_stay_can_lead() -> None:
    tree = new_tree()
    tree.run(order_reassignments(new_controller(tree), "t", {0: (3,)}))
    write_isr(tree, 0, 1, 2, 3)
    cluster = new_controller(tree, live=(1, 2))
    assert tree.run(finish_reassignments(cluster, "t")) == [] and state(tree, 0).leader == 1
    stopping = new_controller(tree)
    stopping.box_records[3] = BoxRecord("box", {}, is_fenced=True)
    assert tree.run(finish_reassignments(stopping, "t")) == [] and replicas(tree, 0).is_under_way
    assert tree.run(finish_reassignments(new_controller(tree), "t")) == [0] and state(tree, 0).leader == 3


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("target", [(3, 2), (3,), (2, 1), (1, 2, 3), None])
def test_a_controller_killed_at_any_step_leaves_what_the_next_one_ends(target: tuple[int, ...] | None, sent: bool) -> None:
    for kill_at in range(20):
        tree = new_tree()
        if target is None:
            tree.run(order_reassignments(new_controller(tree), "t", {0: (3, 2)}))
        ended = _killed(tree, order_reassignments(new_controller(tree), "t", {0: target}), kill_at, sent)
        if not ended:
            tree.run(order_reassignments(new_controller(tree, broker_id=2), "t", {0: target}) if target is not None else _call_off(tree))
        write_isr(tree, 0, *replicas(tree, 0).replicas)
        ended = _killed(tree, finish_reassignments(new_controller(tree), "t"), kill_at, sent) and ended
        tree.run(finish_reassignments(new_controller(tree, broker_id=2), "t"))
        wanted = (1, 2) if target is None else target
        assert set(replicas(tree, 0).replicas) == set(wanted) == set(state(tree, 0).isr), kill_at
        assert not replicas(tree, 0).is_under_way and state(tree, 0).leader in wanted
        assert state(tree, 0).leader_epoch <= 1, "each step raises the leader epoch at most once, however often it is tried"
        if ended:
            return
    raise AssertionError("there are more steps than were tried")


def _killed(tree: PlayedTree, operation: Any, kill_at: int, sent: bool) -> bool:
    """Whether the operation came to its end before it was killed."""
    try:
        tree.run(operation, kill_at, sent)
    except Killed:
        return False
    return True


def _call_off(tree: PlayedTree) -> Any:
    """Asked again by a client that heard nothing: there may be nothing left to call off."""
    return order_reassignments(new_controller(tree, broker_id=2), "t", {0: None})


def test_elections_are_held_together_and_refused_one_by_one() -> None:
    tree = new_tree()
    tree.put(partition_state_path("t", 0), PartitionState(2, 3, 1, (2, 1)).encode())
    cluster = new_controller(tree)
    results = codes(tree.run(hold_elections(cluster, [("t", 0), ("t", 1), ("t", 2), ("none", 0)], False)))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert results == {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED, ("t", 2): unknown, ("none", 0): unknown}
    assert state(tree, 0) == PartitionState(1, 4, 1, (2, 1))
    assert [row.partition for change in news(tree) for row in change.states] == [0]


def test_an_election_is_decided_anew_on_what_was_written_meanwhile() -> None:
    tree = new_tree()
    tree.put(partition_state_path("t", 0), PartitionState(2, 3, 1, (2, 1)).encode())
    cluster = new_controller(tree)
    write_isr(tree, 0, 2)
    assert codes(tree.run(hold_elections(cluster, [("t", 0)], False))) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert state(tree, 0) == PartitionState(2, 3, 1, (2,))


def test_an_operator_elects_a_replica_out_of_sync() -> None:
    tree = new_tree()
    tree.put(partition_state_path("t", 0), PartitionState(-1, 3, 1, (2,)).encode())
    cluster = new_controller(tree, live=(1, 3))
    assert codes(tree.run(hold_elections(cluster, [("t", 0)], True))) == {("t", 0): ErrorCode.NONE}
    assert state(tree, 0) == PartitionState(1, 4, 1, (1,), 1)


def recorded(tree: PlayedTree, broker_id: int) -> None:
    tree.put(box_path(broker_id), BoxRecord(f"box-{broker_id}", {f"dir-{broker_id}": "d0"}).encode())
    tree.put(placement_path(broker_id, "t"), DirectoryAssignment(TOPIC_ID, {0: f"dir-{broker_id}"}).encode())


def test_a_box_that_burnt_is_forgotten_however_often_it_takes() -> None:
    for kill_at in range(20):
        tree = new_tree()
        for box in (1, 2):
            recorded(tree, box)
        tree.put(BROKER_IDS)
        write_isr(tree, 0, 1)
        tree.put(partition_state_path("t", 1), PartitionState(1, 1, 1, (1,)).encode())
        ended = _killed(tree, forget_box(new_controller(tree, live=(1,)), 2), kill_at, True)
        if box_path(2) in tree:
            tree.run(forget_box(new_controller(tree, live=(1,)), 2))
        assert not [path for path in tree.paths() if path.startswith(box_path(2))] and placement_path(1, "t") in tree
        assert replicas(tree, 0).replicas == (1, 2), "a new box under the same id begins anew"
        if ended:
            return
    raise AssertionError("there are more steps than were tried")


def test_a_box_that_is_registered_in_sync_or_unknown_cannot_be_removed() -> None:
    tree = new_tree()
    for path in (BROKER_IDS, box_path(1)):
        tree.put(path)
    with pytest.raises(RequestRefused, match="in sync for 2 partitions: t-0, t-1"):
        tree.run(forget_box(new_controller(tree), 2))
    with pytest.raises(RequestRefused) as refused:
        tree.run(forget_box(new_controller(tree), 3))
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    recorded(tree, 3)
    tree.put(f"{BROKER_IDS}/3", BrokerRegistration(3, (("PLAINTEXT", "box3", 9092),), {"PLAINTEXT": "PLAINTEXT"}, None, 0).encode())
    with pytest.raises(RequestRefused, match="Stop it first"):
        tree.run(forget_box(new_controller(tree), 3))
