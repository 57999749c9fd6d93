"""Plan which replicas go to which boxes (drain, fill, replication factor), and which partitions of
a drained disk to which other disk. Pure.

A replica that leaves a box goes where its partition is in most racks, and among those to the box
with the most free space after the moves already planned. A partition that leaves a disk goes to the
disk with the most free space. Boxes, or disks, within 1 % of each other alternate. A new replica
takes the place of the one it replaces, so leadership goes with it. Balance is by bytes in
proportion to the boxes' sizes, the largest replica that fits first, because that moves the fewest.
A partition counts as 1 MiB more than its bytes, because an empty one will grow.

Weak: sizes and free space are those of the moment, and a box counts as one disk; it chooses among
its disks itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from appliance.cluster.placement import known_racks

KEPT_FREE_SHARE = 20
"""A box keeps a twentieth of its space free."""
ALIKE_STEPS = 100
"""Boxes, or disks, whose free space differs by less than 1 % of the largest count as equal."""
PARTITION_BYTES = 1 << 20
"""What a partition weighs beside its bytes."""


class BoxCapacity(NamedTuple):
    """A live box, all its disks together.

    `promised_bytes`: still to arrive from moves under way.
    """

    broker_id: int
    rack: str | None
    free_bytes: int
    total_bytes: int
    promised_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        return self.free_bytes - self.promised_bytes - self.total_bytes // KEPT_FREE_SHARE


class ReplicatedPartition(NamedTuple):
    """A partition, its replicas (the target, if it is being reassigned), and the bytes of one
    replica.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    size_bytes: int
    isr: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PlannedReassignment(NamedTuple):
    """One partition and its new replicas."""

    topic: str
    partition: int
    former: tuple[int, ...]
    replicas: tuple[int, ...]
    size_bytes: int

    @property
    def coming(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.former)

    @property
    def going(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.former if replica not in self.replicas)

    @property
    def moved_bytes(self) -> int:
        return self.size_bytes * len(self.coming)


class BalancePlan(NamedTuple):
    """`unplaced`: partitions that fit on no box."""

    changes: tuple[PlannedReassignment, ...]
    unplaced: tuple[ReplicatedPartition, ...] = ()

    @property
    def moved_bytes(self) -> int:
        return sum(change.moved_bytes for change in self.changes)

    def bytes_to(self) -> dict[int, int]:
        """Return the bytes that each box receives. Boxes copy in parallel, so the largest number
        decides the duration.
        """
        received: dict[int, int] = {}
        for change in self.changes:
            for broker_id in change.coming:
                received[broker_id] = received.get(broker_id, 0) + change.size_bytes
        return received


class _Boxes:
    """The free space of the boxes as a plan grows."""

    def __init__(self, boxes: Iterable[BoxCapacity]) -> None:
        self.boxes = {box.broker_id: box for box in boxes}
        self.usable = {box.broker_id: box.usable_bytes for box in self.boxes.values()}
        self.taken = dict.fromkeys(self.boxes, 0)
        self.racks = known_racks(list(self.boxes), {box.broker_id: box.rack for box in self.boxes.values()})

    def take(self, broker_id: int, size_bytes: int) -> None:
        self.usable[broker_id] -= size_bytes
        self.taken[broker_id] += 1

    def best(self, others: Collection[int], candidates: Iterable[int], size_bytes: int) -> int | None:
        """Return the box for one more replica beside `others`: a rack without one first, then free
        space, then alternating.
        """
        fitting = [box for box in candidates if box not in others and self.usable[box] >= size_bytes]
        used = {self.racks.get(box) for box in others}
        apart = [box for box in fitting if self.racks and self.racks[box] not in used] or fitting
        if not apart:
            return None
        most = max(self.usable[box] for box in apart)
        return min((box for box in apart if self.usable[box] >= most - most // ALIKE_STEPS), key=lambda box: (self.taken[box], box))

    def keeps_racks_apart(self, replicas: Sequence[int], former: int, new: int) -> bool:
        """Whether a partition is in no fewer racks after `new` has replaced `former`."""
        if not self.racks:
            return True
        before = {self.racks.get(box, box) for box in replicas}
        after = {self.racks.get(new if box == former else box, box) for box in replicas}
        return len(after) >= len(before)


def _largest_first(partitions: Iterable[ReplicatedPartition]) -> list[ReplicatedPartition]:
    return sorted(partitions, key=lambda held: (-held.size_bytes, held.topic, held.partition))


def plan_box_drain(partitions: Iterable[ReplicatedPartition], boxes: Iterable[BoxCapacity], leaving: Collection[int]) -> BalancePlan:
    """Move every replica from the boxes in `leaving` to others of `boxes`."""
    space = _Boxes(box for box in boxes if box.broker_id not in leaving)
    changes: list[PlannedReassignment] = []
    unplaced: list[ReplicatedPartition] = []
    for held in _largest_first(held for held in partitions if set(held.replicas) & set(leaving)):
        replicas = list(held.replicas)
        for index, former in enumerate(held.replicas):
            if former in leaving:
                others = [box for box in replicas if box not in leaving]
                new = space.best(others, space.boxes, held.size_bytes)
                if new is None:
                    unplaced.append(held)
                    break
                replicas[index] = new
        else:
            for new in set(replicas) - set(held.replicas):
                space.take(new, held.size_bytes)
            changes.append(PlannedReassignment(held.topic, held.partition, held.replicas, tuple(replicas), held.size_bytes))
    return BalancePlan(tuple(changes), tuple(unplaced))


def plan_balance(partitions: Iterable[ReplicatedPartition], boxes: Sequence[BoxCapacity], onto: Collection[int]) -> BalancePlan:
    """Move replicas to the boxes in `onto` until each holds its share of all bytes, in proportion
    to its space.

    Nothing moves between the other boxes.
    """
    held = {(each.topic, each.partition): each for each in partitions}
    space = _Boxes(boxes)
    weights = {key: each.size_bytes + PARTITION_BYTES for key, each in held.items()}
    replicas = {key: list(each.replicas) for key, each in held.items()}
    load = dict.fromkeys(space.boxes, 0)
    on_box: dict[int, list[tuple[str, int]]] = {box: [] for box in space.boxes}
    for each in _largest_first(held.values()):
        for box in each.replicas:
            if box in load:
                load[box] += weights[(each.topic, each.partition)]
                on_box[box].append((each.topic, each.partition))
    total_bytes = sum(max(1, box.total_bytes) for box in boxes)
    share = {box.broker_id: sum(load.values()) * max(1, box.total_bytes) // total_bytes for box in boxes}

    def next_move() -> tuple[tuple[str, int], int, int] | None:
        for receiver in sorted((box for box in onto if box in load), key=lambda box: (load[box] - share[box], box)):
            for donor in sorted(load, key=lambda box: (share[box] - load[box], box)):
                gain = min(share[receiver] - load[receiver], load[donor] - share[donor])
                if gain <= 0:
                    break
                for key in on_box[donor]:
                    fits = weights[key] <= 2 * gain - 1 and space.usable[receiver] >= held[key].size_bytes
                    if fits and receiver not in replicas[key] and space.keeps_racks_apart(replicas[key], donor, receiver):
                        return key, donor, receiver
        return None

    while (move := next_move()) is not None:
        key, donor, receiver = move
        replicas[key][replicas[key].index(donor)] = receiver
        on_box[donor].remove(key)
        on_box[receiver].append(key)
        load[donor] -= weights[key]
        load[receiver] += weights[key]
        space.take(receiver, held[key].size_bytes)
    return BalancePlan(_changes(held.values(), replicas))


def plan_replication_factor(partitions: Iterable[ReplicatedPartition], boxes: Iterable[BoxCapacity], replication_factor: int) -> BalancePlan:
    """Give each partition `replication_factor` replicas.

    New ones are placed as in `plan_box_drain`. Removed are replicas out of sync first, then those
    that share a rack, then the last ones. If replicas are removed, the first one stays. If some are
    added, the box that is first for the fewest partitions becomes first, so that boxes share the
    leadership. There must be enough boxes.
    """
    space = _Boxes(boxes)
    replicas: dict[tuple[str, int], list[int]] = {}
    unplaced = []
    ordered = _largest_first(partitions)
    firsts = Counter(held.replicas[0] for held in ordered if len(held.replicas) >= replication_factor)
    for held in ordered:
        chosen = list(held.replicas)
        while len(chosen) > replication_factor:
            chosen.remove(max(enumerate(chosen[1:], 1), key=lambda place: _dispensable(space, held, chosen, place))[1])
        while len(chosen) < replication_factor and (new := space.best(chosen, space.boxes, held.size_bytes)) is not None:
            space.take(new, held.size_bytes)
            chosen.append(new)
        if len(chosen) < replication_factor:
            unplaced.append(held)
            continue
        if len(held.replicas) < replication_factor:
            first = min(chosen, key=lambda box: (firsts[box], chosen.index(box)))
            firsts[first] += 1
            chosen = [first, *(box for box in chosen if box != first)]
        replicas[(held.topic, held.partition)] = chosen
    return BalancePlan(_changes((held for held in ordered if (held.topic, held.partition) in replicas), replicas), tuple(unplaced))


def _dispensable(space: _Boxes, held: ReplicatedPartition, chosen: list[int], place: tuple[int, int]) -> tuple[bool, bool, int]:
    index, broker_id = place
    rack = space.racks.get(broker_id)
    shares_rack = rack is not None and sum(1 for box in chosen if space.racks.get(box) == rack) > 1
    return bool(held.isr) and broker_id not in held.isr, shares_rack, index


def _changes(partitions: Iterable[ReplicatedPartition], replicas: dict[tuple[str, int], list[int]]) -> tuple[PlannedReassignment, ...]:
    return tuple(
        PlannedReassignment(held.topic, held.partition, held.replicas, tuple(new), held.size_bytes)
        for held in _largest_first(partitions)
        if (new := replicas[(held.topic, held.partition)]) != list(held.replicas)
    )


KEPT_FREE_BYTES_MAX = 1 << 30
"""A disk keeps a twentieth of its size free, or 1 GiB if that is less."""


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
