"""AlterPartitionReassignments 0: give partitions to other brokers, or call that off (KIP-455). Owned by nobody; messages as data. Weak spot: none known."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message


class PartitionToReassign(NamedTuple):
    """The brokers that shall hold one partition; None calls off what is under way."""

    partition_index: Annotated[int, Field(INT32)]
    replicas: Annotated[tuple[int, ...] | None, Field(ArrayOf(INT32), nullable_since=0)] = None


class TopicToReassign(NamedTuple):
    """Partitions of one topic."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[PartitionToReassign, ...], Field(ArrayOf(PartitionToReassign))]


class AlterPartitionReassignmentsRequest(NamedTuple):
    """Each partition by itself: one may fail while another succeeds."""

    timeout_ms: Annotated[int, Field(INT32)] = 60_000
    topics: Annotated[tuple[TopicToReassign, ...], Field(ArrayOf(TopicToReassign))] = ()


class ReassignedPartition(NamedTuple):
    """What became of one partition's order."""

    partition_index: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class ReassignedTopic(NamedTuple):
    """Results of one topic."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[ReassignedPartition, ...], Field(ArrayOf(ReassignedPartition))]


class AlterPartitionReassignmentsResponse(NamedTuple):
    """Results by topic; `error_code` is for all of them."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    responses: Annotated[tuple[ReassignedTopic, ...], Field(ArrayOf(ReassignedTopic))] = ()


REQUEST: Final = Message(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments request", AlterPartitionReassignmentsRequest)
RESPONSE: Final = Message(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments response", AlterPartitionReassignmentsResponse)
