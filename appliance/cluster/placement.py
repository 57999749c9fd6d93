"""Decide whether a topic may be created, where its partitions go, which replica leads, and when a
leader epoch grows. Pure.

`topic_operations`, `leader_operations` and `disk_operations` carry it out. The rules are Kafka's
(CreateTopics of 3.9 in ZooKeeper mode, elections, both algorithms for spreading replicas); the
placement on disks is ours.

Without racks, leaders go round the boxes, and followers follow at a distance that grows with each
round. With racks, the boxes are ordered so that racks alternate, and the replicas of a partition
are in as many racks as exist. As in Kafka's tools (`RackAwareMode.Safe`), racks count only if every
box has one. Weak: each box considers the free space of its own disks only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.invariants import check
from appliance.base.model import INTERNAL_TOPICS, NO_LEADER, LeaderEpoch, topic_name_problem, topic_names_collide
from appliance.cluster.topic_configs import table_problem, topic_config_problem
from appliance.cluster.znodes import PartitionState

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


DEFAULT = -1
"""Number of partitions or replicas: the broker's default."""

PARTITIONS_PER_REQUEST_MAX = 10_000
"""New partitions in one request, over all its topics, as in Kafka's own controller
(`MAX_PARTITIONS_PER_BATCH`). A request is planned in one turn of the duty cycle, at about 2 µs
each, and no other request is served meanwhile.
"""

FREE_SPACE_STEPS = 100
"""Disks whose free space differs by less than 1 % of the emptiest one's count as equal."""


class TopicCreation(NamedTuple):
    """A topic to be created. `assignments`: partition → brokers; empty if the controller is to
    choose.
    """

    name: str
    num_partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreationDefaults(NamedTuple):
    """The broker's settings for topics without their own, and bounds."""

    num_partitions: int = 1
    replication_factor: int = 1
    partitions_max: int = 10_000
    """Of one topic."""
    topics_max: int = 5_000
    partitions_per_box_max: int = 20_000
    table_locations: tuple[str, ...] = ()
    """At or below which topics may be tables."""


class PlacedReplicas:
    """Topics of the cluster and replicas of each box, counted once for all topics of a request.

    `admit` adds what it has admitted. What is there already may exceed the bounds: after a release
    without them, or after a setting was lowered. It stays, and nothing is added to it.
    """

    def __init__(self, topics: Mapping[str, Mapping[int, Sequence[int]]], defaults: CreationDefaults) -> None:
        """`topics`: partition → replicas by topic, with those that are being created."""
        self._defaults = defaults
        self._topics = topics
        self._count = sum(name not in INTERNAL_TOPICS for name in topics)
        self._replicas: Counter[int] | None = None

    def admit(self, name: str, added: Mapping[int, Sequence[int]], is_new: bool) -> None:
        """Count partitions of a topic that is new, or grows. Raises RequestRefused beyond a bound.

        Internal topics are always admitted: without them the boxes coordinate nothing.
        """
        counts = Counter(chain.from_iterable(added.values()))
        if name not in INTERNAL_TOPICS:
            self._check(name, counts, is_new)
            self._count += is_new
        self._by_broker().update(counts)

    def _by_broker(self) -> Counter[int]:
        if self._replicas is None:
            self._replicas = Counter(chain.from_iterable(chain.from_iterable(replicas.values() for replicas in self._topics.values())))
        return self._replicas

    def _check(self, name: str, counts: Counter[int], is_new: bool) -> None:
        topics_max, replicas_max = self._defaults.topics_max, self._defaults.partitions_per_box_max
        if is_new and self._count >= topics_max:
            reason = f"The cluster has {self._count} topics and max.topics is {topics_max}; delete topics, or raise the setting."
            raise BoundReached("topics", f"Topic '{name}' is not created: {reason}")
        for broker_id, count in sorted(counts.items()):
            there = self._by_broker()[broker_id]
            if there + count > replicas_max:
                reason = f"broker {broker_id} has {there} and max.partitions.per.box is {replicas_max}; delete topics, or raise the setting."
                raise BoundReached("partitions", f"{count} partitions of topic '{name}' are not created: {reason}")


class BoundReached(RequestRefused):
    """A bound of the cluster refuses what clients create by name; `bound` is the label of the
    counter.
    """

    def __init__(self, bound: str, reason: str) -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, reason)
        self.bound = bound


class BrokerPool(NamedTuple):
    """The live brokers, their racks, and the *closed* ones, which get replicas only by name."""

    live: Sequence[int]
    racks: Mapping[int, str | None] = NO_RACKS
    closed: Collection[int] = ()

    def open(self, replicas: int) -> list[int]:
        """Return the brokers that may get new replicas.

        Raises RequestRefused if they are fewer than `replicas`.
        """
        brokers = sorted(set(self.live) - set(self.closed))
        if replicas > len(brokers):
            emptied = sorted(set(self.live) & set(self.closed))
            more = f" ({', '.join(map(str, emptied))} {'is' if len(emptied) == 1 else 'are'} being emptied)" if emptied else ""
            raise RequestRefused(ErrorCode.INVALID_REPLICATION_FACTOR, f"Replication factor: {replicas} larger than available brokers: {len(brokers)}{more}.")
        return brokers


class TopicPlan(NamedTuple):
    """A topic that may be created: partition → replicas, and its configs."""

    name: str
    assignment: dict[int, tuple[int, ...]]
    config: dict[str, str]

    @property
    def replication_factor(self) -> int:
        return len(self.assignment[0])


def plan_topic_creation(
    wanted: TopicCreation,
    existing: Iterable[str],
    brokers: BrokerPool,
    defaults: CreationDefaults,
    first_broker: int = 0,
) -> TopicPlan:
    """Decide whether and how to create a topic. Raises RequestRefused with Kafka's code.

    `first_broker` is where the round of leaders starts.
    """
    problem = topic_name_problem(wanted.name)
    if problem is not None:
        raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    _refuse_name_taken(wanted.name, existing)
    if wanted.assignments and (wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT):
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST, "Both numPartitions or replicationFactor and replicasAssignments were set. Both cannot be used at the same time."
        )
    config_problem = topic_config_problem(dict(wanted.configs)) or table_problem(wanted.name, dict(wanted.configs), defaults.table_locations)
    if config_problem is not None:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, config_problem)
    # Check before anything is allocated per partition: a request of 60 bytes can ask for two billion.
    _refuse_too_many(wanted_partitions(wanted.num_partitions, len(wanted.assignments), defaults), defaults)
    if wanted.assignments:
        assignment = _checked_assignment(wanted.assignments, brokers.live)
    else:
        assignment = _chosen_assignment(wanted, brokers, defaults, first_broker)
    return TopicPlan(wanted.name, assignment, {name: str(value) for name, value in wanted.configs})


def wanted_partitions(num_partitions: int, assigned: int, defaults: CreationDefaults) -> int:
    """Return how many partitions a creation requests, before any check."""
    return assigned or (defaults.num_partitions if num_partitions == DEFAULT else num_partitions)


def _refuse_too_many(partitions: int, defaults: CreationDefaults) -> None:
    if partitions > defaults.partitions_max:
        reason = f"{partitions} partitions are more than the {defaults.partitions_max} that one disk's table holds"
        raise RequestRefused(ErrorCode.INVALID_PARTITIONS, reason)


def request_problem(partitions: Iterable[int], defaults: CreationDefaults) -> str | None:
    """Return why so many new partitions per topic are too much for one request, or None.

    A topic that is refused by itself does not count.
    """
    total = sum(max(1, each) for each in partitions if each <= defaults.partitions_max)
    if total <= PARTITIONS_PER_REQUEST_MAX:
        return None
    return f"Excessively large number of partitions per request: {total} are more than {PARTITIONS_PER_REQUEST_MAX}; ask for fewer at once."


def _refuse_name_taken(name: str, existing: Iterable[str]) -> None:
    colliding = []
    for other in existing:
        if other == name:
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if topic_names_collide(name, other):
            colliding.append(other)
    if colliding:
        raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topics: {', '.join(sorted(colliding))}")


def _checked_assignment(assignments: tuple[tuple[int, tuple[int, ...]], ...], live_brokers: Sequence[int]) -> dict[int, tuple[int, ...]]:
    def refuse(reason: str) -> RequestRefused:
        return RequestRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)

    assignment = dict(assignments)
    if len(assignment) != len(assignments):
        raise refuse("a partition is assigned twice")
    if sorted(assignment) != list(range(len(assignment))):
        raise refuse("partitions should be a consecutive 0-based integer sequence")
    sizes = {len(replicas) for replicas in assignment.values()}
    if 0 in sizes or len(sizes) != 1:
        raise refuse("All partitions should have the same number of replicas, at least one.")
    for partition, replicas in assignment.items():
        if len(set(replicas)) != len(replicas):
            raise refuse(f"Duplicate replicas for partition {partition}: {', '.join(map(str, replicas))}")
        unknown = sorted(set(replicas) - set(live_brokers))
        if unknown:
            raise refuse(f"Partition {partition} is assigned to brokers that are not live: {', '.join(map(str, unknown))}")
    return assignment


def _chosen_assignment(wanted: TopicCreation, brokers: BrokerPool, defaults: CreationDefaults, first_broker: int) -> dict[int, tuple[int, ...]]:
    partitions = wanted_partitions(wanted.num_partitions, 0, defaults)
    replicas = defaults.replication_factor if wanted.replication_factor == DEFAULT else wanted.replication_factor
    if partitions <= 0:
        raise RequestRefused(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if replicas <= 0:
        raise RequestRefused(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    return spread_replicas(brokers.open(replicas), partitions, replicas, first_broker, 0, brokers.racks)


class TopicGrowth(NamedTuple):
    """A topic to get more partitions. `partition_count` is the new total; `assignments` None: the
    controller chooses.
    """

    name: str
    partition_count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


def plan_topic_growth(
    wanted: TopicGrowth,
    replicas: Mapping[int, tuple[int, ...]],
    brokers: BrokerPool,
    defaults: CreationDefaults,
) -> dict[int, tuple[int, ...]]:
    """Return the new partitions and their brokers for a topic that has `replicas`. Raises
    RequestRefused.
    """
    existing = len(replicas)
    if wanted.partition_count == existing:
        raise RequestRefused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partitions.")
    if wanted.partition_count < existing:
        reason = f"Topic currently has {existing} partitions, which is higher than the requested {wanted.partition_count}."
        raise RequestRefused(ErrorCode.INVALID_PARTITIONS, reason)
    _refuse_too_many(wanted.partition_count, defaults)
    factor = len(replicas[0])
    if wanted.assignments is not None:
        return _checked_growth(wanted, existing, factor, brokers.live)
    candidates = brokers.open(factor)
    first_broker = candidates.index(replicas[0][0]) if replicas[0] and replicas[0][0] in candidates else 0
    return spread_replicas(candidates, wanted.partition_count, factor, first_broker, existing, brokers.racks)


def _checked_growth(wanted: TopicGrowth, existing: int, factor: int, live_brokers: Sequence[int]) -> dict[int, tuple[int, ...]]:
    def refuse(reason: str) -> RequestRefused:
        return RequestRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)

    assignments = wanted.assignments or ()
    if len(assignments) != wanted.partition_count - existing:
        raise refuse(f"Increasing the number of partitions by {wanted.partition_count - existing} but {len(assignments)} assignments provided.")
    unknown = sorted({broker for replicas in assignments for broker in replicas} - set(live_brokers))
    if unknown:
        raise refuse(f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}.")
    for partition, replicas in enumerate(assignments, existing):
        if len(replicas) != factor:
            raise refuse(f"Inconsistent replication factor between partitions, partition 0 has {factor} while partition {partition} has {len(replicas)}.")
        if len(set(replicas)) != len(replicas):
            raise refuse(f"Duplicate brokers not allowed in replica assignment: {', '.join(map(str, replicas))} for partition id {partition}.")
    return dict(enumerate(assignments, existing))


class DiskSpace(NamedTuple):
    """A disk that can take partitions: directory id, free bytes, count of partitions."""

    directory_id: str
    free_bytes: int
    partitions: int


def place_partitions(partitions: Sequence[int], disks: Sequence[DiskSpace]) -> dict[int, str]:
    """Return partition → directory id: each goes to the disk with the most free space left.

    Each partition placed here is charged an equal share of the emptiest disk. Disks within 1 % of
    each other alternate, fewest partitions first. Raises KAFKA_STORAGE_ERROR without any disk.
    """
    if not disks:
        raise RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, "no disk of this broker can take a partition now")
    most_free = max(disk.free_bytes for disk in disks)
    share = most_free // (len(partitions) + 1)
    step = max(1, most_free // FREE_SPACE_STEPS)
    left = {disk.directory_id: disk for disk in disks}
    placement = {}
    for partition in partitions:
        most = max(disk.free_bytes for disk in left.values())
        best = min((disk for disk in left.values() if most - disk.free_bytes < step), key=lambda disk: disk.partitions)
        placement[partition] = best.directory_id
        left[best.directory_id] = best._replace(free_bytes=best.free_bytes - share, partitions=best.partitions + 1)
    return placement


def first_partition_state(replicas: Sequence[int], live_brokers: Iterable[int], controller_epoch: int) -> PartitionState | None:
    """Return the first state of a partition: led by its first live replica, all live replicas in
    sync; None if none is alive.
    """
    live = set(live_brokers)
    isr = tuple(replica for replica in replicas if replica in live)
    return PartitionState(isr[0], LeaderEpoch(0), controller_epoch, isr) if isr else None


def elect_leader(state: PartitionState, replicas: Sequence[int], live_brokers: Iterable[int], unclean: bool, controller_epoch: int) -> PartitionState:
    """Hold the offline election: the first live replica in the in-sync set leads.

    Without one and if `unclean`, any live replica leads, alone in the set and marked as recovering.
    Without a candidate the partition has no leader and its in-sync set stays: only its members are
    known to have every acknowledged record.
    """
    live = set(live_brokers)
    leader = next((replica for replica in replicas if replica in live and replica in state.isr), None)
    if leader is not None:
        isr = tuple(replica for replica in state.isr if replica in live)
        return PartitionState(leader, state.leader_epoch + 1, controller_epoch, isr)
    leader = next((replica for replica in replicas if replica in live), None) if unclean else None
    if leader is not None:
        return PartitionState(leader, state.leader_epoch + 1, controller_epoch, (leader,), leader_recovery_state=1)
    return state._replace(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)


def bump_leader_epoch(state: PartitionState, controller_epoch: int) -> PartitionState:
    """Return the same leader under a new epoch.

    After an unclean boot, offsets that consumers have read must not return with other content under
    the old epoch.
    """
    check(state.leader_epoch >= 0, f"leader epoch {state.leader_epoch} was never given")
    return state._replace(leader_epoch=state.leader_epoch + 1, controller_epoch=controller_epoch)
