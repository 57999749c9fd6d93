"""APIs that move partitions between brokers and elect leaders: messages as data.

AlterPartitionReassignments 0 and ListPartitionReassignments 0 (KIP-455), ElectLeaders 0-2.
"""

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT8, INT16, INT32, STRING, ArrayOf, Field, Message

# -- AlterPartitionReassignments: assign partitions to other brokers, or cancel that.


class PartitionToReassign(NamedTuple):
    """The new replicas of one partition; None cancels a reassignment."""

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
    """The result for one partition."""

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


ALTER_PARTITION_REASSIGNMENTS_REQUEST: Final = Message(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments request", AlterPartitionReassignmentsRequest
)
ALTER_PARTITION_REASSIGNMENTS_RESPONSE: Final = Message(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments response", AlterPartitionReassignmentsResponse
)


# -- ListPartitionReassignments: the partitions that are being reassigned.


class TopicToList(NamedTuple):
    """Partitions of one topic."""

    name: Annotated[str, Field(STRING)]
    partition_indexes: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class ListPartitionReassignmentsRequest(NamedTuple):
    """`topics` None: all there are."""

    timeout_ms: Annotated[int, Field(INT32)] = 60_000
    topics: Annotated[tuple[TopicToList, ...] | None, Field(ArrayOf(TopicToList), nullable_since=0)] = None


class OngoingReassignment(NamedTuple):
    """A partition's brokers: current and future ones together, then those that are added and removed."""

    partition_index: Annotated[int, Field(INT32)]
    replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]
    adding_replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]
    removing_replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class OngoingTopic(NamedTuple):
    """Partitions of one topic that are being reassigned."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[OngoingReassignment, ...], Field(ArrayOf(OngoingReassignment))]


class ListPartitionReassignmentsResponse(NamedTuple):
    """Reassignments by topic."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    topics: Annotated[tuple[OngoingTopic, ...], Field(ArrayOf(OngoingTopic))] = ()


LIST_PARTITION_REASSIGNMENTS_REQUEST: Final = Message(
    ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments request", ListPartitionReassignmentsRequest
)
LIST_PARTITION_REASSIGNMENTS_RESPONSE: Final = Message(
    ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments response", ListPartitionReassignmentsResponse
)


# -- ElectLeaders: let another replica lead a partition.

PREFERRED: Final = 0
"""The first replica of the assignment."""
UNCLEAN: Final = 1
"""Any replica, if none of the in-sync ones is left."""


class TopicToElectFor(NamedTuple):
    """Partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class ElectLeadersRequest(NamedTuple):
    """`topic_partitions` None: all there are."""

    election_type: Annotated[int, Field(INT8, since=1)] = PREFERRED
    topic_partitions: Annotated[tuple[TopicToElectFor, ...] | None, Field(ArrayOf(TopicToElectFor), nullable_since=0)] = None
    timeout_ms: Annotated[int, Field(INT32)] = 60_000


class ElectedPartition(NamedTuple):
    """The result for one partition."""

    partition_id: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class ElectedTopic(NamedTuple):
    """Results of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[ElectedPartition, ...], Field(ArrayOf(ElectedPartition))]


class ElectLeadersResponse(NamedTuple):
    """Results by topic."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16, since=1)] = 0
    results: Annotated[tuple[ElectedTopic, ...], Field(ArrayOf(ElectedTopic))] = ()


ELECT_LEADERS_REQUEST: Final = Message(ApiKey.ELECT_LEADERS, "ElectLeaders request", ElectLeadersRequest)
ELECT_LEADERS_RESPONSE: Final = Message(
    ApiKey.ELECT_LEADERS,
    "ElectLeaders response",
    ElectLeadersResponse,
    error=lambda _version, request, code, text: ElectLeadersResponse(
        0,
        code,
        tuple(
            ElectedTopic(topic.topic, tuple(ElectedPartition(number, code, text) for number in topic.partitions)) for topic in request.topic_partitions or ()
        ),
    ),
)
