"""Topics as ZooKeeper holds them, and the writes that change them.

Owned by the controller process. `TopicState` is its copy of the tree; it changes only after
ZooKeeper has accepted a write, and is loaded again after each reconnect. Weak: loading reads the
state of each partition (2,000 in 0.4 s, spread over many turns of the duty cycle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from appliance.base.model import TopicId
from appliance.cluster.metadata_image import PartitionImage
from appliance.cluster.znodes import (
    BROKER_TOPICS,
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    DirectoryAssignment,
    MoveOrder,
    PartitionState,
    TopicAssignment,
    decode_config,
    delete_topic_path,
    encode_config,
    encode_config_change,
    partition_path,
    partition_state_path,
    placement_path,
    placements_path,
    topic_config_path,
    topic_partitions_path,
    topic_path,
)
from services.controller.zookeeper.operation import WRITES_MAX, Operation, all_of
from services.controller.zookeeper.requests import Check, Create, Delete, Get, GetChildren, Node, NoNode, SetData, Write


class TopicState:
    """One topic of the tree."""

    __slots__ = (
        "assignment",
        "config",
        "config_version",
        "created_zxid",
        "document_version",
        "moves",
        "name",
        "placement",
        "state_versions",
        "states",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: TopicId, assignment: TopicAssignment, config: dict[str, str], config_version: int = 0) -> None:
        self.name = name
        self.topic_id = topic_id
        self.assignment = assignment
        self.config = config
        self.config_version = config_version
        self.document_version = 0
        """Znode version of the topic's document, which holds `assignment`."""
        self.created_zxid = 0
        """Distinguishes topics that had this name one after the other; 0 if it was not read."""
        self.states: dict[int, PartitionState] = {}
        self.state_versions: dict[int, int] = {}
        """The partition epochs: znode versions of `states`."""
        self.placement: dict[int, str] = {}
        """partition → id of the directory of this broker that holds it."""
        self.moves: dict[int, MoveOrder] = {}
        """partition → the directory of this broker to which it is being moved."""

    @property
    def replicas(self) -> dict[int, tuple[int, ...]]:
        return self.assignment.partitions

    def partitions_without_state(self) -> list[int]:
        return [partition for partition in sorted(self.replicas) if partition not in self.states]

    @property
    def is_complete(self) -> bool:
        """Whether every partition has a state."""
        return len(self.states) == len(self.replicas)

    @property
    def visible_count(self) -> int:
        """Count the partitions that clients see: those with a state, from 0 on without a gap.

        States are written from the last partition down. So a topic that is being created shows no
        partition, and one that grows shows its old ones, until all states are written.
        """
        return next((partition for partition in range(len(self.replicas)) if partition not in self.states), len(self.replicas))

    def local_partitions(self, broker_id: int) -> list[int]:
        return [partition for partition, replicas in sorted(self.replicas.items()) if broker_id in replicas]

    def partition_images(self, disk_of: Callable[[str], str | None]) -> tuple[PartitionImage, ...]:
        """Return the partitions for the metadata image; `disk_of` maps a directory id to a disk of
        this box.
        """
        images = []
        for partition in range(self.visible_count):
            state = self.states[partition]
            directory = self.placement.get(partition)
            disk = disk_of(directory) if directory is not None else None
            order = self.moves.get(partition)
            moving_to = disk_of(order.directory_id) if order is not None else None
            images.append(
                PartitionImage(state.leader, state.leader_epoch, self.replicas[partition], state.isr, disk, moving_to, self.state_versions[partition])
            )
        return tuple(images)

    def set_state(self, partition: int, state: PartitionState, version: int) -> None:
        """For a topic that is being loaded; a known topic changes through `Cluster.put_state`."""
        self.states[partition] = state
        self.state_versions[partition] = version


# --- reading -----------------------------------------------------------------------------------------------------------


def load_topics(broker_id: int, new_topic_id: Callable[[], TopicId]) -> Operation[dict[str, TopicState]]:
    """Load all topics, with watches on the lists of topics and of deletions.

    A topic whose document has no id (versions 1 and 2) gets one; `assignment.topic_id` is None
    until it is written.
    """
    names = yield GetChildren(BROKER_TOPICS, True)
    found = yield from load_some_topics(broker_id, names, new_topic_id)
    return found


def load_some_topics(broker_id: int, names: Iterable[str], new_topic_id: Callable[[], TopicId]) -> Operation[dict[str, TopicState]]:
    """Load those of these topics that exist."""
    listed = list(names)
    nodes = yield from all_of([step for name in listed for step in (Get(topic_path(name)), Get(topic_config_path(name)), Get(placement_path(broker_id, name)))])
    topics: dict[str, TopicState] = {}
    for index, name in enumerate(listed):
        topic, config, placement = (_node(found) for found in nodes[3 * index : 3 * index + 3])
        if topic is None or not topic.data:
            continue
        assignment = TopicAssignment.decode(name, topic.data)
        state = TopicState(name, assignment.topic_id or new_topic_id(), assignment, {})
        state.document_version, state.created_zxid = topic.version, topic.czxid
        if config is not None and config.data:
            state.config, state.config_version = decode_config(topic_config_path(name), config.data), config.version
        if placement is not None:
            decoded = DirectoryAssignment.decode(placement_path(broker_id, name), placement.data)
            if decoded.topic_id == state.topic_id:  # else it is the placement of an earlier topic of this name
                state.placement, state.moves = decoded.directories, dict(decoded.moves)
        topics[name] = state
    yield from _load_states(topics)
    return topics


def _load_states(topics: dict[str, TopicState]) -> Operation[None]:
    wanted = [(topic, partition) for topic in topics.values() for partition in sorted(topic.replicas)]
    nodes = yield from all_of([Get(partition_state_path(topic.name, partition)) for topic, partition in wanted])
    for (topic, partition), found in zip(wanted, nodes, strict=True):
        node = _node(found)
        if node is not None:
            topic.set_state(partition, PartitionState.decode(partition_state_path(topic.name, partition), node.data), node.version)


def load_deletions() -> Operation[set[str]]:
    """Return the names of the topics to be deleted, and set a watch on the list."""
    names = yield GetChildren(DELETE_TOPICS, True)
    return set(names)


def load_placements(broker_id: int) -> Operation[dict[str, DirectoryAssignment]]:
    """Return all placements of this broker, including those of topics that no longer exist."""
    names = yield GetChildren(placements_path(broker_id))
    nodes = yield from all_of([Get(placement_path(broker_id, name)) for name in names])
    found = {name: _node(node) for name, node in zip(names, nodes, strict=True)}
    return {name: DirectoryAssignment.decode(placement_path(broker_id, name), node.data) for name, node in found.items() if node is not None and node.data}


def brokers_with_placement(topic: TopicState, partitions: Iterable[int], broker_ids: Iterable[int]) -> Operation[dict[int, set[int]]]:
    """For each partition, return those of `broker_ids` that have placed it on a disk."""
    asked = sorted(set(broker_ids))
    nodes = yield from all_of([Get(placement_path(broker_id, topic.name)) for broker_id in asked])
    found: dict[int, set[int]] = {partition: set() for partition in partitions}
    for broker_id, answer in zip(asked, nodes, strict=True):
        node = _node(answer)
        if node is None or not node.data:
            continue
        placement = DirectoryAssignment.decode(placement_path(broker_id, topic.name), node.data)
        if placement.topic_id == topic.topic_id:
            for partition in found.keys() & placement.directories.keys():
                found[partition].add(broker_id)
    return found


def _node(found: Any) -> Node | None:
    if isinstance(found, NoNode):
        return None
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Node)
    return found


# --- writing: what goes into the controller's fenced transactions ------------------------------------------------------


def creation_writes(topic: TopicState, broker_id: int, config_exists: bool, placement_exists: bool) -> tuple[Write, ...]:
    """Return the transaction that creates a topic: configs, assignment with id, directories.
    Left-overs are replaced.
    """
    config = encode_config(topic.config)
    placement = DirectoryAssignment(topic.topic_id, topic.placement, topic.moves).encode()
    config_path, directories_path = topic_config_path(topic.name), placement_path(broker_id, topic.name)
    return (
        SetData(config_path, config, -1) if config_exists else Create(config_path, config),
        Create(topic_path(topic.name), topic.assignment.encode()),
        SetData(directories_path, placement, -1) if placement_exists else Create(directories_path, placement),
    )


def growth_writes(topic: TopicState, broker_id: int, assignment: TopicAssignment, placement: dict[int, str], placement_exists: bool) -> tuple[Write, ...]:
    """Return the transaction that adds partitions: a controller that finds them without states
    completes them.
    """
    path, data = placement_path(broker_id, topic.name), DirectoryAssignment(topic.topic_id, placement, topic.moves).encode()
    return (SetData(topic_path(topic.name), assignment.encode(), topic.document_version), SetData(path, data, -1) if placement_exists else Create(path, data))


def config_writes(name: str, config: dict[str, str], version: int | None) -> tuple[Write, ...]:
    """Return the transaction that changes a topic's configs under `version` and notifies every
    broker.

    `version` is None if the topic has no config node yet.
    """
    path, data = topic_config_path(name), encode_config(config)
    return (
        Check(topic_path(name), -1),
        Create(path, data) if version is None else SetData(path, data, version),
        Create(f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}", encode_config_change(f"topics/{name}"), sequence=True),
    )


def placement_write(topic: TopicState, broker_id: int, exists: bool) -> Write:
    """Return the write of this broker's placements and moves of a topic, as memory has them.

    A change goes into memory first, so that no write reverts another one.
    """
    path, data = placement_path(broker_id, topic.name), DirectoryAssignment(topic.topic_id, topic.placement, topic.moves).encode()
    return SetData(path, data, -1) if exists else Create(path, data)


def first_state_writes(topic: TopicState, states: dict[int, PartitionState], existing: Iterable[str] | None) -> list[Write]:
    """Return the creations of the state nodes, from the last partition down (see
    `TopicState.visible_count`).

    `existing`: partitions that have a node already, because a controller died between two
    transactions; None if `partitions` itself is missing.
    """
    there = set(existing or ())
    writes: list[Write] = [] if existing is not None else [Create(topic_partitions_path(topic.name))]
    for partition, state in sorted(states.items(), reverse=True):
        if str(partition) not in there:
            writes.append(Create(partition_path(topic.name, partition)))
        writes.append(Create(partition_state_path(topic.name, partition), state.encode()))
    return writes


def partitions_written(name: str, writes: Iterable[Write]) -> list[int]:
    """Return the partitions that get their first state from these writes."""
    prefix, suffix = f"{topic_partitions_path(name)}/", "/state"
    return [int(write.path[len(prefix) : -len(suffix)]) for write in writes if write.path.startswith(prefix) and write.path.endswith(suffix)]


def state_write(topic: TopicState, partition: int, state: PartitionState) -> Write:
    """Return the write of a new state under the known version."""
    return SetData(partition_state_path(topic.name, partition), state.encode(), topic.state_versions[partition])


def chunks(writes: list[Write]) -> list[tuple[Write, ...]]:
    """Split writes into transactions that ZooKeeper accepts; a crash may come between two of them."""
    return [tuple(writes[start : start + WRITES_MAX]) for start in range(0, len(writes), WRITES_MAX)]


def deletion_writes(name: str, broker_id: int, existing: list[str]) -> list[Write]:
    """Return the deletions of `existing` paths: children before parents, then the placement, then
    the deletion order.

    While the order exists, the deletion continues after a crash; it knows the directories until
    nothing else is left.
    """
    placement = placement_path(broker_id, name)
    order = sorted(existing, key=lambda path: (path == placement, -path.count("/"), path))
    return [*(Delete(path) for path in order), Delete(delete_topic_path(name))]


def topic_paths(name: str, broker_id: int, partitions: Iterable[int]) -> list[str]:
    """Return every path that a topic with these partitions may have, except the deletion order."""
    paths = [topic_path(name), topic_partitions_path(name), topic_config_path(name), placement_path(broker_id, name)]
    for partition in partitions:
        paths += [partition_path(name, partition), partition_state_path(name, partition)]
    return paths
