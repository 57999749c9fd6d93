"""Hold elections on request: apply the pure decisions of `elections`. Operations of the cluster's
controller.

Weak: as of `state_changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.znodes import PartitionState
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.elections import plan_preferred, plan_unclean
from services.controller.decisions.state_changes import StateChange, change_states
from services.controller.zookeeper.operation import Operation, Publish
from services.controller.zookeeper.topic_registry import TopicState

Refusals = dict[tuple[str, int], RequestRefused | None]


def hold_elections(cluster: Cluster, partitions: Sequence[tuple[str, int]], is_unclean: bool) -> Operation[Refusals]:
    """Elect a leader for each partition; return (topic, partition) → refusal, or None if the image
    names the new leader.
    """
    results: Refusals = dict.fromkeys(partitions)
    plan = plan_unclean if is_unclean else plan_preferred
    changes = []
    for name, partition in partitions:
        topic = cluster.topics.get(name)
        if topic is None or partition not in topic.states:
            results[(name, partition)] = RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        elif name in cluster.deleting:
            results[(name, partition)] = RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
        else:
            changes.append(StateChange(topic, partition, partial(_decide, cluster, plan, topic, partition, results)))
    committed = {(change.topic.name, change.partition) for change in (yield from change_states(cluster, changes, cluster.writes_fenced_by()))}
    yield Publish()
    for change in changes:
        key = (change.topic.name, change.partition)
        if key not in committed and results[key] is None:
            results[key] = RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the partition was changed by another box at the same time; try again")
    return results


def _decide(
    cluster: Cluster,
    plan: Callable[[PartitionState, Sequence[int], Sequence[int], int], PartitionState],
    topic: TopicState,
    partition: int,
    results: Refusals,
    state: PartitionState,
) -> PartitionState | None:
    """Decide again each time that another box wrote the state first."""
    results[(topic.name, partition)] = None
    try:
        return plan(state, topic.replicas[partition], cluster.eligible_brokers(), cluster.writes_fenced_by().controller_epoch)
    except RequestRefused as refused:
        results[(topic.name, partition)] = refused
        return None
