"""DescribeGroups and ListGroups: what groups look like from outside.

Owned by the group coordinator. Weak spot: a list is as long as there are groups; it is made in one turn.
"""

from __future__ import annotations

from typing import Final

from appliance.base.errors import ErrorCode
from appliance.protocol.group_apis import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_directory import GroupDirectory

NOT_FOUND_SINCE: Final = 6
GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8
"""Read, delete, describe: the bits of Kafka's operations that there are for groups."""


class GroupViews:
    """Answers at once from memory."""

    def __init__(self, directory: GroupDirectory) -> None:
        self._directory = directory

    def describe(self, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
        """Everybody may do everything until somebody says otherwise."""
        groups = [self._describe(group_id, version) for group_id in request.group_ids]
        if request.include_authorized_operations:
            groups = [group if group.error_code else group._replace(authorized_operations=GROUP_OPERATIONS) for group in groups]
        return DescribeGroupsResponse(groups=tuple(groups))

    def _describe(self, group_id: str, version: int) -> DescribedGroup:
        error = self._directory.refusal(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return DescribedGroup(error_code=error, group_id=group_id)
        group = self._directory.find_classic(group_id)
        if group is not None:
            return _described(group)
        if version >= NOT_FOUND_SINCE:
            text = f"Group {group_id} not found."
            return DescribedGroup(error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text, group_id=group_id, group_state=GroupState.DEAD.value)
        return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """Filters know no case; those of a version that has none are empty. While partitions are loading, the list says that it is not whole."""
        states = {state.lower() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        listed = [
            ListedGroup(hosted.group_id, membership.protocol_type, membership.state_name, membership.group_type.value)
            for hosted in self._directory
            for membership in (hosted.membership,)
            if (not states or membership.state_name.lower() in states) and (not types or membership.group_type.value in types)
        ]
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._directory.is_loading else ErrorCode.NONE
        return ListGroupsResponse(error_code=error, groups=tuple(listed))


def _described(group: Group) -> DescribedGroup:
    """Protocol, metadata and assignments are those of a stable group; in between there are none to speak of."""
    protocol = group.protocol_name if group.state is GroupState.STABLE else None
    members = [
        DescribedMember(
            member.member_id,
            member.group_instance_id,
            member.client.client_id,
            member.client.client_host,
            b"" if protocol is None else member.metadata(protocol),
            b"" if protocol is None else member.assignment,
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_name=protocol or "",
        members=tuple(members),
    )
