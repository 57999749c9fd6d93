"""Moves of partitions between the disks of a box: which stand, and what draining a disk would move.

What is ordered is in the image, how far it is in the reports of the target disks; no log disk is touched. Weak spot: a report is written about once a
second, and sizes and free bytes are those of the moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from appliance.base.layout import BoxLayout
from appliance.cluster.box_balance import DrainPlan, FreeSpace, PartitionOnDisk, plan_drain
from appliance.cluster.metadata_image import MetadataImage
from appliance.ipc.disk_reports import WAITING, MoveProgress, moves_file, read_moves


def standing_moves(layout: BoxLayout, image: MetadataImage, disk_names: Iterable[str]) -> tuple[MoveProgress, ...]:
    """Every move that is ordered; one that no report names yet is waiting."""
    reports = {(move.target_disk, move.topic, move.partition): move for disk in disk_names for move in read_moves(moves_file(layout, disk))}
    moves = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if partition.moving_to is None or partition.disk is None:
                continue
            reported = reports.get((partition.moving_to, topic.name, number))
            if reported is None or reported.topic_id != str(topic.topic_id):
                reported = MoveProgress(topic.name, number, str(topic.topic_id), partition.disk, partition.moving_to, WAITING)
            moves.append(reported)
    return tuple(sorted(moves, key=lambda move: (move.source_disk, move.target_disk, move.topic, move.partition)))


class DrainTarget(NamedTuple):
    """A disk of the box. `state` is online, full, …; `shown_state` says more; bytes 0: not known."""

    name: str
    state: str
    shown_state: str
    free_bytes: int
    total_bytes: int
    is_draining: bool = False


class DrainView(NamedTuple):
    """One reading: partitions without an order to move, current moves, and free space."""

    unordered: tuple[PartitionOnDisk, ...]
    moves: tuple[MoveProgress, ...]
    rooms: tuple[FreeSpace, ...]
    sizes: dict[tuple[str, int], int]
    """Bytes of everything that lies on the disk."""
    state: str = "online"
    """Of the disk that is emptied."""
    closed: dict[str, str] = {}  # noqa: RUF012  never changed
    """Other disks that take nothing now, with their states."""
    has_controller: bool = True
    """Whether the controller process of the box runs, which moves."""

    @property
    def is_readable(self) -> bool:
        """Whether sizes are known and partitions can be copied from the disk."""
        return self.state.startswith(("online", "full"))

    @property
    def trouble(self) -> str:
        """What the moves wait for; '' if they go on."""
        if not self.has_controller:
            return "waiting: the controller of this box does not run"
        return "" if self.is_readable else f"waiting: the disk is not served ({self.state})"

    def plan(self) -> DrainPlan:
        """Plan where the partitions go that have no order yet."""
        return plan_drain(self.unordered, self.rooms)


def drain_view(
    name: str,
    image: MetadataImage,
    sizes: Mapping[tuple[str, int], int],
    moves: tuple[MoveProgress, ...],
    disks: Collection[DrainTarget],
    to: Collection[str] | None,
) -> DrainView:
    """Return what lies on disk `name`, and where it may go. `sizes`: (topic id, partition) → bytes on that disk; `moves`: all that stand; `to`: these
    disks only."""
    ordered = {(move.topic, move.partition) for move in moves}
    unordered = [
        PartitionOnDisk(topic.name, number, sizes.get((str(topic.topic_id), number), 0))
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if partition.disk == name and (topic.name, number) not in ordered
    ]
    names_by_id = {str(topic.topic_id): topic.name for topic in image.topics.values()}
    by_name = {(names_by_id.get(topic_id, topic_id), number): size for (topic_id, number), size in sizes.items()}
    targets = [disk for disk in disks if disk.name != name and (not to or disk.name in to)]
    promised = {disk.name: sum(max(0, move.lag_bytes) for move in moves if move.target_disk == disk.name) for disk in targets}
    usable = [disk for disk in targets if disk.state == "online" and not disk.is_draining]
    rooms = tuple(FreeSpace(disk.name, disk.free_bytes, disk.total_bytes, promised[disk.name]) for disk in usable)
    closed = {disk.name: disk.shown_state for disk in targets if disk not in usable}
    state = next(disk.state for disk in disks if disk.name == name)
    return DrainView(tuple(unordered), tuple(move for move in moves if move.source_disk == name), rooms, by_name, state, closed)
