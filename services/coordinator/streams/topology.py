"""The topology of a streams group (KIP-1071), held against the topics that there are.

Pure. `topology_problem` says what no topics could mend; `configured` decides how many partitions internal topics have, as Kafka's InternalTopicManager
does: a repartition topic as many as the largest topic that its writers read, or as the topics that it is joined with; a changelog as many as its
subtopology has tasks. Weak spots: as in Kafka 4.2, regular expressions of source topics are kept and not resolved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import topic_name_problem
from appliance.cluster.state_log import OFFSETS_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC
from appliance.protocol.streams_apis import GroupStatus, Subtopology, TopicInfo, Topology
from services.coordinator.groups.group_turns import Refusal
from services.coordinator.groups.ports import NAME_COST, InternalTopic, KnownTopic

CHARACTERS_MAX: Final = 1 << 18
"""Of one topology, with `NAME_COST` for each name: its group keeps it, and finds each name when topics change."""
TASKS_MAX: Final = 10_000
"""Of one group: they are assigned in one turn."""
DETAIL_MAX: Final = 1_000
NAMES_SHOWN: Final = 10
STATE_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_TOPIC})
Find = Callable[[str], KnownTopic | None]


class Trouble(NamedTuple):
    """Why nothing can be assigned."""

    status: GroupStatus
    detail: str


class _Unusable(Exception):
    def __init__(self, status: GroupStatus, detail: str) -> None:
        super().__init__(detail)
        self.trouble = Trouble(status, detail[:DETAIL_MAX])


class ConfiguredSubtopology(NamedTuple):
    """A subtopology and how many tasks it has."""

    subtopology: Subtopology
    task_count: int


class Configured(NamedTuple):
    """`trouble` None: tasks can be assigned. `missing`: to be created first. `counts`: partitions by topic."""

    subtopologies: Mapping[str, ConfiguredSubtopology]
    counts: Mapping[str, int]
    missing: tuple[InternalTopic, ...]
    trouble: Trouble | None

    @property
    def is_ready(self) -> bool:
        return self.trouble is None

    def has_task(self, subtopology_id: str, partition: int) -> bool:
        found = self.subtopologies.get(subtopology_id)
        return found is not None and 0 <= partition < found.task_count


def internal_topics(subtopology: Subtopology) -> Iterable[TopicInfo]:
    return (*subtopology.repartition_source_topics, *subtopology.changelog_topics)


def read_topics(subtopology: Subtopology) -> tuple[str, ...]:
    """Return the topics whose partitions are the subtopology's tasks."""
    return (*subtopology.source_topics, *(info.name for info in subtopology.repartition_source_topics))


def topic_names(topology: Topology) -> set[str]:
    """Return every topic that the topology names."""
    return {
        name for each in topology.subtopologies for name in (*read_topics(each), *each.repartition_sink_topics, *(info.name for info in each.changelog_topics))
    }


def normalized(topology: Topology) -> Topology:
    """Two topologies are the same if these are."""
    return topology._replace(subtopologies=tuple(sorted(topology.subtopologies)))


def cost_of(topology: Topology) -> int:
    """Return the characters that a topology counts as, which bound its memory and the time of a look at it."""
    cost = 0
    for each in topology.subtopologies:
        names = (each.subtopology_id, *each.source_topics, *each.source_topic_regex, *each.repartition_sink_topics)
        cost += sum(map(len, names)) + NAME_COST * len(names)
        for info in internal_topics(each):
            cost += len(info.name) + NAME_COST + sum(len(config.key) + len(config.value) + NAME_COST for config in info.configs)
        cost += sum(8 * sum(map(len, group)) + NAME_COST for group in each.copartition_groups)
    return cost


def topology_problem(topology: Topology) -> Refusal | None:
    """Return what is wrong with a topology, whatever topics there are."""
    invalid = ErrorCode.STREAMS_INVALID_TOPOLOGY
    if cost_of(topology) > CHARACTERS_MAX:
        return Refusal(invalid, f"The topology has more than {CHARACTERS_MAX} characters, with {NAME_COST} for each name.")
    if topology.epoch < 0:
        return Refusal(invalid, "Topology epoch must be non-negative.")
    if not topology.subtopologies or len({each.subtopology_id for each in topology.subtopologies}) < len(topology.subtopologies):
        return Refusal(invalid, "Subtopologies must be there, and have different ids.")
    names = topic_names(topology)
    unusable = sorted(name for name in names if topic_name_problem(name) is not None)
    if unusable:
        return Refusal(invalid, f"Topic names {_shown(unusable)} are not valid topic names.")
    if used := sorted(names & STATE_TOPICS):
        return Refusal(invalid, f"Use of Kafka internal topics {_shown(used)} in a Kafka Streams topology is prohibited.")
    own = sorted(info.name for each in topology.subtopologies for info in internal_topics(each) if info.name.startswith("__"))
    if own:
        return Refusal(invalid, f"Internal topics {_shown(own)} may not begin with __: the coordinator creates them.")
    for each in topology.subtopologies:
        text = _subtopology_problem(each)
        if text:
            return Refusal(invalid, text)
    try:
        _partition_counts(topology, dict.fromkeys(names, 1))
    except _Unusable as problem:
        return Refusal(invalid, problem.trouble.detail)
    return None


def _subtopology_problem(each: Subtopology) -> str:
    for info in each.changelog_topics:
        if info.partitions:
            return f"Changelog topic {info.name} must have an undefined partition count, but it is set to {info.partitions}."
    if any(not 0 <= info.partitions <= TASKS_MAX or info.replication_factor < -1 for info in internal_topics(each)):
        return f"Internal topics of subtopology {each.subtopology_id[:DETAIL_MAX]} may have 0 to {TASKS_MAX} partitions."
    lengths = len(each.source_topics), len(each.source_topic_regex), len(each.repartition_source_topics)
    if any(not 0 <= index < length for group in each.copartition_groups for indices, length in zip(group, lengths, strict=True) for index in indices):
        return f"A copartition group of subtopology {each.subtopology_id[:DETAIL_MAX]} names topics that it does not have."
    if not read_topics(each):
        return f"No source topics found for subtopology {each.subtopology_id[:DETAIL_MAX]}"
    return ""


def configured(topology: Topology, find: Find) -> Configured:
    """Return what the topology is with the topics that `find` finds."""
    subtopologies: dict[str, ConfiguredSubtopology] = {}
    counts: dict[str, int] = {}
    try:
        counts = _partition_counts(topology, _external_counts(topology, find))
        for each in topology.subtopologies:
            subtopologies[each.subtopology_id] = ConfiguredSubtopology(each, max(counts[name] for name in read_topics(each)))
        if sum(each.task_count for each in subtopologies.values()) > TASKS_MAX:
            raise _Unusable(GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, f"The group would have more than {TASKS_MAX} tasks.")
        missing = _missing(topology, counts, find)
    except _Unusable as problem:
        return Configured({}, {}, (), problem.trouble)
    if missing:
        text = f"Internal topics are missing: {_shown([topic.name for topic in missing])}"
        return Configured(subtopologies, counts, missing, Trouble(GroupStatus.MISSING_INTERNAL_TOPICS, text[:DETAIL_MAX]))
    return Configured(subtopologies, counts, (), None)


def topics_hash(topology: Topology, find: Find) -> int:
    """Return a number that changes with the topics that the topology names: 64 bits with a sign, as Kafka's record has it."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(topic_names(topology)):
        found = find(name)
        if found is not None:
            digest.update(b"%s\0%s%d;" % (name.encode(), found.topic_id, found.partition_count))
    return int.from_bytes(digest.digest(), signed=True)


def _external_counts(topology: Topology, find: Find) -> dict[str, int]:
    """Return the partitions of the topics that the application does not make."""
    counts, missing = {}, []
    for name in sorted({name for each in topology.subtopologies for name in each.source_topics}):
        found = find(name)
        if found is None:
            missing.append(name)
        else:
            counts[name] = found.partition_count
    if missing:
        raise _Unusable(GroupStatus.MISSING_SOURCE_TOPICS, f"Source topics {_shown(missing)} are missing.")
    return counts


def _partition_counts(topology: Topology, external: Mapping[str, int]) -> dict[str, int]:
    """Return the partitions of source topics, which `external` has, of repartition topics and of changelogs."""
    infos = {info.name: info for each in topology.subtopologies for info in each.repartition_source_topics}
    explicit = {name: info.partitions for name, info in infos.items() if info.partitions}
    sources = {name for each in topology.subtopologies for name in each.source_topics}
    counts = {name: count for name, count in external.items() if name in sources} | explicit
    _decide_repartitions(topology, infos.keys() - explicit.keys(), counts)
    for each in topology.subtopologies:
        for group in each.copartition_groups:
            joined = [each.source_topics[index] for index in group.source_topics]
            repartitions = [each.repartition_source_topics[index].name for index in group.repartition_source_topics]
            _enforce_copartitioning(joined, repartitions, explicit, counts)
    for each in topology.subtopologies:
        count = max(counts[name] for name in read_topics(each))
        counts.update({info.name: count for info in each.changelog_topics})
    return counts


def _decide_repartitions(topology: Topology, undecided: set[str], counts: dict[str, int]) -> None:
    """Each as the largest topic that a subtopology reads that writes to it, in the order in which they follow each other: one step for each name."""
    reads = [dict.fromkeys(read_topics(each)) for each in topology.subtopologies]
    writes = [[name for name in dict.fromkeys(each.repartition_sink_topics) if name in undecided] for each in topology.subtopologies]
    behind = [[name for name in names if name in undecided and name not in own] for names, own in zip(reads, map(frozenset, writes), strict=True)]
    """Of each subtopology: the undecided topics that it reads, but for its own."""
    waits = list(map(len, behind))
    writers_left: dict[str, int] = dict.fromkeys(undecided, 0)
    readers_of: dict[str, list[int]] = {name: [] for name in undecided}
    for index, names in enumerate(behind):
        for name in writes[index]:
            writers_left[name] += 1
        for name in names:
            readers_of[name].append(index)
    ready = [index for index, count in enumerate(waits) if not count]
    while ready:
        index = ready.pop()
        known = [counts[name] for name in reads[index] if name in counts]
        for name in writes[index] if known else ():
            counts[name] = max(counts.get(name, 0), *known)
            writers_left[name] -= 1
            if not writers_left[name]:
                for reader in readers_of[name]:
                    waits[reader] -= 1
                    if not waits[reader]:
                        ready.append(reader)
    left = sorted(name for name in undecided if writers_left[name] or name not in counts)
    if left:
        text = f"Failed to compute number of partitions for the repartition topics {_shown(left)}: there may be loops, or topics that nothing writes to."
        raise _Unusable(GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text)


def _enforce_copartitioning(joined: list[str], repartitions: list[str], explicit: Mapping[str, int], counts: dict[str, int]) -> None:
    """Give repartition topics the partitions of the topics that they are joined with."""
    found = {counts[name] for name in joined}
    if len(found) > 1:
        text = f"Following topics do not have the same number of partitions: [{_shown(sorted(joined))}]"
        raise _Unusable(GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text)
    fixed = {name: explicit[name] for name in repartitions if name in explicit}
    if found:
        (count,) = found
    elif fixed:
        count = next(iter(fixed.values()))
    else:
        count = max((counts[name] for name in repartitions), default=1)
    for name, partitions in fixed.items():
        if partitions != count:
            text = (
                f"Number of partitions [{partitions}] of repartition topic [{name}] doesn't match number of partitions [{count}] of the source topic."
                if found
                else f"Following topics do not have the same number of partitions: [{_shown(sorted(fixed))}]"
            )
            raise _Unusable(GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text)
    counts.update(dict.fromkeys(repartitions, count))


def _missing(topology: Topology, counts: Mapping[str, int], find: Find) -> tuple[InternalTopic, ...]:
    missing = {}
    for each in topology.subtopologies:
        for info in internal_topics(each):
            found, count = find(info.name), counts[info.name]
            if found is None:
                missing[info.name] = InternalTopic(info.name, count, info.replication_factor, tuple((config.key, config.value) for config in info.configs))
            elif found.partition_count != count:
                text = f"Existing topic {info.name} has different number of partitions: expected {count}, found {found.partition_count}"
                raise _Unusable(GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, text)
    return tuple(missing[name] for name in sorted(missing))


def _shown(names: list[str]) -> str:
    text = ", ".join(names[:NAMES_SHOWN])
    return text if len(names) <= NAMES_SHOWN else f"{text} and {len(names) - NAMES_SHOWN} additional topics"
