"""ConsumerGroupDescribe: what consumer groups look like from outside.

Owned by the group coordinator. Weak spot: topics that are gone are left out of assignments, though members may not have given them up yet.
"""

from __future__ import annotations

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
)
from appliance.protocol.consumer_group_apis import ConsumerGroup as DescribedGroup
from services.coordinator.groups.consumer_assignors import UNIFORM
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_member import ConsumerMember, Partitions
from services.coordinator.groups.consumer_membership import ConsumerMembership
from services.coordinator.groups.group import GroupState
from services.coordinator.groups.group_directory import GroupDirectory
from services.coordinator.groups.ports import Topics


class ConsumerGroupViews:
    """Answers at once from memory, which is what the log says."""

    def __init__(self, directory: GroupDirectory, topics: Topics) -> None:
        self._directory = directory
        self._topics = topics

    def describe(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(groups=tuple([self._describe(group_id) for group_id in request.group_ids]))

    def _describe(self, group_id: str) -> DescribedGroup:
        error = self._directory.refusal(group_id)
        if error is not ErrorCode.NONE:
            return DescribedGroup(error, group_id=group_id)
        hosted = self._directory.find(group_id)
        if hosted is None or not isinstance(hosted.membership, ConsumerMembership):
            text = f"Group {group_id} not found." if hosted is None else f"Group {group_id} is not a consumer group."
            return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id, GroupState.DEAD.value)
        group = hosted.membership.group
        return DescribedGroup(
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
