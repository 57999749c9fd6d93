"""Send roles to log-writers: leader or follower of each partition, and the in-sync set. Only
differences are sent.

Owned by the controller process of each box. Needs no ZooKeeper: known roles are sent while it is
away. A restarted log-writer gets all roles again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.cluster.znodes import PartitionState
from appliance.ipc.descriptors import DescriptorKind
from services.controller.decisions.cluster import Cluster, DiskReport
from services.controller.decisions.disk_report import PartitionKey, ReplicaRole
from services.controller.zookeeper.operation import DiskCommand, Operation, all_of
from services.controller.zookeeper.requests import Request
from services.controller.zookeeper.topic_registry import TopicState


def send_roles(cluster: Cluster, partitions: Iterable[tuple[TopicState, int]]) -> Operation[int]:
    """Send the roles of those `partitions` that lie on this box; return how many were refused."""
    commands: list[Request | DiskCommand] = []
    sent: list[tuple[DiskReport, PartitionKey, ReplicaRole]] = []
    for topic, partition in partitions:
        report = cluster.reports.get(cluster.disk_of_partition(topic, partition) or "")
        role = role_of(cluster, topic, partition)
        if report is None or role is None:
            continue
        key = (topic.name, partition)
        if key in report.unbumped and role.kind is DescriptorKind.BECOME_LEADER:
            continue  # `settle_unclean_boot` must raise the leader epoch first
        former = report.sent.get(key) or report.confirmed.get(key)
        if role == former and key not in report.refused_isr_changes:
            continue
        refused = report.refused_isr_changes.pop(key, None)
        report.sent[key] = role
        sent.append((report, key, role))
        if former is not None and role.kind is DescriptorKind.BECOME_LEADER and role.differs_in_isr_only(former):
            commands.append(DiskCommand(report.disk, DescriptorKind.ISR, isr_payload(topic, partition, refused)))
        else:
            commands.append(DiskCommand(report.disk, role.kind, role_payload(cluster, topic, partition, topic.states[partition])))
    codes = yield from all_of(commands)
    for (report, key, role), code in zip(sent, codes, strict=True):
        report.on_answered(key, role, code == ErrorCode.NONE)
    return sum(1 for code in codes if code != ErrorCode.NONE)


def send_live_brokers(disk: str, live: frozenset[int]) -> Operation[int]:
    """Send the live brokers to a disk's log-writer; return its error code."""
    code: int = yield DiskCommand(disk, DescriptorKind.LIVE_BROKERS, {"brokers": sorted(live)})
    return code


def role_of(cluster: Cluster, topic: TopicState, partition: int) -> ReplicaRole | None:
    """Return this broker's role for a partition, or None if it has none."""
    state = topic.states.get(partition)
    replicas = topic.replicas.get(partition, ())
    if state is None or cluster.broker_id not in replicas:
        return None
    if state.leader == cluster.broker_id:
        isr = state.isr, topic.state_versions[partition]
        return ReplicaRole(DescriptorKind.BECOME_LEADER, str(topic.topic_id), state.leader, state.leader_epoch, replicas, *isr)
    return ReplicaRole(DescriptorKind.BECOME_FOLLOWER, str(topic.topic_id), state.leader, state.leader_epoch, replicas)


def role_payload(cluster: Cluster, topic: TopicState, partition: int, state: PartitionState) -> dict[str, Any]:
    """Return the payload of BECOME_LEADER and BECOME_FOLLOWER."""
    return {
        "topic": topic.name,
        "partition": partition,
        "topic_id": str(topic.topic_id),
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "leader_recovery_state": state.leader_recovery_state,
        "isr": list(state.isr),
        "partition_epoch": topic.state_versions.get(partition, 0),
        "replicas": list(topic.replicas[partition]),
        "config": cluster.config_of(topic),
        "config_generation": cluster.config_generation_of(topic),
        "moving_to": cluster.move_target(topic, partition),
    }


def isr_payload(topic: TopicState, partition: int, refused: int | None = None) -> dict[str, Any]:
    """Return the payload of ISR. `refused`: the number of the AlterPartition request that it
    refuses.
    """
    state = topic.states[partition]
    payload: dict[str, Any] = {
        "topic": topic.name,
        "partition": partition,
        "topic_id": str(topic.topic_id),
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "partition_epoch": topic.state_versions[partition],
    }
    return payload if refused is None else {**payload, "change": refused}
