"""ElectLeaders 0-2: have partitions led by another of their replicas. Owned by nobody; messages as data. Weak spot: none known."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT8, INT16, INT32, STRING, ArrayOf, Field, Message

PREFERRED: Final = 0
"""The replica that stands first."""
UNCLEAN: Final = 1
"""Any replica, where no one in sync is left."""


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
    """What became of one partition."""

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


REQUEST: Final = Message(ApiKey.ELECT_LEADERS, "ElectLeaders request", ElectLeadersRequest)
RESPONSE: Final = Message(ApiKey.ELECT_LEADERS, "ElectLeaders response", ElectLeadersResponse)
