"""APIs of share groups (KIP-932): messages as data.

ShareGroupHeartbeat 1 is the protocol of a member, ShareGroupDescribe 1 returns state and members.
ShareFetch and ShareAcknowledge 1-2 work within a share session; their version 2 renews acquisition
locks. Describe-, Alter- and DeleteShareGroupOffsets are for administrators. kio knows every version.
"""

from typing import Annotated, Any, Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.cluster_apis import OPERATIONS_NOT_ASKED
from appliance.protocol.consumer_group_apis import ConsumerAssignment, MemberAssignment
from appliance.protocol.schema import BOOL, BYTES, INT8, INT16, INT32, INT64, STRING, UUID, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicIdPartitions

INT32_MAX: Final = (1 << 31) - 1


class ShareGroupHeartbeatRequest(NamedTuple):
    """A member, its epoch, and its subscription if that changed."""

    group_id: Annotated[str, Field(STRING)] = ""
    member_id: Annotated[str, Field(STRING)] = ""
    member_epoch: Annotated[int, Field(INT32)] = 0
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    subscribed_topic_names: Annotated[tuple[str, ...] | None, Field(ArrayOf(STRING), nullable_since=0)] = None


class ShareGroupHeartbeatResponse(NamedTuple):
    """The member's epoch, its heartbeat interval, and its assignment if that changed."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_epoch: Annotated[int, Field(INT32)] = 0
    heartbeat_interval_ms: Annotated[int, Field(INT32)] = 0
    assignment: Annotated[MemberAssignment | None, Field(MemberAssignment, nullable_since=0)] = None


class ShareGroupDescribeRequest(NamedTuple):
    """Groups by their ids."""

    group_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    include_authorized_operations: Annotated[bool, Field(BOOL)] = False


class ShareGroupMember(NamedTuple):
    """One member and its assignment."""

    member_id: Annotated[str, Field(STRING)]
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_epoch: Annotated[int, Field(INT32)] = 0
    client_id: Annotated[str, Field(STRING)] = ""
    client_host: Annotated[str, Field(STRING)] = ""
    subscribed_topic_names: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    assignment: Annotated[ConsumerAssignment, Field(ConsumerAssignment)] = ConsumerAssignment()


class DescribedShareGroup(NamedTuple):
    """One group, or an error."""

    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    group_id: Annotated[str, Field(STRING)] = ""
    group_state: Annotated[str, Field(STRING)] = ""
    group_epoch: Annotated[int, Field(INT32)] = 0
    assignment_epoch: Annotated[int, Field(INT32)] = 0
    assignor_name: Annotated[str, Field(STRING)] = ""
    members: Annotated[tuple[ShareGroupMember, ...], Field(ArrayOf(ShareGroupMember))] = ()
    authorized_operations: Annotated[int, Field(INT32)] = OPERATIONS_NOT_ASKED


class ShareGroupDescribeResponse(NamedTuple):
    """Groups in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    groups: Annotated[tuple[DescribedShareGroup, ...], Field(ArrayOf(DescribedShareGroup))] = ()


# -- fetch and acknowledge, within a share session


class AcknowledgementBatch(NamedTuple):
    """Offsets and what became of them: one type for each, or one for all (`AcknowledgeType`)."""

    first_offset: Annotated[int, Field(INT64)]
    last_offset: Annotated[int, Field(INT64)]
    acknowledge_types: Annotated[tuple[int, ...], Field(ArrayOf(INT8))] = ()


class SharePartitionRequest(NamedTuple):
    """One partition and the acknowledgements for it."""

    partition: Annotated[int, Field(INT32)]
    batches: Annotated[tuple[AcknowledgementBatch, ...], Field(ArrayOf(AcknowledgementBatch))] = ()


class ShareTopicRequest(NamedTuple):
    """Partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[SharePartitionRequest, ...], Field(ArrayOf(SharePartitionRequest))] = ()


class ShareFetchRequest(NamedTuple):
    """Partitions that join the session, with acknowledgements, and partitions that leave it."""

    group_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    session_epoch: Annotated[int, Field(INT32)] = 0
    max_wait_ms: Annotated[int, Field(INT32)] = 0
    min_bytes: Annotated[int, Field(INT32)] = 0
    max_bytes: Annotated[int, Field(INT32)] = INT32_MAX
    max_records: Annotated[int, Field(INT32)] = 0
    batch_size: Annotated[int, Field(INT32)] = 0
    acquire_mode: Annotated[int, Field(INT8, since=2)] = 0
    is_renew_ack: Annotated[bool, Field(BOOL, since=2)] = False
    topics: Annotated[tuple[ShareTopicRequest, ...], Field(ArrayOf(ShareTopicRequest))] = ()
    forgotten: Annotated[tuple[TopicIdPartitions, ...], Field(ArrayOf(TopicIdPartitions))] = ()


class ShareLeader(NamedTuple):
    """The leader, where the request came to another broker."""

    leader_id: Annotated[int, Field(INT32)] = 0
    leader_epoch: Annotated[int, Field(INT32)] = 0


class ShareEndpoint(NamedTuple):
    """The address of a leader that is named in the response."""

    node_id: Annotated[int, Field(INT32)]
    host: Annotated[str, Field(STRING)]
    port: Annotated[int, Field(INT32)]
    rack: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class AcquiredRecords(NamedTuple):
    """Offsets that are the member's now, and how often they were delivered, this time included."""

    first_offset: Annotated[int, Field(INT64)]
    last_offset: Annotated[int, Field(INT64)]
    delivery_count: Annotated[int, Field(INT16)]


class SharePartitionResponse(NamedTuple):
    """Whole batches; of their records those in `acquired` are the member's."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    acknowledge_error_code: Annotated[int, Field(INT16)] = 0
    acknowledge_error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    current_leader: Annotated[ShareLeader, Field(ShareLeader)] = ShareLeader()
    records: Annotated[bytes, Field(BYTES)] = b""
    acquired: Annotated[tuple[AcquiredRecords, ...], Field(ArrayOf(AcquiredRecords))] = ()


class ShareTopicResponse(NamedTuple):
    """Partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[SharePartitionResponse, ...], Field(ArrayOf(SharePartitionResponse))] = ()


class ShareFetchResponse(NamedTuple):
    """Only partitions that have something to report."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    acquisition_lock_timeout_ms: Annotated[int, Field(INT32)] = 0
    topics: Annotated[tuple[ShareTopicResponse, ...], Field(ArrayOf(ShareTopicResponse))] = ()
    node_endpoints: Annotated[tuple[ShareEndpoint, ...], Field(ArrayOf(ShareEndpoint))] = ()


class ShareAcknowledgeRequest(NamedTuple):
    """Acknowledgements without a fetch."""

    group_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    session_epoch: Annotated[int, Field(INT32)] = 0
    is_renew_ack: Annotated[bool, Field(BOOL, since=2)] = False
    topics: Annotated[tuple[ShareTopicRequest, ...], Field(ArrayOf(ShareTopicRequest))] = ()


class AcknowledgedPartition(NamedTuple):
    """The result of the acknowledgements of one partition."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    current_leader: Annotated[ShareLeader, Field(ShareLeader)] = ShareLeader()


class AcknowledgedTopic(NamedTuple):
    """Partitions of one topic."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[AcknowledgedPartition, ...], Field(ArrayOf(AcknowledgedPartition))] = ()


class ShareAcknowledgeResponse(NamedTuple):
    """Partitions in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    acquisition_lock_timeout_ms: Annotated[int, Field(INT32, since=2)] = 0
    topics: Annotated[tuple[AcknowledgedTopic, ...], Field(ArrayOf(AcknowledgedTopic))] = ()
    node_endpoints: Annotated[tuple[ShareEndpoint, ...], Field(ArrayOf(ShareEndpoint))] = ()


# -- offsets, for administrators


class NamedPartitions(NamedTuple):
    """Some partitions of a topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class ShareOffsetsGroup(NamedTuple):
    """A group and the partitions whose start offsets are wanted; None: all."""

    group_id: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[NamedPartitions, ...] | None, Field(ArrayOf(NamedPartitions), nullable_since=0)] = None


class DescribeShareGroupOffsetsRequest(NamedTuple):
    """Several groups."""

    groups: Annotated[tuple[ShareOffsetsGroup, ...], Field(ArrayOf(ShareOffsetsGroup))] = ()


class ShareOffsetsPartition(NamedTuple):
    """The share-partition start offset (-1: not known), and how many records behind it are not done (-1: not known)."""

    partition: Annotated[int, Field(INT32)]
    start_offset: Annotated[int, Field(INT64)] = -1
    leader_epoch: Annotated[int, Field(INT32)] = 0
    lag: Annotated[int, Field(INT64, since=1)] = -1
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class ShareOffsetsTopic(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[ShareOffsetsPartition, ...], Field(ArrayOf(ShareOffsetsPartition))] = ()


class DescribedShareOffsets(NamedTuple):
    """Offsets of one group, or an error."""

    group_id: Annotated[str, Field(STRING)]
    topics: Annotated[tuple[ShareOffsetsTopic, ...], Field(ArrayOf(ShareOffsetsTopic))] = ()
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class DescribeShareGroupOffsetsResponse(NamedTuple):
    """Groups in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    groups: Annotated[tuple[DescribedShareOffsets, ...], Field(ArrayOf(DescribedShareOffsets))] = ()


class NewStartOffset(NamedTuple):
    """Where delivery begins again in one partition."""

    partition: Annotated[int, Field(INT32)]
    start_offset: Annotated[int, Field(INT64)]


class NewStartOffsets(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[NewStartOffset, ...], Field(ArrayOf(NewStartOffset))] = ()


class AlterShareGroupOffsetsRequest(NamedTuple):
    """New start offsets of an empty group."""

    group_id: Annotated[str, Field(STRING)] = ""
    topics: Annotated[tuple[NewStartOffsets, ...], Field(ArrayOf(NewStartOffsets))] = ()


class AlteredShareOffset(NamedTuple):
    """The result for one partition."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class AlteredShareOffsets(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[AlteredShareOffset, ...], Field(ArrayOf(AlteredShareOffset))] = ()


class AlterShareGroupOffsetsResponse(NamedTuple):
    """Topics in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    topics: Annotated[tuple[AlteredShareOffsets, ...], Field(ArrayOf(AlteredShareOffsets))] = ()


class TopicName(NamedTuple):
    """A topic."""

    topic: Annotated[str, Field(STRING)]


class DeleteShareGroupOffsetsRequest(NamedTuple):
    """Topics that an empty group is to forget."""

    group_id: Annotated[str, Field(STRING)] = ""
    topics: Annotated[tuple[TopicName, ...], Field(ArrayOf(TopicName))] = ()


class DeletedShareOffsets(NamedTuple):
    """The result for one topic."""

    topic: Annotated[str, Field(STRING)]
    topic_id: Annotated[TopicId, Field(UUID)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class DeleteShareGroupOffsetsResponse(NamedTuple):
    """Topics in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    topics: Annotated[tuple[DeletedShareOffsets, ...], Field(ArrayOf(DeletedShareOffsets))] = ()


def _lost_session(response: type[Any]) -> Any:
    """With a coordinator that is away its sessions are lost: the code makes a client open a new one, where COORDINATOR_NOT_AVAILABLE would not."""

    def error(_version: int, _request: Any, code: int, text: str | None) -> Any:
        lost = code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        return response(error_code=ErrorCode.SHARE_SESSION_NOT_FOUND if lost else code, error_message=text)

    return error


SHARE_GROUP_HEARTBEAT_REQUEST: Final = Message(ApiKey.SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat request", ShareGroupHeartbeatRequest)
SHARE_GROUP_HEARTBEAT_RESPONSE: Final = Message(ApiKey.SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat response", ShareGroupHeartbeatResponse)
SHARE_GROUP_DESCRIBE_REQUEST: Final = Message(ApiKey.SHARE_GROUP_DESCRIBE, "ShareGroupDescribe request", ShareGroupDescribeRequest)
SHARE_GROUP_DESCRIBE_RESPONSE: Final = Message(
    ApiKey.SHARE_GROUP_DESCRIBE,
    "ShareGroupDescribe response",
    ShareGroupDescribeResponse,
    error=lambda _version, request, code, text: ShareGroupDescribeResponse(
        0, tuple(DescribedShareGroup(code, text, group_id) for group_id in request.group_ids)
    ),
)
SHARE_FETCH_REQUEST: Final = Message(ApiKey.SHARE_FETCH, "ShareFetch request", ShareFetchRequest)
SHARE_FETCH_RESPONSE: Final = Message(ApiKey.SHARE_FETCH, "ShareFetch response", ShareFetchResponse, error=_lost_session(ShareFetchResponse))
SHARE_ACKNOWLEDGE_REQUEST: Final = Message(ApiKey.SHARE_ACKNOWLEDGE, "ShareAcknowledge request", ShareAcknowledgeRequest)
SHARE_ACKNOWLEDGE_RESPONSE: Final = Message(
    ApiKey.SHARE_ACKNOWLEDGE, "ShareAcknowledge response", ShareAcknowledgeResponse, error=_lost_session(ShareAcknowledgeResponse)
)
DESCRIBE_SHARE_GROUP_OFFSETS_REQUEST: Final = Message(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsets request", DescribeShareGroupOffsetsRequest
)
DESCRIBE_SHARE_GROUP_OFFSETS_RESPONSE: Final = Message(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    "DescribeShareGroupOffsets response",
    DescribeShareGroupOffsetsResponse,
    error=lambda _version, request, code, text: DescribeShareGroupOffsetsResponse(
        0, tuple(DescribedShareOffsets(group.group_id, (), code, text) for group in request.groups)
    ),
)
ALTER_SHARE_GROUP_OFFSETS_REQUEST: Final = Message(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsets request", AlterShareGroupOffsetsRequest)
ALTER_SHARE_GROUP_OFFSETS_RESPONSE: Final = Message(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsets response", AlterShareGroupOffsetsResponse)
DELETE_SHARE_GROUP_OFFSETS_REQUEST: Final = Message(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsets request", DeleteShareGroupOffsetsRequest)
DELETE_SHARE_GROUP_OFFSETS_RESPONSE: Final = Message(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsets response", DeleteShareGroupOffsetsResponse)
