"""APIs of the newer group protocol (KIP-848): messages as data.

ConsumerGroupHeartbeat 0-1 is the whole protocol of a member in one request; a null field means that
it has not changed since the last request. ConsumerGroupDescribe 0-1 returns state and members.
kio knows every version.
"""

from typing import Annotated, Final, NamedTuple

from appliance.base.model import TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.cluster_apis import OPERATIONS_NOT_ASKED
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, UUID, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicIdPartitions

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
"""Member epochs with a meaning: join, leave, and a static member leaves but will return."""


class ConsumerGroupHeartbeatRequest(NamedTuple):
    """A member, its epoch, its subscription (if that changed) and the partitions it owns."""

    group_id: Annotated[str, Field(STRING)] = ""
    member_id: Annotated[str, Field(STRING)] = ""
    member_epoch: Annotated[int, Field(INT32)] = JOIN
    instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rebalance_timeout_ms: Annotated[int, Field(INT32)] = -1
    subscribed_topic_names: Annotated[tuple[str, ...] | None, Field(ArrayOf(STRING), nullable_since=0)] = None
    subscribed_topic_regex: Annotated[str | None, Field(STRING, since=1, nullable_since=1)] = None
    server_assignor: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    topic_partitions: Annotated[tuple[TopicIdPartitions, ...] | None, Field(ArrayOf(TopicIdPartitions), nullable_since=0)] = None


class MemberAssignment(NamedTuple):
    """The partitions that a member is assigned."""

    topic_partitions: Annotated[tuple[TopicIdPartitions, ...], Field(ArrayOf(TopicIdPartitions))] = ()


class ConsumerGroupHeartbeatResponse(NamedTuple):
    """The member's epoch, its heartbeat interval, and its assignment if that changed."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_epoch: Annotated[int, Field(INT32)] = 0
    heartbeat_interval_ms: Annotated[int, Field(INT32)] = 0
    assignment: Annotated[MemberAssignment | None, Field(MemberAssignment, nullable_since=0)] = None


CONSUMER_GROUP_HEARTBEAT_REQUEST: Final = Message(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat request", ConsumerGroupHeartbeatRequest)
CONSUMER_GROUP_HEARTBEAT_RESPONSE: Final = Message(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat response", ConsumerGroupHeartbeatResponse)


UNKNOWN_MEMBER_TYPE: Final = -1
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


class ConsumerGroupDescribeRequest(NamedTuple):
    """Groups by their ids."""

    group_ids: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    include_authorized_operations: Annotated[bool, Field(BOOL)] = False


class AssignedTopic(NamedTuple):
    """Partitions of one topic, by id and name."""

    topic_id: Annotated[TopicId, Field(UUID)]
    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class ConsumerAssignment(NamedTuple):
    """The partitions of a member, by topic."""

    topic_partitions: Annotated[tuple[AssignedTopic, ...], Field(ArrayOf(AssignedTopic))] = ()


class ConsumerGroupMember(NamedTuple):
    """One member, its current and its target assignment."""

    member_id: Annotated[str, Field(STRING)]
    instance_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    rack_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_epoch: Annotated[int, Field(INT32)] = 0
    client_id: Annotated[str, Field(STRING)] = ""
    client_host: Annotated[str, Field(STRING)] = ""
    subscribed_topic_names: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    subscribed_topic_regex: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    assignment: Annotated[ConsumerAssignment, Field(ConsumerAssignment)] = ConsumerAssignment()
    target_assignment: Annotated[ConsumerAssignment, Field(ConsumerAssignment)] = ConsumerAssignment()
    member_type: Annotated[int, Field(INT8, since=1)] = UNKNOWN_MEMBER_TYPE


class DescribedConsumerGroup(NamedTuple):
    """One group, or an error."""

    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    group_id: Annotated[str, Field(STRING)] = ""
    group_state: Annotated[str, Field(STRING)] = ""
    group_epoch: Annotated[int, Field(INT32)] = 0
    assignment_epoch: Annotated[int, Field(INT32)] = 0
    assignor_name: Annotated[str, Field(STRING)] = ""
    members: Annotated[tuple[ConsumerGroupMember, ...], Field(ArrayOf(ConsumerGroupMember))] = ()
    authorized_operations: Annotated[int, Field(INT32)] = OPERATIONS_NOT_ASKED


class ConsumerGroupDescribeResponse(NamedTuple):
    """Groups in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    groups: Annotated[tuple[DescribedConsumerGroup, ...], Field(ArrayOf(DescribedConsumerGroup))] = ()


CONSUMER_GROUP_DESCRIBE_REQUEST: Final = Message(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe request", ConsumerGroupDescribeRequest)
CONSUMER_GROUP_DESCRIBE_RESPONSE: Final = Message(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    "ConsumerGroupDescribe response",
    ConsumerGroupDescribeResponse,
    error=lambda _version, request, code, _text: ConsumerGroupDescribeResponse(
        0, tuple(DescribedConsumerGroup(code, group_id=each) for each in request.group_ids)
    ),
)
