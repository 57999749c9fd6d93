"""Consumer groups from outside: which there are, who is in them, how far they have read, and setting that back. One thread, through a ClusterClient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import Offset, TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.coordinator import GROUP, ask_coordinator, ask_every_broker
from appliance.client.errors import refused
from appliance.client.member_assignment import read_assignment
from appliance.client.messages import CONSUMER_GROUP_DESCRIBE, DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS, OFFSET_COMMIT, OFFSET_FETCH

NEW_PROTOCOL = "consumer"
_NO_OFFSET = -1
_NO_GENERATION = -1


class ListedGroup(NamedTuple):
    """One group; `group_type` is "" where the broker is older than types."""

    group_id: str
    state: str
    group_type: str
    protocol_type: str
    coordinator: int


class GroupMember(NamedTuple):
    """Who reads what. `epoch` is a member's own in the new protocol, -1 in the old one."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]
    epoch: int = _NO_GENERATION


class DescribedGroup(NamedTuple):
    group_id: str
    state: str
    group_type: str
    assignor: str
    members: tuple[GroupMember, ...]


class CommittedOffset(NamedTuple):
    offset: Offset
    metadata: str


def list_groups(cluster: ClusterClient) -> list[ListedGroup]:
    """Of all brokers, by name."""
    doing = "list the groups"
    found = [
        ListedGroup(group.group_id, getattr(group, "group_state", ""), getattr(group, "group_type", "").lower(), group.protocol_type, broker)
        for broker, body in ask_every_broker(cluster, LIST_GROUPS, {}, doing).items()
        for group in body.groups
    ]
    return sorted(found)


def describe_group(cluster: ClusterClient, group_id: str) -> DescribedGroup:
    """`RequestRefused` (GROUP_ID_NOT_FOUND) for a group that nobody has heard of."""
    doing = f"describe group {group_id!r}"
    listed = next((group for group in list_groups(cluster) if group.group_id == group_id), None)
    if listed is None:
        raise refused(ErrorCode.GROUP_ID_NOT_FOUND, doing)
    if listed.group_type == NEW_PROTOCOL:
        return _describe_new(cluster, group_id, doing)
    body = ask_coordinator(
        cluster,
        GROUP,
        group_id,
        DESCRIBE_GROUPS,
        {"groups": [group_id], "include_authorized_operations": False},
        doing,
        lambda body: (int(body.groups[0].error_code), None),
    )
    group = body.groups[0]
    members = tuple(
        GroupMember(
            member.member_id,
            getattr(member, "group_instance_id", None),
            member.client_id,
            member.client_host,
            read_assignment(bytes(member.member_assignment)) if group.protocol_type == "consumer" else (),
        )
        for member in group.members
    )
    return DescribedGroup(group_id, group.group_state, "classic", group.protocol_data, members)


def _describe_new(cluster: ClusterClient, group_id: str, doing: str) -> DescribedGroup:
    body = ask_coordinator(
        cluster,
        GROUP,
        group_id,
        CONSUMER_GROUP_DESCRIBE,
        {"group_ids": [group_id], "include_authorized_operations": False},
        doing,
        lambda body: (int(body.groups[0].error_code), body.groups[0].error_message),
    )
    group = body.groups[0]
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(sorted(TopicPartition(str(owned.topic_name), int(number)) for owned in member.assignment.topic_partitions for number in owned.partitions)),
            int(member.member_epoch),
        )
        for member in group.members
    )
    return DescribedGroup(group_id, group.group_state, NEW_PROTOCOL, group.assignor_name, members)


def committed_offsets(cluster: ClusterClient, group_id: str, *, require_stable: bool = False) -> dict[TopicPartition, CommittedOffset]:
    """Of every partition that the group has one for. With `require_stable` after the end of transactions that commit for the group (KIP-447), and whatever
    restarts meanwhile."""
    doing = f"read the offsets of group {group_id!r}"
    values = {"groups": [{"group_id": group_id, "topics": None}], "require_stable": require_stable}

    def error_of(body: Any) -> tuple[int, str | None]:
        codes = [int(body.groups[0].error_code)]
        codes += [int(partition.error_code) for topic in body.groups[0].topics for partition in topic.partitions]
        return next((code for code in codes if code == ErrorCode.UNSTABLE_OFFSET_COMMIT), codes[0]), None

    body = ask_coordinator(cluster, GROUP, group_id, OFFSET_FETCH, values, doing, error_of, asks_again=require_stable)
    return {
        TopicPartition(str(topic.name), int(partition.partition_index)): CommittedOffset(Offset(int(partition.committed_offset)), partition.metadata or "")
        for topic in body.groups[0].topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE and partition.committed_offset != _NO_OFFSET
    }


def set_offsets(cluster: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit for a group that has no members; all, or `RequestRefused` that names the first that was refused."""
    doing = f"set the offsets of group {group_id!r}"
    by_topic: dict[str, list[dict[str, object]]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append({"partition_index": partition, "committed_offset": offset, "committed_metadata": ""})
    values = {
        "group_id": group_id,
        "generation_id_or_member_epoch": _NO_GENERATION,
        "member_id": "",
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()],
    }

    def error_of(body: object) -> tuple[int, str | None]:
        codes = [int(partition.error_code) for topic in body.topics for partition in topic.partitions]  # type: ignore[attr-defined]
        return next((code for code in codes if code), 0), None

    ask_coordinator(cluster, GROUP, group_id, OFFSET_COMMIT, values, doing, error_of)


def delete_group(cluster: ClusterClient, group_id: str) -> None:
    """The group and its offsets; refused while it has members."""
    doing = f"delete group {group_id!r}"
    ask_coordinator(cluster, GROUP, group_id, DELETE_GROUPS, {"groups_names": [group_id]}, doing, lambda body: (int(body.results[0].error_code), None))


def require_no_members(group: DescribedGroup) -> None:
    """`RequestRefused` while somebody reads: he would go on from where he is, and commit that."""
    if group.members:
        words = f"group {group.group_id!r} has {len(group.members)} members; stop them first, they would commit over it"
        raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, words)
