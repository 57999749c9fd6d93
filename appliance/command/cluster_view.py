"""The cluster as the commands that change it see it: boxes with their free space, partitions with their sizes, what is on its way.

Requested anew each time. Weak spot: a partition's size is the largest that any box reports; without an answer it counts as empty. Disks of
other machines that share a file system count its space twice.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.client.boxes import BoxDescription, Ongoing, Partition, close_boxes, closed_boxes, describe_boxes, ongoing_reassignments
from appliance.client.cluster import ClusterClient, PartitionMetadata
from appliance.cluster.box_balance import BoxCapacity, ReplicatedPartition
from appliance.runtime.new_disk_checks import Mounts


class ClusterView(NamedTuple):
    """One reading. `partitions` are those of Metadata: target and old replicas together."""

    boxes: dict[int, BoxDescription]
    partitions: dict[Partition, PartitionMetadata]
    ongoing: dict[Partition, Ongoing]
    closed: frozenset[int] = frozenset()
    """Boxes that get no new replicas: they are being emptied."""
    file_systems: dict[tuple[int, str], str] = {}  # noqa: RUF012  never changed
    """Of box and path of a disk, for boxes on this machine: disks on one file system share its space."""

    def size_on(self, partition: Partition, broker_id: int) -> int:
        box = self.boxes.get(broker_id)
        return box.contents.sizes.get(partition, 0) if box is not None and box.contents is not None else 0

    def size_of(self, partition: Partition) -> int:
        return max((self.size_on(partition, broker_id) for broker_id in self.partitions[partition].assigned_replicas), default=0)

    def target_of(self, partition: Partition) -> tuple[int, ...]:
        """Where it shall be: where it is, unless it is on its way."""
        ongoing = self.ongoing.get(partition)
        return tuple(map(int, self.partitions[partition].assigned_replicas)) if ongoing is None else ongoing.target

    def held(self, topics: Collection[str] | None = None) -> list[ReplicatedPartition]:
        """Every partition (of `topics`) with its target replicas."""
        return [
            ReplicatedPartition(*key, self.target_of(key), self.size_of(key), tuple(map(int, metadata.isr)))
            for key, metadata in sorted(self.partitions.items())
            if topics is None or key[0] in topics
        ]

    def rooms(self) -> list[BoxCapacity]:
        """Every box that answers; its disks that can be used are one space."""
        promised = dict.fromkeys(self.boxes, 0)
        for key, ongoing in self.ongoing.items():
            for broker_id in ongoing.adding:
                if key in self.partitions and broker_id in promised:
                    promised[broker_id] += max(0, self.size_of(key) - self.size_on(key, broker_id))
        rooms = []
        for box in self.boxes.values():
            if box.contents is not None:
                disks = [disk for disk in box.contents.disks if disk.error is ErrorCode.NONE and disk.total_bytes >= 0]
                spaces = {self.file_systems.get((box.broker_id, disk.path), disk.path): disk for disk in disks}.values()
                free, total = sum(disk.usable_bytes for disk in spaces), sum(disk.total_bytes for disk in spaces)
                rooms.append(BoxCapacity(box.broker_id, box.rack, free, total, promised[box.broker_id]))
        return rooms

    def open_rooms(self) -> list[BoxCapacity]:
        """Those of boxes that may get new replicas."""
        return [room for room in self.rooms() if room.broker_id not in self.closed]

    def replicas_on(self, broker_id: int) -> list[Partition]:
        return [key for key, metadata in sorted(self.partitions.items()) if broker_id in metadata.assigned_replicas]

    def absent_boxes(self) -> list[int]:
        """Boxes that are not registered and hold replicas all the same."""
        return sorted({int(broker_id) for metadata in self.partitions.values() for broker_id in metadata.assigned_replicas} - self.boxes.keys())


def look_at_cluster(cluster: ClusterClient, with_ongoing: bool = True) -> ClusterView:
    """What is on its way only the controller knows, and not while it does not reach ZooKeeper."""
    boxes = {box.broker_id: box for box in describe_boxes(cluster)}
    partitions = {(name, partition.partition): partition for name, topic in cluster.metadata(None).topics.items() for partition in topic.partitions}
    ongoing = {key: ongoing for key, ongoing in ongoing_reassignments(cluster).items() if key in partitions} if with_ongoing else {}
    asked = next((broker_id for broker_id, box in sorted(boxes.items()) if box.contents is not None), None)
    closed = closed_boxes(cluster, asked) if asked is not None else frozenset()
    return ClusterView(boxes, partitions, ongoing, closed, file_systems_here(boxes.values()))


def file_systems_here(boxes: Iterable[BoxDescription], mounts: Mounts | None = None) -> dict[tuple[int, str], str]:
    """Return the file systems of disks of boxes that run on this machine. Paths are compared as text: no disk is touched."""
    from appliance.runtime.running_boxes import boxes_with

    here = {(known.box.get("broker_id"), path) for known in boxes_with(None) for path in known.data_directories}
    found = [(box.broker_id, disk.path) for box in boxes if box.contents is not None for disk in box.contents.disks if (box.broker_id, disk.path) in here]
    mounts = mounts or (Mounts.of_this_machine() if found else None)
    return {} if mounts is None else {key: mounts.under(os.path.abspath(key[1])).device for key in found}


def close_to_replicas(cluster: ClusterClient, view: ClusterView, broker_id: int, is_closed: bool) -> None:
    """Whether a box gets new replicas, if that is not so already."""
    wanted = view.closed | {broker_id} if is_closed else view.closed - {broker_id}
    asked = [box.broker_id for box in view.boxes.values() if box.contents is not None]
    if wanted != view.closed and asked:
        close_boxes(cluster, next((other for other in asked if other != broker_id), asked[0]), wanted)
