"""The settings of one log, by Kafka's topic-level names and defaults.

A value, replaced when a topic's configuration changes. The controller checks values and refuses bad
ones with INVALID_CONFIG; a value that cannot be read here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from appliance.records.crc32c import crc32c


class LogConfig(NamedTuple):
    """Fields are Kafka's names with '_' for '.', and ours begin with `millrace_`; times in ms, -1
    means never or no limit where Kafka says so.
    """

    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    min_insync_replicas: int = 1
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    millrace_retention_protected_ms: int = 0
    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    flush_messages: int = 2**63 - 1
    flush_ms: int = 2**63 - 1

    def jittered(self, log_and_segment: bytes) -> LogConfig:
        """Return the configuration with `segment_ms` reduced by up to `segment_jitter_ms`, always
        by the same for one segment.
        """
        most = min(self.segment_jitter_ms, self.segment_ms)
        return self._replace(segment_ms=self.segment_ms - crc32c(log_and_segment) % most) if most else self

    @property
    def uses_log_append_time(self) -> bool:
        """Whether `message.timestamp.type` is LogAppendTime."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def acknowledges_after_flush(self) -> bool:
        """`flush.messages` of 1: as with Kafka, no record is acknowledged before it was synced."""
        return self.flush_messages == 1

    @property
    def flushes_by_interval(self) -> bool:
        """Whether `flush.messages` or `flush.ms` requests syncs, but not before each
        acknowledgement.
        """
        return not self.acknowledges_after_flush and min(self.flush_messages, self.flush_ms) < 2**63 - 1

    @property
    def deletes(self) -> bool:
        """Whether old segments may be deleted: by age, by size, by DeleteRecords, for free space."""
        return "delete" in self.cleanup_policy

    @property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` contains `compact`."""
        return "compact" in self.cleanup_policy

    @classmethod
    def from_topic_config(cls, config: Mapping[str, str], defaults: LogConfig | None = None) -> LogConfig:
        """Read settings by Kafka's topic-level names (`segment.bytes`); unknown names are ignored.

        `defaults` are the box's own (from its `log.…` settings); without them, Kafka's. Raises
        `ValueError` for a value that is no number.
        """
        base = defaults or cls()
        changes: dict[str, int | float | str] = {}
        for field, current in zip(cls._fields, base, strict=True):
            text = config.get(field.replace("_", "."))
            if text is not None:
                changes[field] = int(text) if isinstance(current, int) else float(text) if isinstance(current, float) else str(text)
        if (internal := config.get("internal.segment.bytes")) is not None:
            changes["segment_bytes"] = int(internal)
        made = base._replace(**changes) if changes else base  # type: ignore[arg-type]
        if made.is_compacted and made.max_compaction_lag_ms < made.segment_ms:  # what is in the active segment cannot be compacted
            made = made._replace(segment_ms=made.max_compaction_lag_ms)
        return made
