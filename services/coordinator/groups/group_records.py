"""The records of `__consumer_offsets`, as Kafka 3.9 and 4.0 write them: offsets, classic groups, and groups of KIP-848.

Formats only, with Kafka's names. `read_key` returns the kind of a record; every kind is a `StateFormat` that reads and writes
its values. Offset commits and classic groups are read in versions 0 to 4 and written in 3, which older brokers read, too; an
offset with an expiry of its own is written in version 1, the only one with that field. Owns nothing; records as data.
Weak spot: share groups and regular expressions (keys from 9 on) are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from appliance.base.model import TopicId, TopicPartition
from appliance.cluster.state_log import StateRecord
from appliance.protocol.group_apis import JoinGroupProtocol
from appliance.protocol.schema import BYTES, INT8, INT32, INT64, STRING, UUID, ArrayOf, Field
from appliance.protocol.topic_partitions import TopicIdPartitions
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.member import ClientIdentity, Member
from services.coordinator.state.state_format import StateFormat, UnreadableRecord, version_of

NO_EXPIRY: Final = -1
_EXPIRING_VERSION: Final = 1
_WRITTEN_VERSION: Final = 3

# ---- keys


class OffsetKey(NamedTuple):
    """An offset that a group committed; keys of version 0 are those of version 1."""

    group_id: Annotated[str, Field(STRING)]
    topic: Annotated[str, Field(STRING)]
    partition: Annotated[int, Field(INT32)]


class GroupMetadataKey(NamedTuple):
    """A classic group."""

    group_id: Annotated[str, Field(STRING)]


class ConsumerGroupMetadataKey(NamedTuple):
    """A group of the newer protocol."""

    group_id: Annotated[str, Field(STRING)]


class ConsumerGroupPartitionMetadataKey(NamedTuple):
    """The topics that such a group reads."""

    group_id: Annotated[str, Field(STRING)]


class ConsumerGroupMemberMetadataKey(NamedTuple):
    """What one of its members wants."""

    group_id: Annotated[str, Field(STRING)]
    member_id: Annotated[str, Field(STRING)]


class ConsumerGroupTargetAssignmentMetadataKey(NamedTuple):
    """How new its target assignment is."""

    group_id: Annotated[str, Field(STRING)]


class ConsumerGroupTargetAssignmentMemberKey(NamedTuple):
    """What one member is to read in the end."""

    group_id: Annotated[str, Field(STRING)]
    member_id: Annotated[str, Field(STRING)]


class ConsumerGroupCurrentMemberAssignmentKey(NamedTuple):
    """What one member reads now."""

    group_id: Annotated[str, Field(STRING)]
    member_id: Annotated[str, Field(STRING)]


# ---- values of both protocols


class OffsetCommitValue(NamedTuple):
    """The next offset to read; times are wall time."""

    offset: Annotated[int, Field(INT64)]
    leader_epoch: Annotated[int, Field(INT32, since=3)] = -1
    metadata: Annotated[str, Field(STRING)] = ""
    commit_timestamp_ms: Annotated[int, Field(INT64)] = -1
    expire_timestamp_ms: Annotated[int, Field(INT64, since=1, until=1)] = NO_EXPIRY


class GroupMetadataMember(NamedTuple):
    """A member of a generation; −1 as rebalance timeout (before version 1) stands for the session timeout."""

    member_id: Annotated[str, Field(STRING)]
    group_instance_id: Annotated[str | None, Field(STRING, since=3, nullable_since=3)] = None
    client_id: Annotated[str, Field(STRING)] = ""
    client_host: Annotated[str, Field(STRING)] = ""
    rebalance_timeout_ms: Annotated[int, Field(INT32, since=1)] = -1
    session_timeout_ms: Annotated[int, Field(INT32)] = 0
    subscription: Annotated[bytes, Field(BYTES)] = b""
    assignment: Annotated[bytes, Field(BYTES)] = b""


class GroupMetadataValue(NamedTuple):
    """One generation of a classic group; without members it is empty."""

    protocol_type: Annotated[str, Field(STRING)] = ""
    generation_id: Annotated[int, Field(INT32)] = 0
    protocol_name: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    group_leader_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    current_state_timestamp_ms: Annotated[int, Field(INT64, since=2)] = -1
    members: Annotated[tuple[GroupMetadataMember, ...], Field(ArrayOf(GroupMetadataMember))] = ()


# ---- values of the newer protocol


class ConsumerGroupMetadataValue(NamedTuple):
    """The group's epoch."""

    epoch: Annotated[int, Field(INT32)]


class PartitionRacks(NamedTuple):
    """Where the replicas of one partition stand."""

    partition: Annotated[int, Field(INT32)]
    racks: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()


class SubscribedTopic(NamedTuple):
    """A topic as it was when the target assignment was made; racks only where there are any."""

    topic_id: Annotated[TopicId, Field(UUID)]
    topic: Annotated[str, Field(STRING)]
    partition_count: Annotated[int, Field(INT32)]
    partitions: Annotated[tuple[PartitionRacks, ...], Field(ArrayOf(PartitionRacks))] = ()


class ConsumerGroupPartitionMetadataValue(NamedTuple):
    """All topics that the group reads."""

    topics: Annotated[tuple[SubscribedTopic, ...], Field(ArrayOf(SubscribedTopic))] = ()


class ClassicProtocol(NamedTuple):
    """An assignor of a member that speaks the classic protocol, and what it said in it."""

    name: Annotated[str, Field(STRING)]
    metadata: Annotated[bytes, Field(BYTES)] = b""


class ClassicMemberMetadata(NamedTuple):
    """What a member that speaks the classic protocol has besides."""

    session_timeout_ms: Annotated[int, Field(INT32)]
    supported_protocols: Annotated[tuple[ClassicProtocol, ...], Field(ArrayOf(ClassicProtocol))] = ()


class ConsumerGroupMemberMetadataValue(NamedTuple):
    """What a member said in its heartbeats."""

    instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    client_id: Annotated[str, Field(STRING)] = ""
    client_host: Annotated[str, Field(STRING)] = ""
    subscribed_topic_names: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    subscribed_topic_regex: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rebalance_timeout_ms: Annotated[int, Field(INT32)] = -1
    server_assignor: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Field(ClassicMemberMetadata, nullable_since=0, tag=0)] = None


class ConsumerGroupTargetAssignmentMetadataValue(NamedTuple):
    """The group epoch that the target assignment was made for."""

    assignment_epoch: Annotated[int, Field(INT32)]


class ConsumerGroupTargetAssignmentMemberValue(NamedTuple):
    """Partitions by topic id."""

    topic_partitions: Annotated[tuple[TopicIdPartitions, ...], Field(ArrayOf(TopicIdPartitions))] = ()


class ConsumerGroupCurrentMemberAssignmentValue(NamedTuple):
    """Partitions that the member has and those it is to give up; `state` is 0 stable, 1 unrevoked, 2 unreleased."""

    member_epoch: Annotated[int, Field(INT32)]
    previous_member_epoch: Annotated[int, Field(INT32)] = 0
    state: Annotated[int, Field(INT8)] = 0
    assigned_partitions: Annotated[tuple[TopicIdPartitions, ...], Field(ArrayOf(TopicIdPartitions))] = ()
    partitions_pending_revocation: Annotated[tuple[TopicIdPartitions, ...], Field(ArrayOf(TopicIdPartitions))] = ()


# ---- kinds


def _offset_version(value: OffsetCommitValue) -> int:
    return _WRITTEN_VERSION if value.expire_timestamp_ms == NO_EXPIRY else _EXPIRING_VERSION


def _group_version(_value: GroupMetadataValue) -> int:
    return _WRITTEN_VERSION


OFFSET_COMMIT: Final = StateFormat("OffsetCommit", 1, OffsetKey, OffsetCommitValue, value_version_max=4, flexible_since=4, version_of=_offset_version)
GROUP_METADATA: Final = StateFormat("GroupMetadata", 2, GroupMetadataKey, GroupMetadataValue, value_version_max=4, flexible_since=4, version_of=_group_version)
CONSUMER_GROUP_METADATA: Final = StateFormat("ConsumerGroupMetadata", 3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, flexible_since=0)
CONSUMER_GROUP_PARTITION_METADATA: Final = StateFormat(
    "ConsumerGroupPartitionMetadata", 4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, flexible_since=0
)
CONSUMER_GROUP_MEMBER_METADATA: Final = StateFormat(
    "ConsumerGroupMemberMetadata", 5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, flexible_since=0
)
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: Final = StateFormat(
    "ConsumerGroupTargetAssignmentMetadata", 6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, flexible_since=0
)
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: Final = StateFormat(
    "ConsumerGroupTargetAssignmentMember", 7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, flexible_since=0
)
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: Final = StateFormat(
    "ConsumerGroupCurrentMemberAssignment", 8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, flexible_since=0
)

FORMATS: Final[tuple[StateFormat[Any, Any], ...]] = (
    OFFSET_COMMIT,
    GROUP_METADATA,
    CONSUMER_GROUP_METADATA,
    CONSUMER_GROUP_PARTITION_METADATA,
    CONSUMER_GROUP_MEMBER_METADATA,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
)
_BY_KEY_VERSION: Final = {0: OFFSET_COMMIT, **{kind.key_version: kind for kind in FORMATS}}

GroupRecordKey: TypeAlias = (
    OffsetKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
)


def read_key(key: bytes) -> GroupRecordKey | None:
    """The key, whose class says of which kind the record is; None for kinds that we do not know. `UnreadableRecord` if it is malformed."""
    kind = _BY_KEY_VERSION.get(version_of(key))
    if kind is None:
        return None
    found: GroupRecordKey = kind.decode_key(key)
    return found


# ---- records of a group's state


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
