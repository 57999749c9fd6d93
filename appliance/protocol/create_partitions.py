"""CreatePartitions 0-3: more partitions for topics that are there. Owned by nobody; messages as data. Weak spot: none known."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import BOOL, INT16, INT32, STRING, ArrayOf, Field, Message


class PartitionAssignment(NamedTuple):
    """The brokers of one new partition; the partitions follow each other from the first new one on."""

    broker_ids: Annotated[tuple[int, ...], Field(ArrayOf(INT32))]


class TopicToGrow(NamedTuple):
    """`partition_count` is how many partitions the topic is to have in all; `assignments` None: the controller chooses."""

    name: Annotated[str, Field(STRING)]
    partition_count: Annotated[int, Field(INT32)]
    assignments: Annotated[tuple[PartitionAssignment, ...] | None, Field(ArrayOf(PartitionAssignment), nullable_since=0)] = None


class CreatePartitionsRequest(NamedTuple):
    """Topics to grow, each by itself: one may fail while another succeeds."""

    topics: Annotated[tuple[TopicToGrow, ...], Field(ArrayOf(TopicToGrow))]
    timeout_ms: Annotated[int, Field(INT32)] = 60_000
    validate_only: Annotated[bool, Field(BOOL)] = False


class GrownTopic(NamedTuple):
    """What became of one topic."""

    name: Annotated[str, Field(STRING)]
    error_code: Annotated[int, Field(INT16)] = 0
    error_message: Annotated[str | None, Field(STRING, nullable_since=0)] = None


class CreatePartitionsResponse(NamedTuple):
    """Results in the order of the request."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    results: Annotated[tuple[GrownTopic, ...], Field(ArrayOf(GrownTopic))] = ()


REQUEST: Final = Message(ApiKey.CREATE_PARTITIONS, "CreatePartitions request", CreatePartitionsRequest)
RESPONSE: Final = Message(ApiKey.CREATE_PARTITIONS, "CreatePartitions response", CreatePartitionsResponse)
