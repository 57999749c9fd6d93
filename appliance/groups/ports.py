"""What groups need of the world besides their log: which partitions there are, and offsets of the oldest clients.

Implemented by the process that runs the coordinator, by fakes in tests. Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition

LegacyFetched = Callable[[Mapping[TopicPartition, int]], None]
LegacyCommitted = Callable[[Mapping[TopicPartition, ErrorCode]], None]


class Topics(Protocol):
    """The metadata image, as far as offsets need it."""

    def has_partition(self, topic: str, partition: int) -> bool: ...


class LegacyOffsets(Protocol):
    """Offsets in ZooKeeper under `/consumers`, for OffsetCommit and OffsetFetch of version 0. Any box answers for any group. Never called back from
    within a call."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], on_committed: LegacyCommitted) -> None:
        """How each went."""

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition], on_fetched: LegacyFetched) -> None:
        """Those that are there; others are left out."""
