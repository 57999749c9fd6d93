"""Administration of consumer groups: list, describe, read and set committed offsets, delete. One thread, through a ClusterClient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, BrokerId, Offset, TopicPartition
from appliance.client.admin import ADMIN_TIMEOUT_MS, altered_configs, describe_configs, list_offsets, try_list_offsets
from appliance.client.cluster import ClusterClient
from appliance.client.coordinator import GROUP, CoordinatorClient, ask_every_broker, by_topic, first_error
from appliance.client.errors import ClientFailed, refused
from appliance.client.messages import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SHARE_GROUP_DESCRIBE,
    STREAMS_GROUP_DESCRIBE,
)
from appliance.protocol.config_apis import DescribedConfig, ResourceToDescribe, ResourceType
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
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.protocol.share_apis import DescribeShareGroupOffsetsRequest, ShareGroupDescribeRequest, ShareOffsetsGroup
from appliance.protocol.streams_apis import StreamsGroupDescribeRequest, StreamsGroupMember

NEW_PROTOCOL = "consumer"
MIRROR_PREFIX = "millrace-mirror."
"""Groups and transactional ids of mirrors begin so. Their offsets are positions in the source, and no lag follows from them."""
SHARE_PROTOCOL = "share"
STREAMS_PROTOCOL = "streams"
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
    if listed.group_type == SHARE_PROTOCOL:
        return _described_shares(coordinator, group_id, doing)
    if listed.group_type == STREAMS_PROTOCOL:
        return _described_streams(coordinator, group_id, doing)
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


def _described_shares(coordinator: CoordinatorClient, group_id: str, doing: str) -> GroupDescription:
    request = ShareGroupDescribeRequest((group_id,))
    described = coordinator.ask(SHARE_GROUP_DESCRIBE, request, doing, lambda body: (body.groups[0].error_code, body.groups[0].error_message))
    group = described.groups[0]
    members = tuple(
        GroupMember(
            member.member_id,
            None,
            member.client_id,
            member.client_host,
            tuple(sorted(TopicPartition(topic.topic, partition) for topic in member.assignment.topic_partitions for partition in topic.partitions)),
            member.member_epoch,
        )
        for member in group.members
    )
    return GroupDescription(group_id, group.group_state, SHARE_PROTOCOL, group.assignor_name, members)


def _described_streams(coordinator: CoordinatorClient, group_id: str, doing: str) -> GroupDescription:
    """A member's partitions are those that its active tasks read."""
    request = StreamsGroupDescribeRequest((group_id,))
    described = coordinator.ask(STREAMS_GROUP_DESCRIBE, request, doing, lambda body: (body.groups[0].error_code, body.groups[0].error_message))
    group = described.groups[0]
    subtopologies = group.topology.subtopologies or () if group.topology is not None else ()
    read = {each.subtopology_id: (*each.source_topics, *(info.name for info in each.repartition_source_topics)) for each in subtopologies}

    def partitions(member: StreamsGroupMember) -> tuple[TopicPartition, ...]:
        tasks = member.assignment.active_tasks
        return tuple(sorted(TopicPartition(name, partition) for task in tasks for name in read.get(task.subtopology_id, ()) for partition in task.partitions))

    members = tuple(
        GroupMember(member.member_id, member.instance_id, member.client_id, member.client_host, partitions(member), member.member_epoch)
        for member in group.members
    )
    return GroupDescription(group_id, group.group_state, STREAMS_PROTOCOL, "sticky", members)


def _share_progress(cluster: ClusterClient, group_id: str, described: GroupDescription) -> list[dict[str, Any]]:
    """As `group_progress`. What is committed is the share-partition start offset; the coordinator knows the lag, and a partition may have several members."""
    request = DescribeShareGroupOffsetsRequest((ShareOffsetsGroup(group_id),))
    coordinator = CoordinatorClient(cluster, GROUP, group_id)
    doing = f"read the offsets of group {group_id!r}"
    body = coordinator.ask(DESCRIBE_SHARE_GROUP_OFFSETS, request, doing, lambda body: (body.groups[0].error_code, body.groups[0].error_message))
    found = {TopicPartition(topic.topic, each.partition): each for topic in body.groups[0].topics for each in topic.partitions if each.error_code == 0}
    ends, _trouble = try_list_offsets(cluster, _existing(cluster, found), LATEST_TIMESTAMP)
    rows = []
    for partition, each in sorted(found.items()):
        readers = [member for member in described.members if partition in member.partitions]
        rows.append(
            {
                "group": group_id,
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": each.start_offset if each.start_offset >= 0 else None,
                "end_offset": ends[partition].offset if partition in ends else None,
                "lag": each.lag if each.lag >= 0 else None,
                "member": ", ".join(member.member_id for member in readers) or None,
                "host": ", ".join(dict.fromkeys(member.client_host for member in readers)) or None,
            }
        )
    return rows


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


def group_settings(cluster: ClusterClient, group_id: str) -> list[DescribedConfig]:
    """Return each setting of a group as it holds now, and where its value comes from. Any broker knows them."""
    brokers = cluster.metadata([]).brokers
    return describe_configs(
        cluster, min(brokers, default=NO_LEADER), ResourceToDescribe(ResourceType.GROUP, group_id), f"read the settings of group {group_id!r}"
    )


def alter_group_settings(cluster: ClusterClient, group_id: str, values: Mapping[str, str], unset: Iterable[str]) -> None:
    """Set some settings of a group, which need not exist, and take others back to their default: all or none. Raises RequestRefused."""
    request = altered_configs(ResourceType.GROUP, group_id, values, unset)
    for result in cluster.ask_controller(INCREMENTAL_ALTER_CONFIGS, request, ADMIN_TIMEOUT_MS + 5_000).responses:
        if result.error_code != ErrorCode.NONE:
            raise refused(result.error_code, f"alter group {group_id!r}", result.error_message)


def delete_group(cluster: ClusterClient, group_id: str) -> None:
    """Delete the group and its offsets; refused while it has members."""
    coordinator = CoordinatorClient(cluster, GROUP, group_id)
    coordinator.ask(DELETE_GROUPS, DeleteGroupsRequest((group_id,)), f"delete group {group_id!r}", lambda body: (body.groups[0].error_code, None))


def group_progress(cluster: ClusterClient, group_id: str, described: GroupDescription) -> list[dict[str, Any]]:
    """A row for each partition that the group has an offset of, or a member for. `lag` is None where either end is not known."""
    if described.group_type == SHARE_PROTOCOL:
        return _share_progress(cluster, group_id, described)
    readers = {partition: member for member in described.members for partition in member.partitions}
    committed = committed_offsets(cluster, group_id)
    partitions = sorted(readers.keys() | committed.keys())
    ends, _trouble = try_list_offsets(cluster, _existing(cluster, partitions), LATEST_TIMESTAMP)
    rows = []
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        end = ends[partition].offset if partition in ends else None
        reader = readers.get(partition)
        rows.append(
            {
                "group": group_id,
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None or group_id.startswith(MIRROR_PREFIX) else max(0, end - offset),
                "member": reader.member_id if reader is not None else None,
                "host": reader.client_host if reader is not None else None,
            }
        )
    return rows


def group_lags(cluster: ClusterClient, groups: Iterable[GroupListing]) -> dict[str, int | None]:
    """Return the records that each group but share groups has still to read, in all; None where its coordinator does not
    answer, or no partition's end is known. One request to each coordinator, and to each leader."""
    by_coordinator: dict[int, list[str]] = {}
    for group in groups:
        if group.group_type == SHARE_PROTOCOL:
            continue
        by_coordinator.setdefault(group.coordinator, []).append(group.group_id)
    committed: dict[str, dict[TopicPartition, int]] = {}
    for coordinator, names in by_coordinator.items():
        request = OffsetFetchRequest(tuple(map(OffsetFetchGroup, names)))
        with suppress(ClientFailed, RequestRefused):
            for found in cluster.ask_broker(BrokerId(coordinator), OFFSET_FETCH, request).groups:
                if found.error_code == ErrorCode.NONE:
                    committed[found.group_id] = {
                        TopicPartition(topic.topic, each.partition): each.offset
                        for topic in found.topics
                        for each in topic.partitions
                        if each.error_code == ErrorCode.NONE and each.offset != NO_OFFSET
                    }
    partitions = {partition for offsets in committed.values() for partition in offsets}
    ends, _ = try_list_offsets(cluster, _existing(cluster, partitions), LATEST_TIMESTAMP)
    lags: dict[str, int | None] = {}
    for name, offsets in committed.items():
        if name.startswith(MIRROR_PREFIX):
            lags[name] = None
            continue
        known = [max(ends[partition].offset - offset, 0) for partition, offset in offsets.items() if partition in ends]
        lags[name] = sum(known) if known or not offsets else None
    return lags


def _existing(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return those partitions whose topics are there."""
    wanted = sorted(partitions)
    there = cluster.metadata({partition.topic for partition in wanted}).topics if wanted else {}
    counts = {name: len(topic.partitions) for name, topic in there.items() if topic.error == ErrorCode.NONE}
    return [partition for partition in wanted if partition.partition < counts.get(partition.topic, 0)]


class ResetTo(NamedTuple):
    """Where a group goes on: `way` is earliest, latest, time (`value` in ms), offset, or shift (so many
    records on, or back)."""

    way: str
    value: int = 0


class PlannedReset(NamedTuple):
    """One partition: what is committed now (None: nothing), what would be, and its high watermark."""

    committed: int | None
    target: int
    end: int


def group_or_new(cluster: ClusterClient, group_id: str) -> GroupDescription:
    """Describe a group. An unknown one has no members; it starts with the offsets that are set."""
    try:
        return describe_group(cluster, group_id)
    except RequestRefused as refusal:
        if refusal.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return GroupDescription(group_id, "", "", "", ())


def partitions_to_reset(
    cluster: ClusterClient, wanted: Iterable[tuple[str, tuple[int, ...]]], committed: Mapping[TopicPartition, CommittedOffset]
) -> list[TopicPartition]:
    """Return the partitions of `wanted` (topic, numbers; no numbers: all of them), or if it is empty
    those that have an offset. Raises RequestRefused."""
    chosen: set[TopicPartition] = set()
    for topic, numbers in wanted:
        there = {partition.partition for partition in cluster.topic(topic).partitions}
        if missing := sorted(set(numbers) - there):
            words = f"topic {topic} has no partition {missing[0]}; it has {len(there)}, counted from 0"
            raise RequestRefused(ErrorCode.INVALID_PARTITIONS, words)
        chosen |= {TopicPartition(topic, number) for number in numbers or there}
    return sorted(chosen or committed)


def plan_reset(
    cluster: ClusterClient, to: ResetTo, partitions: list[TopicPartition], committed: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, PlannedReset]:
    """Return where each partition would be; always between its ends. Raises RequestRefused."""
    starts, ends = (list_offsets(cluster, partitions, timestamp) for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
    at_time = list_offsets(cluster, partitions, to.value) if to.way == "time" else {}
    if to.way == "shift" and (missing := [each for each in partitions if each not in committed]):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"the group has no offset of {missing[0]} to go on from")
    planned = {}
    for each in partitions:
        start, end, now = int(starts[each].offset), int(ends[each].offset), committed.get(each)
        match to.way:
            case "earliest":
                target = start
            case "latest":
                target = end
            case "time":  # -1: no record is that late
                target = at_time[each].offset if at_time[each].offset >= 0 else end
            case "shift":
                target = (now.offset if now is not None else 0) + to.value
            case _:
                target = to.value
        planned[each] = PlannedReset(None if now is None else int(now.offset), min(max(target, start), end), end)
    return planned


def require_no_members(group: GroupDescription) -> None:
    """Raise `RequestRefused` if the group has members: they would continue at their own positions and overwrite new offsets;
    also for a share group, which has no offsets of this kind."""
    if group.group_type == SHARE_PROTOCOL:
        words = f"group {group.group_id} is a share group: kafka-share-groups.sh --reset-offsets sets where it goes on, this does not"
        raise RequestRefused(ErrorCode.INVALID_REQUEST, words)
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
