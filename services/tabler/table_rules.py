"""When a table is written, and from which offset each partition continues. Pure.

The offsets stand in the table: version N of the application transaction `millrace-TOPIC_ID-PARTITION` says that the table
has all records of the partition before offset N that it will ever have. Commit and offsets are one transaction of the format, so a kill leaves
both or neither. A run reads from there up to the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from appliance.base.layout import TABLES_STATE
from appliance.base.model import TopicId
from appliance.cluster.topic_configs import TABLE_BYTES, TABLE_FORMAT, TABLE_INTERVAL, TABLE_LOCATION, TABLE_SCHEMA, TOPIC_CONFIG_ROWS
from appliance.shm.partition_table import Row

RETRY_MS_FIRST = 1_000
RETRY_MS_MAX = 60_000
REPAIR_MS = 600_000
"""How long a run stops before a damaged batch, which another replica may repair."""


class TableOrder(NamedTuple):
    """A topic that is to be a table, as its configs say."""

    topic: str
    topic_id: TopicId
    file_format: str
    location: str
    interval_ms: int
    bytes_max: int
    schema: str = "records"

    @property
    def directory(self) -> str:
        return f"{self.location}/{self.topic}"


def table_order(topic: str, topic_id: TopicId, config: Mapping[str, str]) -> TableOrder | None:
    """Return what the configs of a topic ask for; None if it is no table."""

    def value(name: str) -> str:
        return config.get(name, TOPIC_CONFIG_ROWS[name].default)

    if value(TABLE_FORMAT) == "none":
        return None
    numbers = int(value(TABLE_INTERVAL)), int(value(TABLE_BYTES))
    return TableOrder(topic, topic_id, value(TABLE_FORMAT), value(TABLE_LOCATION), *numbers, value(TABLE_SCHEMA))


def iceberg_catalog(state_directory: str) -> dict[str, str]:
    """Return the properties of the catalog that a box has by default."""
    return {"type": "sql", "uri": f"sqlite:///{state_directory}/{TABLES_STATE}/iceberg.db"}


def application_id(topic_id: TopicId, partition: int) -> str:
    """Return the name under which the table has the offset of a partition; a topic that was deleted and made again has others."""
    return f"millrace-{topic_id}-{partition}"


class PartitionStart(NamedTuple):
    """Where a partition goes on. `problem`: why it cannot."""

    start: int
    end: int
    problem: str | None = None


_TO_HAVE_THEM = "To have them, move the table's directory away (it stays readable), then --table none and --table again"


def plan_partition(row: Row, table_offset: int | None, scanned_to: int | None) -> PartitionStart:
    """Return what is to be read of a partition that this box leads.

    `table_offset`: from the table, None if it has none of the partition: then all that the log has. `scanned_to`: up to here an earlier
    run found no record behind it.
    """
    end = min(row.high_watermark, row.last_stable_offset)
    if table_offset is None:
        return PartitionStart(row.log_start_offset, max(end, row.log_start_offset))
    if table_offset > row.log_end_offset:
        words = f"the table has it up to offset {table_offset}, but its log ends at {row.log_end_offset}: the log lost records"
        return PartitionStart(table_offset, table_offset, f"{words}; new ones below that offset will be left out and counted. {_TO_HAVE_THEM}")
    start = max(table_offset, scanned_to or 0)
    return PartitionStart(start, max(end, start))


class MissingRange(NamedTuple):
    """Offsets start <= offset < end that the table will not have, and why."""

    partition: int
    start: int
    end: int
    reason: str

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"partition {self.partition}, offsets {self.start} to {self.end - 1}: {self.reason}"


class TableResult(NamedTuple):
    """What a run did. `positions`: the next offset of each partition, from the table or scanned."""

    table_id: str
    version: int
    positions: dict[int, int]
    rows: int = 0
    bad_rows: int = 0
    written_bytes: int = 0
    committed: bool = False
    compacted: int = 0
    """Small files that were merged."""
    is_full: bool = False
    """It ended at `bytes_max`, and there is more."""
    lost: tuple[MissingRange, ...] = ()
    damaged: tuple[MissingRange, ...] = ()
    """Damaged batches before which it stopped."""
    shortened: dict[int, tuple[int, int]] = {}  # noqa: RUF012  never changed
    """As in `TableJob`, for the next run."""
    problems: tuple[str, ...] = ()
    metadata: tuple[str, str] = ("", "")
    """Files by which readers open the table and that of its bad records, where its directory does not do."""


def pending_bytes(seen: Mapping[int, tuple[int, int]], now: Mapping[int, tuple[int, int]]) -> int | None:
    """Return about how many bytes of log came since `seen`; None if a partition began another segment or is new.

    Both map a partition to base offset and position of its high watermark.
    """
    total = 0
    for partition, (base, position) in now.items():
        before = seen.get(partition)
        if before is None or before[0] != base:
            return None
        total += max(0, position - before[1])
    return total


def retry_ms(failures: int) -> int:
    """Return the wait after a failure: 1 s, 2 s, 4 s … up to a minute."""
    return min(RETRY_MS_MAX, RETRY_MS_FIRST << min(max(failures - 1, 0), 16))


def lag(positions: Mapping[int, int], rows: Mapping[int, Row]) -> dict[int, int]:
    """Return for each partition that this box leads how many offsets the table is behind the last stable one."""
    return {
        partition: max(0, min(row.high_watermark, row.last_stable_offset) - positions.get(partition, row.log_start_offset)) for partition, row in rows.items()
    }


def is_compaction_due(version_before: int, version: int, every: int) -> bool:
    """Return whether a commit crossed a multiple of `every` versions (0: never): of all boxes one does."""
    return every > 0 and version_before // every != version // every and version_before >= 0


def rotated(partitions: Iterable[int], turn: int) -> list[int]:
    """Return the partitions from another one on in each run: what fills a commit must not be always the same."""
    ordered = sorted(partitions)
    return ordered[turn % len(ordered) :] + ordered[: turn % len(ordered)] if ordered else []
