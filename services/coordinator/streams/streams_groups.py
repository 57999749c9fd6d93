"""Streams groups (KIP-1071) of one coordinator: the entry of their requests, their load from the log, and what they look like from outside.

A request becomes an operation of its group (`group_turns.py`). An empty classic group becomes a streams group with its first member; a group of
another kind stays what it is. Owned by the group coordinator. Weak spot: as in consumer groups, a group that no member could join stays as an
empty one until the next removal of old offsets.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import LoadedRecord
from appliance.protocol.forwarded_apis import AnswerBudget
from appliance.protocol.streams_apis import (
    DescribedStreamsGroup,
    DescribedSubtopology,
    DescribedTopology,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupMember,
    TaskAssignment,
    TopicInfo,
)
from appliance.runtime.timers import Timers
from services.coordinator.groups.group import GroupState
from services.coordinator.groups.group_directory import GroupDirectory, HostedGroup
from services.coordinator.groups.group_log import GroupLog, Replies
from services.coordinator.groups.group_membership import GroupMembership, OtherMemberships
from services.coordinator.groups.group_records import group_tombstone
from services.coordinator.groups.group_turns import Refusal
from services.coordinator.groups.group_views import GROUP_BYTES, GROUP_OPERATIONS, MEMBER_BYTES
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.ports import GroupSettings, Topics
from services.coordinator.groups.rebalances import Rebalances
from services.coordinator.streams.streams_group import StreamsGroup
from services.coordinator.streams.streams_heartbeats import JOIN, Again, ReplyToHeartbeat, StreamsHeartbeat, StreamsLeave, refused_heartbeat, request_problem
from services.coordinator.streams.streams_member import StreamsMember, TaskSet, as_rows
from services.coordinator.streams.streams_membership import StreamsMembership, StreamsSurroundings
from services.coordinator.streams.streams_records import StreamsLoad
from services.coordinator.streams.topology import ConfiguredSubtopology, cost_of

TASK_BYTES = 6
NO_MEMORY = "The coordinator uses as much memory as coordinator.heap.bytes allows."


class StreamsGroups:
    """Implements `group_membership.OtherMemberships`."""

    def __init__(
        self,
        settings: GroupSettings,
        directory: GroupDirectory,
        rebalances: Rebalances,
        replies: Replies,
        log: GroupLog,
        timers: Timers,
        topics: Topics,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._rebalances = rebalances
        self._replies = replies
        self._surroundings = StreamsSurroundings(settings, topics, timers, log, directory.on_refused)
        self._loads: dict[int, StreamsLoad] = {}

    def heartbeat(self, request: StreamsGroupHeartbeatRequest, client: ClientIdentity, now_ms: int, reply: ReplyToHeartbeat, again: Again) -> None:
        try:
            membership = self._admit(request, now_ms)
        except Refusal as refusal:
            self._replies.say(reply, refused_heartbeat(refusal))
            return
        if request.member_epoch < JOIN:
            membership.turns.submit(StreamsLeave(request, membership, self._replies, reply, again), now_ms)
            return
        size_max = self._settings.group_streams_max_size
        operation = StreamsHeartbeat(request, client, size_max, membership.deadlines, membership, self._replies, reply, again)
        membership.turns.submit(operation, now_ms)

    def _admit(self, request: StreamsGroupHeartbeatRequest, now_ms: int) -> StreamsMembership:
        """Return the request's group, or raise `Refusal`."""
        is_join = request.member_epoch == JOIN
        problem = request_problem(request)
        if problem is not None:
            raise problem
        error = self._directory.refusal(request.group_id, may_create=is_join)
        if error is not ErrorCode.NONE:
            raise Refusal(error)
        membership = self._membership(request.group_id, is_join, now_ms)
        growth = 0 if request.member_id in membership.group.members else 1
        if request.topology is not None and membership.group.topology is None:
            growth += cost_of(request.topology)
        if request.member_epoch >= JOIN and not self._directory.may_grow(growth):
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMORY)
        return membership

    def _membership(self, group_id: str, is_join: bool, now_ms: int) -> StreamsMembership:
        """The group's; made for a member that joins."""
        hosted = self._directory.find(group_id)
        if hosted is None and not is_join:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        hosted = hosted or self._directory.host(group_id, now_ms)
        if isinstance(hosted.membership, StreamsMembership):
            return hosted.membership
        group = hosted.classic
        if group is None or not is_join or group.state is not GroupState.EMPTY or group.pending_members:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        was_written = hosted.membership.tombstones()
        self._rebalances.abandon(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        hosted.membership = membership = StreamsMembership(group_id, hosted.partition, StreamsGroup(), self._surroundings)
        membership.turns.begin_as([group_tombstone(group_id)] if was_written else [])
        membership.begin(now_ms)
        return membership

    # ---- `OtherMemberships`

    def begin_load(self, partition: int) -> None:
        self._loads[partition] = StreamsLoad()

    def load(self, partition: int, record: LoadedRecord) -> bool:
        return self._loads[partition].load(record)

    def forget(self, partition: int, group_id: str) -> None:
        self._loads[partition].forget(group_id)

    def finish_load(self, partition: int, now_ms: int) -> Mapping[str, StreamsMembership]:
        found = self._loads.pop(partition).groups()
        memberships = {group_id: StreamsMembership(group_id, partition, group, self._surroundings) for group_id, group in found.items()}
        for membership in memberships.values():
            membership.begin(now_ms)
        return memberships

    def stop_load(self, partition: int) -> None:
        self._loads.pop(partition, None)

    # ---- from outside

    def describe(self, request: StreamsGroupDescribeRequest) -> StreamsGroupDescribeResponse:
        """Describe the groups. Without an authorizer every operation is allowed; acceptors with one say what is."""
        budget = AnswerBudget()
        groups = [self._describe(group_id, budget) for group_id in request.group_ids]
        if request.include_authorized_operations:
            groups = [group if group.error_code else group._replace(authorized_operations=GROUP_OPERATIONS) for group in groups]
        return StreamsGroupDescribeResponse(groups=tuple(groups))

    def _describe(self, group_id: str, budget: AnswerBudget) -> DescribedStreamsGroup:
        error = ErrorCode.INVALID_REQUEST if budget.is_spent else self._directory.refusal(group_id)
        if error is not ErrorCode.NONE:
            return DescribedStreamsGroup(error, group_id=group_id)
        hosted = self._directory.find(group_id)
        if hosted is None or not isinstance(hosted.membership, StreamsMembership):
            text = f"Streams group {group_id} not found." if hosted is None else f"Group {group_id} is not a streams group."
            return DescribedStreamsGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id, GroupState.DEAD.value)
        group = hosted.membership.group
        names = sum(len(each.subtopology_id) for each in group.topology.subtopologies) if group.topology is not None else 0
        size = GROUP_BYTES + (4 * cost_of(group.topology) if group.topology is not None else 0)
        if not budget.take(size + sum(_size_of_member(group, member, names) for member in group.members.values())):
            return DescribedStreamsGroup(ErrorCode.INVALID_REQUEST, "The request describes too much at once; describe fewer groups.", group_id)
        return DescribedStreamsGroup(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            topology=_topology(group),
            members=tuple([_member(group, member) for member in group.members.values()]),
        )


def _size_of_member(group: StreamsGroup, member: StreamsMember, names: int) -> int:
    """`names`: characters of all subtopologies, which an assignment may have."""
    tasks = sum(map(len, (*member.current.assigned, *group.target_of(member.member_id))))
    texts = len(member.member_id) + len(member.wish.client.client_id) + len(member.wish.process_id)
    return MEMBER_BYTES + 4 * texts + 6 * names + TASK_BYTES * tasks


def _topology(group: StreamsGroup) -> DescribedTopology | None:
    if group.topology is None:
        return None
    found = group.configured
    subtopologies = tuple(_subtopology(each, found.counts) for each in found.subtopologies.values()) if found is not None and found.subtopologies else None
    return DescribedTopology(group.topology.epoch, subtopologies)


def _subtopology(each: ConfiguredSubtopology, counts: Mapping[str, int]) -> DescribedSubtopology:
    def counted(infos: tuple[TopicInfo, ...]) -> tuple[TopicInfo, ...]:
        return tuple(info._replace(partitions=counts[info.name]) for info in infos)

    found = each.subtopology
    return DescribedSubtopology(
        found.subtopology_id, found.source_topics, found.repartition_sink_topics, counted(found.changelog_topics), counted(found.repartition_source_topics)
    )


def _member(group: StreamsGroup, member: StreamsMember) -> StreamsGroupMember:
    wish = member.wish
    return StreamsGroupMember(
        member.member_id,
        member.current.epoch,
        None,
        wish.rack_id,
        *wish.client,
        wish.topology_epoch,
        wish.process_id,
        wish.endpoint,
        wish.tags,
        assignment=_assignment(member.current.assigned),
        target_assignment=_assignment(group.target_of(member.member_id)),
    )


def _assignment(tasks: TaskSet) -> TaskAssignment:
    return TaskAssignment(*map(as_rows, tasks))


class Memberships:
    """Implements `group_membership.OtherMemberships` for several kinds of groups, whose records are in one log."""

    def __init__(self, *kinds: OtherMemberships) -> None:
        self._kinds = kinds

    def begin_load(self, partition: int) -> None:
        for kind in self._kinds:
            kind.begin_load(partition)

    def load(self, partition: int, record: LoadedRecord) -> bool:
        return any(kind.load(partition, record) for kind in self._kinds)

    def forget(self, partition: int, group_id: str) -> None:
        for kind in self._kinds:
            kind.forget(partition, group_id)

    def finish_load(self, partition: int, now_ms: int) -> Mapping[str, GroupMembership]:
        return {group_id: found for kind in self._kinds for group_id, found in kind.finish_load(partition, now_ms).items()}

    def stop_load(self, partition: int) -> None:
        for kind in self._kinds:
            kind.stop_load(partition)


def end_streams(hosted: HostedGroup, error: ErrorCode) -> None:
    """Its partition went elsewhere."""
    if isinstance(hosted.membership, StreamsMembership):
        hosted.membership.end(error)
