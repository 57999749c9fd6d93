"""Consumer groups from the log back to memory: records of keys 3 to 8 of one partition, then all its groups at once.

Owned by the group coordinator. Weak spot: a record that cannot be read is as if it had never been written; its member goes on without it.
"""

from __future__ import annotations

from typing import Any

from appliance.cluster.state_log import LoadedRecord
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_member import MemberAssignment, MemberRequest, Partitions, partitions_of
from services.coordinator.groups.consumer_records import restored_current, restored_group, restored_wish
from services.coordinator.groups.group_records import (
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    CONSUMER_GROUP_MEMBER_METADATA,
    CONSUMER_GROUP_METADATA,
    CONSUMER_GROUP_PARTITION_METADATA,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    SubscribedTopic,
    read_key,
)


class _LoadedGroup:
    """The last value of every key so far."""

    def __init__(self) -> None:
        self.group_epoch: int | None = None
        self.target_epoch = 0
        self.topics: dict[str, SubscribedTopic] = {}
        self.wishes: dict[str, MemberRequest] = {}
        self.targets: dict[str, Partitions] = {}
        self.currents: dict[str, MemberAssignment] = {}


class PartitionLoad:
    """What was read of one partition."""

    def __init__(self) -> None:
        self._groups: dict[str, _LoadedGroup] = {}

    def load(self, record: LoadedRecord) -> bool:
        """Whether it is a record of a consumer group; `UnreadableRecord` if it is one that cannot be read."""
        key: Any = read_key(record.key)
        value = record.value
        match key:
            case ConsumerGroupMetadataKey(group_id):
                group = self._group(group_id)
                group.group_epoch = None if value is None else CONSUMER_GROUP_METADATA.decode_value(value).epoch
            case ConsumerGroupPartitionMetadataKey(group_id):
                topics = () if value is None else CONSUMER_GROUP_PARTITION_METADATA.decode_value(value).topics
                self._group(group_id).topics = {topic.topic: topic._replace(partitions=()) for topic in topics}
            case ConsumerGroupMemberMetadataKey(group_id, member_id):
                wish = None if value is None else restored_wish(CONSUMER_GROUP_MEMBER_METADATA.decode_value(value))
                _set(self._group(group_id).wishes, member_id, wish)
            case ConsumerGroupTargetAssignmentMetadataKey(group_id):
                self._group(group_id).target_epoch = 0 if value is None else CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA.decode_value(value).assignment_epoch
            case ConsumerGroupTargetAssignmentMemberKey(group_id, member_id):
                target = None if value is None else partitions_of(CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER.decode_value(value).topic_partitions)
                _set(self._group(group_id).targets, member_id, target)
            case ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id):
                current = None if value is None else restored_current(CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.decode_value(value))
                _set(self._group(group_id).currents, member_id, current)
            case _:
                return False
        return True

    def _group(self, group_id: str) -> _LoadedGroup:
        return self._groups.setdefault(group_id, _LoadedGroup())

    def forget(self, group_id: str) -> None:
        """A record of a classic group of this name stands behind what was loaded."""
        self._groups.pop(group_id, None)

    def groups(self) -> dict[str, ConsumerGroup]:
        """Those that there are."""
        found = {}
        for group_id, loaded in self._groups.items():
            if loaded.group_epoch is None:
                continue
            group = restored_group(loaded.wishes, loaded.currents, loaded.targets)
            group.group_epoch = loaded.group_epoch
            group.target_epoch = loaded.target_epoch
            group.topics = loaded.topics
            found[group_id] = group
        return found


def _set(values: dict[str, Any], member_id: str, value: Any | None) -> None:
    if value is None:
        values.pop(member_id, None)
    else:
        values[member_id] = value
