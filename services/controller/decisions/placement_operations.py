"""Write where the replicas of this broker lie. Each box writes its own placements, controller or
not.

A placement is durable before or after its directory, and never replaces it. A placed partition
without a directory and without a state is created again. A directory without a placement is placed
where it lies (`disk_operations`). Owned by the controller process of each box.
"""

from __future__ import annotations

from appliance.cluster.znodes import placement_path
from appliance.ipc.descriptors import DescriptorKind
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.change_log import ClusterChange, change_write
from services.controller.zookeeper.operation import DiskCommand, Operation
from services.controller.zookeeper.topic_registry import TopicState


def create_command(cluster: Cluster, topic: TopicState, partition: int, disk: str) -> DiskCommand:
    payload = {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id), "config": cluster.config_of(topic)}
    return DiskCommand(disk, DescriptorKind.CREATE, payload)


def place_again(cluster: Cluster, topic: TopicState, placement: dict[int, str]) -> Operation[None]:
    """Set the directories of some partitions of this broker, and write the placement."""
    topic.placement = {**topic.placement, **placement}
    yield from write_placement(cluster, topic)


def write_placement(cluster: Cluster, topic: TopicState) -> Operation[None]:
    """Write a topic's placement on this broker as memory has it, with a change node."""
    existing = yield from broker_registry.read(placement_path(cluster.broker_id, topic.name))
    news = change_write(ClusterChange(cluster.broker_id, placements=((cluster.broker_id, topic.name),)))
    yield from cluster.own_writes().guard((topic_registry.placement_write(topic, cluster.broker_id, existing is not None), news))
    cluster.roles_to_send.update((topic.name, partition) for partition in topic.placement)
