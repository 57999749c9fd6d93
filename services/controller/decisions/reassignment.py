"""Decide reassignments of partitions to other boxes, in two steps (KIP-455). Pure;
`reassignment_operations` carries them out.

While a reassignment is under way, the topic document lists target and old replicas together, and
which of them are added or removed. When all target replicas are in the in-sync set, the document
becomes the target, and the in-sync set loses all others. Both steps change document and state in
one transaction. So the next controller finds one or the other, and the old replicas stay until the
new ones have all records.

A new order replaces one that is under way; a cancellation is an order for the original replicas.
Weak: as in Kafka, a cancellation loses the order of the original replicas, and so the preferred
leader, if the target named some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER
from appliance.cluster.znodes import PartitionState, TopicAssignment


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
