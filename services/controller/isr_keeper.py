"""Collect AlterPartition requests of this box's log-writers (in-sync sets that leaders request),
and carry them out disk by disk.

Owned by the controller process of the leader's box. Three rules make a change safe:

* A set changes only by a conditional write, under the leader epoch and the partition epoch on
  which its leader decided. A newer leader or a newer set refuses it.
* An added replica must be alive, not fenced, and must have fetched under its current
  registration. The version of its record is checked in the same transaction (KIP-903): a box that
  registered again since may have lost the end of its log.
* A refusal names the request, and is sent only if the write certainly did not happen. If the
  connection was lost, the outcome is unknown. Then the current set is written once more
  (`complete_isr_changes`), so that a write still under way fails on the version, and the new
  partition epoch is the answer.

One operation runs per disk; meanwhile the newest request of each partition waits. Requests of an
ended incarnation of a log-writer are dropped unless they are being written; its next incarnation
receives no role before their outcome is known. While ZooKeeper is away requests wait, and their
leaders count with the larger of both sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from appliance.cluster.znodes import PartitionState, box_path
from services.controller.decisions.cluster import Cluster, ControllerContext, DiskReport
from services.controller.decisions.disk_report import PartitionKey
from services.controller.decisions.role_operations import send_roles
from services.controller.decisions.state_changes import StateChange, change_states
from services.controller.zookeeper.operation import Operation, OperationOutcome, Publish
from services.controller.zookeeper.requests import Check
from services.controller.zookeeper.topic_registry import TopicState


class PendingIsrChange(NamedTuple):
    """An in-sync set that a leader requests.

    `broker_epochs`: for each added member, the registration under which it fetched. `number`
    identifies this request.
    """

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
        number = document.get("change")
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
    """Counts of sets that grew, sets that shrank, and refused requests."""

    expanded: int = 0
    shrunk: int = 0
    refused: int = 0


def may_add(cluster: Cluster, request: PendingIsrChange, added: Iterable[int]) -> bool:
    """Whether all of `added` are alive, not fenced, and fetched under the registration that is
    known.
    """
    return all(
        member in cluster.brokers
        and not cluster.is_fenced(member)
        and member in cluster.box_versions
        and request.broker_epochs.get(member) == cluster.broker_epochs.get(member, -1)
        for member in added
    )


def decide_isr_change(
    cluster: Cluster, topic: TopicState, request: PendingIsrChange, known_added: frozenset[int], state: PartitionState
) -> PartitionState | None:
    """Return the state with the requested set, or None to refuse it.

    A leader from an unclean election counts as recovered as soon as another replica is in sync.
    """
    members, broker_id = set(request.isr), cluster.broker_id
    if state.leader != broker_id or state.leader_epoch != request.leader_epoch or broker_id not in members:
        return None  # decided under a former leader epoch
    if request.partition_epoch != topic.state_versions[request.partition]:
        return None  # decided on a former in-sync set
    if len(members) != len(request.isr) or not members <= set(topic.replicas[request.partition]):
        return None  # a member twice, or one that is no longer assigned
    added = members - set(state.isr)
    if not added <= known_added or not may_add(cluster, request, added):
        return None  # the transaction checks the registrations of `known_added` only
    return state._replace(isr=request.isr, leader_recovery_state=0 if len(members) > 1 else state.leader_recovery_state)


def apply_isr_changes(cluster: Cluster, report: DiskReport, requests: Iterable[PendingIsrChange]) -> Operation[Granted]:
    """Write those requests of one log-writer that are allowed, and send it the resulting sets. At
    most one per partition.
    """
    considered: dict[PartitionKey, tuple[TopicState, PendingIsrChange]] = {}
    changes: list[StateChange] = []
    grows: set[PartitionKey] = set()
    for request in requests:
        topic = cluster.topics.get(request.topic)
        if topic is None or str(topic.topic_id) != request.topic_id or request.partition not in topic.states:
            continue  # the log-writer will receive the deletion instead
        added = frozenset(request.isr) - frozenset(topic.states[request.partition].isr)
        checks = tuple(Check(box_path(member), cluster.box_versions[member]) for member in sorted(added) if member in cluster.box_versions)
        considered[request.key] = topic, request
        changes.append(StateChange(topic, request.partition, partial(decide_isr_change, cluster, topic, request, added), checks, is_forced=True))
        if added:
            grows.add(request.key)
    made = yield from change_states(cluster, changes, cluster.own_writes())
    granted = {(change.topic.name, change.partition) for change in made}
    for key, (_topic, request) in considered.items():
        if key not in granted and request.number is not None and cluster.reports.get(report.disk) is report:
            report.refused_isr_changes[key] = request.number
    if made:
        yield Publish()
    refused = yield from send_roles(cluster, [(topic, request.partition) for topic, request in considered.values()])
    if refused:  # `RoleKeeper` sends those that are not confirmed again
        cluster.roles_to_send.update(considered)
    return Granted(len(granted & grows), len(granted - grows), len(considered) - len(granted))


def complete_isr_changes(cluster: Cluster, keys: Iterable[PartitionKey]) -> Operation[None]:
    """Settle requests whose outcome is unknown: write the current sets once more.

    The write raises the partition epoch. So no earlier write can take effect later, and the
    log-writer receives the epoch as its answer.
    """
    found = [(topic, number) for name, number in sorted(keys) if (topic := cluster.topics.get(name)) is not None and number in topic.states]

    def same(state: PartitionState) -> PartitionState | None:
        return state if state.leader == cluster.broker_id else None

    yield from change_states(cluster, [StateChange(topic, number, same, is_forced=True) for topic, number in found], cluster.own_writes())
    cluster.roles_to_send.update((topic.name, number) for topic, number in found)


class IsrKeeper:
    """Requests by disk."""

    def __init__(self, context: ControllerContext) -> None:
        counters = context.counters
        self._cluster = context.cluster
        self._runner = context.runner
        self._can_begin = context.can_begin
        self._on_failure = context.on_failure
        self._waiting: dict[str, dict[PartitionKey, PendingIsrChange]] = {}
        self._written: dict[str, set[PartitionKey]] = {}
        """Disk → partitions whose request is being written, or was when the connection was lost."""
        self._expands = counters.counter("controller.isr_expands")
        self._shrinks = counters.counter("controller.isr_shrinks")
        self._refused = counters.counter("controller.isr_wishes_refused")

    def on_requests(self, disk: str, documents: list[dict[str, Any]]) -> None:
        """Add requests of a log-writer."""
        waiting = self._waiting.setdefault(disk, {})
        for document in documents:
            try:
                request = PendingIsrChange.from_document(document)
            except (KeyError, TypeError, ValueError, AttributeError):
                self._refused.add()
                continue
            waiting.pop(request.key, None)
            waiting[request.key] = request

    def on_disk_gone(self, disk: str) -> None:
        self._waiting.pop(disk, None)

    def is_settled(self, disk: str) -> bool:
        """Whether no request of this disk's log-writers is being written or has an unknown outcome."""
        return disk not in self._written

    def do_work(self) -> int:
        """Start what can be started."""
        if not (self._waiting or self._written) or not self._can_begin():
            return 0
        work = 0
        for disk, keys in list(self._written.items()):
            if not self._runner.is_running(f"isr:{disk}"):
                work += self._runner.start(
                    f"isr:{disk}",
                    complete_isr_changes(self._cluster, set(keys)),
                    lambda outcome, disk=disk: self._on_settled(disk, outcome),  # type: ignore[misc]
                )
        for disk, requests in list(self._waiting.items()):
            report = self._cluster.reports.get(disk)
            if not requests or report is None:
                del self._waiting[disk]
                continue
            if disk in self._written:
                continue
            del self._waiting[disk]
            self._written[disk] = set(requests)
            operation = apply_isr_changes(self._cluster, report, list(requests.values()))
            work += self._runner.start(f"isr:{disk}", operation, lambda outcome, disk=disk: self._on_applied(disk, outcome))  # type: ignore[misc]
        return work

    def _on_settled(self, disk: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._written.pop(disk, None)

    def _on_applied(self, disk: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._written.pop(disk, None)
        self._expands.add(outcome.value.expanded)
        self._shrinks.add(outcome.value.shrunk)
        self._refused.add(outcome.value.refused)
