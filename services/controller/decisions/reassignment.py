"""Reassignments of partitions to other boxes, in two steps (KIP-455): the pure decisions, and the
operations that carry them out.

While a reassignment is under way, the topic document lists target and old replicas together, and
which of them are added or removed. When all target replicas are in the in-sync set, the document
becomes the target, and the in-sync set loses all others. Both steps change document, states and
change log in one transaction, through the controller's fence and under the versions on which they
were decided; if another box wrote first, they read and decide again. So the next controller finds
one or the other step, and completes it, and the old replicas stay until the new ones have all
records.

A new order replaces one that is under way; a cancellation is an order for the original replicas.
Each box reads from the document which replicas it has (`services/controller/hosting.py`). Weak: as
in Kafka, a cancellation loses the order of the original replicas, and so the preferred leader, if
the target named some of them. The partitions of a topic share one document, so its orders are
carried out one after another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER
from appliance.cluster.znodes import PartitionState, TopicAssignment, topic_path
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.state_changes import reread
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.change_log import ClusterChange, StateRow, change_write
from services.controller.zookeeper.operation import Operation, Publish
from services.controller.zookeeper.requests import BadVersion, MultiFailed, NoNode, SetData, Write
from services.controller.zookeeper.topic_registry import TopicState


class Reassignment(NamedTuple):
    """One partition's replicas in the topic document: `replicas` contains target and old replicas."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @classmethod
    def of(cls, assignment: TopicAssignment, partition: int) -> Reassignment:
        return cls(assignment.partitions[partition], assignment.adding_replicas.get(partition, ()), assignment.removing_replicas.get(partition, ()))

    @property
    def is_under_way(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    def to(self, target: Sequence[int]) -> Reassignment:
        """Return the reassignment to `target`.

        All current replicas stay until it is complete; replicas that a former order was adding and
        that are not in `target` go.
        """
        replicas = tuple(dict.fromkeys((*target, *self.original)))
        adding = tuple(replica for replica in replicas if replica not in self.original)
        removing = tuple(replica for replica in replicas if replica not in target)
        return Reassignment(replicas, adding, removing)

    def finished(self) -> Reassignment:
        return Reassignment(self.target)

    def is_whole(self, isr: Collection[int]) -> bool:
        """Whether every target replica is in sync."""
        return not self.is_under_way or set(self.target) <= set(isr)


def plan_order(current: Reassignment, target: Sequence[int] | None, live_brokers: Collection[int]) -> Reassignment:
    """Return the replicas after an order for `target` (None: cancel). Raises RequestRefused with
    Kafka's code.
    """
    if target is None:
        if not current.is_under_way:
            raise RequestRefused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of this partition is in progress.")
        return current.to(current.original)
    if not target:
        raise _invalid("Empty replica list specified in partition reassignment.")
    if min(target) < 0:
        raise _invalid(f"Invalid broker id in replica list: {_listed(target)}.")
    if len(set(target)) < len(target):
        raise _invalid(f"Duplicate replica ids in partition reassignment replica list: {_listed(target)}.")
    wanted = current.to(target)
    if dead := [replica for replica in wanted.adding if replica not in live_brokers]:
        raise _invalid(f"Replica assignment has brokers that are not alive: {_listed(dead)}. Live brokers: {_listed(sorted(live_brokers))}.")
    return wanted


def plan_state(state: PartitionState, former: Reassignment, wanted: Reassignment, live_brokers: Collection[int], controller_epoch: int) -> PartitionState:
    """Return the partition state that belongs to `wanted`, after `former`.

    If no replica goes, nothing changes: boxes that gain a replica find it in the document. If a
    replica goes:

    * The leader epoch grows, so that fetches of the removed replica are refused.
    * The in-sync set loses the removed replicas. An order that would leave it empty is refused:
      no remaining replica would have all acknowledged records.
    * A removed leader is replaced by the first remaining replica that is alive and in sync (target
      replicas are first).
    """
    if set(former.replicas) <= set(wanted.replicas):
        return state
    isr = tuple(replica for replica in state.isr if replica in wanted.replicas)
    if not isr:
        raise _invalid(f"None of the remaining replicas ({_listed(wanted.replicas)}) is in sync ({_listed(state.isr)}).")
    leader = state.leader
    if leader not in wanted.replicas:
        leader = next((replica for replica in wanted.replicas if replica in isr and replica in live_brokers), NO_LEADER)
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch, isr=isr)


def with_replicas(assignment: TopicAssignment, wanted: dict[int, Reassignment]) -> TopicAssignment:
    """Return the topic document with these replicas."""
    adding = {partition: each.adding for partition, each in wanted.items()}
    removing = {partition: each.removing for partition, each in wanted.items()}
    return assignment._replace(
        partitions={**assignment.partitions, **{partition: each.replicas for partition, each in wanted.items()}},
        adding_replicas={partition: replicas for partition, replicas in {**assignment.adding_replicas, **adding}.items() if replicas},
        removing_replicas={partition: replicas for partition, replicas in {**assignment.removing_replicas, **removing}.items() if replicas},
    )


def under_way(assignment: TopicAssignment) -> list[int]:
    """Return the partitions of a topic that are being reassigned."""
    return sorted(assignment.adding_replicas.keys() | assignment.removing_replicas.keys())


def _invalid(reason: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _listed(broker_ids: Sequence[int]) -> str:
    return ", ".join(str(broker_id) for broker_id in broker_ids) or "none"


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
