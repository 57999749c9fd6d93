"""LeaveGroup: members go, one by one or several at once, by their own word or by an administrator's.

Owned by the group coordinator. Weak spot: static members do not say when they go; their sessions end, or an administrator names their instance.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import LeaveGroupRequest, LeaveGroupResponse, LeavingMember, LeftMember
from services.coordinator.groups.group import Group
from services.coordinator.groups.group_directory import GroupDirectory
from services.coordinator.groups.rebalances import Rebalances


class MemberDepartures:
    """Decides about one LeaveGroup at a time, at once."""

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
