"""Read and change the configs of topics, brokers and groups in ZooKeeper, and apply changes by others.

Owned by the controller process of each box. As in Kafka, any box may change them: the write is
conditional on the version that was read and on the topic's existence, and needs no controller. Each
box learns of it by Kafka's notification and sends it to its own log-writers, with the new config
generation (CONFIG). A log-writer refuses a batch that was offered under an older generation;
acceptor and ingest check it and offer it again (`produce.offered_again`). Weak: configs of
brokers that Kafka's tools write and this box does not know are kept and have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicId
from appliance.cluster.group_configs import (
    GROUP_CONFIGS,
    GROUP_CONFIGS_BYTES_MAX,
    GROUPS_ENTITY,
    decode_group_configs,
    encode_group_configs,
)
from appliance.cluster.topic_configs import config_bytes
from appliance.cluster.znodes import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    DEFAULT_BROKER,
    DocumentUnreadable,
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
from services.controller.zookeeper.requests import BadVersion, Create, MultiFailed, Node, NodeExists, NoNode, Request, SetData
from services.controller.zookeeper.topic_registry import TopicState

ATTEMPTS_MAX = 5
"""Attempts of a write when another box writes the same node."""
LARGE_CONFIG_BYTES = 1_000
LARGE_CONFIGS_BYTES_MAX = 4 << 20
"""All topics have one ZooKeeper, whose heap is 64 MiB, and one image."""
RECOUNT_MS = 1_000


class LargeConfigs:
    """Bounds the configs of all topics that have more than `LARGE_CONFIG_BYTES`. They are counted anew
    when the bound is reached, at most once in `RECOUNT_MS`.

    Weak: what another object of this class has admitted since then is not known.
    """

    def __init__(self, cluster: Cluster, monotonic_ms: Callable[[], int], coming: Callable[[], Iterable[Mapping[str, str]]] = tuple) -> None:
        """`coming` returns the configs of topics that are being created."""
        self._cluster = cluster
        self._monotonic_ms = monotonic_ms
        self._coming = coming
        self._total = LARGE_CONFIGS_BYTES_MAX
        self._recount_ms = 0

    def admit(self, config: Mapping[str, str | None], former: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise RequestRefused if `config` instead of `former` would exceed the bound."""
        size, before = config_bytes(config), config_bytes(former)
        if size <= max(LARGE_CONFIG_BYTES, before):
            return
        more, now_ms = size - (before if before > LARGE_CONFIG_BYTES else 0), self._monotonic_ms()
        if self._total + more > LARGE_CONFIGS_BYTES_MAX and now_ms >= self._recount_ms:
            self._recount_ms = now_ms + RECOUNT_MS
            sizes = map(config_bytes, (*self._coming(), *(topic.config for topic in self._cluster.topics.values())))
            self._total = sum(each for each in sizes if each > LARGE_CONFIG_BYTES)
        if self._total + more > LARGE_CONFIGS_BYTES_MAX:
            words = f"Topics with more than {LARGE_CONFIG_BYTES} bytes of configs may have {LARGE_CONFIGS_BYTES_MAX} together, and have {self._total}."
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, words)
        self._total += more


def alter_topic_config(cluster: Cluster, name: str, change: ConfigChange, validate_only: bool, large: LargeConfigs) -> Operation[None]:
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
        large.admit(config, current)
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
    yield from _send_configs(cluster, [topic])
    yield Publish()


def _config_commands(cluster: Cluster, topic: TopicState) -> list[Request | DiskCommand]:
    payload = {
        "topic": topic.name,
        "partition": -1,
        "topic_id": str(topic.topic_id),
        "config": cluster.config_of(topic),
        "config_generation": cluster.config_generation_of(topic),
    }
    disks = {disk for partition in topic.states if (disk := cluster.disk_of_partition(topic, partition)) in cluster.reports}
    return [DiskCommand(disk, DescriptorKind.CONFIG, payload) for disk in sorted(disk for disk in disks if disk is not None)]


def configs_in_effect(cluster: Cluster) -> dict[TopicId, dict[str, str]]:
    """Return the configs of each topic as log-writers know them."""
    return {topic.topic_id: cluster.config_of(topic) for topic in cluster.topics.values()}


def send_changed_configs(cluster: Cluster, former: Mapping[TopicId, Mapping[str, str]]) -> Operation[None]:
    """Send the configs of each topic for which they differ from the `former` ones, and what an
    earlier operation could not send.
    """
    changed = []
    for topic in cluster.topics.values():
        config = cluster.config_of(topic)
        if topic.name in cluster.configs_to_send or former.get(topic.topic_id, config) != config:
            changed.append(topic)
    yield from _send_configs(cluster, changed)


def _send_configs(cluster: Cluster, topics: Iterable[TopicState]) -> Operation[None]:
    """Send the configs of `topics`. If a lost session ends this, the next arrival sends them again."""
    generations = {topic.name: cluster.config_generation_of(topic) for topic in topics}
    cluster.configs_to_send.update(generations)
    yield from all_of([command for name in generations for command in _config_commands(cluster, cluster.topics[name])])
    for name, generation in generations.items():
        if cluster.configs_to_send.get(name) == generation:
            del cluster.configs_to_send[name]


def load_box_configs(cluster: Cluster) -> Operation[None]:
    """Load the configs of this broker, and those of all brokers."""
    for name in (DEFAULT_BROKER, str(cluster.broker_id)):
        path = broker_config_path(name)
        node = yield from broker_registry.read(path)
        config = decode_config(path, node.data) if node is not None and node.data else {}
        cluster.use_box_configs(name, config, node.version if node is not None else -1)


def reload_box_configs(cluster: Cluster) -> Operation[None]:
    """Load them after a notification; log-writers get what changes for their topics."""
    former = configs_in_effect(cluster)
    yield from load_box_configs(cluster)
    yield from publish_changed_configs(cluster, former)


def publish_changed_configs(cluster: Cluster, former: Mapping[TopicId, Mapping[str, str]]) -> Operation[None]:
    """Send the configs of topics that differ from the `former` ones to the log-writers, then publish the image."""
    yield from send_changed_configs(cluster, former)
    yield Publish()


def load_group_configs(cluster: Cluster) -> Operation[None]:
    """Load the configs of all groups; what cannot be read changes nothing."""
    node = yield from broker_registry.read(GROUP_CONFIGS)
    try:
        cluster.group_configs = decode_group_configs(node.data if node is not None else b"")
        cluster.group_configs_problem = None
    except DocumentUnreadable as problem:
        cluster.group_configs_problem = f"{problem}; mend or remove it"


def reload_group_configs(cluster: Cluster) -> Operation[None]:
    """Load them after a notification."""
    yield from load_group_configs(cluster)
    yield Publish()


def alter_group_config(cluster: Cluster, group_id: str, change: ConfigChange, validate_only: bool) -> Operation[None]:
    """Change the configs of a group, which need not exist. Raises RequestRefused."""
    for _attempt in range(ATTEMPTS_MAX):
        node = yield from broker_registry.read(GROUP_CONFIGS)
        try:
            configs = decode_group_configs(node.data if node is not None else b"")
        except DocumentUnreadable as problem:  # what is written anew would lack the configs of all other groups
            raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{problem}; mend or remove it") from problem
        current = configs.get(group_id, {})
        config = change(current)
        if validate_only or config == current:
            return
        configs[group_id] = config
        data = encode_group_configs(configs)
        if len(data) > GROUP_CONFIGS_BYTES_MAX:
            raise RequestRefused(ErrorCode.POLICY_VIOLATION, f"The configs of all groups would have {len(data)} bytes, and may have {GROUP_CONFIGS_BYTES_MAX}.")
        if not (yield from _write_node(cluster, GROUP_CONFIGS, node, data, GROUPS_ENTITY)):
            continue
        cluster.group_configs, cluster.group_configs_problem = decode_group_configs(data), None
        yield Publish()
        return
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"the configs of group '{group_id}' were changed by others at the same time; try again")


def _write_node(cluster: Cluster, path: str, node: Node | None, data: bytes, entity: str) -> Operation[bool]:
    """Write a node in place of `node`, and notify all boxes. False if another box wrote it since it
    was read: read it again.
    """
    write = Create(path, data) if node is None else SetData(path, data, node.version)
    notification = Create(f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}", encode_config_change(entity), sequence=True)
    try:
        yield from cluster.own_writes().guard((write, notification))
    except MultiFailed as refused:
        if isinstance(refused.cause, BadVersion | NodeExists):
            return False
        raise
    return True


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
        if not (yield from _write_node(cluster, path, node, encode_config(config), f"brokers/{name}")):
            continue
        former = configs_in_effect(cluster)
        cluster.use_box_configs(name, config, node.version + 1 if node is not None else 0)
        yield from publish_changed_configs(cluster, former)
        return
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the configs were changed by others at the same time; try again")
