"""Giving a partition to other boxes, in two steps (KIP-455): what may be ordered, and what is written when. Pure.

Under way, the topic document holds target and old replicas together, and which of them come and which go. When every target replica is in the ISR, the
document is the target, and the ISR holds no other. Both steps are one transaction each of document and state, so whoever is controller next finds one or
the other, never half of it. An order takes the place of one that is under way; calling off is an order for the original replicas. Carried out by
`reassignment_operations`. Weak spot: as in Kafka, the order of the original replicas, and with it the preferred leader, is not kept through a call-off
that named some of them in the target.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER
from appliance.cluster.znodes import PartitionState, TopicAssignment


class Reassignment(NamedTuple):
    """One partition's replicas as the topic document has them: `replicas` are target and old ones together."""

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
        """An order for `target`: every replica of now stays until the target is whole; what a former order was adding, and this one does not want, goes."""
        replicas = tuple(dict.fromkeys((*target, *self.original)))
        adding = tuple(replica for replica in replicas if replica not in self.original)
        removing = tuple(replica for replica in replicas if replica not in target)
        return Reassignment(replicas, adding, removing)

    def finished(self) -> Reassignment:
        return Reassignment(self.target)

    def is_whole(self, isr: Collection[int]) -> bool:
        """Whether what is to come has come: every target replica is in sync."""
        return not self.is_under_way or set(self.target) <= set(isr)


def plan_order(current: Reassignment, target: Sequence[int] | None, live_brokers: Collection[int]) -> Reassignment:
    """What the document is to say after an order for `target` (None: call off). `RequestRefused` carries Kafka's code."""
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
    """The state that goes with `wanted`, after `former`. While nobody has to go, nothing changes: boxes that come are told by the document. When somebody
    goes: a larger leader epoch, so that what he still asks is refused; in sync are those who stay of who is in sync; a leader who goes hands over to the
    first who stays, lives and is in sync (target replicas stand first). Refused: nobody who is in sync would stay."""
    if set(former.replicas) <= set(wanted.replicas):
        return state
    isr = tuple(replica for replica in state.isr if replica in wanted.replicas)
    if not isr:
        raise _invalid(f"None of the replicas that would stay ({_listed(wanted.replicas)}) is in sync ({_listed(state.isr)}).")
    leader = state.leader
    if leader not in wanted.replicas:
        leader = next((replica for replica in wanted.replicas if replica in isr and replica in live_brokers), NO_LEADER)
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch, isr=isr)


def with_replicas(assignment: TopicAssignment, wanted: dict[int, Reassignment]) -> TopicAssignment:
    """The topic document with these partitions' replicas."""
    adding = {partition: each.adding for partition, each in wanted.items()}
    removing = {partition: each.removing for partition, each in wanted.items()}
    return assignment._replace(
        partitions={**assignment.partitions, **{partition: each.replicas for partition, each in wanted.items()}},
        adding_replicas={partition: replicas for partition, replicas in {**assignment.adding_replicas, **adding}.items() if replicas},
        removing_replicas={partition: replicas for partition, replicas in {**assignment.removing_replicas, **removing}.items() if replicas},
    )


def under_way(assignment: TopicAssignment) -> list[int]:
    """The partitions of a topic that are on their way to other boxes."""
    return sorted(assignment.adding_replicas.keys() | assignment.removing_replicas.keys())


def _invalid(reason: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _listed(broker_ids: Sequence[int]) -> str:
    return ", ".join(str(broker_id) for broker_id in broker_ids) or "none"
