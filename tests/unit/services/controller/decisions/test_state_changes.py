"""Changing many states while others write: conditional, in transactions, and nothing is lost or undone."""

from __future__ import annotations

from functools import partial

import pytest

from appliance.base.model import TopicId
from appliance.cluster.znodes import PartitionState, TopicAssignment, parents_first, partition_state_path
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.state_changes import ATTEMPTS_MAX, StateChange, change_states
from services.controller.zookeeper.change_log import CHANGES, ClusterChange
from services.controller.zookeeper.operation import WRITES_MAX, OwnWrites
from services.controller.zookeeper.requests import Check, Create, Multi, Request, SetData
from services.controller.zookeeper.topic_registry import TopicState
from tests.support.memory_zookeeper import MemoryZooKeeper
from tests.support.operation_runs import run

TOPIC_ID = TopicId(bytes(range(16)))
FIRST = PartitionState(1, 0, 1, (1, 2))


def world(partitions: int) -> tuple[MemoryZooKeeper, Cluster, TopicState]:
    server, cluster = MemoryZooKeeper(), Cluster(1, {}, ["d0"])
    topic = TopicState("t", TOPIC_ID, TopicAssignment.new(TOPIC_ID, dict.fromkeys(range(partitions), (1, 2))), {})
    for path in parents_first((CHANGES, *(partition_state_path("t", number) for number in range(partitions)))):
        server.write(Create(path))
    for number in range(partitions):
        server.write(SetData(partition_state_path("t", number), FIRST.encode(), -1))
        topic.set_state(number, FIRST, 1)
    cluster.topics["t"] = topic
    return server, cluster, topic


def raised(state: PartitionState) -> PartitionState | None:
    return state._replace(leader_epoch=state.leader_epoch + 1)


def stored(server: MemoryZooKeeper, number: int) -> PartitionState:
    return PartitionState.decode("p", server.data(partition_state_path("t", number)))


def changes_in(server: MemoryZooKeeper) -> list[ClusterChange]:
    return [ClusterChange.decode(path, server.data(path)) for path in server.paths() if path.startswith(f"{CHANGES}/")]


def test_many_states_are_a_few_transactions_each_with_its_news() -> None:
    count = 2 * WRITES_MAX + 1
    server, cluster, topic = world(count)
    made = run(server, change_states(cluster, [StateChange(topic, number, raised) for number in range(count)], OwnWrites()))
    assert len(made) == count and len([request for request in server.requests if isinstance(request, Multi)]) == 3
    assert all(stored(server, number).leader_epoch == 1 == topic.states[number].leader_epoch for number in range(count))
    assert topic.state_versions[7] == server.version(partition_state_path("t", 7)) == 2
    told = [row for change in changes_in(server) for row in change.states]
    assert len(told) == count and {(row.version, row.state.leader_epoch) for row in told} == {(2, 1)}


def test_a_state_with_a_conflicting_write_is_decided_again_and_the_rest_proceeds() -> None:
    server, cluster, topic = world(5)
    others = PartitionState(1, 0, 1, (1,))
    server.write(SetData(partition_state_path("t", 2), others.encode(), -1))
    made = run(server, change_states(cluster, [StateChange(topic, number, raised) for number in range(5)], OwnWrites()))
    assert len(made) == 5
    assert stored(server, 2) == others._replace(leader_epoch=1), "on top of what they wrote"
    assert all(stored(server, number) == FIRST._replace(leader_epoch=1) for number in (0, 1, 3, 4))


def test_what_is_not_needed_any_more_is_left() -> None:
    server, cluster, topic = world(2)
    server.write(SetData(partition_state_path("t", 0), FIRST._replace(leader_epoch=9).encode(), -1))

    def only_the_first_epoch(state: PartitionState) -> PartitionState | None:
        return raised(state) if state.leader_epoch == 0 else None

    made = run(server, change_states(cluster, [StateChange(topic, number, only_the_first_epoch) for number in (0, 1)], OwnWrites()))
    assert [change.partition for change in made] == [1] and stored(server, 0).leader_epoch == 9


@pytest.mark.parametrize("writes", [3, ATTEMPTS_MAX + 2])
def test_a_state_with_endless_conflicts_is_given_up_and_delays_no_other(writes: int) -> None:
    server, cluster, topic = world(3)
    left = [writes]

    def quicker(request: Request) -> None:
        if isinstance(request, Multi) and left[0]:
            left[0] -= 1
            server.write(SetData(partition_state_path("t", 1), FIRST.encode(), -1))

    made = run(server, change_states(cluster, [StateChange(topic, number, raised) for number in range(3)], OwnWrites()), quicker)
    assert {change.partition for change in made} >= {0, 2}
    assert (1 in {change.partition for change in made}) == (writes < ATTEMPTS_MAX)


def test_a_check_that_does_not_hold_drops_its_change_alone() -> None:
    server, cluster, topic = world(3)
    checks = (Check(CHANGES, 77),)
    changes = [StateChange(topic, 0, raised), StateChange(topic, 1, raised, checks), StateChange(topic, 2, raised)]
    made = run(server, change_states(cluster, changes, OwnWrites()))
    assert [change.partition for change in made] == [0, 2] and stored(server, 1) == FIRST


def test_a_state_that_is_gone_is_forgotten() -> None:
    server, cluster, topic = world(2)
    topic.set_state(7, FIRST, 1)
    made = run(server, change_states(cluster, [StateChange(topic, number, raised) for number in (0, 7, 1)], OwnWrites()))
    assert [change.partition for change in made] == [0, 1]


def test_a_forced_change_is_written_though_it_changes_nothing() -> None:
    server, cluster, topic = world(1)
    same = partial(lambda state: state)
    assert run(server, change_states(cluster, [StateChange(topic, 0, same)], OwnWrites())) == []
    assert len(run(server, change_states(cluster, [StateChange(topic, 0, same, is_forced=True)], OwnWrites()))) == 1
    assert server.version(partition_state_path("t", 0)) == 2
