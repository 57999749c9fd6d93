"""Choose the boxes for the replicas of new partitions, with Kafka's two algorithms: with racks and
without. Pure.

Without racks, leaders go round the boxes, and followers follow at a distance that grows with each
round. With racks, the boxes are ordered so that racks alternate, and the replicas of a partition
are in as many racks as exist. As in Kafka's tools (`RackAwareMode.Safe`), racks count only if every
box has one. Weak: free space is not considered; each box chooses among its own disks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

NO_RACKS: Mapping[int, str | None] = MappingProxyType({})


def known_racks(brokers: Sequence[int], racks: Mapping[int, str | None]) -> dict[int, str]:
    """Return the rack of each of `brokers`, or nothing if one of them has none."""
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
    """Return partition → replicas, from `first_partition` on. `first_broker` is where the round of
    leaders starts.
    """
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
    """Return the brokers ordered so that racks alternate; within a rack by id."""
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
            # Skip boxes in racks that have a replica while some rack has none; `count - 1` steps reach every other box.
            candidate = ordered[(leader + 1 + (shift + step) % (count - 1)) % count]
            step += 1
            if candidate not in chosen and (racks[candidate] not in racks_used or len(racks_used) == rack_count):
                chosen.append(candidate)
                racks_used.add(racks[candidate])
        assignment[partition] = tuple(chosen)
    return assignment
