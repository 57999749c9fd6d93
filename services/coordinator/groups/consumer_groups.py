"""Consumer groups (KIP-848) of one coordinator: the entry of their requests, and of requests of classic members in them.

A request becomes an operation of its group (`group_turns.py`). This class decides which protocol a
group uses: an empty group takes that of the first member; a live classic group of consumers is upgraded
by the first member of the consumer protocol (`consumer_migration.py`). Owned by the group coordinator.
Weak spot: a group that no member could join stays as an empty one until the next removal of old
offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import LoadedRecord
from appliance.protocol.consumer_group_apis import JOIN, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest
from appliance.protocol.group_apis import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from appliance.runtime.timers import Timers
from services.coordinator.groups.consumer_classic_members import ClassicHeartbeat, ClassicJoin, ClassicLeave, ClassicSync
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_heartbeats import Again, MemberHeartbeat, MemberLeave, ReplyToHeartbeat, refused_heartbeat, request_problem
from services.coordinator.groups.consumer_membership import ConsumerMembership, ConsumerSurroundings
from services.coordinator.groups.consumer_migration import Downgrade, may_upgrade, upgraded
from services.coordinator.groups.consumer_records import PartitionLoad
from services.coordinator.groups.consumer_topic_regex import TopicRegexes
from services.coordinator.groups.group import Group, GroupState, bytes_of
from services.coordinator.groups.group_directory import GroupDirectory, HostedGroup
from services.coordinator.groups.group_log import GroupLog, Replies
from services.coordinator.groups.group_records import group_tombstone
from services.coordinator.groups.group_turns import Farewell, Refusal
from services.coordinator.groups.group_views import ConsumerGroupViews
from services.coordinator.groups.member import ClientIdentity, ReplyToJoin, ReplyToSync
from services.coordinator.groups.ports import GroupSettings, NameBound, Topics
from services.coordinator.groups.rebalances import Rebalances


class ConsumerGroups:
    """Implements `membership.OtherMemberships`. `again`, if given, sends the same request to the coordinator once more."""

    def __init__(
        self,
        settings: GroupSettings,
        directory: GroupDirectory,
        rebalances: Rebalances,
        replies: Replies,
        log: GroupLog,
        timers: Timers,
        topics: Topics,
        new_member_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._rebalances = rebalances
        self._replies = replies
        self._topics = topics
        self._new_member_id = new_member_id
        self._regexes = TopicRegexes(topics, timers, settings.group_consumer_regex_max, self._regexes_in_use, lambda: directory.on_refused(NameBound.REGEXES))
        self._surroundings = ConsumerSurroundings(settings, topics, self._regexes, timers, log, self._bid_farewell, directory.on_refused)
        self._views = ConsumerGroupViews(directory, topics)
        self._loads: dict[int, PartitionLoad] = {}

    # ---- members of the newer protocol

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, version: int, client: ClientIdentity, now_ms: int, reply: ReplyToHeartbeat, again: Again
    ) -> None:
        problem = request_problem(request, version, self._regexes, now_ms)
        if problem is None:
            error = self._directory.refusal(request.group_id, may_create=request.member_epoch == JOIN)
            problem = None if error is ErrorCode.NONE else Refusal(error)
        membership = None
        if problem is None:
            try:
                membership = self._membership(request.group_id, request.member_epoch == JOIN, now_ms)
            except Refusal as refusal:
                problem = refusal
        if membership is None or problem is not None:
            self._replies.say(reply, refused_heartbeat(problem or Refusal(ErrorCode.UNKNOWN_MEMBER_ID)))
            return
        if request.member_epoch < JOIN:
            membership.turns.submit(MemberLeave(request, self._replies, reply, again), now_ms)
            return
        growth = _growth(membership.group, request.member_id, request.instance_id, sum(map(len, request.subscribed_topic_names or ())))
        if not self._directory.may_grow(growth):
            self._replies.say(reply, refused_heartbeat(Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMORY)))
            return
        named = request if request.member_id else request._replace(member_id=self._new_member_id())
        operation = MemberHeartbeat(named, client, self._settings, membership.deadlines, self._replies, reply, again)
        membership.turns.submit(operation, now_ms)

    def _membership(self, group_id: str, is_join: bool, now_ms: int) -> ConsumerMembership:
        """The group's; made for a member that joins."""
        hosted = self._directory.find(group_id)
        if hosted is None and not is_join:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group_id} not found.")  # Kafka's error for this ends its consumers
        hosted = hosted or self._directory.host(group_id, now_ms)
        if isinstance(hosted.membership, ConsumerMembership):
            return hosted.membership
        group = hosted.classic
        if group is None:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if is_join and group.state is GroupState.EMPTY:
            return self._replace(hosted, group, ConsumerGroup(), now_ms)
        found = upgraded(group, self._topics) if is_join and may_upgrade(group, self._settings) else None
        if found is None:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return self._replace(hosted, group, found, now_ms)

    def _replace(self, hosted: HostedGroup, group: Group, found: ConsumerGroup, now_ms: int) -> ConsumerMembership:
        """Requests parked in the classic group start again in the other one."""
        was_written = hosted.membership.tombstones() or group.members
        self._rebalances.abandon(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        hosted.membership = membership = ConsumerMembership(hosted.group_id, hosted.partition, found, self._surroundings)
        membership.turns.begin_as([group_tombstone(hosted.group_id)] if was_written else [])
        membership.begin(now_ms)
        return membership

    def _regexes_in_use(self) -> set[str]:
        memberships = (hosted.membership for hosted in self._directory)
        found = {member.wish.regex for membership in memberships if isinstance(membership, ConsumerMembership) for member in membership.group.members.values()}
        return {pattern for pattern in found if pattern is not None}

    def _bid_farewell(self, group_id: str, group: ConsumerGroup) -> Farewell:
        return Downgrade(group_id, group, self._directory, self._topics, self._rebalances)

    # ---- members of the classic protocol

    def find(self, group_id: str) -> ConsumerMembership | None:
        """The group's members, if it is a consumer group."""
        hosted = self._directory.find(group_id)
        return hosted.membership if hosted is not None and isinstance(hosted.membership, ConsumerMembership) else None

    def join_group(
        self, membership: ConsumerMembership, request: JoinGroupRequest, version: int, client: ClientIdentity, now_ms: int, reply: ReplyToJoin, again: Again
    ) -> None:
        settings = self._settings
        if not settings.group_min_session_timeout_ms <= request.session_timeout_ms <= settings.group_max_session_timeout_ms:
            self._replies.say(reply, JoinGroupResponse(error_code=ErrorCode.INVALID_SESSION_TIMEOUT, member_id=request.member_id))
            return
        growth = _growth(membership.group, request.member_id, request.group_instance_id, bytes_of(request.protocols))
        if not self._directory.may_grow(growth):
            self._replies.say(reply, JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=request.member_id))
            return
        new_id = "" if request.member_id else self._new_member_id()
        operation = ClassicJoin(request, version, new_id, client, settings, self._topics, membership.deadlines, self._replies, reply, again)
        membership.turns.submit(operation, now_ms)

    def sync_group(self, membership: ConsumerMembership, request: SyncGroupRequest, now_ms: int, reply: ReplyToSync, again: Again) -> None:
        membership.turns.submit(ClassicSync(request, self._topics, membership.deadlines, self._replies, reply, again), now_ms)

    def classic_heartbeat(
        self, membership: ConsumerMembership, request: HeartbeatRequest, now_ms: int, reply: Callable[[HeartbeatResponse], None], again: Again
    ) -> None:
        membership.turns.submit(ClassicHeartbeat(request, membership.deadlines, self._replies, reply, again), now_ms)

    def leave_group(
        self, membership: ConsumerMembership, request: LeaveGroupRequest, now_ms: int, reply: Callable[[LeaveGroupResponse], None], again: Again
    ) -> None:
        membership.turns.submit(ClassicLeave(request, self._replies, reply, again), now_ms)

    # ---- from outside

    def describe(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        return self._views.describe(request)

    # ---- `OtherMemberships`

    def begin_load(self, partition: int) -> None:
        self._loads[partition] = PartitionLoad()

    def load(self, partition: int, record: LoadedRecord) -> bool:
        return self._loads[partition].load(record)

    def forget(self, partition: int, group_id: str) -> None:
        self._loads[partition].forget(group_id)

    def finish_load(self, partition: int, now_ms: int) -> Mapping[str, ConsumerMembership]:
        found = self._loads.pop(partition).groups()
        memberships = {group_id: ConsumerMembership(group_id, partition, group, self._surroundings) for group_id, group in found.items()}
        for membership in memberships.values():
            membership.begin(now_ms)
        return memberships

    def stop_load(self, partition: int) -> None:
        self._loads.pop(partition, None)


NO_MEMORY: Final = "The coordinator uses as much memory as coordinator.heap.bytes allows."


def _growth(group: ConsumerGroup, member_id: str, instance_id: str | None, subscription_bytes: int) -> int:
    """Return how many bytes a request adds to the subscription of its member; 1 more for a new member."""
    member = group.members.get(member_id) or (group.instance(instance_id) if instance_id is not None else None)
    if member is None:
        return subscription_bytes + 1
    classic = member.wish.classic
    return subscription_bytes - (sum(map(len, member.wish.topics)) if classic is None else bytes_of(classic.protocols))


def end_membership(hosted: HostedGroup, error: ErrorCode) -> None:
    """Its partition went elsewhere."""
    if isinstance(hosted.membership, ConsumerMembership):
        hosted.membership.end(error)
