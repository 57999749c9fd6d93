"""What the tabler knows of one table between runs, what it remembers across incarnations, and what it shows.

Remembered is only which table was there (`STATE/tables/TOPIC_ID.json`), so that one that is deleted or not mounted is not silently
begun again at a later offset; all offsets are in the table. Weak: a box that never opened the table does not know that there was one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from appliance.base.layout import TABLES_STATE
from appliance.base.model import TopicId
from appliance.shm.counters import Counters
from appliance.shm.partition_table import Row
from appliance.storage import file_io
from services.tabler.table_rules import REPAIR_MS, TableOrder, TableResult, lag, pending_bytes, retry_ms

LOST_SHOWN_MAX = 100
CHECK_MS = 60_000
"""A table without new records is opened so often, to see that it is still there."""


class TableMemory:
    """Remembers the id of the table of each topic, in the state directory."""

    def __init__(self, state_directory: str) -> None:
        self._directory = f"{state_directory}/{TABLES_STATE}"

    def _path(self, topic_id: TopicId) -> str:
        return f"{self._directory}/{topic_id}.json"

    def read(self, order: TableOrder) -> str:
        """Return the id of the table in this directory; "" if none was seen there. Raises OSError."""
        try:
            document = orjson.loads(file_io.read_file(self._path(order.topic_id)))
            return str(document["table_id"]) if document["directory"] == order.directory else ""
        except FileNotFoundError:
            return ""
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return ""  # an empty file after a power cut

    def write(self, order: TableOrder, table_id: str) -> None:
        """Raises OSError."""
        file_io.make_directories(self._directory)
        file_io.replace_file(self._path(order.topic_id), orjson.dumps({"topic": order.topic, "directory": order.directory, "table_id": table_id}))

    def remembered(self) -> list[TopicId]:
        """Return the topics of which a table was seen."""
        try:
            names = file_io.listdir(self._directory)
        except OSError:
            return []
        found = []
        for name in names:
            with suppress(ValueError):  # another file
                topic_id = TopicId.from_text(name.removesuffix(".json"))
                found += [topic_id] if name == f"{topic_id}.json" else []
        return found

    def forget(self, topic_id: TopicId) -> None:
        """If its table is gone, the next one begins anew."""
        with suppress(OSError):
            file_io.unlink_if_there(self._path(topic_id))


class TableState:
    """One table of this box. Times are monotonic ms unless they are called wall."""

    def __init__(self, order: TableOrder, counters: Counters, now_ms: int) -> None:
        self.order = order
        self.counters = counters
        self.next_ms = now_ms
        self._next_check_ms = now_ms
        self.turn = 0
        self.failures = 0
        self.problem = ""
        self.positions: dict[int, int] = {}
        self.scanned: dict[int, int] = {}
        self.shortened: dict[int, int] = {}
        self.rows: dict[int, Row] = {}
        self.last_commit_wall_ms = 0
        self.version = -1
        self.lost: list[str] = []
        self._seen: dict[int, tuple[int, int]] = {}
        self._damage_since: dict[tuple[int, int], int] = {}
        label = f'{{topic="{order.topic}"}}'
        self._commits = counters.counter(f"tables.commits{label}")
        self._records = counters.counter(f"tables.records{label}")
        self._bad_records = counters.counter(f"tables.bad_records{label}")
        self._lost_records = counters.counter(f"tables.lost_records{label}")
        self._written_bytes = counters.counter(f"tables.written_bytes{label}")
        self._compacted_files = counters.counter(f"tables.compacted_files{label}")
        self._failures = counters.counter(f"tables.failures{label}")
        self._conflicts = counters.counter(f"tables.conflicts{label}")
        self._failing = counters.gauge(f"tables.failing{label}")
        self._lag = counters.gauge(f"tables.lag{label}")
        self._last_commit = counters.gauge(f"tables.last_commit_ms{label}")

    def close(self) -> None:
        """Leave no gauge as it was: the topic is no table any more."""
        for gauge in (self._failing, self._lag, self._last_commit):
            gauge.set(0)

    def accepted_damage(self, now_ms: int) -> frozenset[tuple[int, int]]:
        """Return the damaged batches that had time to be repaired."""
        return frozenset(place for place, since_ms in self._damage_since.items() if now_ms - since_ms >= REPAIR_MS)

    def set_rows(self, rows: dict[int, Row], now_ms: int) -> None:
        """Take the rows of the partitions that this box leads now; a run is due at once if enough bytes came."""
        self.rows = rows
        pending = pending_bytes(self._seen, self._watermarks()) if self._seen else 0
        if (pending is None or pending >= self.order.bytes_max) and not self.failures:
            self.next_ms = min(self.next_ms, now_ms)
        self._lag.set(sum(lag(self.positions, rows).values()))

    def is_due(self, now_ms: int) -> bool:
        """Return whether a run is due: there are records or a failure to try again, or the table has not been looked at for long."""
        if now_ms < self.next_ms or not self.rows:
            return False
        return bool(self.problem) or now_ms >= self._next_check_ms or any(lag(self.positions, self.rows).values())

    def _watermarks(self) -> dict[int, tuple[int, int]]:
        return {partition: (int(row.watermark_base_offset), int(row.watermark_position)) for partition, row in self.rows.items()}

    def on_begun(self) -> None:
        self.turn += 1
        self._seen = self._watermarks()

    def on_result(self, result: TableResult, now_ms: int, wall_ms: int) -> list[str]:
        """Take the result of a run; return what is to be logged as lost."""
        self.positions.update(result.positions)
        self.scanned = dict(result.positions)
        self.version = result.version
        self.shortened = dict(result.shortened)
        self._damage_since = {(each.partition, each.start): self._damage_since.get((each.partition, each.start), now_ms) for each in result.damaged}
        waiting = [f"{each}; waiting {REPAIR_MS // 60_000} minutes for a repair" for each in result.damaged]
        self.problem = "; ".join([*result.problems, *waiting])
        self.failures = 0
        self._failing.set(int(bool(self.problem)))
        if result.committed:
            self.last_commit_wall_ms = wall_ms
            self._last_commit.set(wall_ms)
            self._commits.add()
            self._records.add(result.rows)
            self._bad_records.add(result.bad_rows)
            self._lost_records.add(sum(each.size for each in result.lost))
            self._written_bytes.add(result.written_bytes)
            self._compacted_files.add(result.compacted)
            self.lost = [*self.lost, *map(str, result.lost)][-LOST_SHOWN_MAX:]
        self._next_check_ms = now_ms + CHECK_MS
        self.next_ms = now_ms if result.is_full else now_ms + self.order.interval_ms
        return [str(each) for each in result.lost] if result.committed else []

    def on_failure(self, problem: str, is_conflict: bool, now_ms: int) -> bool:
        """Take a failure; return whether it is a new one, to be logged."""
        is_new = problem != self.problem
        self.problem = problem
        (self._conflicts if is_conflict else self._failures).add()
        self.failures += 1
        self._failing.set(0 if is_conflict else 1)
        self.next_ms = now_ms + retry_ms(self.failures)
        self.scanned = {}
        return is_new

    def document(self) -> dict[str, Any]:
        """Return what the commands show."""
        behind = lag(self.positions, self.rows)
        return {
            "topic": self.order.topic,
            "format": self.order.file_format,
            "directory": self.order.directory,
            "state": "failing" if self.problem else "ok" if self.version >= 0 else "empty",
            "problem": self.problem,
            "version": self.version,
            "last_commit_ms": self.last_commit_wall_ms or None,
            "lag": sum(behind.values()),
            "commits": self._commits.value,
            "records": self._records.value,
            "bad_records": self._bad_records.value,
            "lost_records": self._lost_records.value,
            "failures": self._failures.value,
            "conflicts": self._conflicts.value,
            "lost": self.lost,
            "partitions": [
                {"partition": partition, "offset": self.positions.get(partition), "log_start_offset": row.log_start_offset,
                 "end": min(row.high_watermark, row.last_stable_offset), "lag": behind[partition]}
                for partition, row in sorted(self.rows.items())
            ],
        }  # fmt: skip
