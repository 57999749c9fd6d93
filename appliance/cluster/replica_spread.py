"""Which boxes hold the replicas of new partitions: Kafka's two ways of spreading, with racks and without. Pure.

Without racks leaders go round the boxes and followers at a distance that grows with each round. With racks the boxes are put in an order in which racks
take turns, and a partition's replicas lie in as many racks as there are. As in Kafka's tools (`RackAwareMode.Safe`), racks count only when every box has
one. Weak spot: neither way looks at free space; each box chooses among its own disks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

NO_RACKS: Mapping[int, str | None] = MappingProxyType({})


def known_racks(brokers: Sequence[int], racks: Mapping[int, str | None]) -> dict[int, str]:
    """The rack of each of `brokers`, or nothing when one of them has none."""
    known = {broker: rack for broker in brokers if (rack := racks.get(broker)) is not None}
    return known if len(known) == len(set(brokers)) else {}


def spread_replicas(
    live_brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    first_broker: int,
    first_partition: int = 0,
    racks: Mapping[int, str | None] = NO_RACKS,
) -> dict[int, tuple[int, ...]]:
    """partition → replicas. From `first_partition` on: what is there already is not made again. `first_broker` is where the round of leaders starts."""
    brokers = sorted(live_brokers)
    known = known_racks(brokers, racks)
    if len(set(known.values())) > 1:
        return _spread_over_racks(known, partitions, replication_factor, first_broker, first_partition)
    count = len(brokers)
    assignment = {}
    for partition in range(first_partition, partitions):
        leader = (first_broker + partition) % count
        shift = first_broker + partition // count
        followers = [(leader + 1 + (shift + follower) % (count - 1)) % count for follower in range(replication_factor - 1)]
        assignment[partition] = tuple(brokers[index] for index in (leader, *followers))
    return assignment


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """The brokers in an order in which racks take turns; within a rack by id."""
    waiting: dict[str, list[int]] = {}
    for broker in sorted(racks, reverse=True):
        waiting.setdefault(racks[broker], []).append(broker)
    ordered: list[int] = []
    while len(ordered) < len(racks):
        ordered += [waiting[rack].pop() for rack in sorted(waiting) if waiting[rack]]
    return ordered


def _spread_over_racks(racks: dict[int, str], partitions: int, replication_factor: int, first_broker: int, first_partition: int) -> dict[int, tuple[int, ...]]:
    ordered = rack_alternated(racks)
    rack_count, count = len(set(racks.values())), len(ordered)
    assignment = {}
    for partition in range(first_partition, partitions):
        leader = (first_broker + partition) % count
        shift = (first_broker + partition // count) * rack_count
        chosen, racks_used = [ordered[leader]], {racks[ordered[leader]]}
        step = 0
        while len(chosen) < replication_factor:
            # A box in a rack that has a replica already is passed over while some rack has none; `count - 1` steps see every other box once.
            candidate = ordered[(leader + 1 + (shift + step) % (count - 1)) % count]
            step += 1
            if candidate not in chosen and (racks[candidate] not in racks_used or len(racks_used) == rack_count):
                chosen.append(candidate)
                racks_used.add(racks[candidate])
        assignment[partition] = tuple(chosen)
    return assignment
