"""ConsumerGroupDescribe 0-1: state and members of groups of the newer protocol (KIP-848).

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.base.model import TopicId
from appliance.protocol.apis import ApiKey
from appliance.protocol.describe_cluster import OPERATIONS_NOT_ASKED
from appliance.protocol.schema import BOOL, INT8, INT16, INT32, STRING, UUID, ArrayOf, Field, Message

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
    """What a member reads, or is to read."""

    topic_partitions: Annotated[tuple[AssignedTopic, ...], Field(ArrayOf(AssignedTopic))] = ()


class ConsumerGroupMember(NamedTuple):
    """One member: what it reads, and what it is to read in the end."""

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


class ConsumerGroup(NamedTuple):
    """One group, or why not."""

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
    groups: Annotated[tuple[ConsumerGroup, ...], Field(ArrayOf(ConsumerGroup))] = ()


REQUEST: Final = Message(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe request", ConsumerGroupDescribeRequest)
RESPONSE: Final = Message(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe response", ConsumerGroupDescribeResponse)
