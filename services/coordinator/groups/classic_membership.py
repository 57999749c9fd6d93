"""What a classic group's members allow others to do with the group: commit offsets, delete them, delete the group, let it grow old.

Owned by the group coordinator. Weak spot: none known; the rules are Kafka's, down to which of two errors comes first.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import StateRecord
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_membership import ExpiryRule, GroupType
from services.coordinator.groups.state_records import group_tombstone
from services.coordinator.groups.subscriptions import CONSUMER_PROTOCOL_TYPE


class ClassicMembership:
    """A `Group` as `Membership`."""

    __slots__ = ("group",)

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def group_type(self) -> GroupType:
        return GroupType.CLASSIC

    @property
    def state_name(self) -> str:
        return self.group.state.value

    @property
    def protocol_type(self) -> str:
        return self.group.protocol_type or ""

    @property
    def generation_id(self) -> int:
        return self.group.generation_id

    @property
    def is_empty(self) -> bool:
        return self.group.state is GroupState.EMPTY and not self.group.pending_members

    def commit_problem(self, member_id: str, group_instance_id: str | None, generation_id: int, is_transactional: bool, version: int) -> ErrorCode:
        group = self.group
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE  # an admin client, or a consumer that assigns itself
        if generation_id >= 0 or member_id or group_instance_id is not None:
            problem = group.member_problem(member_id, group_instance_id)
            if problem is not ErrorCode.NONE:
                return problem
            if generation_id != group.generation_id:
                return ErrorCode.ILLEGAL_GENERATION
        elif not is_transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID  # old transactional producers name no member
        if group.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def fetch_problem(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def deletion_problem(self) -> ErrorCode:
        return ErrorCode.NONE if self.group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def offset_deletion_problem(self) -> ErrorCode:
        group = self.group
        may_be = group.state is GroupState.EMPTY or group.protocol_type == CONSUMER_PROTOCOL_TYPE
        return ErrorCode.NONE if may_be else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        """True also if the members' subscriptions cannot be read."""
        group = self.group
        return group.state is not GroupState.EMPTY and (group.subscribed_topics is None or topic in group.subscribed_topics)

    def expiry_rule(self) -> ExpiryRule | None:
        group = self.group
        if group.protocol_type is None:
            return ExpiryRule(None)  # consumers that only keep offsets here
        if group.state is GroupState.EMPTY:
            return ExpiryRule(group.state_since_ms)
        if group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.state is GroupState.STABLE and group.subscribed_topics is not None:
            return ExpiryRule(None, group.subscribed_topics)
        return None

    def tombstones(self) -> list[StateRecord]:
        """A group of generation 0 only ever kept offsets."""
        return [group_tombstone(self.group.group_id)] if self.group.generation_id > 0 else []
