"""What groups need of the world besides their log: which partitions there are, and offsets of the oldest clients.

Implemented by the process that runs the coordinator, by fakes in tests. Weak spot: none known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId, TopicPartition

LegacyFetched = Callable[[Mapping[TopicPartition, int]], None]
LegacyCommitted = Callable[[Mapping[TopicPartition, ErrorCode]], None]


class KnownTopic(NamedTuple):
    """A topic as it is now."""

    topic_id: TopicId
    partition_count: int


class InternalTopic(NamedTuple):
    """A topic that a streams group needs and that is to be created; 0 replicas: the cluster's default. Configs as (name, value)."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class StreamsOptions(NamedTuple):
    """What a streams group is assigned by: standbys of each task with state, and how long a new group waits for members."""

    standby_count: int = 0
    initial_delay_ms: int = 3_000


class Topics(Protocol):
    """The metadata image, as far as offsets and assignments need it."""

    @property
    def generation(self) -> int:
        """Another one whenever topics came, went or grew."""

    def has_partition(self, topic: str, partition: int) -> bool: ...

    def find(self, topic: str) -> KnownTopic | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]:
        """All topics, internal ones too."""

    def consumer_timing(self, group_id: str) -> tuple[int, int]:
        """Session timeout and heartbeat interval of members of the new protocol, in ms."""

    def visible(self, group_id: str, member_id: str, names: frozenset[str]) -> frozenset[str] | None:
        """Of topics that an expression matches, those that the member may describe; None: its principal is not known yet."""

    def streams_timing(self, group_id: str) -> tuple[int, int]:
        """As `consumer_timing`, of members of a streams group."""

    def streams_options(self, group_id: str) -> StreamsOptions: ...

    def create_internal(self, group_id: str, member_id: str, missing: Sequence[InternalTopic]) -> str:
        """Begin to create topics in the name of a member, unless that is under way; return what keeps them from being created, or ""."""


class LegacyOffsets(Protocol):
    """Offsets in ZooKeeper under `/consumers`, for OffsetCommit and OffsetFetch of version 0. Any box answers for any group. Never called back from
    within a call."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], on_committed: LegacyCommitted) -> None:
        """How each went."""

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition], on_fetched: LegacyFetched) -> None:
        """Those that are there; others are left out."""


class NameBound(Enum):
    """What clients create by name, and what the coordinator refuses beyond a bound; the value is the label of the counter."""

    GROUPS = "groups"
    MEMBERS = "members"
    REGEXES = "regexes"
    TRANSACTIONAL_IDS = "transactional_ids"
    MEMORY = "memory"
    """Anything that grows, while the coordinator is above `coordinator.heap.bytes`."""


OnRefused = Callable[[NameBound], None]


NAME_COST: Final = 50
"""Characters that a name of a topic counts as beside its own: an assignment reads each name, even of topics that do not exist."""


def subscription_cost(names: Collection[str]) -> int:
    """Return the characters that a subscription counts as."""
    return sum(map(len, names)) + NAME_COST * len(names)


# ---- settings, under Kafka's names and with its defaults


MINUTE_MS: Final = 60_000
UPGRADE: Final = "upgrade"
DOWNGRADE: Final = "downgrade"
BIDIRECTIONAL: Final = "bidirectional"


class GroupSettings(NamedTuple):
    """Milliseconds, bytes, counts; `offsets_retention_minutes` is in minutes, as its name says."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 10_000
    max_groups: int = 20_000
    group_consumer_max_size: int = 10_000
    group_consumer_regex_max: int = 1_000
    group_streams_max_size: int = 1_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    offsets_topic_num_partitions: int = 50
    group_consumer_migration_policy: str = BIDIRECTIONAL

    @property
    def may_upgrade(self) -> bool:
        """Whether a live group may go from the classic to the newer protocol."""
        return self.group_consumer_migration_policy in (BIDIRECTIONAL, UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self.group_consumer_migration_policy in (BIDIRECTIONAL, DOWNGRADE)

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * MINUTE_MS
