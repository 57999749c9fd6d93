"""What groups need of the world besides their log: which partitions there are, and offsets of the oldest clients.

Implemented by the process that runs the coordinator, by fakes in tests. Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId, TopicPartition

LegacyFetched = Callable[[Mapping[TopicPartition, int]], None]
LegacyCommitted = Callable[[Mapping[TopicPartition, ErrorCode]], None]


class KnownTopic(NamedTuple):
    """A topic as it is now."""

    topic_id: TopicId
    partition_count: int


class Topics(Protocol):
    """The metadata image, as far as offsets and assignments need it."""

    @property
    def generation(self) -> int:
        """Another one whenever topics came, went or grew."""

    def has_partition(self, topic: str, partition: int) -> bool: ...

    def find(self, topic: str) -> KnownTopic | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]:
        """All but internal topics."""


class LegacyOffsets(Protocol):
    """Offsets in ZooKeeper under `/consumers`, for OffsetCommit and OffsetFetch of version 0. Any box answers for any group. Never called back from
    within a call."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], on_committed: LegacyCommitted) -> None:
        """How each went."""

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition], on_fetched: LegacyFetched) -> None:
        """Those that are there; others are left out."""
