"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup against the group's target.

During a migration a group has members of both protocols. For classic members the member epoch is the
generation, the coordinator reads their subscriptions and assigns, and there is no group leader. After
REBALANCE_IN_PROGRESS a member rejoins with its partitions, and SyncGroup returns what it may have in
this step. Owned by the group coordinator. Weak spot: a member with an eager assignor revokes all its
partitions in every step.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_heartbeats import Again, replace_static, static_member
from services.coordinator.groups.consumer_member import ClassicSide, ConsumerMember, MemberRequest, MemberState, reconciled
from services.coordinator.groups.consumer_migration import EmbeddedSubscription, by_id, read_subscription, write_assignment
from services.coordinator.groups.group_log import Replies
from services.coordinator.groups.group_turns import Refusal
from services.coordinator.groups.joining import MEMBER_ID_REQUIRED_SINCE
from services.coordinator.groups.member import CONSUMER_PROTOCOL_TYPE, ClientIdentity, ReplyToJoin, ReplyToSync
from services.coordinator.groups.member_deadlines import MemberDeadlines, Wait
from services.coordinator.groups.ports import GroupSettings, Topics


class ClassicJoin:
    """JoinGroup; its session time-out is within bounds."""

    def __init__(
        self,
        request: JoinGroupRequest,
        version: int,
        new_member_id: str,
        client: ClientIdentity,
        settings: GroupSettings,
        topics: Topics,
        deadlines: MemberDeadlines,
        replies: Replies,
        reply: ReplyToJoin,
        again: Again,
    ) -> None:
        self._request = request
        self._version = version
        self._member_id = request.member_id or new_member_id
        self._client = client
        self._settings = settings
        self._topics = topics
        self._deadlines = deadlines
        self._replies = replies
        self._reply = reply
        self.again = again
        self._subscription = EmbeddedSubscription()
        self._member: ConsumerMember | None = None

    def change(self, group: ConsumerGroup, now_ms: int) -> None:
        request = self._request
        self._check_protocols(group)
        is_unknown = not request.member_id
        if is_unknown and request.group_instance_id is None and self._version >= MEMBER_ID_REQUIRED_SINCE:
            raise Refusal(ErrorCode.MEMBER_ID_REQUIRED)
        member = self._admitted(group, is_unknown)
        wish = MemberRequest(
            request.group_instance_id,
            self._subscription.rack_id or member.wish.rack_id,
            self._client,
            tuple(sorted(set(self._subscription.topics))),
            None,
            request.rebalance_timeout_ms,
            None,
            ClassicSide(request.session_timeout_ms, request.protocols),
        )
        is_new = member.member_id not in group.members
        if is_new or wish != member.wish:
            group.put(member._replace(wish=wish))
        if is_new or (wish.topics, wish.regex) != (member.wish.topics, member.wish.regex):
            group.group_epoch += 1
        self._deadlines.forget(Wait.JOIN, member.member_id)
        if self._deadlines.has(Wait.SESSION, member.member_id):
            self._deadlines.renew_session(member._replace(wish=wish), now_ms)

    def _check_protocols(self, group: ConsumerGroup) -> None:
        request = self._request
        is_supported = request.protocol_type == CONSUMER_PROTOCOL_TYPE and group.supports_classic({each.name for each in request.protocols})
        subscription = read_subscription(request.protocols[0].metadata) if is_supported else None
        if subscription is None:
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._subscription = subscription

    def _admitted(self, group: ConsumerGroup, is_unknown: bool) -> ConsumerMember:
        instance = self._request.group_instance_id
        holder = group.instance(instance) if instance is not None else group.members.get(self._member_id)
        if holder is None and instance is not None and not is_unknown:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if holder is None:
            if len(group.members) >= self._settings.group_consumer_max_size:
                raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
            return ConsumerMember(self._member_id)
        if instance is not None and is_unknown:
            return replace_static(group, holder, self._member_id)
        if holder.member_id != self._member_id:
            raise Refusal(ErrorCode.FENCED_INSTANCE_ID)
        return holder

    def conclude(self, group: ConsumerGroup, now_ms: int) -> None:
        member = group.members.get(self._member_id)
        if member is not None and not member.is_reconciled_to(group.target_epoch):
            owned = by_id(self._subscription.owned, self._topics)
            stepped = reconciled(member, group.target_epoch, group.target_of(member.member_id), group.owners, owned)
            if stepped.current != member.current:
                group.put(stepped)
                member = stepped
        self._member = member

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        member = self._member
        if error is not ErrorCode.NONE or member is None:
            self.refuse(Refusal(error if member is not None else ErrorCode.UNKNOWN_MEMBER_ID))
            return
        self._deadlines.renew_session(member, now_ms)
        self._deadlines.expect_sync(member, now_ms)
        response = JoinGroupResponse(
            generation_id=member.current.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=self._request.protocols[0].name,
            member_id=member.member_id,
        )
        self._replies.say(self._reply, response)

    def refuse(self, refusal: Refusal) -> None:
        told = self._member_id if refusal.code is ErrorCode.MEMBER_ID_REQUIRED else self._request.member_id
        self._replies.say(self._reply, JoinGroupResponse(error_code=refusal.code, member_id=told))


class _Asked:
    """What SyncGroup and Heartbeat have in common: they change nothing, and are answered when what they have seen is in the log."""

    def __init__(self, deadlines: MemberDeadlines, replies: Replies, again: Again) -> None:
        self._deadlines = deadlines
        self._replies = replies
        self.again = again

    def conclude(self, group: ConsumerGroup, now_ms: int) -> None:
        """They do not move on."""


class ClassicSync(_Asked):
    """SyncGroup: what the member may read in the step that its JoinGroup was."""

    def __init__(self, request: SyncGroupRequest, topics: Topics, deadlines: MemberDeadlines, replies: Replies, reply: ReplyToSync, again: Again) -> None:
        super().__init__(deadlines, replies, again)
        self._request = request
        self._topics = topics
        self._reply = reply
        self._member: ConsumerMember | None = None

    def change(self, group: ConsumerGroup, now_ms: int) -> None:
        request = self._request
        member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.wish.classic is not None
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, member.wish.classic.protocols[0].name):
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.group_epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._deadlines.expect_join(member, now_ms)
            raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)
        self._deadlines.forget(Wait.SYNC, member.member_id)
        self._deadlines.renew_session(member, now_ms)
        self._member = member

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        if error is not ErrorCode.NONE or self._member is None:
            self.refuse(Refusal(error))
            return
        classic = self._member.wish.classic
        assert classic is not None
        assignment = write_assignment(self._member.current.assigned, self._topics, classic.protocols[0].metadata)
        response = SyncGroupResponse(protocol_type=self._request.protocol_type, protocol_name=self._request.protocol_name, assignment=assignment)
        self._replies.say(self._reply, response)

    def refuse(self, refusal: Refusal) -> None:
        self._replies.say(self._reply, SyncGroupResponse(error_code=refusal.code))


class ClassicHeartbeat(_Asked):
    """Heartbeat: whether the member has to join again, because there is something to give up, to get, or a new epoch."""

    def __init__(
        self, request: HeartbeatRequest, deadlines: MemberDeadlines, replies: Replies, reply: Callable[[HeartbeatResponse], None], again: Again
    ) -> None:
        super().__init__(deadlines, replies, again)
        self._request = request
        self._reply = reply
        self._told = ErrorCode.NONE

    def change(self, group: ConsumerGroup, now_ms: int) -> None:
        request = self._request
        member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
        self._deadlines.renew_session(member, now_ms)
        state = member.current.state
        has_to_join = (
            member.current.epoch < group.group_epoch
            or state is MemberState.UNREVOKED_PARTITIONS
            or (state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        )
        if has_to_join:
            self._deadlines.expect_join(member, now_ms)
            self._told = ErrorCode.REBALANCE_IN_PROGRESS

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        self._replies.say(self._reply, HeartbeatResponse(error_code=self._told if error is ErrorCode.NONE else error))

    def refuse(self, refusal: Refusal) -> None:
        self._replies.say(self._reply, HeartbeatResponse(error_code=refusal.code))


class ClassicLeave:
    """LeaveGroup: members of either protocol go, each with its own answer. An administrator removes members by it."""

    def __init__(self, request: LeaveGroupRequest, replies: Replies, reply: Callable[[LeaveGroupResponse], None], again: Again) -> None:
        self._request = request
        self._replies = replies
        self._reply = reply
        self.again = again
        self._left: list[LeftMember] = []

    def change(self, group: ConsumerGroup, now_ms: int) -> None:
        before = len(group.members)
        for leaving in self._request.members:
            error = ErrorCode.NONE
            try:
                group.remove(_leaving(group, leaving).member_id)
            except Refusal as refusal:
                error = refusal.code
            self._left.append(LeftMember(leaving.member_id, leaving.group_instance_id, error))
        if len(group.members) < before:
            group.group_epoch += 1

    def conclude(self, group: ConsumerGroup, now_ms: int) -> None:
        """There is nothing to tell them."""

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        response = LeaveGroupResponse(members=tuple(self._left)) if error is ErrorCode.NONE else LeaveGroupResponse(error_code=error)
        self._replies.say(self._reply, response)

    def refuse(self, refusal: Refusal) -> None:
        self._replies.say(self._reply, LeaveGroupResponse(error_code=refusal.code))


def _leaving(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember:
    """An administrator names an instance alone."""
    instance = leaving.group_instance_id
    if instance is None:
        member = group.members.get(leaving.member_id)
    elif leaving.member_id:
        member = static_member(group, instance, leaving.member_id)
    else:
        member = group.instance(instance)
    if member is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int) -> ConsumerMember:
    member = group.members.get(member_id) if instance_id is None else static_member(group, instance_id, member_id)
    if member is None or not member.is_classic:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation_id != member.current.epoch:
        raise Refusal(ErrorCode.ILLEGAL_GENERATION)
    return member
