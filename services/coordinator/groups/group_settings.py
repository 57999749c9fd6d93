"""What an operator can set about groups and offsets, under Kafka's names and with its defaults.

Owned by nobody; values only. Weak spot: the partitions of a topic that exists count, not `offsets_topic_num_partitions` of today; whoever makes a
coordinator passes what the topic has.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
UPGRADE: Final = "upgrade"
DOWNGRADE: Final = "downgrade"
BIDIRECTIONAL: Final = "bidirectional"


class GroupSettings(NamedTuple):
    """Milliseconds, bytes, counts; `offsets_retention_minutes` is in minutes, as its name says."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = (1 << 31) - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = (1 << 31) - 1
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
