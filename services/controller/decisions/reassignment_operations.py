"""Order, replace, cancel and complete reassignments: each is one transaction of topic document,
states and change node.

Operations of the cluster's controller. They write through its fence and under the versions on which
they decided; if another box wrote first, they read and decide again. A dead controller leaves a
document that lists what is under way, and the next one completes it
(`services/controller/admin/reassignment_administration.py`). Each box reads from the document which
replicas it has (`services/controller/hosting.py`). Weak: the partitions of a topic share one
document, so its orders are carried out one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.znodes import PartitionState, TopicAssignment, topic_path
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.reassignment import Reassignment, plan_order, plan_state, under_way, with_replicas
from services.controller.decisions.state_changes import reread
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.change_log import ClusterChange, StateRow, change_write
from services.controller.zookeeper.operation import Operation, Publish
from services.controller.zookeeper.requests import BadVersion, MultiFailed, NoNode, SetData, Write
from services.controller.zookeeper.topic_registry import TopicState

ATTEMPTS_MAX = 10
"""Attempts when another box (a leader that changed its in-sync set) writes first."""
PARTITIONS_MAX = 300
"""Partitions of one transaction."""

Target = tuple[int, ...] | None
"""The replicas to reassign to; None: those before the reassignment."""


class _Decision(NamedTuple):
    wanted: Reassignment
    state: PartitionState


def order_reassignments(cluster: Cluster, name: str, targets: Mapping[int, Target]) -> Operation[dict[int, RequestRefused | None]]:
    """Order partitions of a topic to their targets; return partition → refusal, or None if it is in
    ZooKeeper.
    """
    results: dict[int, RequestRefused | None] = {}
    partitions = sorted(targets)
    for start in range(0, len(partitions), PARTITIONS_MAX):
        some = {partition: targets[partition] for partition in partitions[start : start + PARTITIONS_MAX]}
        results |= yield from _order_some(cluster, name, some)
    return results


def _order_some(cluster: Cluster, name: str, targets: Mapping[int, Target]) -> Operation[dict[int, RequestRefused | None]]:
    for _attempt in range(ATTEMPTS_MAX):
        topic = cluster.topics.get(name)
        decided: dict[int, _Decision] = {}
        results: dict[int, RequestRefused | None] = dict.fromkeys(targets)
        for partition, target in targets.items():
            try:
                decided[partition] = _decide_order(cluster, name, topic, partition, target)
            except RequestRefused as refused:
                results[partition] = refused
        if topic is None or (yield from _write(cluster, topic, decided)):
            return results
    return dict.fromkeys(targets, RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the partition was changed by another box at the same time; try again"))


def _decide_order(cluster: Cluster, name: str, topic: TopicState | None, partition: int, target: Target) -> _Decision:
    if topic is None or partition not in topic.replicas:
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if name in cluster.deleting:
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic is being deleted.")
    if partition not in topic.states:
        raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition is being created.")
    current = Reassignment.of(topic.assignment, partition)
    wanted = plan_order(current, target, cluster.live_brokers())
    return _Decision(wanted, _state_for(cluster, topic, partition, current, wanted))


def finish_reassignments(cluster: Cluster, name: str) -> Operation[list[int]]:
    """Complete those of a topic's reassignments whose targets are in sync; return their partitions."""
    finished: list[int] = []
    for _attempt in range(ATTEMPTS_MAX):
        topic = cluster.topics.get(name)
        whole = whole_reassignments(cluster, topic)[:PARTITIONS_MAX] if topic is not None and name not in cluster.deleting else []
        if topic is None or not whole:
            break
        decided = {}
        for partition in whole:
            current = Reassignment.of(topic.assignment, partition)
            decided[partition] = _Decision(current.finished(), _state_for(cluster, topic, partition, current, current.finished()))
        if (yield from _write(cluster, topic, decided)):
            finished += whole
    return finished


def whole_reassignments(cluster: Cluster, topic: TopicState) -> list[int]:
    """Return the partitions whose target replicas are all in sync, and of which one can lead.

    A box that has just died, or is shutting down, may still be in the in-sync set. A removed leader
    must not leave the partition to it.
    """
    states, able = topic.states, set(cluster.eligible_brokers())
    found = []
    for partition in under_way(topic.assignment):
        order, state = Reassignment.of(topic.assignment, partition), states.get(partition)
        if state is not None and order.is_whole(state.isr) and (state.leader in order.target or not able.isdisjoint(order.target)):
            found.append(partition)
    return found


def _state_for(cluster: Cluster, topic: TopicState, partition: int, current: Reassignment, wanted: Reassignment) -> PartitionState:
    epoch = cluster.writes_fenced_by().controller_epoch
    return plan_state(topic.states[partition], current, wanted, cluster.eligible_brokers(), epoch)


def _write(cluster: Cluster, topic: TopicState, decided: Mapping[int, _Decision]) -> Operation[bool]:
    """Write in one transaction; False: another box wrote first, and the states were read again."""
    document = with_replicas(topic.assignment, {partition: each.wanted for partition, each in decided.items()})
    changed = {partition: each.state for partition, each in decided.items() if each.state != topic.states[partition]}
    if document == topic.assignment and not changed:
        return True
    rows = tuple(StateRow(topic.name, str(topic.topic_id), partition, state, topic.state_versions[partition] + 1) for partition, state in changed.items())
    writes: list[Write] = [SetData(topic_path(topic.name), document.encode(), topic.document_version)]
    writes += [topic_registry.state_write(topic, partition, state) for partition, state in changed.items()]
    writes.append(change_write(ClusterChange(cluster.broker_id, rows, (topic.name,))))
    try:
        versions = yield from cluster.writes_fenced_by().guard(tuple(writes))
    except MultiFailed as refused:
        if not isinstance(refused.cause, BadVersion | NoNode):
            raise
        yield from _read_again(cluster, topic, list(decided))
        return False
    for (partition, state), version in zip(changed.items(), versions[1:-1], strict=True):
        cluster.put_state(topic, partition, state, int(version))
    cluster.put_assignment(topic, document, int(versions[0]))
    yield Publish()
    return True


def _read_again(cluster: Cluster, topic: TopicState, partitions: list[int]) -> Operation[None]:
    node = yield from broker_registry.read(topic_path(topic.name))
    if node is not None and node.data and cluster.topics.get(topic.name) is topic:
        cluster.put_assignment(topic, TopicAssignment.decode(topic.name, node.data), node.version)
    yield from reread(cluster, [(topic, partition) for partition in partitions])
