"""Emptying a disk: which of its partitions go to which other disk. Pure.

The largest goes first, each to the disk that has the most room after what was planned before; disks that are alike within 1 % take turns. What a disk keeps
free is not given away. Weak spot: sizes are those of the moment; what is written while the drain goes on is not planned for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

KEPT_FREE_SHARE = 20
KEPT_FREE_BYTES_MAX = 1 << 30
"""A disk keeps a twentieth of its size free, or 1 GiB if that is less."""
ALIKE_STEPS = 100
"""Disks whose room differs by less than 1 % of the most are alike."""


class PartitionOnDisk(NamedTuple):
    """A partition and the bytes that it takes on its disk."""

    topic: str
    partition: int
    size_bytes: int


class FreeSpace(NamedTuple):
    """A disk that can take partitions. `promised_bytes`: what moves that are under way will still bring."""

    disk: str
    free_bytes: int
    total_bytes: int
    promised_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        return self.free_bytes - self.promised_bytes - min(self.total_bytes // KEPT_FREE_SHARE, KEPT_FREE_BYTES_MAX)


class PlannedMove(NamedTuple):
    """One partition of the drained disk and where it goes."""

    topic: str
    partition: int
    size_bytes: int
    target_disk: str


class DrainPlan(NamedTuple):
    """`without_room`: what fits nowhere."""

    moves: tuple[PlannedMove, ...]
    without_room: tuple[PartitionOnDisk, ...]

    @property
    def size_bytes(self) -> int:
        return sum(move.size_bytes for move in self.moves)


def plan_drain(partitions: Iterable[PartitionOnDisk], rooms: Iterable[FreeSpace]) -> DrainPlan:
    """Where each of `partitions` goes."""
    usable = {room.disk: room.usable_bytes for room in rooms}
    counts = dict.fromkeys(usable, 0)
    moves: list[PlannedMove] = []
    without_room: list[PartitionOnDisk] = []
    for placed in sorted(partitions, key=lambda placed: (-placed.size_bytes, placed.topic, placed.partition)):
        most = max(usable.values(), default=-1)
        if most < placed.size_bytes:
            without_room.append(placed)
            continue
        best = min((disk for disk in usable if usable[disk] >= most - most // ALIKE_STEPS and usable[disk] >= placed.size_bytes), key=lambda disk: counts[disk])
        usable[best] -= placed.size_bytes
        counts[best] += 1
        moves.append(PlannedMove(placed.topic, placed.partition, placed.size_bytes, best))
    return DrainPlan(tuple(moves), tuple(without_room))
