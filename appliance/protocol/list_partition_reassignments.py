"""ListPartitionReassignments 0: which partitions are on their way to other brokers (KIP-455). Owned by nobody; messages as data. Weak spot: none known."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, STRING, ArrayOf, Field, Message


class TopicToList(NamedTuple):
    """Partitions of one topic."""

    name: Annotated[str, Field(STRING)]
    partition_indexes: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class ListPartitionReassignmentsRequest(NamedTuple):
    """`topics` None: all there are."""

    timeout_ms: Annotated[int, Field(INT32)] = 60_000
    topics: Annotated[tuple[TopicToList, ...] | None, Field(ArrayOf(TopicToList), nullable_since=0)] = None


class OngoingReassignment(NamedTuple):
    """A partition's brokers: those of now and of later together, then those that come and those that go."""

    partition_index: Annotated[int, Field(INT32)]
    replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]
    adding_replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]
    removing_replicas: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class OngoingTopic(NamedTuple):
    """Partitions of one topic that are on their way."""

    name: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[OngoingReassignment, ...], Field(ArrayOf(OngoingReassignment))]


class ListPartitionReassignmentsResponse(NamedTuple):
    """What is under way, by topic."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None
    topics: Annotated[tuple[OngoingTopic, ...], Field(ArrayOf(OngoingTopic))] = ()


REQUEST: Final = Message(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments request", ListPartitionReassignmentsRequest)
RESPONSE: Final = Message(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments response", ListPartitionReassignmentsResponse)
