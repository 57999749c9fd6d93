"""Elections on request (preferred and unclean), and the periodic return to preferred leaders: the
pure decisions, and `hold_elections`.

Elections after a death are in `leader_selection`. The order of the checks and the codes are
Kafka's. Weak: an unclean election on request loses the records that the chosen replica lacks,
without a confirmation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER
from appliance.cluster.placement import elect_leader
from appliance.cluster.znodes import PartitionState
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.state_changes import StateChange, change_states
from services.controller.zookeeper.operation import Operation, Publish
from services.controller.zookeeper.topic_registry import TopicState


def plan_preferred(state: PartitionState, replicas: Sequence[int], live_brokers: Collection[int], controller_epoch: int) -> PartitionState:
    """Elect the first replica, if it is alive and in sync. Raises RequestRefused with Kafka's code."""
    preferred = replicas[0]
    if state.leader == preferred:
        raise RequestRefused(ErrorCode.ELECTION_NOT_NEEDED, f"Broker {preferred} leads already.")
    if preferred not in live_brokers or preferred not in state.isr:
        reason = "is not alive" if preferred not in live_brokers else "is not in sync"
        raise RequestRefused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"Broker {preferred}, the preferred leader, {reason}.")
    return state._replace(leader=preferred, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)


def plan_unclean(state: PartitionState, replicas: Sequence[int], live_brokers: Collection[int], controller_epoch: int) -> PartitionState:
    """Elect any live replica, in-sync ones first; only for a partition that has no live leader."""
    if state.leader != NO_LEADER and state.leader in live_brokers:
        raise RequestRefused(ErrorCode.ELECTION_NOT_NEEDED, f"Broker {state.leader} leads already.")
    elected = elect_leader(state, replicas, live_brokers, True, controller_epoch)
    if elected.leader == NO_LEADER:
        raise RequestRefused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica that could lead is alive: {', '.join(map(str, replicas))}.")
    return elected


class LedPartition(NamedTuple):
    """One partition as input of `plan_leadership_return`."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    state: PartitionState
    is_reassigned: bool = False


def plan_leadership_return(partitions: Iterable[LedPartition], live_brokers: Collection[int], imbalance_percentage_max: int) -> list[tuple[str, int]]:
    """Return the partitions whose preferred leader is to lead again.

    For each broker that leads too few of the partitions that prefer it: all of those that it can
    lead.
    """
    preferring: Counter[int] = Counter()
    astray: dict[int, list[LedPartition]] = {}
    for each in partitions:
        preferred = each.replicas[0]
        preferring[preferred] += 1
        if each.state.leader != preferred:
            astray.setdefault(preferred, []).append(each)
    returned = []
    for preferred, away in sorted(astray.items()):
        if preferred in live_brokers and len(away) * 100 > preferring[preferred] * imbalance_percentage_max:
            returned += [(each.topic, each.partition) for each in away if preferred in each.state.isr and not each.is_reassigned]
    return returned


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
