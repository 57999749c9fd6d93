"""Plan a disk's drain: which of its partitions go to which other disk. Pure.

The largest goes first, each to the disk with the most free space after the moves already planned.
Disks within 1 % of each other alternate. The space that a disk keeps free is not used. Weak: sizes
are those of the moment; what is written during the drain is not planned for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

KEPT_FREE_SHARE = 20
KEPT_FREE_BYTES_MAX = 1 << 30
"""A disk keeps a twentieth of its size free, or 1 GiB if that is less."""
ALIKE_STEPS = 100
"""Disks whose free space differs by less than 1 % of the largest count as equal."""


class PartitionOnDisk(NamedTuple):
    """A partition and its bytes on its disk."""

    topic: str
    partition: int
    size_bytes: int


class FreeSpace(NamedTuple):
    """A disk that can take partitions. `promised_bytes`: still to arrive from moves under way."""

    disk: str
    free_bytes: int
    total_bytes: int
    promised_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        return self.free_bytes - self.promised_bytes - min(self.total_bytes // KEPT_FREE_SHARE, KEPT_FREE_BYTES_MAX)


class PlannedMove(NamedTuple):
    """One partition of the drained disk and its target."""

    topic: str
    partition: int
    size_bytes: int
    target_disk: str


class DrainPlan(NamedTuple):
    """`unplaced`: partitions that fit on no disk."""

    moves: tuple[PlannedMove, ...]
    unplaced: tuple[PartitionOnDisk, ...]

    @property
    def size_bytes(self) -> int:
        return sum(move.size_bytes for move in self.moves)


def plan_drain(partitions: Iterable[PartitionOnDisk], spaces: Iterable[FreeSpace]) -> DrainPlan:
    """Choose a disk for each of `partitions`."""
    usable = {space.disk: space.usable_bytes for space in spaces}
    counts = dict.fromkeys(usable, 0)
    moves: list[PlannedMove] = []
    unplaced: list[PartitionOnDisk] = []
    for placed in sorted(partitions, key=lambda placed: (-placed.size_bytes, placed.topic, placed.partition)):
        most = max(usable.values(), default=-1)
        if most < placed.size_bytes:
            unplaced.append(placed)
            continue
        best = min((disk for disk in usable if usable[disk] >= most - most // ALIKE_STEPS and usable[disk] >= placed.size_bytes), key=lambda disk: counts[disk])
        usable[best] -= placed.size_bytes
        counts[best] += 1
        moves.append(PlannedMove(placed.topic, placed.partition, placed.size_bytes, best))
    return DrainPlan(tuple(moves), tuple(unplaced))
