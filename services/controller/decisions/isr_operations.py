"""In-sync sets: what leaders on this box want, written for them if it may be, and answered either way.

A set changes only by a conditional write, under the leader epoch and the partition epoch on which its leader decided. Whoever is added must be alive, not
fenced, and must have fetched under the registration that stands: its record's version is checked in the same transaction (KIP-903). A refusal names the
wish, and is told only when the write was certainly not done. When the connection was lost in between, nobody knows: then the set that holds is
written once more (`complete_isr_changes`), so that whatever is still under way comes to nothing, and told under its new partition epoch. Owned by the
controller process of the leader's box. Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from appliance.cluster.znodes import PartitionState, box_path
from services.controller.decisions.cluster import Cluster, DiskReport
from services.controller.decisions.disk_report import PartitionKey
from services.controller.decisions.role_operations import send_roles
from services.controller.decisions.state_changes import StateChange, change_states
from services.controller.zookeeper.operation import Operation, Publish
from services.controller.zookeeper.requests import Check
from services.controller.zookeeper.topic_registry import TopicState


class PendingIsrChange(NamedTuple):
    """An in-sync set that a leader wants. `broker_epochs`: of each added member, the registration under which it fetched. `number`: names this copy of it."""

    topic: str
    partition: int
    topic_id: str
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    number: int | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PendingIsrChange:
        """Raises KeyError, TypeError, ValueError."""
        epochs = {int(broker_id): int(broker_epoch) for broker_id, broker_epoch in document.get("broker_epochs", {}).items()}
        isr = tuple(int(member) for member in document["isr"])
        number = document.get("wish")
        return cls(
            str(document["topic"]),
            int(document["partition"]),
            str(document["topic_id"]),
            int(document["leader_epoch"]),
            int(document.get("partition_epoch", -1)),
            isr,
            epochs,
            None if number is None else int(number),
        )

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class Granted(NamedTuple):
    """How wishes ended: sets that grew, sets that shrank, wishes that were refused."""

    expanded: int = 0
    shrunk: int = 0
    refused: int = 0


def may_add(cluster: Cluster, wish: PendingIsrChange, added: Iterable[int]) -> bool:
    """Whether all of `added` live, stay, and fetched under the registration that is known."""
    return all(
        member in cluster.brokers
        and not cluster.is_fenced(member)
        and member in cluster.box_versions
        and wish.broker_epochs.get(member) == cluster.broker_epochs.get(member, -1)
        for member in added
    )


def decide_isr_change(cluster: Cluster, topic: TopicState, wish: PendingIsrChange, known_added: frozenset[int], state: PartitionState) -> PartitionState | None:
    """The state with the wished set, or None where the wish may not be: also where it names no partition epoch. Out of an unclean election a leader has
    recovered when somebody else is in sync."""
    members, broker_id = set(wish.isr), cluster.broker_id
    if state.leader != broker_id or state.leader_epoch != wish.leader_epoch or broker_id not in members:
        return None
    if wish.partition_epoch != topic.state_versions[wish.partition]:
        return None
    if len(members) != len(wish.isr) or not members <= set(topic.replicas[wish.partition]):
        return None
    added = members - set(state.isr)
    if not added <= known_added or not may_add(cluster, wish, added):
        return None
    return state._replace(isr=wish.isr, leader_recovery_state=0 if len(members) > 1 else state.leader_recovery_state)


def apply_isr_changes(cluster: Cluster, report: DiskReport, wishes: Iterable[PendingIsrChange]) -> Operation[Granted]:
    """Write what may be of what one log-writer wants, and tell it what holds. At most one wish for each partition."""
    asked: dict[PartitionKey, tuple[TopicState, PendingIsrChange]] = {}
    changes: list[StateChange] = []
    grows: set[PartitionKey] = set()
    for wish in wishes:
        topic = cluster.topics.get(wish.topic)
        if topic is None or str(topic.topic_id) != wish.topic_id or wish.partition not in topic.states:
            continue  # what it hears of that is the deletion
        added = frozenset(wish.isr) - frozenset(topic.states[wish.partition].isr)
        checks = tuple(Check(box_path(member), cluster.box_versions[member]) for member in sorted(added) if member in cluster.box_versions)
        asked[wish.key] = topic, wish
        changes.append(StateChange(topic, wish.partition, partial(decide_isr_change, cluster, topic, wish, added), checks, is_forced=True))
        if added:
            grows.add(wish.key)
    made = yield from change_states(cluster, changes, cluster.own_writes())
    granted = {(change.topic.name, change.partition) for change in made}
    for key, (_topic, wish) in asked.items():
        if key not in granted and wish.number is not None and cluster.reports.get(report.disk) is report:
            report.wishes_refused[key] = wish.number
    if made:
        yield Publish()
    yield from send_roles(cluster, [(topic, wish.partition) for topic, wish in asked.values()])
    return Granted(len(granted & grows), len(granted - grows), len(asked) - len(granted))


def complete_isr_changes(cluster: Cluster, keys: Iterable[PartitionKey]) -> Operation[None]:
    """Wishes whose outcome nobody knows: write the sets that hold once more, so that none of them comes true later; the new partition epoch is the answer."""
    found = [(topic, number) for name, number in sorted(keys) if (topic := cluster.topics.get(name)) is not None and number in topic.states]

    def same(state: PartitionState) -> PartitionState | None:
        return state if state.leader == cluster.broker_id else None

    yield from change_states(cluster, [StateChange(topic, number, same, is_forced=True) for topic, number in found], cluster.own_writes())
    cluster.to_tell.update((topic.name, number) for topic, number in found)
