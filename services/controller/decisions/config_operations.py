"""Read and change the configs of topics and brokers in ZooKeeper, and apply changes by others.

Owned by the controller process of each box. As in Kafka, any box may change them: the write is
conditional on the version that was read and on the topic's existence, and needs no controller. Each
box learns of it by Kafka's notification and sends it to its own log-writers, with the new config
generation (CONFIG). A log-writer refuses a batch that was offered under an older generation;
acceptor and ingest check it and offer it again (`produce.offered_again`). Weak: configs of
brokers that Kafka's tools write and this box does not know are kept and have no effect.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.znodes import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    DEFAULT_BROKER,
    broker_config_path,
    decode_config,
    encode_config,
    encode_config_change,
    topic_config_path,
    topic_path,
)
from appliance.ipc.descriptors import DescriptorKind
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.config_changes import ConfigChange
from services.controller.zookeeper.operation import DiskCommand, Operation, Publish, all_of
from services.controller.zookeeper.requests import BadVersion, Create, MultiFailed, NodeExists, NoNode, SetData
from services.controller.zookeeper.topic_registry import TopicState

ATTEMPTS_MAX = 5
"""Attempts of a write when another box writes the same node."""


def alter_topic_config(cluster: Cluster, name: str, change: ConfigChange, validate_only: bool) -> Operation[None]:
    """Apply `change` to a topic's configs in ZooKeeper, notify all brokers, send them to our
    log-writers, publish.

    If the process dies after the transaction, the next incarnation loads the new configs and sends
    them with BECOME_LEADER. Raises RequestRefused.
    """
    path = topic_config_path(name)
    for _attempt in range(ATTEMPTS_MAX):
        topic = cluster.topics.get(name)
        if topic is None or name in cluster.deleting:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        node = yield from broker_registry.read(path)
        current = decode_config(path, node.data) if node is not None and node.data else {}
        config = change(current)
        if validate_only or (config == current == topic.config):
            return
        try:
            results = yield from cluster.own_writes().guard(topic_registry.config_writes(name, config, node.version if node is not None else None))
        except MultiFailed as refused:
            if isinstance(refused.cause, NoNode) and refused.write.path == topic_path(name):
                raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.") from refused
            if isinstance(refused.cause, BadVersion | NodeExists | NoNode):
                continue  # another box wrote the node between our read and our write: read again
            raise
        yield from _use_config(cluster, topic, config, int(results[1]) if node is not None else 0)
        return
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"the configs of topic '{name}' were changed by others at the same time; try again")


def reload_topic_config(cluster: Cluster, name: str) -> Operation[None]:
    """Load a topic's configs after a notification, if they have changed."""
    topic = cluster.topics.get(name)
    path = topic_config_path(name)
    node = yield from broker_registry.read(path)
    if topic is None or node is None or not node.data or node.version == topic.config_version:
        return
    yield from _use_config(cluster, topic, decode_config(path, node.data), node.version)


def _use_config(cluster: Cluster, topic: TopicState, config: dict[str, str], version: int) -> Operation[None]:
    """Send the new configs to the log-writers, then publish the image.

    The order matters: log-writers must know the new generation before clients' produces refer to
    it. A log-writer that is away gets the configs when it returns.
    """
    topic.config, topic.config_version = config, version
    payload = {"topic": topic.name, "partition": -1, "topic_id": str(topic.topic_id), "config": cluster.config_of(topic), "config_generation": version}
    disks = {disk for partition in topic.states if (disk := cluster.disk_of_partition(topic, partition)) in cluster.reports}
    yield from all_of([DiskCommand(disk, DescriptorKind.CONFIG, payload) for disk in sorted(disk for disk in disks if disk is not None)])
    yield Publish()


ATTEMPTS_MAX = 5


def load_box_configs(cluster: Cluster) -> Operation[None]:
    """Load the configs of this broker, and those of all brokers."""
    found = {}
    for name in (DEFAULT_BROKER, str(cluster.broker_id)):
        path = broker_config_path(name)
        node = yield from broker_registry.read(path)
        found[name] = decode_config(path, node.data) if node is not None and node.data else {}
    cluster.dynamic_configs = found


def alter_box_config(cluster: Cluster, name: str, change: ConfigChange, validate_only: bool) -> Operation[None]:
    """Change the configs of this broker, or of all brokers (`DEFAULT_BROKER`). Raises
    RequestRefused.
    """
    path = broker_config_path(name)
    for _attempt in range(ATTEMPTS_MAX):
        node = yield from broker_registry.read(path)
        current = decode_config(path, node.data) if node is not None and node.data else {}
        config = change(current)
        if validate_only or config == current:
            return
        data = encode_config(config)
        write = Create(path, data) if node is None else SetData(path, data, node.version)
        notification = Create(f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}", encode_config_change(f"brokers/{name}"), sequence=True)
        try:
            yield from cluster.own_writes().guard((write, notification))
        except MultiFailed as refused:
            if isinstance(refused.cause, BadVersion | NodeExists):
                continue  # another box wrote it between our read and our write: read again
            raise
        cluster.dynamic_configs[name] = config
        yield Publish()
        return
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the configs were changed by others at the same time; try again")
