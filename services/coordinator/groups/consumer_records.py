"""Consumer groups as records of `__consumer_offsets` (keys 3 to 8), and back.

`changed_records` is the difference of two states, so the log never differs from memory. The order is the one in which Kafka
reads them: what a member loses precedes what it or another member gains. Owns nothing. Weak spot: racks of topics are not
written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from appliance.base.model import TopicId
from appliance.cluster.state_log import LoadedRecord, StateRecord
from appliance.protocol.group_apis import JoinGroupProtocol
from services.coordinator.groups.consumer_group import ConsumerGroup
from services.coordinator.groups.consumer_member import (
    ClassicSide,
    ConsumerMember,
    CurrentAssignment,
    MemberRequest,
    MemberState,
    Partitions,
    as_topics,
    partitions_of,
)
from services.coordinator.groups.group_records import (
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    CONSUMER_GROUP_MEMBER_METADATA,
    CONSUMER_GROUP_METADATA,
    CONSUMER_GROUP_PARTITION_METADATA,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    SubscribedTopic,
    read_key,
)
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.state.state_format import UnreadableRecord


def changed_records(group_id: str, before: ConsumerGroup, after: ConsumerGroup) -> list[StateRecord]:
    """Return the records that change the log from `before` to `after`."""
    if before.members is after.members and before.targets is after.targets and before.topics is after.topics and before.group_epoch == after.group_epoch:
        return []
    records: list[StateRecord] = []
    for member_id in before.members.keys() - after.members.keys():
        records.append(_current_record(group_id, member_id, None))
        records.append(_target_record(group_id, member_id, None))
        records.append(_wish_record(group_id, member_id, None))
    changed = [member for member_id, member in after.members.items() if before.members.get(member_id) is not member]
    for member in changed:
        known = before.members.get(member.member_id)
        if known is None or known.wish != member.wish:
            records.append(_wish_record(group_id, member.member_id, member.wish))
    if before.topics is not after.topics and before.topics != after.topics:
        value = ConsumerGroupPartitionMetadataValue(tuple(after.topics[name] for name in sorted(after.topics)))
        records.append(CONSUMER_GROUP_PARTITION_METADATA.record(ConsumerGroupPartitionMetadataKey(group_id), value))
    if before.group_epoch != after.group_epoch:
        records.append(CONSUMER_GROUP_METADATA.record(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(after.group_epoch)))
    for member_id, target in after.targets.items():
        if before.targets.get(member_id) != target:
            records.append(_target_record(group_id, member_id, target))
    if before.target_epoch != after.target_epoch:
        epoch = ConsumerGroupTargetAssignmentMetadataValue(after.target_epoch)
        records.append(CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA.record(ConsumerGroupTargetAssignmentMetadataKey(group_id), epoch))
    moved = [member for member in changed if member.member_id not in before.members or before.members[member.member_id].current != member.current]
    moved.sort(key=lambda member: member.member_id not in before.members or not before.members[member.member_id].current.assigned - member.current.assigned)
    records += [_current_record(group_id, member.member_id, member.current) for member in moved]
    return records


def all_tombstones(group_id: str, states: Iterable[ConsumerGroup]) -> list[StateRecord]:
    """What takes the group out of a log that is in one of `states`."""
    member_ids: dict[str, None] = {}
    was_written = False
    for state in states:
        member_ids.update(dict.fromkeys(state.members))
        was_written |= state.group_epoch > 0 or bool(state.members)
    records: list[StateRecord] = []
    for member_id in member_ids:
        records.append(_current_record(group_id, member_id, None))
        records.append(_target_record(group_id, member_id, None))
        records.append(_wish_record(group_id, member_id, None))
    if was_written:
        records.append(CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA.record(ConsumerGroupTargetAssignmentMetadataKey(group_id), None))
        records.append(CONSUMER_GROUP_PARTITION_METADATA.record(ConsumerGroupPartitionMetadataKey(group_id), None))
        records.append(CONSUMER_GROUP_METADATA.record(ConsumerGroupMetadataKey(group_id), None))
    return records


def _wish_record(group_id: str, member_id: str, wish: MemberRequest | None) -> StateRecord:
    key = ConsumerGroupMemberMetadataKey(group_id, member_id)
    if wish is None:
        return CONSUMER_GROUP_MEMBER_METADATA.record(key, None)
    classic = None
    if wish.classic is not None:
        protocols = tuple(ClassicProtocol(each.name, each.metadata) for each in wish.classic.protocols)
        classic = ClassicMemberMetadata(wish.classic.session_timeout_ms, protocols)
    value = ConsumerGroupMemberMetadataValue(
        wish.instance_id, wish.rack_id, *wish.client, wish.topics, wish.regex, wish.rebalance_timeout_ms, wish.assignor, classic
    )
    return CONSUMER_GROUP_MEMBER_METADATA.record(key, value)


def _target_record(group_id: str, member_id: str, target: Partitions | None) -> StateRecord:
    value = None if target is None else ConsumerGroupTargetAssignmentMemberValue(as_topics(target))
    return CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER.record(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), value)


def _current_record(group_id: str, member_id: str, current: CurrentAssignment | None) -> StateRecord:
    value = None
    if current is not None:
        value = ConsumerGroupCurrentMemberAssignmentValue(
            current.epoch, current.previous_epoch, current.state, as_topics(current.assigned), as_topics(current.revoking)
        )
    return CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.record(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), value)


# ---- back


def restored_wish(value: ConsumerGroupMemberMetadataValue) -> MemberRequest:
    classic = None
    if value.classic_member_metadata is not None:
        protocols = tuple(JoinGroupProtocol(each.name, each.metadata) for each in value.classic_member_metadata.supported_protocols)
        if not protocols:
            raise UnreadableRecord("a member of the classic protocol without a protocol")
        classic = ClassicSide(value.classic_member_metadata.session_timeout_ms, protocols)
    client = ClientIdentity(value.client_id, value.client_host)
    topics = tuple(sorted(set(value.subscribed_topic_names)))
    return MemberRequest(
        value.instance_id, value.rack_id, client, topics, value.subscribed_topic_regex or None, value.rebalance_timeout_ms, value.server_assignor, classic
    )


def restored_current(value: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    """States of a later release are UNKNOWN."""
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN
    assigned, revoking = partitions_of(value.assigned_partitions), partitions_of(value.partitions_pending_revocation)
    return CurrentAssignment(value.member_epoch, value.previous_member_epoch, state, assigned, revoking - assigned)


def restored_group(
    wishes: dict[str, MemberRequest],
    currents: dict[str, CurrentAssignment],
    targets: dict[str, Partitions],
) -> ConsumerGroup:
    """Members with what they have; should two have the same partition, or be the same instance, it is the first one's."""
    group = ConsumerGroup()
    taken: set[tuple[TopicId, int]] = set()
    for member_id, wish in wishes.items():
        current = currents.get(member_id, CurrentAssignment())
        if taken & (current.assigned | current.revoking):
            current = current._replace(assigned=current.assigned - taken, revoking=current.revoking - taken)
        taken |= current.assigned | current.revoking
        if wish.instance_id is not None and wish.instance_id in group.static_members:
            continue
        group.put(ConsumerMember(member_id, wish, current))
    group.targets = {member_id: target for member_id, target in targets.items() if member_id in group.members}
    return group


# ---- groups are rebuilt from their records


class _LoadedGroup:
    """The last value of every key so far."""

    def __init__(self) -> None:
        self.group_epoch: int | None = None
        self.target_epoch = 0
        self.topics: dict[str, SubscribedTopic] = {}
        self.wishes: dict[str, MemberRequest] = {}
        self.targets: dict[str, Partitions] = {}
        self.currents: dict[str, CurrentAssignment] = {}


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
