"""The rebalance of a classic group: from one generation to the next, with its deadlines.

A rebalance collects JoinGroups until all members have joined or the largest rebalance time-out ends.
Members that have not joined by then are removed, except static members, which may be restarting. Then
a generation begins and the group leader assigns; a member that does not send SyncGroup within the same
time-out is removed, too. The members of an empty group arrive one by one as their processes start, so
its first rebalance waits `group.initial.rebalance.delay.ms` for more of them. Owned by the group
coordinator. Weak spot: every parked request is answered by one of these deadlines or by an append; a
client with a time-out of weeks may wait for weeks, as with Kafka.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import (
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupResponse,
)
from appliance.runtime.timers import Timers
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_directory import GroupDirectory
from services.coordinator.groups.group_log import GroupLog, Replies, ignore_answer
from services.coordinator.groups.group_records import metadata_record
from services.coordinator.groups.member import Member, ReplyToJoin
from services.coordinator.groups.ports import GroupSettings

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60_000
"""A new member cannot send heartbeats before its JoinGroup is answered, so its end is not noticed; after this time it has to join again."""


class Rebalances:
    """Acts on groups; has no state of its own."""

    def __init__(self, settings: GroupSettings, timers: Timers, replies: Replies, log: GroupLog) -> None:
        self._settings = settings
        self._timers = timers
        self._replies = replies
        self._log = log

    # ---- members

    def add_member(self, group: Group, member: Member, protocol_type: str, reply: ReplyToJoin, now_ms: int) -> None:
        """Add a member and park its JoinGroup; start a rebalance unless one is collecting already."""
        self.forget_pending(group, member.member_id)
        if not group.members:
            group.protocol_type = protocol_type
        if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
            group.member_came_in_delay = True
        member.is_new = True
        member.awaiting_join = reply
        group.add(member)
        self._expect(group, member, now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.maybe_prepare(group, now_ms)

    def update_member(
        self,
        group: Group,
        member: Member,
        protocols: tuple[JoinGroupProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        reply: ReplyToJoin,
    ) -> None:
        """Update a known member and park its JoinGroup."""
        group.update(member, protocols, rebalance_timeout_ms, session_timeout_ms)
        self.answer_join(group, member, JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        member.awaiting_join = reply
        group.awaiting_join_count += 1

    def remove_member(self, group: Group, member: Member, now_ms: int) -> None:
        """Remove a member that left or whose session expired; the others rebalance."""
        self.drop_member(group, member, ErrorCode.UNKNOWN_MEMBER_ID, "")
        if group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete(group, now_ms)
        else:
            self.maybe_prepare(group, now_ms)

    def drop_member(self, group: Group, member: Member, error: ErrorCode, member_id: str) -> None:
        """Take the member out of the group and answer its parked requests with `error`."""
        self.answer_join(group, member, JoinGroupResponse(error_code=error, member_id=member_id))
        self.answer_sync(member, SyncGroupResponse(error_code=error))
        group.remove(member.member_id)
        self._timers.cancel(member.session_timer)

    def add_pending(self, group: Group, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        """Note a member id that was returned with MEMBER_ID_REQUIRED; the client has one session time-out to join with it."""
        group.pending_members[member_id] = self._timers.schedule(now_ms + session_timeout_ms, partial(self._on_pending_expired, group, member_id))

    def forget_pending(self, group: Group, member_id: str) -> None:
        self._timers.cancel(group.pending_members.pop(member_id, None))

    def remove_pending(self, group: Group, member_id: str, now_ms: int) -> None:
        """Stop waiting for this id."""
        self.forget_pending(group, member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete(group, now_ms)

    def _on_pending_expired(self, group: Group, member_id: str, now_ms: int) -> None:
        self.remove_pending(group, member_id, now_ms)

    def renew_session(self, group: Group, member: Member, now_ms: int) -> None:
        """Restart the member's session time-out."""
        self._expect(group, member, now_ms + member.session_timeout_ms)

    def rename_member(self, group: Group, member: Member, member_id: str, now_ms: int) -> None:
        """Give a static member its next id. Requests parked under the old id belong to a former process of the same instance: they are fenced."""
        self.answer_join(group, member, JoinGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID, member_id=member.member_id))
        self.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        group.rename(member, member_id)
        self.renew_session(group, member, now_ms)

    def _expect(self, group: Group, member: Member, deadline_ms: int) -> None:
        if member.session_timer is not None and member.session_timer.is_live:
            self._timers.move(member.session_timer, deadline_ms)
        else:
            member.session_timer = self._timers.schedule(deadline_ms, partial(self._on_session_expired, group, member))

    def _on_session_expired(self, group: Group, member: Member, now_ms: int) -> None:
        """Remove the member, unless a request of it is parked: it cannot send heartbeats, and its session restarts with the answer."""
        if not member.is_parked:
            self.remove_member(group, member, now_ms)

    # ---- answers

    def answer_join(self, group: Group, member: Member, response: JoinGroupResponse) -> bool:
        """Answer the parked request; return False if there is none."""
        reply, member.awaiting_join = member.awaiting_join, None
        if reply is None:
            return False
        group.awaiting_join_count -= member.member_id in group.members
        self._replies.say(reply, response)
        return True

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Answer the parked request; return False if there is none."""
        reply = member.take_sync()
        if reply is None:
            return False
        self._replies.say(reply, response)
        return True

    def answer_all_syncs(self, group: Group, error: ErrorCode, now_ms: int) -> None:
        """Answer every parked SyncGroup with its assignment or the error; the members' sessions restart."""
        for member in group.members.values():
            if error is ErrorCode.NONE:
                response = SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment)
            else:
                member.assignment = b""
                response = SyncGroupResponse(error_code=error)
            if self.answer_sync(member, response):
                self.renew_session(group, member, now_ms)

    def joined(self, group: Group, member: Member) -> JoinGroupResponse:
        """Return the response for this member in the current generation; the group leader also gets the members."""
        is_leader = group.group_leader_id == member.member_id
        return JoinGroupResponse(
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            group_leader_id=group.group_leader_id or "",
            member_id=member.member_id,
            members=members_for_leader(group) if is_leader else (),
        )

    # ---- generations

    def maybe_prepare(self, group: Group, now_ms: int) -> None:
        """Start a rebalance, unless one is collecting already."""
        if group.state in (GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, now_ms)

    def prepare(self, group: Group, now_ms: int) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.answer_all_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._end_sync_wait(group)
        was_empty = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE, now_ms)
        if was_empty:
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._wait_for_joins(group, now_ms + delay_ms)
        else:
            self._wait_for_joins(group, now_ms + group.rebalance_timeout_ms)
            self.maybe_complete(group, now_ms)

    def maybe_complete(self, group: Group, now_ms: int) -> None:
        """Complete the rebalance once all members have joined; the first one of an empty group waits for the whole delay."""
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is None and group.has_all_joined:
            self._complete(group, now_ms)

    def _wait_for_joins(self, group: Group, deadline_ms: int) -> None:
        self._timers.cancel(group.join_timer)
        group.join_timer = self._timers.schedule(deadline_ms, partial(self._on_join_deadline, group))

    def _on_join_deadline(self, group: Group, now_ms: int) -> None:
        left_ms = group.initial_delay_left_ms
        if left_ms is not None and group.member_came_in_delay and left_ms > 0:
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, left_ms)
            group.member_came_in_delay = False
            group.initial_delay_left_ms = left_ms - delay_ms
            self._wait_for_joins(group, now_ms + delay_ms)
        else:
            self._complete(group, now_ms)

    def _complete(self, group: Group, now_ms: int) -> None:
        self._timers.cancel(group.join_timer)
        group.join_timer = None
        group.initial_delay_left_ms = None
        group.member_came_in_delay = False
        late = [member for member in group.members.values() if member.awaiting_join is None and not member.is_static]
        for member in late:
            self.drop_member(group, member, ErrorCode.UNKNOWN_MEMBER_ID, "")
        if not group.elect_joined_leader() and group.members:
            # Only static members, none of which has joined: wait until their sessions expire.
            self._wait_for_joins(group, now_ms + group.rebalance_timeout_ms)
            return
        group.begin_generation(now_ms)
        if group.state is GroupState.EMPTY:
            # If this append is lost, a load finds the former generation, and the sessions of its members expire.
            self._log.append(group.partition, [metadata_record(group, {})], ignore_answer)
            return
        for member in group.members.values():
            self.answer_join(group, member, self.joined(group, member))
            member.is_new = False
            self.renew_session(group, member, now_ms)
            group.pending_sync.add(member.member_id)
        deadline_ms = now_ms + group.rebalance_timeout_ms
        group.sync_timer = self._timers.schedule(deadline_ms, partial(self._on_sync_deadline, group))

    # ---- assignments

    def on_synced(self, group: Group, member: Member) -> None:
        """Note a member's SyncGroup; after the last one the deadline is cancelled."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._end_sync_wait(group)

    def _end_sync_wait(self, group: Group) -> None:
        group.pending_sync.clear()
        self._timers.cancel(group.sync_timer)
        group.sync_timer = None

    def _on_sync_deadline(self, group: Group, now_ms: int) -> None:
        for member_id in list(group.pending_sync):
            self.drop_member(group, group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID, "")
        self.prepare(group, now_ms)

    # ---- the end

    def abandon(self, group: Group, error: ErrorCode, now_ms: int) -> None:
        """End the group on this coordinator: cancel its timers and answer parked requests with `error`."""
        for timer in (group.join_timer, group.sync_timer, *group.pending_members.values()):
            self._timers.cancel(timer)
        for member in group.members.values():
            self.answer_join(group, member, JoinGroupResponse(error_code=error, member_id=member.member_id))
            self.answer_sync(member, SyncGroupResponse(error_code=error))
            self._timers.cancel(member.session_timer)
        group.move_to(GroupState.DEAD, now_ms)


def members_for_leader(group: Group) -> tuple[JoinGroupMember, ...]:
    """Return what the group leader needs to assign: the metadata of each member for the selected protocol."""
    name = group.protocol_name
    assert name is not None
    return tuple(JoinGroupMember(member.member_id, member.group_instance_id, member.metadata(name)) for member in group.members.values())


# ---- LeaveGroup. Static members do not send it: their sessions expire, or an administrator removes their instance


class MemberDepartures:
    """Handles LeaveGroup."""

    def __init__(self, directory: GroupDirectory, rebalances: Rebalances) -> None:
        self._directory = directory
        self._rebalances = rebalances

    def leave(self, request: LeaveGroupRequest, now_ms: int) -> LeaveGroupResponse:
        error = self._directory.refusal(request.group_id)
        if error is not ErrorCode.NONE:
            return LeaveGroupResponse(error_code=error)
        group = self._directory.find_classic(request.group_id)
        return LeaveGroupResponse(
            members=tuple(
                LeftMember(member.member_id, member.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave(group, member, now_ms))
                for member in request.members
            )
        )

    def _leave(self, group: Group, leaving: LeavingMember, now_ms: int) -> ErrorCode:
        member_id = leaving.member_id
        instance = leaving.group_instance_id
        if not member_id:  # the member that has this instance id now
            member_id = group.static_members.get(instance, "") if instance is not None else ""
            instance = None
        elif member_id in group.pending_members:
            self._rebalances.remove_pending(group, member_id, now_ms)
            return ErrorCode.NONE
        problem = group.member_problem(member_id, instance)
        if problem is ErrorCode.NONE:
            self._rebalances.remove_member(group, group.members[member_id], now_ms)
        return problem
