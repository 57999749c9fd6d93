"""What the APIs of groups and transactions share: partitions of a topic, and one error code for each.

Owned by nobody; messages as data. Weak spot: only for structs that never change with the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from appliance.base.model import TopicId
from appliance.protocol.schema import INT16, INT32, STRING, UUID, ArrayOf, Field


class TopicPartitions(NamedTuple):
    """Some partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class TopicIdPartitions(NamedTuple):
    """Some partitions of a topic that is named by its id."""

    topic_id: Annotated[TopicId, Field(UUID)]
    partitions: Annotated[tuple[int, ...], Field(ArrayOf(INT32))] = ()


class PartitionResult(NamedTuple):
    """What became of one partition."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0


class TopicResult(NamedTuple):
    """What became of partitions of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[PartitionResult, ...], Field(ArrayOf(PartitionResult))] = ()


def same_result(topics: Sequence[TopicPartitions], error_code: int) -> tuple[TopicResult, ...]:
    """One error code for every partition of `topics`, in their order."""
    return tuple(TopicResult(topic, tuple(PartitionResult(partition, error_code) for partition in partitions)) for topic, partitions in topics)
