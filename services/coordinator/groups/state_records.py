"""Groups and offsets as records of `__consumer_offsets`, and a group back from its record.

Formats are `group_records.py`'s; here is what of a group goes into them, and when. Owned by nobody. Weak spot: only the metadata for the chosen protocol
is kept, so a loaded member that offers several joins with what looks like a change, and the group rebalances once.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.base.model import TopicPartition
from appliance.cluster.state_log import StateRecord
from appliance.protocol.group_apis import JoinGroupProtocol
from services.coordinator.groups.client_identity import ClientIdentity
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_records import (
    GROUP_METADATA,
    OFFSET_COMMIT,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitValue,
    OffsetKey,
)
from services.coordinator.groups.member import Member
from services.coordinator.state.state_format import UnreadableRecord

UNKNOWN_TIME = -1
LIKE_SESSION = -1


def offset_record(group_id: str, place: TopicPartition, value: OffsetCommitValue | None) -> StateRecord:
    """An offset, or without a value its tombstone."""
    return OFFSET_COMMIT.record(OffsetKey(group_id, place.topic, place.partition), value)


def group_tombstone(group_id: str) -> StateRecord:
    return GROUP_METADATA.record(GroupMetadataKey(group_id), None)


def metadata_record(group: Group, assignments: Mapping[str, bytes]) -> StateRecord:
    """The group's current generation with these assignments, which are its members' once the record is in the log."""
    name = group.protocol_name
    members = [
        GroupMetadataMember(
            member.member_id,
            member.group_instance_id,
            member.client.client_id,
            member.client.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            b"" if name is None else member.metadata(name),
            assignments[member.member_id],
        )
        for member in group.members.values()
    ]
    since_ms = UNKNOWN_TIME if group.state_since_ms is None else group.state_since_ms
    value = GroupMetadataValue(group.protocol_type or "", group.generation_id, name, group.group_leader_id, since_ms, tuple(members))
    return GROUP_METADATA.record(GroupMetadataKey(group.group_id), value)


def restored_group(group_id: str, partition: int, value: GroupMetadataValue) -> Group:
    """Stable with its members, or empty."""
    if value.members and value.protocol_name is None:
        raise UnreadableRecord(f"group {group_id} has members and no protocol")
    group = Group(group_id, partition, 0)
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol_name
    group.generation_id = value.generation_id
    for each in value.members:
        rebalance_timeout_ms = each.session_timeout_ms if each.rebalance_timeout_ms == LIKE_SESSION else each.rebalance_timeout_ms
        client = ClientIdentity(each.client_id, each.client_host)
        protocols = (JoinGroupProtocol(value.protocol_name or "", each.subscription),)
        if each.member_id in group.members or each.group_instance_id in group.static_members:
            raise UnreadableRecord(f"group {group_id} has the member {each.member_id} or its instance twice")
        group.add(Member(each.member_id, each.group_instance_id, client, rebalance_timeout_ms, each.session_timeout_ms, protocols, each.assignment))
    if value.group_leader_id in group.members:
        group.group_leader_id = value.group_leader_id
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.state_since_ms = None if value.current_state_timestamp_ms == UNKNOWN_TIME else value.current_state_timestamp_ms
    group.subscribed_topics = group.topics_of_members()
    return group
