"""Topics, step by step: create, complete, grow, delete. As controller of the cluster.

Every operation here may be cut off after any step, and the next controller finishes it (`appliance/cluster/README.md` has the table of steps, and what each
leaves behind). Writes go through the fence, and tell the other boxes. These make the directories of their own replicas (`hosting_operations`) and say so
by their placements; the controller waits for that, up to a time that its caller knows. Owned by the controller process.
Weak spot: a partition whose box was away at its creation begins without it in the in-sync set, and without its directory until the box is back.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicId
from appliance.cluster.placement import DiskSpace, TopicPlan, first_partition_state, place_partitions
from appliance.cluster.znodes import (
    DirectoryAssignment,
    PartitionState,
    TopicAssignment,
    delete_topic_path,
    placement_path,
    topic_config_path,
    topic_partitions_path,
    topic_path,
)
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.hosting_operations import delete_logs
from services.controller.decisions.placement_operations import create_command, place_again
from services.controller.decisions.role_operations import send_roles
from services.controller.decisions.state_changes import state_row
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.change_log import Change, change_write
from services.controller.zookeeper.operation import DiskCommand, Fence, Operation, Publish, all_of
from services.controller.zookeeper.requests import Create, Exists, Get, GetChildren, MultiFailed, Node, NodeExists, NoNode, SetData, Write
from services.controller.zookeeper.topic_registry import TopicState, chunks

Spaces = Callable[[], list[DiskSpace]]
"""The disks that can take partitions now."""

WAITS_FOR_BOXES = ErrorCode.REPLICA_NOT_AVAILABLE
"""Other boxes have not done their part yet; ask again when one has, or when they had their time."""


# --- creating ----------------------------------------------------------------------------------------------------------


def create_topic(cluster: Cluster, plan: TopicPlan, topic_id: TopicId, spaces: Spaces) -> Operation[ErrorCode]:
    """Make a planned topic: one transaction, then `complete_topic`. `RequestRefused` if somebody else made one of that name meanwhile."""
    topic = TopicState(plan.name, topic_id, TopicAssignment.new(topic_id, plan.assignment), dict(plan.config))
    local = topic.local_partitions(cluster.broker_id)
    topic.placement = place_partitions(local, spaces()) if local else {}
    config = yield from broker_registry.read(topic_config_path(plan.name))
    placement = yield from broker_registry.read(placement_path(cluster.broker_id, plan.name))
    topic.config_version = config.version + 1 if config is not None else 0
    writes = topic_registry.creation_writes(topic, cluster.broker_id, config is not None, placement is not None)
    news = change_write(Change(cluster.broker_id, topics=(plan.name,)))
    try:
        yield from cluster.writes_fenced_by().guard((*writes, news))
    except MultiFailed as refused:
        if isinstance(refused.cause, NodeExists) and refused.write.path == topic_path(plan.name):
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{plan.name}' already exists.") from refused
        raise
    cluster.topics[plan.name] = topic
    result = yield from complete_topic(cluster, topic, spaces)
    return result


def complete_topic(cluster: Cluster, topic: TopicState, spaces: Spaces, boxes_had_their_time: bool = False) -> Operation[ErrorCode]:
    """Finish a topic whose partitions have no state yet: directories on the disks, states, leaders, image. KAFKA_STORAGE_ERROR: a disk could not
    do its part, the topic is as it was; try again when a disk has come back. `WAITS_FOR_BOXES`: try again when one has told of its placement."""
    fence = cluster.writes_fenced_by()
    missing = topic.partitions_without_state()
    own = [partition for partition in missing if cluster.broker_id in topic.replicas[partition]]
    code = yield from _create_directories(cluster, topic, own, spaces)
    if code is not ErrorCode.NONE and not boxes_had_their_time:
        return code
    states = yield from _first_states(cluster, topic, missing, code is ErrorCode.NONE, boxes_had_their_time)
    yield from _write_first_states(cluster, fence, topic, states)
    yield from send_roles(cluster, [(topic, partition) for partition in states])
    yield Publish()
    if len(states) < len(missing):
        return WAITS_FOR_BOXES if code is ErrorCode.NONE else code
    return ErrorCode.NONE


def _first_states(
    cluster: Cluster, topic: TopicState, missing: list[int], own_are_ready: bool, boxes_had_their_time: bool
) -> Operation[dict[int, PartitionState]]:
    """The states of those partitions whose live replicas have all made their directories, or had their time; led by the first that has. None of a partition
    below one that has to wait: a topic that clients see with fewer partitions than it was made with is a smaller topic to them (`TopicState.visible_count`)."""
    epoch = cluster.writes_fenced_by().controller_epoch
    live = set(cluster.live_brokers())
    others = {replica for partition in missing for replica in topic.replicas[partition]} & live - {cluster.broker_id}
    placed = yield from topic_registry.brokers_with_placement(topic, missing, others)
    states: dict[int, PartitionState] = {}
    for partition in reversed(missing):
        wanted = set(topic.replicas[partition]) & live
        ready = placed[partition] & wanted | ({cluster.broker_id} & wanted if own_are_ready else set())
        state = first_partition_state(topic.replicas[partition], ready, epoch)
        if state is not None and (ready == wanted or boxes_had_their_time):
            states[partition] = state
        elif not boxes_had_their_time:
            break
    return states


def _create_directories(cluster: Cluster, topic: TopicState, partitions: list[int], spaces: Spaces) -> Operation[ErrorCode]:
    """CREATE on the chosen disks. What a connected disk refuses is placed on another one, while there is one."""
    refusing: set[str] = set()
    while True:
        homeless = [partition for partition in partitions if cluster.disk_of_partition(topic, partition) in (None, *refusing)]
        if homeless:
            candidates = [space for space in spaces() if cluster.disk_of(space.directory_id) not in refusing]
            if not candidates:
                return ErrorCode.KAFKA_STORAGE_ERROR
            yield from place_again(cluster, topic, place_partitions(homeless, candidates))
        codes = yield from all_of([_create_command(cluster, topic, partition) for partition in partitions])
        refused = [(partition, code) for partition, code in zip(partitions, codes, strict=True) if code != ErrorCode.NONE]
        for partition, code in zip(partitions, codes, strict=True):
            report = cluster.reports.get(cluster.disk_of_partition(topic, partition) or "")
            if code == ErrorCode.NONE and report is not None:
                report.partitions[(topic.name, partition)] = str(topic.topic_id)
        if not refused:
            return ErrorCode.NONE
        disks = {cluster.disk_of_partition(topic, partition) for partition, _ in refused}
        if any(disk not in cluster.reports for disk in disks):
            return ErrorCode.KAFKA_STORAGE_ERROR  # its log-writer is away: it will be asked again
        refusing |= {disk for disk in disks if disk is not None}


def _create_command(cluster: Cluster, topic: TopicState, partition: int) -> DiskCommand:
    disk = cluster.disk_of_partition(topic, partition)
    assert disk is not None
    return create_command(cluster, topic, partition, disk)


def _write_first_states(cluster: Cluster, fence: Fence, topic: TopicState, states: dict[int, PartitionState]) -> Operation[None]:
    if not states:
        return
    try:
        existing = yield GetChildren(topic_partitions_path(topic.name))
    except NoNode:
        existing = None
    rows = {partition: state_row(topic, partition, state, 0) for partition, state in states.items()}
    for chunk in chunks(topic_registry.first_state_writes(topic, states, existing)):
        written = tuple(rows[partition] for partition in topic_registry.partitions_written(topic.name, chunk))
        yield from fence.guard((*chunk, change_write(Change(cluster.broker_id, states=written))))
    for partition, state in states.items():
        cluster.put_state(topic, partition, state, 0)


# --- growing -----------------------------------------------------------------------------------------------------------


def add_partitions(cluster: Cluster, topic: TopicState, added: dict[int, tuple[int, ...]], spaces: Spaces) -> Operation[ErrorCode]:
    """Give a topic the partitions of `added`: one transaction, then `complete_topic`. Clients see the old ones until all new ones are led."""
    own = [partition for partition, replicas in sorted(added.items()) if cluster.broker_id in replicas]
    new_placement = place_partitions(own, spaces()) if own else {}
    existing = yield from broker_registry.read(placement_path(cluster.broker_id, topic.name))
    assignment = topic.assignment._replace(topic_id=topic.topic_id, partitions={**topic.replicas, **added})
    placement = {**topic.placement, **new_placement}
    writes = topic_registry.growth_writes(topic, cluster.broker_id, assignment, placement, existing is not None)
    results = yield from cluster.writes_fenced_by().guard((*writes, change_write(Change(cluster.broker_id, topics=(topic.name,)))))
    topic.assignment, topic.document_version = assignment, int(results[0])
    topic.placement = {**topic.placement, **new_placement}  # a move may have ended meanwhile
    result = yield from complete_topic(cluster, topic, spaces)
    return result


# --- deleting ----------------------------------------------------------------------------------------------------------


def delete_topic(cluster: Cluster, name: str) -> Operation[ErrorCode]:
    """Order the deletion, take the topic out of the image, delete it on the disks, then in ZooKeeper. KAFKA_STORAGE_ERROR: a disk is away; the order
    stands, try again when it has come back. `WAITS_FOR_BOXES`: another box that lives still has some of it. One that does not live deletes
    its part when it comes back and finds the topic gone."""
    fence = cluster.writes_fenced_by()
    if name not in cluster.deleting:
        try:
            yield from fence.guard((Create(delete_topic_path(name)), change_write(Change(cluster.broker_id, topics=(name,)))))
        except MultiFailed as refused:
            if not isinstance(refused.cause, NodeExists):
                raise
        cluster.deleting.add(name)
    yield Publish()
    topic = cluster.topics.get(name)
    if topic is not None:
        code = yield from delete_logs(cluster, topic)
        if code is not ErrorCode.NONE:
            return code
    others = [broker_id for broker_id in cluster.live_brokers() if broker_id != cluster.broker_id]
    found = yield from all_of([Exists(placement_path(broker_id, name)) for broker_id in others])
    if any(_is_there(node) for node in found):
        return WAITS_FOR_BOXES
    yield from _mark_deleted(cluster, fence, name)
    yield from _delete_nodes(cluster, fence, name)
    cluster.topics.pop(name, None)
    cluster.deleting.discard(name)
    yield Publish()
    return ErrorCode.NONE


def _mark_deleted(cluster: Cluster, fence: Fence, name: str) -> Operation[None]:
    """Boxes that do not live, and have some of the topic: their placements say that it was deleted, which is what lets them delete their part."""
    paths = [placement_path(broker_id, name) for broker_id in sorted(cluster.box_records) if broker_id != cluster.broker_id]
    found = yield from all_of([Get(path) for path in paths])
    writes: list[Write] = []
    for path, node in zip(paths, found, strict=True):
        if isinstance(node, Node):
            writes.append(SetData(path, DirectoryAssignment.decode(path, node.data)._replace(is_deleted=True).encode(), node.version))
        elif not isinstance(node, NoNode):
            raise node
    if writes:
        yield from fence.guard(tuple(writes))


def _is_there(found: object) -> bool:
    if isinstance(found, Exception):
        raise found
    return found is not None


def _delete_nodes(cluster: Cluster, fence: Fence, name: str) -> Operation[None]:
    try:
        partitions = yield GetChildren(topic_partitions_path(name))
    except NoNode:
        partitions = ()
    paths = topic_registry.topic_paths(name, cluster.broker_id, sorted(int(partition) for partition in partitions))
    found = yield from all_of([Exists(path) for path in paths])
    existing = [path for path, node in zip(paths, found, strict=True) if _is_there(node)]
    writes: list[Write] = topic_registry.deletion_writes(name, cluster.broker_id, existing)
    for chunk in chunks(writes):
        yield from fence.guard(chunk)
