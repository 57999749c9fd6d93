"""Structs shared by the APIs of groups and transactions: partitions of a topic, and one error code for each.

Messages as data. Weak spot: only for structs that are the same in each version.
"""

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

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
    """The result for one partition."""

    partition: Annotated[int, Field(INT32)]
    error_code: Annotated[int, Field(INT16)] = 0


class TopicResult(NamedTuple):
    """Results of one topic."""

    topic: Annotated[str, Field(STRING)]
    partitions: Annotated[tuple[PartitionResult, ...], Field(ArrayOf(PartitionResult))] = ()


def same_result(topics: Iterable[Any], error_code: int) -> tuple[TopicResult, ...]:
    """One error code for each partition of `topics`, whose partitions are numbers or structs."""
    return tuple(TopicResult(each.topic, tuple(PartitionResult(_number(one), error_code) for one in each.partitions)) for each in topics)


def _number(partition: Any) -> int:
    return partition if isinstance(partition, int) else int(partition.partition)
