"""The arrival: what the controller process of a box does after each (re)connect to ZooKeeper, and
how it applies later changes.

Owned by the controller process. Everything can be dropped after any step and starts again; it finds
nothing to do if nothing has changed. The change log is listed before the tree is read, so a change
that the tree read missed comes by the log. Weak: an arrival reads the whole tree (2,000 partitions
in half a second).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from appliance.base.model import TopicId
from appliance.cluster.znodes import (
    CLUSTER_ID,
    CONTROLLER,
    CONTROLLER_EPOCH,
    BoxRecord,
    BrokerRegistration,
    box_path,
    decode_controller,
    encode_controller,
    topic_path,
)
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.config_operations import configs_in_effect, load_box_configs, load_group_configs, send_changed_configs
from services.controller.zookeeper import broker_registry, change_log, topic_registry
from services.controller.zookeeper.broker_registry import read
from services.controller.zookeeper.change_log import ClusterChange
from services.controller.zookeeper.config_changes import list_config_changes
from services.controller.zookeeper.operation import Fence, Operation, Publish
from services.controller.zookeeper.requests import Create, Delete, Multi, MultiFailed, NodeExists, SetData, Write, ZooKeeperFailed
from services.controller.zookeeper.topic_registry import TopicState


class ForeignCluster(ZooKeeperFailed):
    """The box's directories belong to another cluster than this ZooKeeper."""


class ChangesMissed(ZooKeeperFailed):
    """Changes were removed before this box read them: everything must be reloaded."""


class Arrival(NamedTuple):
    """What an arrival needs from outside."""

    session_id: int
    registration: BrokerRegistration
    box: BoxRecord
    cluster_id: str
    """The id for a new cluster; with `cluster_id_expected` an existing one must have this id."""
    cluster_id_expected: bool
    has_been_member: bool
    """Of the cluster of that id. Then a ZooKeeper without a cluster id is the wrong one, or has
    lost its data.
    """
    timestamp_ms: int
    new_topic_id: Callable[[], TopicId]
    generation: int | None = None
    """The box's, in its state directory; None if that has none that can be read."""


def arrive(cluster: Cluster, arrival: Arrival) -> Operation[None]:
    """Create the roots, check the cluster id, register, elect a controller, load everything,
    publish. Safe to repeat.
    """
    yield from broker_registry.create_roots(cluster.broker_id)
    if arrival.has_been_member and (yield from broker_registry.read(CLUSTER_ID)) is None:
        raise ForeignCluster(
            f"this ZooKeeper is empty, and the box belongs to cluster {arrival.cluster_id}: name the right one with"
            " --zookeeper, or restore its data; to start the box afresh, empty its state directory and its disks"
        )
    cluster_id = yield from broker_registry.take_cluster_id(arrival.cluster_id)
    if arrival.cluster_id_expected and cluster_id != arrival.cluster_id:
        raise ForeignCluster(f"this ZooKeeper belongs to cluster {cluster_id}, the box to cluster {arrival.cluster_id}: name the right one with --zookeeper")
    cluster.is_restored = yield from _is_restored(cluster.broker_id, arrival)
    box = arrival.box._replace(is_fenced=True) if cluster.is_restored else arrival.box
    yield from broker_registry.register_broker(arrival.registration, box, arrival.session_id)
    record, _ = yield from broker_registry.record_directories(cluster.broker_id, arrival.box)
    controller_id, fence = yield from become_controller(cluster.broker_id, arrival.session_id, arrival.timestamp_ms)
    changes = yield from change_log.list_changes()
    boxes = yield from broker_registry.read_boxes(watch=True)
    deleting = yield from topic_registry.load_deletions()
    config_changes = yield from list_config_changes()  # before the configs, so that no later change is missed
    topics = yield from topic_registry.load_topics(cluster.broker_id, arrival.new_topic_id)
    placements = yield from topic_registry.load_placements(cluster.broker_id)
    former_configs = configs_in_effect(cluster)
    yield from load_box_configs(cluster)
    yield from load_group_configs(cluster)
    if fence is not None:
        yield from _write_topic_ids(cluster.broker_id, fence, topics.values())
    cluster.cluster_id, cluster.controller_id, cluster.fence, cluster.has_arrived = cluster_id, controller_id, fence, True
    cluster.topics = {name: topic for name, topic in topics.items() if topic.assignment.topic_id is not None}
    cluster.deleting, cluster.config_changes = deleting, config_changes
    cluster.last_change = change_log.last_number(changes)
    cluster.use_boxes(boxes)
    cluster.use_record(record)
    cluster.stale_placements = {
        name: placement
        for name, placement in placements.items()
        if placement.is_deleted and (name not in topics or topics[name].topic_id != placement.topic_id)
    }
    for report in cluster.reports.values():
        report.sent.clear()  # the operations that waited for these answers were dropped
    yield from send_changed_configs(cluster, former_configs)  # roles that stay are not sent again
    yield Publish()


def _is_restored(broker_id: int, arrival: Arrival) -> Operation[bool]:
    """Return whether the cluster remembers a later generation of this box: state directory and disks
    were restored from a copy. A box without one that the cluster remembers has lost it; of one that
    was just upgraded, the cluster remembers none.
    """
    path = box_path(broker_id)
    node = yield from read(path)
    if node is None or not node.data:  # without data, no box has registered under this id
        return False
    record = BoxRecord.decode(path, node.data)
    return record.box_id == arrival.box.box_id and record.generation > (arrival.generation or 0)


def _write_topic_ids(broker_id: int, fence: Fence, topics: Iterable[TopicState]) -> Operation[None]:
    """Store an id for each topic whose document has none (versions 1 and 2)."""
    for topic in topics:
        if topic.assignment.topic_id is None:
            topic.assignment = topic.assignment._replace(topic_id=topic.topic_id)
            news = change_log.change_write(ClusterChange(broker_id, topics=(topic.name,)))
            results = yield from fence.guard((SetData(topic_path(topic.name), topic.assignment.encode(), -1), news))
            topic.document_version = int(results[0])


def take_over(cluster: Cluster, session_id: int, timestamp_ms: int, new_topic_id: Callable[[], TopicId]) -> Operation[None]:
    """`/controller` has changed: try to become the controller with the tree as it is known.

    A new controller first applies the change log up to its end. What other tools change meanwhile
    is safe, because every write is conditional.
    """
    controller_id, fence = yield from become_controller(cluster.broker_id, session_id, timestamp_ms)
    if fence is not None and cluster.fence is None:
        yield from follow_changes(cluster, new_topic_id)
    cluster.controller_id, cluster.fence = controller_id, fence
    yield Publish()


# --- following what others change --------------------------------------------------------------------------------------


class News(NamedTuple):
    """What the change log brought, beyond what had been applied."""

    topics: frozenset[str] = frozenset()
    """Topics whose documents, states or placements changed."""
    boxes: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.topics or self.boxes)


def follow_changes(cluster: Cluster, new_topic_id: Callable[[], TopicId]) -> Operation[News]:
    """Apply the changes since the last call, and set a watch for the next one. Raises
    ChangesMissed.
    """
    names = yield from change_log.list_changes()
    if not change_log.is_complete_since(names, cluster.last_change):
        raise ChangesMissed(f"changes behind number {cluster.last_change} are gone")
    newer = [name for name in names if change_log.number_of(name) > cluster.last_change]
    changes = yield from change_log.read_changes(newer)
    if changes is None:
        raise ChangesMissed(f"changes behind number {cluster.last_change} cannot be read")
    news = yield from apply_changes(cluster, changes, new_topic_id)
    cluster.last_change = max(cluster.last_change, change_log.last_number(newer))
    if news:
        yield Publish()
    if cluster.fence is not None:
        yield from change_log.remove_old_changes(names)
    return news


def apply_changes(cluster: Cluster, changes: Iterable[ClusterChange], new_topic_id: Callable[[], TopicId]) -> Operation[News]:
    """Apply what is newer than the known tree. Our own changes are in the log, too, and are known
    already.
    """
    to_read: dict[str, None] = {}
    changed: set[str] = set()
    boxes: set[int] = set()
    for change in changes:
        for row in change.states:
            topic = cluster.topics.get(row.topic)
            if topic is None or str(topic.topic_id) != row.topic_id:
                to_read[row.topic] = None
            elif row.partition not in topic.replicas:
                to_read[row.topic] = None
            elif cluster.learn_state(topic, row.partition, row.state, row.version):
                changed.add(row.topic)
        is_own = change.broker_id == cluster.broker_id
        to_read.update((name, None) for name in change.topics if not is_own or name not in cluster.topics)
        changed.update(name for _, name in change.placements)
        boxes.update(change.boxes)
    if boxes:
        cluster.use_boxes((yield from broker_registry.read_boxes(watch=False)))
    changed |= yield from read_topics(cluster, to_read, new_topic_id)
    return News(frozenset(changed), frozenset(boxes))


def read_topics(cluster: Cluster, names: Iterable[str], new_topic_id: Callable[[], TopicId]) -> Operation[set[str]]:
    """Read these topics again; return those that changed. A topic that is gone is left to the watch
    on the list of topics.
    """
    listed = sorted(names)
    found = yield from topic_registry.load_some_topics(cluster.broker_id, listed, new_topic_id)
    if cluster.fence is not None:
        yield from _write_topic_ids(cluster.broker_id, cluster.fence, found.values())
    return {name for name, topic in found.items() if topic.assignment.topic_id is not None and cluster.learn_topic(topic)}


ATTEMPTS = 5


def become_controller(broker_id: int, session_id: int, timestamp_ms: int) -> Operation[tuple[int, Fence | None]]:
    """Try to become controller; return the controller's broker id, and our fence if it is this box.

    Call it only as the registered owner of `broker_id`: a node that an earlier session of this
    broker id left is then replaced.
    """
    for _ in range(ATTEMPTS):
        existing = yield from read(CONTROLLER, watch=True)
        epoch_node = yield from read(CONTROLLER_EPOCH)
        if epoch_node is None:
            try:
                yield Create(CONTROLLER_EPOCH, b"0")
            except NodeExists:
                pass
            continue
        epoch = int(epoch_node.data)
        if existing is not None and existing.owner == session_id:
            return broker_id, Fence(epoch, epoch_node.version)
        if existing is not None and decode_controller(existing.data) != broker_id:
            return decode_controller(existing.data), None
        writes: list[Write] = [] if existing is None else [Delete(CONTROLLER, existing.version)]
        writes += [
            Create(CONTROLLER, encode_controller(broker_id, timestamp_ms), ephemeral=True),
            SetData(CONTROLLER_EPOCH, str(epoch + 1).encode(), epoch_node.version),
        ]
        try:
            results = yield Multi(tuple(writes))
        except MultiFailed:
            continue  # another box wrote between our read and our write: read again
        return broker_id, Fence(epoch + 1, results[-1])
    existing = yield from read(CONTROLLER, watch=True)
    return (decode_controller(existing.data) if existing is not None else -1), None
