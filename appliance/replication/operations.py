"""What the controller does, step by step: arrive, create and delete topics, bring up a disk.

Every operation here may be cut off after any step, and the next controller finishes it (README.md has the table of steps, and what each
leaves behind). Writes go through the fence. Owned by the controller process, which alone runs them; no clock, chance or socket in here.
Weak spot: a partition whose directory was lost stays without a row until an operator acts; making an empty log in its place would hide the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, TopicId
from appliance.ipc.descriptors import DescriptorKind
from appliance.metadata import broker_registry, config_notifications, topic_registry
from appliance.metadata.config_changes import ConfigChange
from appliance.metadata.controller_election import become_controller
from appliance.metadata.operation import DiskCommand, Fence, Operation, Publish, all_of
from appliance.metadata.requests import BadVersion, Create, Exists, GetChildren, MultiFailed, NodeExists, NoNode, Request, SetData, Write, ZooKeeperFailed
from appliance.metadata.topic_registry import TopicState, chunks
from appliance.metadata.znodes import (
    BoxRecord,
    BrokerRegistration,
    PartitionState,
    TopicAssignment,
    decode_config,
    delete_topic_path,
    placement_path,
    topic_config_path,
    topic_partitions_path,
    topic_path,
)
from appliance.replication.cluster import Cluster, DiskReport
from appliance.replication.controller import DiskSpace, TopicPlan, bump_leader_epoch, elect_leader, first_partition_state, partitions_to_bump, place_partitions

Spaces = Callable[[], list[DiskSpace]]
"""The disks that can take partitions now."""

ATTEMPTS_MAX = 5
"""Times a write is tried again because somebody else wrote the same node."""


class ForeignCluster(ZooKeeperFailed):
    """The box's directories belong to another cluster than this ZooKeeper."""


class Arrival(NamedTuple):
    """Who we are, for an arrival: everything that comes from outside."""

    session_id: int
    registration: BrokerRegistration
    box: BoxRecord
    cluster_id: str
    """What a new cluster is to be called; with `cluster_id_expected` an existing one must be called so too."""
    cluster_id_expected: bool
    timestamp_ms: int
    new_topic_id: Callable[[], TopicId]


def arrive(cluster: Cluster, arrival: Arrival) -> Operation[None]:
    """After every (re)connect: root paths, cluster id, registration, election, then load everything and publish. Safe to repeat."""
    yield from broker_registry.create_roots(cluster.broker_id)
    cluster_id = yield from broker_registry.take_cluster_id(arrival.cluster_id)
    if arrival.cluster_id_expected and cluster_id != arrival.cluster_id:
        raise ForeignCluster(f"this ZooKeeper belongs to cluster {cluster_id}, the box to cluster {arrival.cluster_id}: name the right one with --zookeeper")
    yield from broker_registry.register_broker(arrival.registration, arrival.box, arrival.session_id)
    record = yield from broker_registry.record_directories(cluster.broker_id, arrival.box)
    controller_id, fence = yield from become_controller(cluster.broker_id, arrival.session_id, arrival.timestamp_ms)
    brokers = yield from broker_registry.read_brokers(watch=True)
    deleting = yield from topic_registry.load_deletions()
    config_changes = yield from config_notifications.list_config_changes()  # before the configs: what comes later is looked at
    topics = yield from topic_registry.load_topics(cluster.broker_id, arrival.new_topic_id)
    if fence is not None:
        yield from _write_topic_ids(fence, topics.values())
    cluster.cluster_id, cluster.controller_id, cluster.fence = cluster_id, controller_id, fence
    cluster.brokers, cluster.topics, cluster.deleting, cluster.config_changes = brokers, topics, deleting, config_changes
    cluster.use_record(record)
    yield Publish()


def _write_topic_ids(fence: Fence, topics: Iterable[TopicState]) -> Operation[None]:
    """Give topics of old documents their id, for good."""
    for topic in topics:
        if topic.assignment.topic_id is None:
            topic.assignment = topic.assignment._replace(topic_id=topic.topic_id)
            yield from fence.guard((SetData(topic_path(topic.name), topic.assignment.encode(), -1),))


# --- creating ----------------------------------------------------------------------------------------------------------


def create_topic(cluster: Cluster, plan: TopicPlan, topic_id: TopicId, spaces: Spaces) -> Operation[ErrorCode]:
    """Make a planned topic: one transaction, then `complete_topic`. `RequestRefused` if somebody else made one of that name meanwhile."""
    topic = TopicState(plan.name, topic_id, TopicAssignment.new(topic_id, plan.assignment), dict(plan.config))
    topic.placement = place_partitions(topic.local_partitions(cluster.broker_id), spaces())
    config = yield from broker_registry.read(topic_config_path(plan.name))
    placement = yield from broker_registry.read(placement_path(cluster.broker_id, plan.name))
    topic.config_version = config.version + 1 if config is not None else 0
    writes = topic_registry.creation_writes(topic, cluster.broker_id, config is not None, placement is not None)
    try:
        yield from cluster.writes_fenced_by().guard(writes)
    except MultiFailed as refused:
        if isinstance(refused.cause, NodeExists) and refused.write.path == topic_path(plan.name):
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{plan.name}' already exists.") from refused
        raise
    cluster.topics[plan.name] = topic
    result = yield from complete_topic(cluster, topic, spaces)
    return result


def complete_topic(cluster: Cluster, topic: TopicState, spaces: Spaces) -> Operation[ErrorCode]:
    """Finish a topic whose partitions have no state yet: directories on the disks, states, leaders, image. KAFKA_STORAGE_ERROR: a disk could not
    do its part, the topic is as it was; try again when a disk has come back."""
    fence = cluster.writes_fenced_by()
    missing = topic.partitions_without_state()
    code = yield from _create_directories(cluster, topic, [partition for partition in missing if cluster.broker_id in topic.replicas[partition]], spaces)
    if code is not ErrorCode.NONE:
        return code
    states: dict[int, PartitionState] = {}
    for partition in missing:
        state = first_partition_state(topic.replicas[partition], cluster.live_brokers(), fence.controller_epoch)
        if state is not None:
            states[partition] = state
    yield from _write_first_states(fence, topic, states)
    yield from send_leaders(cluster, [(topic, partition) for partition in states])
    yield Publish()
    return ErrorCode.NONE


def _create_directories(cluster: Cluster, topic: TopicState, partitions: list[int], spaces: Spaces) -> Operation[ErrorCode]:
    """CREATE on the chosen disks. What a connected disk refuses is placed on another one, while there is one."""
    refusing: set[str] = set()
    while True:
        homeless = [partition for partition in partitions if cluster.disk_of_partition(topic, partition) in (None, *refusing)]
        if homeless:
            candidates = [space for space in spaces() if cluster.disk_of(space.directory_id) not in refusing]
            if not candidates:
                return ErrorCode.KAFKA_STORAGE_ERROR
            yield from _place_again(cluster, topic, place_partitions(homeless, candidates))
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
    payload = {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id), "config": cluster.config_of(topic)}
    return DiskCommand(disk, DescriptorKind.CREATE, payload)


def _place_again(cluster: Cluster, topic: TopicState, placement: dict[int, str]) -> Operation[None]:
    existing = yield from broker_registry.read(placement_path(cluster.broker_id, topic.name))
    topic.placement = {**topic.placement, **placement}
    yield from cluster.writes_fenced_by().guard((topic_registry.placement_write(topic, cluster.broker_id, existing is not None),))


def _write_first_states(fence: Fence, topic: TopicState, states: dict[int, PartitionState]) -> Operation[None]:
    if not states:
        return
    try:
        existing = yield GetChildren(topic_partitions_path(topic.name))
    except NoNode:
        existing = None
    for chunk in chunks(topic_registry.first_state_writes(topic, states, existing)):
        yield from fence.guard(chunk)
    for partition, state in states.items():
        topic.set_state(partition, state, 0)


# --- growing -----------------------------------------------------------------------------------------------------------


def add_partitions(cluster: Cluster, topic: TopicState, added: dict[int, tuple[int, ...]], spaces: Spaces) -> Operation[ErrorCode]:
    """Give a topic the partitions of `added`: one transaction, then `complete_topic`. Clients see the old ones until all new ones are led."""
    new_placement = place_partitions([partition for partition, replicas in sorted(added.items()) if cluster.broker_id in replicas], spaces())
    existing = yield from broker_registry.read(placement_path(cluster.broker_id, topic.name))
    assignment = topic.assignment._replace(topic_id=topic.topic_id, partitions={**topic.replicas, **added})
    placement = {**topic.placement, **new_placement}
    writes = topic_registry.growth_writes(topic, cluster.broker_id, assignment, placement, existing is not None)
    yield from cluster.writes_fenced_by().guard(writes)
    topic.assignment, topic.placement = assignment, {**topic.placement, **new_placement}  # a move may have ended meanwhile
    result = yield from complete_topic(cluster, topic, spaces)
    return result


# --- configs -----------------------------------------------------------------------------------------------------------


def alter_topic_config(cluster: Cluster, name: str, change: ConfigChange, validate_only: bool) -> Operation[None]:
    """Apply `change` to the configs that ZooKeeper holds of a topic, tell every broker and our log-writers, publish. `RequestRefused`: it may not be.

    Killed after the transaction, the next controller loads the new configs and sends them with BECOME_LEADER.
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
            results = yield from cluster.writes_fenced_by().guard(topic_registry.config_writes(name, config, node.version if node is not None else None))
        except MultiFailed as refused:
            if isinstance(refused.cause, NoNode) and refused.write.path == topic_path(name):
                raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.") from refused
            if isinstance(refused.cause, BadVersion | NodeExists | NoNode):
                continue  # somebody else wrote the node between our look and our write: look again
            raise
        yield from _use_config(cluster, topic, config, int(results[1]) if node is not None else 0)
        return
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"the configs of topic '{name}' were changed by others at the same time; try again")


def reload_topic_config(cluster: Cluster, name: str) -> Operation[None]:
    """Somebody says that a topic's configs have changed: take them over, if they have."""
    topic = cluster.topics.get(name)
    path = topic_config_path(name)
    node = yield from broker_registry.read(path)
    if topic is None or node is None or not node.data or node.version == topic.config_version:
        return
    yield from _use_config(cluster, topic, decode_config(path, node.data), node.version)


def _use_config(cluster: Cluster, topic: TopicState, config: dict[str, str], version: int) -> Operation[None]:
    """First the log-writers, under whose new generation produces are then offered; a log-writer that is away hears it when it is back."""
    topic.config, topic.config_version = config, version
    payload = {"topic": topic.name, "partition": -1, "topic_id": str(topic.topic_id), "config": cluster.config_of(topic), "config_generation": version}
    disks = {disk for partition in topic.states if (disk := cluster.disk_of_partition(topic, partition)) in cluster.reports}
    yield from all_of([DiskCommand(disk, DescriptorKind.CONFIG, payload) for disk in sorted(disk for disk in disks if disk is not None)])
    yield Publish()


# --- leading -----------------------------------------------------------------------------------------------------------


def send_leaders(cluster: Cluster, partitions: Iterable[tuple[TopicState, int]]) -> Operation[int]:
    """BECOME_LEADER for those of `partitions` that this broker leads; returns how many were refused (a log-writer that died is told again when it is back)."""
    commands: list[Request | DiskCommand] = []
    for topic, partition in partitions:
        disk = cluster.disk_of_partition(topic, partition)
        state = topic.states[partition]
        if disk is not None and state.leader == cluster.broker_id:
            commands.append(DiskCommand(disk, DescriptorKind.BECOME_LEADER, leader_payload(cluster, topic, partition, state)))
    codes = yield from all_of(commands)
    return sum(1 for code in codes if code != ErrorCode.NONE)


def leader_payload(cluster: Cluster, topic: TopicState, partition: int, state: PartitionState) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partition": partition,
        "topic_id": str(topic.topic_id),
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "replicas": list(topic.replicas[partition]),
        "config": cluster.config_of(topic),
        "config_generation": topic.config_version,
        "moving_to": cluster.move_target(topic, partition),
    }


def bring_up_disk(cluster: Cluster, report: DiskReport) -> Operation[int]:
    """A log-writer has come: move leader epochs if its boot was unclean, then make it lead what is its; returns how many partitions it refused."""
    if cluster.box.directories.get(report.directory_id) != report.disk:
        cluster.box = yield from broker_registry.record_directories(cluster.broker_id, cluster.box._replace(directories={report.directory_id: report.disk}))
    yield from _adopt_unplaced(cluster, report)
    yield from _begin_anew(cluster, report)
    placed = [
        (topic, partition)
        for name, topic in sorted(cluster.topics.items())
        if name not in cluster.deleting
        for partition in topic.states
        if cluster.disk_of_partition(topic, partition) == report.disk
    ]
    present = [(topic, partition) for topic, partition in placed if report.holds(topic, partition)]
    report.missing = sum(1 for topic, partition in placed if _is_missing(cluster, report, topic, partition))
    yield from _elect_leaders(cluster, present)
    if report.needs_epoch_bump and (report.disk, report.incarnation) not in cluster.bumped:
        yield from _bump_epochs(cluster, report)
        cluster.bumped.add((report.disk, report.incarnation))
    refused = yield from send_leaders(cluster, present)
    yield Publish()
    return refused


def missing_partitions(cluster: Cluster, report: DiskReport) -> list[str]:
    """What ZooKeeper places on this disk and what is not there, by name."""
    return [
        f"{name}-{partition}"
        for name, topic in sorted(cluster.topics.items())
        if name not in cluster.deleting
        for partition in sorted(topic.states)
        if cluster.disk_of_partition(topic, partition) == report.disk and _is_missing(cluster, report, topic, partition)
    ]


def _is_missing(cluster: Cluster, report: DiskReport, topic: TopicState, partition: int) -> bool:
    """Whether what ZooKeeper places on this disk is nowhere; a partition that is being moved may be on its target already, or wait for it."""
    if report.holds(topic, partition):
        return False
    target = cluster.reports.get(cluster.move_target(topic, partition) or "")
    return partition not in topic.moves or (target is not None and not _has_whole(target, topic, partition))


def _has_whole(target: DiskReport, topic: TopicState, partition: int) -> bool:
    return target.holds(topic, partition) or target.has_complete(topic, partition)


def _adopt_unplaced(cluster: Cluster, report: DiskReport) -> Operation[None]:
    """A tree that Kafka wrote says nothing of directories: a partition that lies here under the right topic id, and is placed nowhere, is placed here."""
    for name, topic in sorted(cluster.topics.items()):
        found = [partition for partition in topic.states if partition not in topic.placement and report.holds(topic, partition)]
        if found and name not in cluster.deleting:
            yield from _place_again(cluster, topic, dict.fromkeys(found, report.directory_id))


def _begin_anew(cluster: Cluster, report: DiskReport) -> Operation[None]:
    """Partitions of directories that were given up for this one: a larger leader epoch, made here, empty, then placed here. Only somebody who said that
    the data is lost makes this happen. Killed anywhere, it is done again, since the placement, written last, still names the lost directory."""
    for name, topic in sorted(cluster.topics.items()):
        placed = [partition for partition in topic.states if topic.placement.get(partition) in report.replaces]
        lost = [partition for partition in placed if not _may_be_whole_on_target(cluster, topic, partition)]
        if not lost or name in cluster.deleting:
            continue
        epoch = cluster.writes_fenced_by().controller_epoch
        yield from _write_states(cluster, [(topic, partition, bump_leader_epoch(topic.states[partition], epoch)) for partition in lost])
        payloads = [{"topic": name, "partition": partition, "topic_id": str(topic.topic_id), "config": cluster.config_of(topic)} for partition in lost]
        codes = yield from all_of([DiskCommand(report.disk, DescriptorKind.CREATE, payload) for payload in payloads])
        made = [partition for partition, code in zip(lost, codes, strict=True) if code == ErrorCode.NONE]
        for partition in made:
            report.partitions[(name, partition)] = str(topic.topic_id)
        if made:
            topic.moves = {partition: order for partition, order in topic.moves.items() if partition not in made}  # what was copied is of the old ones
            yield from _place_again(cluster, topic, dict.fromkeys(made, report.directory_id))


def _may_be_whole_on_target(cluster: Cluster, topic: TopicState, partition: int) -> bool:
    """Whether a partition of a lost disk was copied whole to the one where it was moved to: then that copy takes its place. A disk that is away or offline
    has not said so, and has not said no: that copy may be the only one since the source committed. The disk that replaces is brought up again when it comes."""
    target = cluster.move_target(topic, partition)
    if target is None:
        return False
    report = cluster.reports.get(target)
    return report is None or report.is_offline or _has_whole(report, topic, partition)


def _elect_leaders(cluster: Cluster, present: list[tuple[TopicState, int]]) -> Operation[None]:
    """Partitions on this disk whose leader is gone (or that a former controller left without one) get one, if a replica in sync lives."""
    live = cluster.live_brokers()
    moves: list[tuple[TopicState, int, PartitionState]] = []
    for topic, partition in present:
        if topic.states[partition].leader not in live:
            unclean = cluster.config_of(topic).get("unclean.leader.election.enable") == "true"
            epoch = cluster.writes_fenced_by().controller_epoch
            elected = elect_leader(topic.states[partition], topic.replicas[partition], live, unclean, epoch)
            if elected.leader != NO_LEADER:
                moves.append((topic, partition, elected))
    yield from _write_states(cluster, moves)


def _bump_epochs(cluster: Cluster, report: DiskReport) -> Operation[None]:
    fence = cluster.writes_fenced_by()
    moves: list[tuple[TopicState, int, PartitionState]] = []
    for topic in cluster.topics.values():
        disks = {partition: disk for partition in topic.states if (disk := cluster.disk_of_partition(topic, partition)) is not None}
        for partition in partitions_to_bump(topic.states, disks, report.disk, cluster.broker_id):
            moves.append((topic, partition, bump_leader_epoch(topic.states[partition], fence.controller_epoch)))
    yield from _write_states(cluster, moves)


def raise_leader_epochs(cluster: Cluster, topic: TopicState, partitions: Iterable[int]) -> Operation[None]:
    """A larger leader epoch for partitions that this broker leads."""
    epoch = cluster.writes_fenced_by().controller_epoch
    led = [partition for partition in partitions if topic.states[partition].leader == cluster.broker_id]
    yield from _write_states(cluster, [(topic, partition, bump_leader_epoch(topic.states[partition], epoch)) for partition in led])


def _write_states(cluster: Cluster, moves: list[tuple[TopicState, int, PartitionState]]) -> Operation[None]:
    writes: list[Write] = [topic_registry.state_write(topic, partition, state) for topic, partition, state in moves]
    versions: list[int] = []
    for chunk in chunks(writes):
        versions += yield from cluster.writes_fenced_by().guard(chunk)
    for (topic, partition, state), version in zip(moves, versions, strict=True):
        topic.set_state(partition, state, version)


# --- deleting ----------------------------------------------------------------------------------------------------------


def delete_topic(cluster: Cluster, name: str) -> Operation[ErrorCode]:
    """Order the deletion, take the topic out of the image, delete it on the disks, then in ZooKeeper. KAFKA_STORAGE_ERROR: a disk is away; the order
    stands, try again when it has come back."""
    fence = cluster.writes_fenced_by()
    if name not in cluster.deleting:
        try:
            yield from fence.guard((Create(delete_topic_path(name)),))
        except MultiFailed as refused:
            if not isinstance(refused.cause, NodeExists):
                raise
        cluster.deleting.add(name)
    yield Publish()
    topic = cluster.topics.get(name)
    if topic is not None:
        yield from all_of(_cancel_commands(cluster, topic))
        commands = _delete_commands(cluster, topic)
        codes = yield from all_of(list(commands))
        for command, code in zip(commands, codes, strict=True):
            if code != ErrorCode.NONE:
                return ErrorCode.KAFKA_STORAGE_ERROR
            report = cluster.reports.get(command.disk)
            if report is not None:
                report.partitions.pop((name, command.payload["partition"]), None)
    yield from _delete_nodes(cluster, fence, name)
    cluster.topics.pop(name, None)
    cluster.deleting.discard(name)
    yield Publish()
    return ErrorCode.NONE


def _cancel_commands(cluster: Cluster, topic: TopicState) -> list[Request | DiskCommand]:
    """Copies that are being made of its partitions go, too; a target that is away is told when it comes, because no order names its copy any more."""
    return [
        DiskCommand(target, DescriptorKind.MOVE_CANCEL, {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id)})
        for partition in sorted(topic.moves)
        if (target := cluster.move_target(topic, partition)) is not None and target in cluster.reports
    ]


def _delete_commands(cluster: Cluster, topic: TopicState) -> list[DiskCommand]:
    """DELETE wherever a partition is placed on this box or was reported. A directory that left the box for good is not asked."""
    targets = {(disk, partition) for partition in topic.replicas if (disk := cluster.disk_of_partition(topic, partition)) is not None}
    for report in cluster.reports.values():
        targets |= {(report.disk, partition) for (name, partition) in report.partitions if name == topic.name and report.holds(topic, partition)}
    return [
        DiskCommand(disk, DescriptorKind.DELETE, {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id)})
        for disk, partition in sorted(targets)
    ]


def _delete_nodes(cluster: Cluster, fence: Fence, name: str) -> Operation[None]:
    try:
        partitions = yield GetChildren(topic_partitions_path(name))
    except NoNode:
        partitions = ()
    paths = topic_registry.topic_paths(name, cluster.broker_id, sorted(int(partition) for partition in partitions))
    found = yield from all_of([Exists(path) for path in paths])
    existing = []
    for path, node in zip(paths, found, strict=True):
        if isinstance(node, Exception):
            raise node
        if node is not None:
            existing.append(path)
    for chunk in chunks(topic_registry.deletion_writes(name, cluster.broker_id, existing)):
        yield from fence.guard(chunk)
