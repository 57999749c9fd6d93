"""ConsumerGroupHeartbeat: a member joins, reports subscription and partitions, receives its assignment, or leaves.

What its fields say alone is checked first (`request_problem`); the rest is decided in the group's turn. A member that joins again under its own id is
the same member with nothing in its hands. Owned by the group coordinator. Weak spot: a changed assignment is sent as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.protocol.consumer_group_apis import (
    JOIN,
    LEAVE,
    LEAVE_FOR_A_WHILE,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    MemberAssignment,
)
from services.coordinator.groups.consumer_assignors import ASSIGNORS
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_member import ConsumerMember, as_topics, partitions_of, reconciled
from services.coordinator.groups.consumer_topic_regex import TopicRegexes, UnusableRegex
from services.coordinator.groups.group_log import Replies
from services.coordinator.groups.group_turns import Refusal
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.member_deadlines import MemberDeadlines, Wait
from services.coordinator.groups.ports import NAME_COST, GroupSettings, subscription_cost

ReplyToHeartbeat = Callable[[ConsumerGroupHeartbeatResponse], None]
Again = Callable[[int], None]

CLIENT_MEMBER_IDS_SINCE = 1


SUBSCRIPTION_CHARACTERS_MAX: Final = 1 << 20
"""Of the topics that one member names, 3,500 of the longest names: they stay in memory."""


def request_problem(request: ConsumerGroupHeartbeatRequest, version: int, regexes: TopicRegexes, now_ms: int) -> Refusal | None:
    """What is wrong with it, whatever the group. Takes its regular expression into use."""
    epoch = request.member_epoch
    invalid = ""
    if not request.group_id:
        invalid = "GroupId can't be empty."
    elif request.instance_id == "":
        invalid = "InstanceId can't be empty."
    elif request.rack_id == "":
        invalid = "RackId can't be empty."
    elif epoch < LEAVE_FOR_A_WHILE:
        invalid = f"MemberEpoch {epoch} is invalid."
    elif not request.member_id and (epoch != JOIN or version >= CLIENT_MEMBER_IDS_SINCE):
        invalid = "MemberId can't be empty."
    elif epoch == LEAVE_FOR_A_WHILE and request.instance_id is None:
        invalid = "InstanceId can't be null."
    elif epoch == JOIN and request.rebalance_timeout_ms == -1:
        invalid = "RebalanceTimeoutMs must be provided in first request."
    elif epoch == JOIN and request.topic_partitions != ():
        invalid = "TopicPartitions must be empty when (re-)joining."
    elif epoch == JOIN and request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        invalid = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif subscription_cost(request.subscribed_topic_names or ()) > SUBSCRIPTION_CHARACTERS_MAX:
        invalid = f"SubscribedTopicNames have more than {SUBSCRIPTION_CHARACTERS_MAX} characters together, with {NAME_COST} for each."
    if invalid:
        return Refusal(ErrorCode.INVALID_REQUEST, invalid)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        supported = ", ".join(ASSIGNORS)
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {supported}.")
    if request.subscribed_topic_regex:
        try:
            regexes.admit(request.subscribed_topic_regex, now_ms)
        except UnusableRegex as problem:
            return Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(problem))
    return None


class MemberHeartbeat:
    """One heartbeat of a member that is there, or joins."""

    def __init__(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientIdentity,
        settings: GroupSettings,
        deadlines: MemberDeadlines,
        replies: Replies,
        reply: ReplyToHeartbeat,
        again: Again,
    ) -> None:
        """`request` names a member, maybe one that is not there yet."""
        self._request = request
        self._client = client
        self._settings = settings
        self._deadlines = deadlines
        self._replies = replies
        self._reply = reply
        self.again = again
        self._before = ConsumerMember(request.member_id)
        self._member: ConsumerMember | None = None

    # ---- what it wants

    def change(self, group: ConsumerGroup, now_ms: int) -> None:
        request = self._request
        member = self._static(group) if request.instance_id is not None else self._dynamic(group)
        self._before = member
        wish = member.wish
        names = wish.topics if request.subscribed_topic_names is None else tuple(sorted(set(request.subscribed_topic_names)))
        regex = wish.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex or None
        changed = wish._replace(
            instance_id=request.instance_id or wish.instance_id,
            rack_id=request.rack_id or wish.rack_id,
            client=self._client,
            topics=names,
            regex=regex,
            rebalance_timeout_ms=wish.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
            assignor=request.server_assignor or wish.assignor,
            classic=None,
        )
        is_new = member.member_id not in group.members
        if is_new or changed != wish:
            group.put(member._replace(wish=changed))
        if is_new or (names, regex) != (wish.topics, wish.regex):
            group.group_epoch += 1
        if self._deadlines.has(Wait.SESSION, member.member_id):
            self._deadlines.renew_session(member._replace(wish=changed), now_ms)

    def _dynamic(self, group: ConsumerGroup) -> ConsumerMember:
        request = self._request
        member = group.members.get(request.member_id)
        if member is not None:
            self._check_epoch(member)
            return member
        if request.member_epoch != JOIN:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}.")
        self._check_room(group)
        return ConsumerMember(request.member_id)

    def _static(self, group: ConsumerGroup) -> ConsumerMember:
        request = self._request
        assert request.instance_id is not None
        holder = group.instance(request.instance_id)
        if request.member_epoch != JOIN:
            holder = static_member(group, request.instance_id, request.member_id)
            self._check_epoch(holder)
            return holder
        if holder is None:
            member = group.members.get(request.member_id)
            if member is None:
                self._check_room(group)
            return member or ConsumerMember(request.member_id)
        if holder.member_id == request.member_id and not holder.is_away:
            return holder
        if not holder.is_classic and not holder.is_away:
            text = f"Static member {request.member_id} with instance id {request.instance_id} cannot join: {holder.member_id} has not released it."
            raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        return replace_static(group, holder, request.member_id)

    def _check_room(self, group: ConsumerGroup) -> None:
        if len(group.members) >= self._settings.group_consumer_max_size:
            text = f"The consumer group has reached its maximum capacity of {self._settings.group_consumer_max_size} members."
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def _check_epoch(self, member: ConsumerMember) -> None:
        """An older epoch is that of an answer before the last, which may have been lost, as long as the member has nothing that is not its own."""
        epoch, current = self._request.member_epoch, member.current
        if epoch in (JOIN, current.epoch):
            return
        owned = self._request.topic_partitions
        if epoch < current.epoch and epoch == current.previous_epoch and owned is not None and partitions_of(owned) <= current.assigned:
            return
        text = f"The member is in epoch {current.epoch}, not {epoch}. It must abandon all its partitions and rejoin."
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, text)

    # ---- what it gets

    def conclude(self, group: ConsumerGroup, now_ms: int) -> None:
        request = self._request
        member = group.members.get(request.member_id)
        if member is not None and not member.is_reconciled_to(group.target_epoch):
            owned = None if request.topic_partitions is None else partitions_of(request.topic_partitions)
            stepped = reconciled(member, group.target_epoch, group.target_of(member.member_id), group.owners, owned)
            if stepped.current != member.current:
                group.put(stepped)
                member = stepped
        self._member = member

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        if error is ErrorCode.NONE and self._member is None:  # another request of the same turn took it out
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE or self._member is None:
            self.refuse(Refusal(error))
            return
        request, current = self._request, self._member.current
        is_full = request.member_epoch == JOIN or (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        is_sent = is_full or current.assigned != self._before.current.assigned
        response = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self._deadlines.heartbeat_interval_ms,
            assignment=MemberAssignment(as_topics(current.assigned)) if is_sent else None,
        )
        self._replies.say(self._reply, response)

    def refuse(self, refusal: Refusal) -> None:
        self._replies.say(self._reply, refused_heartbeat(refusal))


class MemberLeave:
    """A member leaves, for good or (a static one) for a while."""

    def __init__(self, request: ConsumerGroupHeartbeatRequest, replies: Replies, reply: ReplyToHeartbeat, again: Again) -> None:
        self._request = request
        self._replies = replies
        self._reply = reply
        self.again = again

    def change(self, group: ConsumerGroup, now_ms: int) -> None:
        request = self._request
        if request.instance_id is not None:
            member = static_member(group, request.instance_id, request.member_id)
        elif request.member_id in group.members:
            member = group.members[request.member_id]
        else:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}.")
        if request.member_epoch == LEAVE:
            group.remove(member.member_id)
            group.group_epoch += 1
        else:
            group.put(member._replace(current=member.current._replace(epoch=LEAVE_FOR_A_WHILE, revoking=frozenset())))

    def conclude(self, group: ConsumerGroup, now_ms: int) -> None:
        """There is nothing to tell it."""

    def answer(self, error: ErrorCode, now_ms: int) -> None:
        if error is ErrorCode.NONE:
            response = ConsumerGroupHeartbeatResponse(member_id=self._request.member_id, member_epoch=self._request.member_epoch)
            self._replies.say(self._reply, response)
        else:
            self.refuse(Refusal(error))

    def refuse(self, refusal: Refusal) -> None:
        self._replies.say(self._reply, refused_heartbeat(refusal))


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """Return the member with this instance id, which must be `member_id`."""
    holder = group.instance(instance_id)
    if holder is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder.member_id != member_id:
        raise Refusal(ErrorCode.FENCED_INSTANCE_ID, f"Static member {member_id} with instance id {instance_id} was fenced by member {holder.member_id}.")
    return holder


def replace_static(group: ConsumerGroup, holder: ConsumerMember, member_id: str) -> ConsumerMember:
    """Give a restarted instance the assignment of its former process, from member epoch 0 on."""
    target = group.target_of(holder.member_id)
    group.remove(holder.member_id)
    member = holder._replace(member_id=member_id, current=holder.current._replace(epoch=0, previous_epoch=0))
    group.put(member)
    group.aim(member_id, target)
    return member


def refused_heartbeat(refusal: Refusal) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=refusal.code, error_message=refusal.message or None)
