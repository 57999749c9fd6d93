"""Create, complete, grow and delete topics, as controller of the cluster.

Each operation can be dropped after any step; in brackets what the next controller does then. Tests
kill the process before and after each step. Writes go through the fence and notify the other boxes.
Those create and delete the directories of their own replicas (`hosting_operations`) and report them
by their placements.

Create a topic:

1. Plan, nothing written (knows nothing; the client repeats the request).
2. One transaction: config, topic, own placement, change (finds a topic without states and continues
   here, with the same topic id).
3. CREATE on each disk: directory, `partition.metadata`, fsync (sends it again: the same id again is
   success). If a disk refuses it, the partition goes to another one.
4. Read the placements of the live replicas, again at each change, up to a time that the caller
   decides (reads them again).
5. States of all partitions, at most 400 writes a transaction (creates the missing ones).
6. BECOME_LEADER, BECOME_FOLLOWER from each box to its log-writers (sent again when a log-writer
   connects); image; answer.

Add partitions: one transaction with all of them and the placement; CREATE on each disk; states from
the last partition down; roles, image, answer. Clients see the partitions that have a state, from 0
on without a gap: a topic in creation is invisible, one that grows has its old partitions until the
last transaction is done.

Delete a topic:

1. `/admin/delete_topics/T` and a change (finds the order and continues); image without the topic.
2. DELETE on each disk (sends it again: an absent partition is success). Each other box removes its
   placement, with a change.
3. Placements of boxes that are away are marked `deleted` (marks them again). Such a box deletes its
   part when it returns, and only what is marked.
4. Nodes of the topic, then the placement, the order last, at most 400 a transaction (deletes what
   is left).

A disk that is away delays both. A partition that has a state but no directory is never created
again: it is logged and counted in `controller.partitions_missing{disk=…}`, and other in-sync
replicas lead it. Owned by the controller process. Weak: a partition whose box was away at its
creation starts without that box in the in-sync set, and without its directory until the box
returns.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import LeaderEpoch, TopicId
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
from services.controller.decisions.hosting_operations import create_command, delete_logs, place_again, where_they_lie
from services.controller.decisions.role_operations import send_roles
from services.controller.decisions.state_changes import state_row
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.change_log import ClusterChange, change_write
from services.controller.zookeeper.operation import DiskCommand, Fence, Operation, Publish, all_of
from services.controller.zookeeper.requests import Create, Exists, Get, GetChildren, MultiFailed, Node, NodeExists, NoNode, SetData, Write
from services.controller.zookeeper.topic_registry import TopicState, chunks

Spaces = Callable[[], list[DiskSpace]]
"""The disks that can take partitions at the moment."""

WAITS_FOR_BOXES = ErrorCode.REPLICA_NOT_AVAILABLE
"""Other boxes have not created their directories yet; retry when one has, or when their time is
over.
"""


# --- creating ----------------------------------------------------------------------------------------------------------


def create_topic(cluster: Cluster, plan: TopicPlan, topic_id: TopicId, spaces: Spaces) -> Operation[ErrorCode]:
    """Create a planned topic in one transaction, then complete it. Raises RequestRefused if the
    name was taken meanwhile.
    """
    topic = TopicState(plan.name, topic_id, TopicAssignment.new(topic_id, plan.assignment), dict(plan.config))
    local = topic.local_partitions(cluster.broker_id)
    topic.placement = {**place_partitions(local, spaces()), **where_they_lie(cluster, topic)} if local else {}
    config = yield from broker_registry.read(topic_config_path(plan.name))
    placement = yield from broker_registry.read(placement_path(cluster.broker_id, plan.name))
    topic.config_version = config.version + 1 if config is not None else 0
    writes = topic_registry.creation_writes(topic, cluster.broker_id, config is not None, placement is not None)
    news = change_write(ClusterChange(cluster.broker_id, topics=(plan.name,)))
    try:
        yield from cluster.writes_fenced_by().guard((*writes, news))
    except MultiFailed as refused:
        if isinstance(refused.cause, NodeExists) and refused.write.path == topic_path(plan.name):
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{plan.name}' already exists.") from refused
        raise
    cluster.topics[plan.name] = topic
    result = yield from complete_topic(cluster, topic, spaces)
    return result


def complete_topic(cluster: Cluster, topic: TopicState, spaces: Spaces, is_overdue: bool = False) -> Operation[ErrorCode]:
    """Complete a topic whose partitions have no state yet: directories, states, leaders, image.

    KAFKA_STORAGE_ERROR: a disk failed to create its part, and the topic is as before; retry when a
    disk has connected. `WAITS_FOR_BOXES`: retry when a box has written its placement.
    """
    fence = cluster.writes_fenced_by()
    missing = topic.partitions_without_state()
    own = [partition for partition in missing if cluster.broker_id in topic.replicas[partition]]
    code = yield from _create_directories(cluster, topic, own, spaces)
    if code is not ErrorCode.NONE and not is_overdue:
        return code
    states = yield from _first_states(cluster, topic, missing, code is ErrorCode.NONE, is_overdue)
    yield from _write_first_states(cluster, fence, topic, states)
    yield from send_roles(cluster, [(topic, partition) for partition in states])
    yield Publish()
    if len(states) < len(missing):
        return WAITS_FOR_BOXES if code is ErrorCode.NONE else code
    return ErrorCode.NONE


def _first_states(cluster: Cluster, topic: TopicState, missing: list[int], own_are_ready: bool, is_overdue: bool) -> Operation[dict[int, PartitionState]]:
    """Return the states of the partitions whose live replicas all have directories, or whose time
    is over.

    The first replica that has its directory leads. No partition gets a state before those above it:
    clients would see a topic with fewer partitions than it was created with
    (`TopicState.visible_count`).
    """
    epoch = cluster.writes_fenced_by().controller_epoch
    live = set(cluster.live_brokers())
    others = {replica for partition in missing for replica in topic.replicas[partition]} & live - {cluster.broker_id}
    placed = yield from topic_registry.brokers_with_placement(topic, missing, others)
    states: dict[int, PartitionState] = {}
    for partition in reversed(missing):
        wanted = set(topic.replicas[partition]) & live
        ready = placed[partition] & wanted | ({cluster.broker_id} & wanted if own_are_ready else set())
        state = first_partition_state(topic.replicas[partition], ready, epoch)
        if state is not None and (ready == wanted or is_overdue):
            # An adopted log has leader epochs, and its log-writer leads only under a larger one.
            states[partition] = state._replace(leader_epoch=LeaderEpoch(_latest_epoch(cluster, topic, partition) + 1))
        elif not is_overdue:
            break
    return states


def _latest_epoch(cluster: Cluster, topic: TopicState, partition: int) -> int:
    """Return the latest leader epoch of a log on this box when its log-writer connected; -1 for one
    that never had a leader."""
    key = (topic.name, partition)
    return max((report.leader_epochs.get(key, -1) for report in cluster.reports.values() if report.holds(topic, partition)), default=-1)


def _create_directories(cluster: Cluster, topic: TopicState, partitions: list[int], spaces: Spaces) -> Operation[ErrorCode]:
    """CREATE on the chosen disks. What a connected disk refuses is placed on another disk, as long
    as there is one.
    """
    refusing: set[str] = set()
    while True:
        unplaced = [partition for partition in partitions if cluster.disk_of_partition(topic, partition) in (None, *refusing)]
        if unplaced:
            candidates = [space for space in spaces() if cluster.disk_of(space.directory_id) not in refusing]
            if not candidates:
                return ErrorCode.KAFKA_STORAGE_ERROR
            yield from place_again(cluster, topic, place_partitions(unplaced, candidates))
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
            return ErrorCode.KAFKA_STORAGE_ERROR  # its log-writer is away: retry when it connects
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
        yield from fence.guard((*chunk, change_write(ClusterChange(cluster.broker_id, states=written))))
    for partition, state in states.items():
        cluster.put_state(topic, partition, state, 0)
        for report in cluster.reports.values():
            report.unbumped.discard((topic.name, partition))  # the first state has a larger epoch than the log


# --- growing -----------------------------------------------------------------------------------------------------------


def add_partitions(cluster: Cluster, topic: TopicState, added: dict[int, tuple[int, ...]], spaces: Spaces) -> Operation[ErrorCode]:
    """Add partitions in one transaction, then complete the topic. Clients see the old ones until
    all new ones are led.
    """
    own = [partition for partition, replicas in sorted(added.items()) if cluster.broker_id in replicas]
    new_placement = place_partitions(own, spaces()) if own else {}
    existing = yield from broker_registry.read(placement_path(cluster.broker_id, topic.name))
    assignment = topic.assignment._replace(topic_id=topic.topic_id, partitions={**topic.replicas, **added})
    placement = {**topic.placement, **new_placement}
    writes = topic_registry.growth_writes(topic, cluster.broker_id, assignment, placement, existing is not None)
    results = yield from cluster.writes_fenced_by().guard((*writes, change_write(ClusterChange(cluster.broker_id, topics=(topic.name,)))))
    topic.assignment, topic.document_version = assignment, int(results[0])
    topic.placement = {**topic.placement, **new_placement}  # a move may have ended meanwhile
    result = yield from complete_topic(cluster, topic, spaces)
    return result


# --- deleting ----------------------------------------------------------------------------------------------------------


def delete_topic(cluster: Cluster, name: str) -> Operation[ErrorCode]:
    """Order the deletion, remove the topic from the image, delete its logs, then its nodes.

    KAFKA_STORAGE_ERROR: a disk is away; the order stays, retry when it has connected.
    `WAITS_FOR_BOXES`: another live box still has a part. A dead box deletes its part when it
    returns and finds the topic deleted.
    """
    fence = cluster.writes_fenced_by()
    if name not in cluster.deleting:
        try:
            yield from fence.guard((Create(delete_topic_path(name)), change_write(ClusterChange(cluster.broker_id, topics=(name,)))))
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
    """Mark the placements of dead boxes as deleted: only this mark lets them delete their part."""
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
