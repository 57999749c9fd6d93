"""DescribeGroups and ListGroups: what groups look like from outside.

Owned by the group coordinator. Weak spot: a list is as long as there are groups; it is made in one turn.
"""

from __future__ import annotations

from typing import Final

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol.consumer_group_apis import (
    CLASSIC_MEMBER,
    CONSUMER_MEMBER,
    AssignedTopic,
    ConsumerAssignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    DescribedConsumerGroup,
)
from appliance.protocol.forwarded_apis import AnswerBudget
from appliance.protocol.group_apis import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from services.coordinator.groups.consumer_assignors import UNIFORM
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_member import ConsumerMember, Partitions
from services.coordinator.groups.consumer_membership import ConsumerMembership
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_directory import GroupDirectory
from services.coordinator.groups.ports import Topics

NOT_FOUND_SINCE: Final = 6
GROUP_BYTES: Final = 100
MEMBER_BYTES: Final = 200
PARTITION_BYTES: Final = 300
"""About what an answer has of each, with the longest name of a topic."""
GROUP_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8
"""Read, delete, describe: the bits of Kafka's operations that there are for groups."""


class GroupViews:
    """Answers at once from memory."""

    def __init__(self, directory: GroupDirectory) -> None:
        self._directory = directory

    def describe(self, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
        """Describe the groups. There is no authorization, so every operation is allowed."""
        budget = AnswerBudget()
        groups = [self._describe(group_id, version, budget) for group_id in request.group_ids]
        if request.include_authorized_operations:
            groups = [group if group.error_code else group._replace(authorized_operations=GROUP_OPERATIONS) for group in groups]
        return DescribeGroupsResponse(groups=tuple(groups))

    def _describe(self, group_id: str, version: int, budget: AnswerBudget) -> DescribedGroup:
        error = ErrorCode.INVALID_REQUEST if budget.is_spent else self._directory.refusal(group_id, may_be_empty=True)
        if error is not ErrorCode.NONE:
            return DescribedGroup(error_code=error, group_id=group_id)
        group = self._directory.find_classic(group_id)
        if group is not None and not budget.take(_size_of(group)):
            return DescribedGroup(error_code=ErrorCode.INVALID_REQUEST, group_id=group_id)
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


def _size_of(group: Group) -> int:
    """Return about how many bytes describe it."""
    members = sum(MEMBER_BYTES + len(each.member_id) + len(each.client.client_id) + len(each.assignment) for each in group.members.values())
    return GROUP_BYTES + group.metadata_bytes + members


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


# ---- groups of the consumer protocol


def _size_of_member(group: ConsumerGroup, member: ConsumerMember) -> int:
    partitions = len(member.current.assigned) + len(group.target_of(member.member_id))
    return MEMBER_BYTES + len(member.member_id) + len(member.wish.client.client_id) + sum(map(len, member.wish.topics)) + PARTITION_BYTES * partitions


class ConsumerGroupViews:
    """Answers at once from memory, which is what the log says."""

    def __init__(self, directory: GroupDirectory, topics: Topics) -> None:
        self._directory = directory
        self._topics = topics

    def describe(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        budget = AnswerBudget()
        return ConsumerGroupDescribeResponse(groups=tuple([self._describe(group_id, budget) for group_id in request.group_ids]))

    def _describe(self, group_id: str, budget: AnswerBudget) -> DescribedConsumerGroup:
        error = ErrorCode.INVALID_REQUEST if budget.is_spent else self._directory.refusal(group_id)
        if error is not ErrorCode.NONE:
            return DescribedConsumerGroup(error, group_id=group_id)
        hosted = self._directory.find(group_id)
        if hosted is None or not isinstance(hosted.membership, ConsumerMembership):
            text = f"Group {group_id} not found." if hosted is None else f"Group {group_id} is not a consumer group."
            return DescribedConsumerGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id, GroupState.DEAD.value)
        group = hosted.membership.group
        if not budget.take(GROUP_BYTES + sum(_size_of_member(group, member) for member in group.members.values())):
            return DescribedConsumerGroup(ErrorCode.INVALID_REQUEST, "The request describes too much at once; describe fewer groups.", group_id)
        return DescribedConsumerGroup(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor or UNIFORM,
            members=tuple([self._member(group, member) for member in group.members.values()]),
        )

    def _member(self, group: ConsumerGroup, member: ConsumerMember) -> ConsumerGroupMember:
        wish = member.wish
        return ConsumerGroupMember(
            member.member_id,
            wish.instance_id,
            wish.rack_id,
            member.current.epoch,
            *wish.client,
            wish.topics,
            wish.regex,
            self._assignment(member.current.assigned),
            self._assignment(group.target_of(member.member_id)),
            CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
        )

    def _assignment(self, partitions: Partitions) -> ConsumerAssignment:
        by_topic: dict[TopicId, list[int]] = {}
        for topic_id, partition in sorted(partitions):
            by_topic.setdefault(topic_id, []).append(partition)
        named = ((topic_id, self._topics.name_of(topic_id), each) for topic_id, each in by_topic.items())
        return ConsumerAssignment(tuple(AssignedTopic(topic_id, name, tuple(each)) for topic_id, name, each in named if name is not None))
