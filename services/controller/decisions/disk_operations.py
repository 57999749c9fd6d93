"""Bring up a disk whose log-writer has connected: place what it holds, settle leader epochs, send
the roles.

Each box does this for its own disks. Each operation can be dropped after any step and starts again.
Owned by the controller process. Weak: a partition whose directory was lost has no row until an
operator acts, because an empty log in its place would hide the loss. Where other replicas are in
sync, they lead it.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from services.controller.decisions.cluster import Cluster, DiskReport
from services.controller.decisions.hosting_operations import create_command, place_again
from services.controller.decisions.leader_operations import elect_after_deaths, raise_leader_epochs, settle_unclean_boot, take_up_replicas, withdraw_replicas
from services.controller.decisions.role_operations import send_roles
from services.controller.zookeeper.broker_registry import record_directories
from services.controller.zookeeper.operation import Operation, Publish, all_of
from services.controller.zookeeper.topic_registry import TopicState


def bring_up_disk(cluster: Cluster, report: DiskReport, others_are_overdue: bool = True) -> Operation[int]:
    """Settle leader epochs after an unclean boot, then send the roles.

    Returns how many partitions have not accepted their role, or wait for other boxes.
    """
    if cluster.box.directories.get(report.directory_id) != report.disk:
        box = cluster.box._replace(directories={report.directory_id: report.disk})
        cluster.use_own_record(*(yield from record_directories(cluster.broker_id, box)))
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
    missing = [(topic, partition) for topic, partition in placed if _is_missing(cluster, report, topic, partition)]
    report.missing = len(missing)
    waiting = yield from settle_unclean_boot(cluster, report, present, others_are_overdue)
    yield from withdraw_replicas(cluster, missing)
    if cluster.fence is not None and not cluster.has_other_boxes:
        yield from elect_after_deaths(cluster, present)
    yield from take_up_replicas(cluster, [(topic, partition) for topic, partition in present if (topic.name, partition) not in report.unbumped])
    refused = yield from send_roles(cluster, present)
    yield Publish()
    return refused + waiting


def missing_partitions(cluster: Cluster, report: DiskReport) -> list[str]:
    """Return the names of the partitions that ZooKeeper places on this disk and that are missing
    there.
    """
    return [
        f"{name}-{partition}"
        for name, topic in sorted(cluster.topics.items())
        if name not in cluster.deleting
        for partition in sorted(topic.states)
        if cluster.disk_of_partition(topic, partition) == report.disk and _is_missing(cluster, report, topic, partition)
    ]


def orphans_on(cluster: Cluster, report: DiskReport) -> list[str]:
    """Return the names of the logs here whose partitions have been placed on another disk of this
    box, as on an old disk that was replaced and comes back. They get no role.
    """
    found = []
    for name, partition in sorted(report.partitions):
        topic = cluster.topics.get(name)
        if topic is None or not report.holds(topic, partition) or cluster.move_target(topic, partition) == report.disk:
            continue
        if cluster.disk_of_partition(topic, partition) not in (None, report.disk):
            found.append(f"{name}-{partition}")
    return found


def _is_missing(cluster: Cluster, report: DiskReport, topic: TopicState, partition: int) -> bool:
    """Whether a placed partition is on no disk. While it is being moved, its target disk may have
    it, or may not have reported yet.
    """
    if report.holds(topic, partition):
        return False
    target = cluster.reports.get(cluster.move_target(topic, partition) or "")
    return partition not in topic.moves or (target is not None and not _has_whole(target, topic, partition))


def _has_whole(target: DiskReport, topic: TopicState, partition: int) -> bool:
    return target.holds(topic, partition) or target.has_complete(topic, partition)


def _adopt_unplaced(cluster: Cluster, report: DiskReport) -> Operation[None]:
    """Place each partition that lies here under the right topic id and has no placement.

    A tree that Kafka wrote has no placements, and a box that created a log may have died before it
    wrote the placement.
    """
    for name, topic in sorted(cluster.topics.items()):
        local = topic.local_partitions(cluster.broker_id)
        found = [partition for partition in local if partition not in topic.placement and report.holds(topic, partition)]
        if found and name not in cluster.deleting:
            yield from place_again(cluster, topic, dict.fromkeys(found, report.directory_id))


def _begin_anew(cluster: Cluster, report: DiskReport) -> Operation[None]:
    """Create, empty, the partitions of directories that were given up for this one.

    Only an operator's statement that the data is lost starts this. First another in-sync replica
    leads, or the leader epoch grows: the lost offsets must not reappear with other content under
    the old epoch. The placement is written last, so after a crash it still names the lost directory
    and everything is repeated.
    """
    for name, topic in sorted(cluster.topics.items()):
        placed = [partition for partition in topic.states if topic.placement.get(partition) in report.replaces]
        lost = [partition for partition in placed if not _may_be_whole_on_target(cluster, topic, partition)]
        if not lost or name in cluster.deleting:
            continue
        yield from withdraw_replicas(cluster, [(topic, partition) for partition in lost])
        yield from raise_leader_epochs(cluster, topic, lost)
        codes = yield from all_of([create_command(cluster, topic, partition, report.disk) for partition in lost])
        made = [partition for partition, code in zip(lost, codes, strict=True) if code == ErrorCode.NONE]
        for partition in made:
            report.partitions[(name, partition)] = str(topic.topic_id)
        if made:
            topic.moves = {partition: order for partition, order in topic.moves.items() if partition not in made}  # the copies are of the lost logs
            yield from place_again(cluster, topic, dict.fromkeys(made, report.directory_id))


def _may_be_whole_on_target(cluster: Cluster, topic: TopicState, partition: int) -> bool:
    """Whether the disk to which a lost partition was being moved has, or may have, a complete copy.

    A disk that is away or offline has not answered, and its copy may be the only one left since the
    source committed. The replacing disk is brought up again when that disk connects.
    """
    target = cluster.move_target(topic, partition)
    if target is None:
        return False
    report = cluster.reports.get(target)
    return report is None or report.is_offline or _has_whole(report, topic, partition)
