"""ConsumerGroupHeartbeat 0-1: the whole of the newer group protocol in one request (KIP-848).

Owned by nobody; messages as data. Null stands for "as I said last". Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message
from appliance.protocol.topic_partitions import TopicIdPartitions

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
"""Member epochs that are not: to join, to leave, and how a static member leaves that will be back."""


class ConsumerGroupHeartbeatRequest(NamedTuple):
    """Who is alive, in which epoch, what it wants (if that changed) and owns."""

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
    """What a member is to read."""

    topic_partitions: Annotated[tuple[TopicIdPartitions, ...], Field(ArrayOf(TopicIdPartitions))] = ()


class ConsumerGroupHeartbeatResponse(NamedTuple):
    """The member's epoch, when to be back, and what to read if that changed."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_id: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    member_epoch: Annotated[int, Field(INT32)] = 0
    heartbeat_interval_ms: Annotated[int, Field(INT32)] = 0
    assignment: Annotated[MemberAssignment | None, Field(MemberAssignment, nullable_since=0)] = None


REQUEST: Final = Message(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat request", ConsumerGroupHeartbeatRequest)
RESPONSE: Final = Message(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat response", ConsumerGroupHeartbeatResponse)
