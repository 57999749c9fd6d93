"""Create the logs of this box's assigned replicas, delete those that are no longer assigned, and
record both in placements.

Each box does this for itself; the controller of the cluster only reads the placements. An empty log
is created only where this broker never had one: it has no placement, and it is not in the in-sync
set. A placement is durable before or after its directory, and never replaces it. A placed partition
without a directory and without a state is created again. A directory without a placement is placed
where it lies (`disk_operations`). Each operation can be dropped after any step and starts again.
Owned by the controller process of each box. Weak: if a disk is away during a deletion, the whole
topic stays on this box until it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.base.errors import ErrorCode
from appliance.cluster.placement import DiskSpace, place_partitions
from appliance.cluster.znodes import DirectoryAssignment, placement_path
from appliance.ipc.descriptors import DescriptorKind
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper import broker_registry, topic_registry
from services.controller.zookeeper.change_log import ClusterChange, change_write
from services.controller.zookeeper.operation import DiskCommand, Operation, Publish, all_of
from services.controller.zookeeper.requests import Delete
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


# --- what is to be made or deleted here (pure) -------------------------------------------------------------------------


def to_host(cluster: Cluster, topic: TopicState) -> list[int]:
    """Return the partitions that this broker is assigned and never had.

    A controller creates those without a state when it completes the topic.
    """
    wanted = []
    for partition in topic.local_partitions(cluster.broker_id):
        state = topic.states.get(partition)
        is_new = cluster.fence is None if state is None else cluster.broker_id not in state.isr
        if partition not in topic.placement and is_new and not _is_reported(cluster, topic, partition):
            wanted.append(partition)
    return wanted


def to_give_up(cluster: Cluster, topic: TopicState) -> list[int]:
    """Return the partitions that lie here and are assigned to other brokers only."""
    return [partition for partition in sorted(topic.placement) if cluster.broker_id not in topic.replicas.get(partition, (cluster.broker_id,))]


def _is_reported(cluster: Cluster, topic: TopicState, partition: int) -> bool:
    return any(report.holds(topic, partition) for report in cluster.reports.values())


def where_they_lie(cluster: Cluster, topic: TopicState) -> dict[int, str]:
    """Return the directories that have logs of this topic id on this box: partition → directory id."""
    local = topic.local_partitions(cluster.broker_id)
    return {partition: report.directory_id for report in cluster.reports.values() for partition in local if report.holds(topic, partition)}


# --- making ------------------------------------------------------------------------------------------------------------


def host_partitions(cluster: Cluster, topic: TopicState, partitions: list[int], spaces: Callable[[], list[DiskSpace]]) -> Operation[ErrorCode]:
    """CREATE on chosen disks, then write the placement. KAFKA_STORAGE_ERROR: no disk accepted some;
    retry later.
    """
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
    """DELETE all logs of a topic on this box, including copies in progress."""
    yield from all_of(list(_cancel_commands(cluster, topic)))
    code = yield from _carry_out(cluster, _delete_commands(cluster, topic))
    return code


def leave_topic(cluster: Cluster, topic: TopicState) -> Operation[ErrorCode]:
    """A topic is being deleted by another controller: delete its logs here, then report it by
    deleting the placement.
    """
    code = yield from delete_logs(cluster, topic)
    if code is not ErrorCode.NONE:
        return code
    yield from _remove_placement(cluster, topic.name)
    topic.placement, topic.moves = {}, {}
    return ErrorCode.NONE


def give_up_partitions(cluster: Cluster, topic: TopicState, partitions: Iterable[int]) -> Operation[ErrorCode]:
    """Delete partitions that are assigned to other brokers now, then write the placement without
    them.
    """
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
    """Delete the logs of a topic that was deleted while this box was away, as its placement says."""
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
        news = change_write(ClusterChange(cluster.broker_id, placements=((cluster.broker_id, name),)))
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
    """Return the commands that delete copies in progress.

    A target disk that is away gets its command when it connects, because no order names its copy.
    """
    return [
        DiskCommand(target, DescriptorKind.MOVE_CANCEL, {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id)})
        for partition in sorted(topic.moves)
        if (target := cluster.move_target(topic, partition)) is not None and target in cluster.reports
    ]


def _delete_commands(cluster: Cluster, topic: TopicState) -> list[DiskCommand]:
    """Return a DELETE for each disk that has a partition by placement or report. Directories that
    left the box are skipped.
    """
    targets = {(disk, partition) for partition in topic.placement if (disk := cluster.disk_of_partition(topic, partition)) is not None}
    for report in cluster.reports.values():
        targets |= {(report.disk, partition) for (name, partition) in report.partitions if name == topic.name and report.holds(topic, partition)}
    return [
        DiskCommand(disk, DescriptorKind.DELETE, {"topic": topic.name, "partition": partition, "topic_id": str(topic.topic_id)})
        for disk, partition in sorted(targets)
    ]
