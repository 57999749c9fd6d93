"""The members of one streams group (KIP-1071): their rights on offsets, their tasks, and the status of the group.

Implements `GroupMembership` for the rest of the coordinator, and the rules for the group's turns (`group_turns.py`). What is not in the log (the
look at the topics, a shutdown that a member asked for, the epoch of endpoints) begins anew with the coordinator, as in Kafka. Owned by the group
coordinator. Weak spot: changes of topics are noticed with the next request of a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import StateRecord
from appliance.protocol.streams_apis import EndpointToPartitions, GroupStatus, Status, StreamsGroupHeartbeatResponse, Topology
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.runtime.timers import Timer, Timers
from services.coordinator.groups.consumer_group import EMPTY
from services.coordinator.groups.group_log import GroupLog
from services.coordinator.groups.group_membership import CommitTopic, ExpiryRule, GroupType
from services.coordinator.groups.group_turns import GroupTurns
from services.coordinator.groups.member_deadlines import MemberDeadlines
from services.coordinator.groups.ports import GroupSettings, NameBound, OnRefused, StreamsOptions, Topics
from services.coordinator.streams.streams_group import StreamsGroup
from services.coordinator.streams.streams_heartbeats import Look
from services.coordinator.streams.streams_member import StreamsMember, Task, Tasks
from services.coordinator.streams.streams_records import all_tombstones, changed_records
from services.coordinator.streams.task_assignor import Candidate, sticky_tasks
from services.coordinator.streams.topology import DETAIL_MAX, Configured, configured, read_topics, topics_hash

STREAMS_TYPE: Final = "streams"
MEMBER_EPOCHS_SINCE: Final = 9
"""In OffsetCommit."""
LARGE: Final = 2_000
"""Members, tasks and standbys together, from which a group gets a new target only after a while."""
ASSIGNED_A_MS: Final = 5
"""Of them; assigning them takes a twentieth of that time."""
ENDPOINT_PARTITIONS_MAX: Final = 50_000
"""Of one answer."""


class StreamsSurroundings(NamedTuple):
    """What all streams groups have in common."""

    settings: GroupSettings
    topics: Topics
    timers: Timers
    log: GroupLog
    on_refused: OnRefused


class StreamsMembership:
    """`committed` is where the group begins: empty, or loaded."""

    def __init__(self, group_id: str, partition: int, committed: StreamsGroup, surroundings: StreamsSurroundings) -> None:
        self.group_id = group_id
        self.partition = partition
        self._topics = surroundings.topics
        self._timers = surroundings.timers
        self._on_refused = surroundings.on_refused
        self.turns = GroupTurns[StreamsGroup](group_id, partition, committed, surroundings.log, self)
        self.deadlines = MemberDeadlines(surroundings.timers, lambda: self._topics.streams_timing(group_id), self.turns.submit)
        self._delay: Timer | None = None
        self._shutdown_by: str | None = None
        self._endpoint_epoch = 0
        self._endpoints: tuple[EndpointToPartitions, ...] | None = None

    @property
    def group(self) -> StreamsGroup:
        """As the log has it."""
        return self.turns.committed

    def begin(self, now_ms: int) -> None:
        """Its members have all their time before them."""
        self.deadlines.on_committed(StreamsGroup(), self.group, now_ms)

    def end(self, error: ErrorCode) -> None:
        """Another coordinator has the group; answer waiting requests."""
        self._timers.cancel(self._delay)
        self.deadlines.forget_all()
        self.turns.end(error)

    # ---- `GroupMembership`

    @property
    def group_type(self) -> GroupType:
        return GroupType.STREAMS

    @property
    def state_name(self) -> str:
        return self.group.state_name

    @property
    def protocol_type(self) -> str:
        return STREAMS_TYPE

    @property
    def generation_id(self) -> int:
        return self.group.group_epoch

    @property
    def is_empty(self) -> bool:
        return self.state_name == EMPTY and not self.turns.is_busy

    def commit_problem(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        is_transactional: bool,
        version: int,
        topics: Sequence[CommitTopic] = (),
    ) -> ErrorCode:
        if generation_id < 0 and not self.group.members:
            return ErrorCode.NONE  # an admin client
        if is_transactional and generation_id == -1 and not member_id and group_instance_id is None:
            return ErrorCode.NONE  # producers may name the group alone
        member = self.group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and version < MEMBER_EPOCHS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        epoch = member.current.epoch
        if generation_id == epoch or (generation_id < epoch and self._had_since(member, generation_id, topics)):
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH

    def _had_since(self, member: StreamsMember, epoch: int, topics: Sequence[CommitTopic]) -> bool:
        """Whether the member has had the tasks of these partitions since this epoch at least: a commit that a new epoch has overtaken counts."""
        topology = self.group.topology
        if topology is None or epoch < 0 or not topics:
            return False
        subtopology_of = {name: each.subtopology_id for each in topology.subtopologies for name in read_topics(each)}
        since = member.current.since
        tasks = ((subtopology_of.get(topic.topic, ""), each.partition) for topic in topics for each in topic.partitions)
        return all(since.get(task, epoch + 1) <= epoch for task in tasks)

    def fetch_problem(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.group.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.current.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE if self.is_empty else ErrorCode.NON_EMPTY_GROUP

    def offset_deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.group.members) and topic in self._topics_read()

    def expiry_rule(self) -> ExpiryRule | None:
        return ExpiryRule(None, self._topics_read() if self.group.members else frozenset())

    def _topics_read(self) -> frozenset[str]:
        topology = self.group.topology
        return frozenset(name for each in topology.subtopologies for name in read_topics(each)) if topology is not None else frozenset()

    def tombstones(self) -> list[StateRecord]:
        return self.turns.tombstones()

    # ---- `GroupRules`

    def no_state(self) -> StreamsGroup:
        return StreamsGroup()

    def changed_records(self, before: StreamsGroup, after: StreamsGroup) -> list[StateRecord]:
        return changed_records(self.group_id, before, after)

    def all_tombstones(self, states: Sequence[StreamsGroup]) -> list[StateRecord]:
        return all_tombstones(self.group_id, states)

    def settle_target(self, group: StreamsGroup, now_ms: int) -> None:
        if group.topology is None or not group.members:
            return
        options = self._topics.streams_options(self.group_id)
        if self._look(group, group.topology) or options.standby_count != group.standby_count:
            group.standby_count = options.standby_count
            if group.group_epoch == self.group.group_epoch:
                group.group_epoch += 1
        if self._has_to_wait(group, options, now_ms) or group.group_epoch <= group.target_epoch:
            return
        found = group.configured
        tasks = _tasks(found) if found is not None and found.is_ready else frozenset()
        weight = len(tasks) * (1 + options.standby_count) + len(group.members)
        if weight > LARGE and group.assigned_ms and 0 <= now_ms - group.assigned_ms < weight // ASSIGNED_A_MS:
            return  # a later request of a member comes here again
        candidates = {member_id: Candidate(member.wish.process_id, group.target_of(member_id)) for member_id, member in group.members.items()}
        stateful = [task for task in tasks if found is not None and found.subtopologies[task[0]].subtopology.changelog_topics]
        group.aim(sticky_tasks(candidates, tasks, stateful, options.standby_count))
        group.target_epoch = group.group_epoch
        group.assigned_ms = now_ms

    def _look(self, group: StreamsGroup, topology: Topology) -> bool:
        """Look at the topics if they may have changed; return whether that changes what is assigned."""
        generation = self._topics.generation
        if generation == group.checked_generation and group.configured is not None:
            return False
        found_hash = topics_hash(topology, self._topics.find)
        if group.configured is None or found_hash != group.topics_hash:
            group.configured = configured(topology, self._topics.find)
        validated_epoch = topology.epoch if group.configured.is_ready else -1
        is_changed = (found_hash, validated_epoch) != (group.topics_hash, group.validated_epoch)
        group.topics_hash, group.validated_epoch, group.checked_generation = found_hash, validated_epoch, generation
        if not is_changed and self.group.topology is topology:  # nothing is written, and the look is not to be repeated
            self.group.configured, self.group.checked_generation = group.configured, generation
        return is_changed

    def _has_to_wait(self, group: StreamsGroup, options: StreamsOptions, now_ms: int) -> bool:
        """Whether a group that was empty waits for more members, so that the first ones do not begin with all tasks."""
        if not self.group.members and self._delay is None and options.initial_delay_ms > 0:
            self._delay = self._timers.schedule(now_ms + options.initial_delay_ms, self._on_delay_over)
        return self._delay is not None

    def _on_delay_over(self, now_ms: int) -> None:
        self._delay = None
        if self.group.members or self.turns.is_busy:
            self.turns.submit(Look(), now_ms)

    def on_refused(self, code: ErrorCode) -> None:
        if code is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._on_refused(NameBound.MEMBERS)

    def on_committed(self, before: StreamsGroup, now_ms: int) -> None:
        self.deadlines.on_committed(before, self.group, now_ms)
        if not self.group.members:
            self._shutdown_by = None
            self._timers.cancel(self._delay)
            self._delay = None
        if _endpoints_differ(before, self.group):
            self._endpoint_epoch += 1
            self._endpoints = None

    def farewell(self, group: StreamsGroup) -> None:
        return None

    # ---- `GroupNews`

    def ask_shutdown(self, member_id: str) -> None:
        if self.group.members:
            self._shutdown_by = self._shutdown_by or member_id

    def with_news(self, response: StreamsGroupHeartbeatResponse, member: StreamsMember, endpoint_epoch: int) -> StreamsGroupHeartbeatResponse:
        group, statuses = self.group, []
        if group.topology is not None and member.wish.topology_epoch < group.topology.epoch:
            text = f"The member's topology epoch {member.wish.topology_epoch} is behind the group's topology epoch {group.topology.epoch}."
            statuses.append(Status(GroupStatus.STALE_TOPOLOGY, text))
        found = group.configured
        if found is not None and found.trouble is not None:
            detail = found.trouble.detail
            if found.missing:
                refused = self._topics.create_internal(self.group_id, member.member_id, found.missing)
                detail = f"{detail}; {refused}"[:DETAIL_MAX] if refused else detail
            statuses.append(Status(found.trouble.status, detail))
        if self._shutdown_by is not None:
            text = f"Streams group member {self._shutdown_by} encountered a fatal error and requested a shutdown for the entire application."
            statuses.append(Status(GroupStatus.SHUTDOWN_APPLICATION, text))
        endpoints = None if endpoint_epoch == self._endpoint_epoch else self._partitions_by_endpoint()
        return response._replace(status=tuple(statuses), endpoint_information_epoch=self._endpoint_epoch, partitions_by_user_endpoint=endpoints)

    def _partitions_by_endpoint(self) -> tuple[EndpointToPartitions, ...]:
        """Return where the state of which partitions is; made once for each epoch of endpoints."""
        if self._endpoints is None:
            rows, left, found = [], ENDPOINT_PARTITIONS_MAX, self.group.configured
            for member in self.group.members.values():
                assigned = member.current.assigned
                cost = (
                    sum(
                        len(read_topics(found.subtopologies[name].subtopology)) for name, _ in assigned.active | assigned.standby if name in found.subtopologies
                    )
                    if found is not None
                    else 0
                )
                left -= cost
                if member.wish.endpoint is not None and found is not None and left >= 0:
                    rows.append(EndpointToPartitions(member.wish.endpoint, _partitions(found, assigned.active), _partitions(found, assigned.standby)))
            self._endpoints = tuple(rows)
        return self._endpoints


def _tasks(found: Configured) -> frozenset[Task]:
    return frozenset((name, partition) for name, each in found.subtopologies.items() for partition in range(each.task_count))


def _endpoints_differ(before: StreamsGroup, after: StreamsGroup) -> bool:
    return _endpoint_tasks(before, after) != _endpoint_tasks(after, before)


def _endpoint_tasks(group: StreamsGroup, other: StreamsGroup) -> dict[str, tuple[object, ...]]:
    """Of the members with an endpoint that `other` has not as they are: what each has."""
    return {
        member_id: (member.wish.endpoint, member.current.assigned)
        for member_id, member in group.members.items()
        if member.wish.endpoint is not None and other.members.get(member_id) is not member
    }


def _partitions(found: Configured, tasks: Tasks) -> tuple[TopicPartitions, ...]:
    """Return the partitions that the tasks read, by topic."""
    by_topic: dict[str, list[int]] = {}
    for name, partition in sorted(tasks):
        subtopology = found.subtopologies.get(name)
        for topic in read_topics(subtopology.subtopology) if subtopology is not None else ():
            if partition < found.counts.get(topic, 0):
                by_topic.setdefault(topic, []).append(partition)
    return tuple(TopicPartitions(topic, tuple(partitions)) for topic, partitions in sorted(by_topic.items()))
