"""Where the replicas of this broker lie: written by the box itself, whoever is controller, and told to everybody.

A placement is durable before or behind its directory, never instead of it: what is placed and has no directory and no state is created again, what
has a directory and no placement is placed where it lies (`disk_operations`). Owned by the controller process of each box. Weak spot: none known.
"""

from __future__ import annotations

from appliance.cluster.znodes import placement_path
from appliance.ipc.descriptors import DescriptorKind
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.change_log import Change, change_write
from services.controller.zookeeper.operation import DiskCommand, Operation
from services.controller.zookeeper.topic_registry import TopicState


def create_command(cluster: Cluster, topic: TopicState, partition: int, disk: str) -> DiskCommand:
    payload = {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id), "config": cluster.config_of(topic)}
    return DiskCommand(disk, DescriptorKind.CREATE, payload)


def place_again(cluster: Cluster, topic: TopicState, placement: dict[int, str]) -> Operation[None]:
    """Write where partitions of this broker lie, and tell."""
    topic.placement = {**topic.placement, **placement}
    yield from write_placement(cluster, topic)


def write_placement(cluster: Cluster, topic: TopicState) -> Operation[None]:
    """Write where a topic's partitions lie on this broker, as memory has it, and tell."""
    existing = yield from broker_registry.read(placement_path(cluster.broker_id, topic.name))
    news = change_write(Change(cluster.broker_id, placements=((cluster.broker_id, topic.name),)))
    yield from cluster.own_writes().guard((topic_registry.placement_write(topic, cluster.broker_id, existing is not None), news))
    cluster.to_tell.update((topic.name, partition) for partition in topic.placement)
