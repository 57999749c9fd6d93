"""SyncGroup and Heartbeat: members of a generation get their assignments, and say that they are alive.

An assignment is given out only when the group's metadata is in the log with it, so that a coordinator that takes over knows what members work on.
Owned by the group coordinator. Weak spot: an append that timed out may be in the log all the same; the rebalance that follows overwrites it.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import HeartbeatRequest, SyncGroupAssignment, SyncGroupRequest, SyncGroupResponse
from services.coordinator.groups.append_errors import group_error
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_directory import GroupDirectory
from services.coordinator.groups.group_log import GroupLog
from services.coordinator.groups.member import ReplyToSync
from services.coordinator.groups.rebalances import Rebalances
from services.coordinator.groups.replies import Replies
from services.coordinator.groups.state_records import metadata_record


class Syncing:
    """Decides about one request of a member at a time."""

    def __init__(self, directory: GroupDirectory, rebalances: Rebalances, replies: Replies, log: GroupLog) -> None:
        self._directory = directory
        self._rebalances = rebalances
        self._replies = replies
        self._log = log

    # ---- SyncGroup

    def sync(self, request: SyncGroupRequest, now_ms: int, reply: ReplyToSync) -> None:
        error = self._directory.refusal(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.REBALANCE_IN_PROGRESS  # what was going on is lost; old clients know this error, not the other
        group = self._directory.find_classic(request.group_id)
        if error is ErrorCode.NONE:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._sync_problem(group, request)
        if error is not ErrorCode.NONE or group is None:
            self._replies.say(reply, SyncGroupResponse(error_code=error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._rebalances.on_synced(group, member)
            self._rebalances.renew_session(group, member, now_ms)
            response = SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment)
            self._replies.say(reply, response)
            return
        self._rebalances.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply
        self._rebalances.on_synced(group, member)
        if group.group_leader_id == member.member_id and not group.is_assigning:
            self._assign(group, request.assignments)

    def _sync_problem(self, group: Group, request: SyncGroupRequest) -> ErrorCode:
        problem = self._member_problem(group, request.member_id, request.group_instance_id, request.generation_id)
        if problem is not ErrorCode.NONE:
            return problem
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != group.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def _assign(self, group: Group, given: tuple[SyncGroupAssignment, ...]) -> None:
        """Append and send the assignments of the group leader; a member that it left out gets none, and unknown members are ignored."""
        said = dict(given)
        assignments = {member_id: said.get(member_id, b"") for member_id in group.members}
        generation_id = group.generation_id

        def on_done(error: ErrorCode, position: int, now_ms: int) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                return  # a rebalance began meanwhile and has answered all members
            if error is ErrorCode.NONE:
                for member in group.members.values():
                    member.assignment = assignments[member.member_id]
                self._rebalances.answer_all_syncs(group, ErrorCode.NONE, now_ms)
                group.move_to(GroupState.STABLE, now_ms)
            else:
                self._rebalances.answer_all_syncs(group, group_error(error), now_ms)
                self._rebalances.maybe_prepare(group, now_ms)

        group.is_assigning = True
        self._log.append(group.partition, [metadata_record(group, assignments)], on_done)

    # ---- Heartbeat

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        error = self._directory.refusal(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # sessions begin when the group is loaded
        if error is not ErrorCode.NONE:
            return error
        group = self._directory.find_classic(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        problem = self._member_problem(group, request.member_id, request.group_instance_id, request.generation_id)
        if problem is not ErrorCode.NONE:
            return problem
        self._rebalances.renew_session(group, group.members[request.member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def _member_problem(self, group: Group, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        problem = group.member_problem(member_id, group_instance_id)
        if problem is ErrorCode.NONE and generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return problem
