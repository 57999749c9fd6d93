"""What a box does for its own replicas: make the logs that it is assigned, delete those that it is not to have any more, and say so.

Every box does this by itself, from what the tree says; the controller of the cluster only reads the placements. A log is made empty only where this
broker never had one: it has no placement, and the in-sync set is without it. Everything may be cut off after any step and is begun again. Owned by
the controller process of each box. Weak spot: a directory whose disk is away at a deletion keeps the whole topic on this box until it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.base.errors import ErrorCode
from appliance.cluster.placement import DiskSpace, place_partitions
from appliance.cluster.znodes import DirectoryAssignment, placement_path
from appliance.ipc.descriptors import DescriptorKind
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.placement_operations import create_command, place_again, write_placement
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.change_log import Change, change_write
from services.controller.zookeeper.operation import DiskCommand, Operation, Publish, all_of
from services.controller.zookeeper.requests import Delete
from services.controller.zookeeper.topic_registry import TopicState

# --- what is to be made or deleted here (pure) -------------------------------------------------------------------------


def to_host(cluster: Cluster, topic: TopicState) -> list[int]:
    """Partitions that this broker is assigned and never had. As controller, it makes those that have no state yet when it completes the topic."""
    wanted = []
    for partition in topic.local_partitions(cluster.broker_id):
        state = topic.states.get(partition)
        is_new = cluster.fence is None if state is None else cluster.broker_id not in state.isr
        if partition not in topic.placement and is_new and not _is_reported(cluster, topic, partition):
            wanted.append(partition)
    return wanted


def to_give_up(cluster: Cluster, topic: TopicState) -> list[int]:
    """Partitions that lie here and are assigned to other brokers only."""
    return [partition for partition in sorted(topic.placement) if cluster.broker_id not in topic.replicas.get(partition, (cluster.broker_id,))]


def _is_reported(cluster: Cluster, topic: TopicState, partition: int) -> bool:
    return any(report.holds(topic, partition) for report in cluster.reports.values())


# --- making ------------------------------------------------------------------------------------------------------------


def host_partitions(cluster: Cluster, topic: TopicState, partitions: list[int], spaces: Callable[[], list[DiskSpace]]) -> Operation[ErrorCode]:
    """CREATE on chosen disks, then the placement. KAFKA_STORAGE_ERROR: some found no disk; try again later."""
    refusing: set[str] = set()
    left = list(partitions)
    while left:
        candidates = [space for space in spaces() if cluster.disk_of(space.directory_id) not in refusing]
        if not candidates:
            return ErrorCode.KAFKA_STORAGE_ERROR
        chosen = place_partitions(left, candidates)
        disks = {partition: disk for partition in left if (disk := cluster.disk_of(chosen[partition])) is not None}
        codes = yield from all_of([create_command(cluster, topic, partition, disk) for partition, disk in disks.items()])
        made = [partition for partition, code in zip(disks, codes, strict=True) if code == ErrorCode.NONE]
        for partition in made:
            report = cluster.reports.get(disks[partition])
            if report is not None:
                report.partitions[(topic.name, partition)] = str(topic.topic_id)
        refusing |= {disk for partition, disk in disks.items() if partition not in made}
        if made:
            yield from place_again(cluster, topic, {partition: chosen[partition] for partition in made})
            yield Publish()
        left = [partition for partition in left if partition not in made]
    return ErrorCode.NONE


# --- deleting ----------------------------------------------------------------------------------------------------------


def delete_logs(cluster: Cluster, topic: TopicState) -> Operation[ErrorCode]:
    """DELETE of all that this box holds of a topic, copies that are being made too."""
    yield from all_of(list(_cancel_commands(cluster, topic)))
    code = yield from _carry_out(cluster, _delete_commands(cluster, topic))
    return code


def leave_topic(cluster: Cluster, topic: TopicState) -> Operation[ErrorCode]:
    """A topic is to be deleted, and another broker is controller: delete what lies here, then say so by taking the placement away."""
    code = yield from delete_logs(cluster, topic)
    if code is not ErrorCode.NONE:
        return code
    yield from _remove_placement(cluster, topic.name)
    topic.placement, topic.moves = {}, {}
    return ErrorCode.NONE


def give_up_partitions(cluster: Cluster, topic: TopicState, partitions: Iterable[int]) -> Operation[ErrorCode]:
    """Delete partitions that are assigned to others now, then write the placement without them."""
    gone = sorted(partitions)
    commands = [command for command in _delete_commands(cluster, topic) if command.payload["partition"] in gone]
    yield from all_of([command for command in _cancel_commands(cluster, topic) if command.payload["partition"] in gone])
    code = yield from _carry_out(cluster, commands)
    if code is not ErrorCode.NONE:
        return code
    topic.placement = {partition: directory for partition, directory in topic.placement.items() if partition not in gone}
    topic.moves = {partition: order for partition, order in topic.moves.items() if partition not in gone}
    yield from write_placement(cluster, topic)
    yield Publish()
    return ErrorCode.NONE


def clear_stale_placement(cluster: Cluster, name: str, placement: DirectoryAssignment) -> Operation[ErrorCode]:
    """A topic was deleted while this box was away, and its placement says so: delete what lies here of it."""
    commands = []
    for partition, directory in sorted(placement.directories.items()):
        disk = cluster.disk_of(directory)
        if disk is not None:
            commands.append(DiskCommand(disk, DescriptorKind.DELETE, {"topic": name, "partition": partition, "topic_id": str(placement.topic_id)}))
    code = yield from _carry_out(cluster, commands)
    if code is not ErrorCode.NONE:
        return code
    yield from _remove_placement(cluster, name)
    cluster.stale_placements.pop(name, None)
    return ErrorCode.NONE


def _remove_placement(cluster: Cluster, name: str) -> Operation[None]:
    path = placement_path(cluster.broker_id, name)
    existing = yield from broker_registry.read(path)
    if existing is not None:
        news = change_write(Change(cluster.broker_id, placements=((cluster.broker_id, name),)))
        yield from cluster.own_writes().guard((Delete(path, existing.version), news))


def _carry_out(cluster: Cluster, commands: list[DiskCommand]) -> Operation[ErrorCode]:
    codes = yield from all_of(list(commands))
    result = ErrorCode.NONE
    for command, code in zip(commands, codes, strict=True):
        if code != ErrorCode.NONE:
            result = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        report = cluster.reports.get(command.disk)
        key = (command.payload["topic"], command.payload["partition"])
        if report is not None and report.partitions.get(key) == command.payload["topic_id"]:
            report.forget(key)
    return result


def _cancel_commands(cluster: Cluster, topic: TopicState) -> list[DiskCommand]:
    """Copies that are being made of its partitions go, too; a target that is away is told when it comes, because no order names its copy any more."""
    return [
        DiskCommand(target, DescriptorKind.MOVE_CANCEL, {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id)})
        for partition in sorted(topic.moves)
        if (target := cluster.move_target(topic, partition)) is not None and target in cluster.reports
    ]


def _delete_commands(cluster: Cluster, topic: TopicState) -> list[DiskCommand]:
    """DELETE wherever a partition is placed on this box or was reported. A directory that left the box for good is not asked."""
    targets = {(disk, partition) for partition in topic.placement if (disk := cluster.disk_of_partition(topic, partition)) is not None}
    for report in cluster.reports.values():
        targets |= {(report.disk, partition) for (name, partition) in report.partitions if name == topic.name and report.holds(topic, partition)}
    return [
        DiskCommand(disk, DescriptorKind.DELETE, {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id)})
        for disk, partition in sorted(targets)
    ]
