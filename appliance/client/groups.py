"""Administration of consumer groups: list, describe, read and set committed offsets, delete. One thread, through a ClusterClient."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import Offset, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.coordinator import GROUP, CoordinatorClient, ask_every_broker, by_topic, first_error
from appliance.client.errors import refused
from appliance.client.messages import CONSUMER_GROUP_DESCRIBE, DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS, OFFSET_COMMIT, OFFSET_FETCH
from appliance.protocol.consumer_group_apis import ConsumerGroupDescribeRequest, ConsumerGroupMember
from appliance.protocol.group_apis import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from appliance.protocol.group_offset_apis import (
    NO_OFFSET,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

NEW_PROTOCOL = "consumer"
_NO_GENERATION = -1


class GroupListing(NamedTuple):
    """One group; `group_type` is "" where the broker is older than types."""

    group_id: str
    state: str
    group_type: str
    protocol_type: str
    coordinator: int


class GroupMember(NamedTuple):
    """A member and its partitions. `epoch`: the member epoch in the consumer protocol, -1 in the classic one."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]
    epoch: int = _NO_GENERATION


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    group_type: str
    assignor: str
    members: tuple[GroupMember, ...]


class CommittedOffset(NamedTuple):
    offset: Offset
    metadata: str


def list_groups(cluster: ClusterClient) -> list[GroupListing]:
    """List the groups of all brokers, by name."""
    answers = ask_every_broker(cluster, LIST_GROUPS, ListGroupsRequest(), "list the groups")
    return sorted(
        GroupListing(group.group_id, group.group_state, group.group_type.lower(), group.protocol_type, broker)
        for broker, body in answers.items()
        for group in body.groups
    )


def describe_group(cluster: ClusterClient, group_id: str) -> GroupDescription:
    """Describe one group. Raises `RequestRefused` (GROUP_ID_NOT_FOUND) if no broker has it."""
    doing = f"describe group {group_id!r}"
    listed = next((group for group in list_groups(cluster) if group.group_id == group_id), None)
    if listed is None:
        raise refused(ErrorCode.GROUP_ID_NOT_FOUND, doing)
    coordinator = CoordinatorClient(cluster, GROUP, group_id)
    if listed.group_type == NEW_PROTOCOL:
        described = coordinator.ask(
            CONSUMER_GROUP_DESCRIBE,
            ConsumerGroupDescribeRequest((group_id,)),
            doing,
            lambda body: (body.groups[0].error_code, body.groups[0].error_message),
        )
        group = described.groups[0]
        return GroupDescription(group_id, group.group_state, NEW_PROTOCOL, group.assignor_name, tuple(map(_consumer_member, group.members)))
    body = coordinator.ask(DESCRIBE_GROUPS, DescribeGroupsRequest((group_id,)), doing, lambda body: (body.groups[0].error_code, None))
    classic = body.groups[0]
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            read_assignment(member.assignment) if classic.protocol_type == "consumer" else (),
        )
        for member in classic.members
    )
    return GroupDescription(group_id, classic.group_state, "classic", classic.protocol_name, members)


def _consumer_member(member: ConsumerGroupMember) -> GroupMember:
    assigned = (TopicPartition(topic.topic, partition) for topic in member.assignment.topic_partitions for partition in topic.partitions)
    return GroupMember(member.member_id, member.instance_id, member.client_id, member.client_host, tuple(sorted(assigned)), member.member_epoch)


def committed_offsets(cluster: ClusterClient, group_id: str, *, require_stable: bool = False) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offset of each partition that has one.

    With `require_stable` the call waits for the end of transactions that commit offsets of the group (KIP-447), and retries after lost connections."""

    def error_of(body: OffsetFetchResponse) -> tuple[int, str | None]:
        codes = [body.groups[0].error_code]
        codes += [partition.error_code for topic in body.groups[0].topics for partition in topic.partitions]
        return next((code for code in codes if code == ErrorCode.UNSTABLE_OFFSET_COMMIT), codes[0]), None

    request = OffsetFetchRequest((OffsetFetchGroup(group_id),), require_stable)
    coordinator = CoordinatorClient(cluster, GROUP, group_id, asks_again=require_stable)
    body = coordinator.ask(OFFSET_FETCH, request, f"read the offsets of group {group_id!r}", error_of)
    return {
        TopicPartition(topic.topic, partition.partition): CommittedOffset(Offset(partition.offset), partition.metadata or "")
        for topic in body.groups[0].topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE and partition.offset != NO_OFFSET
    }


def set_offsets(cluster: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group that has no members. Raises `RequestRefused` for the first partition that is refused."""
    topics = by_topic((topic, OffsetCommitPartition(partition, offset, metadata="")) for (topic, partition), offset in sorted(offsets.items()))
    request = OffsetCommitRequest(group_id, topics=tuple(OffsetCommitTopic(*topic) for topic in topics))
    CoordinatorClient(cluster, GROUP, group_id).ask(OFFSET_COMMIT, request, f"set the offsets of group {group_id!r}", first_error)


def delete_group(cluster: ClusterClient, group_id: str) -> None:
    """Delete the group and its offsets; refused while it has members."""
    coordinator = CoordinatorClient(cluster, GROUP, group_id)
    coordinator.ask(DELETE_GROUPS, DeleteGroupsRequest((group_id,)), f"delete group {group_id!r}", lambda body: (body.groups[0].error_code, None))


def require_no_members(group: GroupDescription) -> None:
    """Raise `RequestRefused` if the group has members: they would continue at their own positions and overwrite new offsets."""
    if group.members:
        words = f"group {group.group_id!r} has {len(group.members)} members; stop them first, they would commit over it"
        raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, words)


# ---- a consumer's assignment (Kafka's ConsumerProtocolAssignment); what cannot be read is shown as none


_HEAD = Struct(">hi")
_LENGTH = Struct(">h")
_COUNT = Struct(">i")


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Sorted; nothing for an empty or foreign assignment."""
    found: list[TopicPartition] = []
    try:
        _version, topics = _HEAD.unpack_from(data)
        position = _HEAD.size
        for _ in range(topics):
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            if length < 0:  # it would lead back to where we were
                return ()
            topic = data[position : position + length].decode()
            position += length
            (count,) = _COUNT.unpack_from(data, position)
            position += _COUNT.size
            if count < 0:
                return ()
            numbers = Struct(f">{count}i")
            found += (TopicPartition(topic, number) for number in numbers.unpack_from(data, position))
            position += numbers.size
    except (StructError, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))
