"""What the tabler knows of one table between runs, what it remembers across incarnations, and what it shows.

Remembered (`STATE/tables/TOPIC_ID.json`) is which table was there, so that one that is deleted or not mounted is not silently
begun again at a later offset, and where a log ended that lost records the table has; all offsets are in the table. Figures since
the start of the box stand in what is shown (`tables.json`): an incarnation goes on from there, and the console reads them. Weak: a
box that never opened the table does not know that there was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from appliance.base.layout import TABLES_STATE
from appliance.base.model import TopicId
from appliance.shm.partition_table import Row
from appliance.storage import file_io
from services.tabler.table_rules import REPAIR_MS, TableOrder, TableResult, lag, pending_bytes, retry_ms

LOST_SHOWN_MAX = 100
CHECK_MS = 60_000
"""A table without new records is opened so often, to see that it is still there."""


class Remembered(NamedTuple):
    """What outlives the process. `shortened` as in `TableJob`."""

    table_id: str = ""
    shortened: Mapping[int, tuple[int, int]] = {}


class TableMemory:
    """Remembers the table of each topic, in the state directory."""

    def __init__(self, state_directory: str) -> None:
        self._directory = f"{state_directory}/{TABLES_STATE}"

    def _path(self, topic_id: TopicId) -> str:
        return f"{self._directory}/{topic_id}.json"

    def read(self, order: TableOrder) -> Remembered:
        """Return what is remembered of the table in this directory. Raises OSError."""
        try:
            document = orjson.loads(file_io.read_file(self._path(order.topic_id)))
            if (document["directory"], document.get("format", "delta")) != (order.directory, order.file_format):
                return Remembered()
            shortened = {int(partition): (int(end), int(offset)) for partition, (end, offset) in document.get("shortened", {}).items()}
            return Remembered(str(document["table_id"]), shortened)
        except FileNotFoundError:
            return Remembered()
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            return Remembered()  # an empty file after a power cut

    def write(self, order: TableOrder, remembered: Remembered) -> None:
        """Raises OSError."""
        file_io.make_directories(self._directory)
        shortened = {str(partition): end for partition, end in remembered.shortened.items()}
        document = {"topic": order.topic, "directory": order.directory, "format": order.file_format, "table_id": remembered.table_id, "shortened": shortened}
        file_io.replace_file(self._path(order.topic_id), orjson.dumps(document))

    def remembered(self) -> set[TopicId]:
        """Return the topics of which a table was seen."""
        try:
            names = file_io.listdir(self._directory)
        except OSError:
            return set()
        found = set()
        for name in names:
            with suppress(ValueError):  # another file
                topic_id = TopicId.from_text(name.removesuffix(".json"))
                found |= {topic_id} if name == f"{topic_id}.json" else set()
        return found

    def forget(self, topic_id: TopicId) -> None:
        """If its table is gone, the next one begins anew."""
        with suppress(OSError):
            file_io.unlink_if_there(self._path(topic_id))


COUNTS = ("commits", "records", "bad_records", "lost_records", "written_bytes", "compacted_files", "failures", "conflicts")
"""What is counted of a table since the box started, as the console shows it."""


class TableState:
    """One table of this box. Times are monotonic ms unless they are called wall.

    `shown` is what an earlier incarnation showed of it. `refusal`: why it is not written at all.
    """

    def __init__(self, order: TableOrder, now_ms: int, shown: Mapping[str, Any] | None = None) -> None:
        self.order = order
        self.refusal = ""
        self.next_ms = now_ms
        self._next_check_ms = now_ms
        self.turn = 0
        self.failures = 0
        self.problem = ""
        self.is_conflict = False
        self.positions: dict[int, int] = {}
        self.scanned: dict[int, int] = {}
        self.rows: dict[int, Row] = {}
        shown = shown or {}
        self.last_commit_wall_ms = int(shown.get("last_commit_ms") or 0)
        self.version = -1
        self.metadata: list[str] = list(shown.get("metadata", ()))
        self.lost: list[str] = [str(each) for each in shown.get("lost", ())]
        self.counts = {name: int(shown.get(name, 0)) for name in COUNTS}
        self._seen: dict[int, tuple[int, int]] = {}
        self._damage_since: dict[tuple[int, int], int] = {}

    def accepted_damage(self, now_ms: int) -> frozenset[tuple[int, int]]:
        """Return the damaged batches that had time to be repaired."""
        return frozenset(place for place, since_ms in self._damage_since.items() if now_ms - since_ms >= REPAIR_MS)

    def set_rows(self, rows: dict[int, Row], now_ms: int) -> None:
        """Take the rows of the partitions that this box leads now; a run is due at once if enough bytes came."""
        self.rows = rows
        pending = pending_bytes(self._seen, self._watermarks()) if self._seen else 0
        if (pending is None or pending >= self.order.bytes_max) and not self.failures:
            self.next_ms = min(self.next_ms, now_ms)

    def is_due(self, now_ms: int) -> bool:
        """Return whether a run is due: there are records or a failure to try again, or the table has not been looked at for long."""
        if now_ms < self.next_ms or not self.rows or self.refusal:
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
        self.metadata = list(result.metadata)
        self._damage_since = {(each.partition, each.start): self._damage_since.get((each.partition, each.start), now_ms) for each in result.damaged}
        waiting = [f"{each}; waiting {REPAIR_MS // 60_000} minutes for a repair" for each in result.damaged]
        self.problem = "; ".join([*result.problems, *waiting])
        self.is_conflict = False
        self.failures = 0
        if result.committed:
            self.last_commit_wall_ms = wall_ms
            self._count("commits", 1)
            self._count("records", result.rows)
            self._count("bad_records", result.bad_rows)
            self._count("lost_records", sum(each.size for each in result.lost))
            self._count("written_bytes", result.written_bytes)
            self._count("compacted_files", result.compacted)
            self.lost = [*self.lost, *map(str, result.lost)][-LOST_SHOWN_MAX:]
        self._next_check_ms = now_ms + CHECK_MS
        self.next_ms = now_ms if result.is_full else now_ms + self.order.interval_ms
        return [str(each) for each in result.lost] if result.committed else []

    def _count(self, name: str, amount: int) -> None:
        self.counts[name] += amount

    def on_failure(self, problem: str, is_conflict: bool, now_ms: int) -> bool:
        """Take a failure; return whether it is a new one, to be logged."""
        is_new = problem != self.problem
        self.problem = problem
        self.is_conflict = is_conflict
        self._count("conflicts" if is_conflict else "failures", 1)
        self.failures += 1
        self.next_ms = now_ms + retry_ms(self.failures)
        self.scanned = {}
        return is_new

    def document(self) -> dict[str, Any]:
        """Return what the commands show."""
        behind = lag(self.positions, self.rows)
        problem = self.refusal or self.problem
        return {
            "topic": self.order.topic,
            "topic_id": str(self.order.topic_id),
            "format": self.order.file_format,
            "directory": self.order.directory,
            "metadata": self.metadata,
            "state": "failing" if problem else "ok" if self.version >= 0 else "empty",
            "problem": problem,
            "failing": int(bool(problem) and not self.is_conflict),
            "version": self.version,
            "last_commit_ms": self.last_commit_wall_ms or None,
            "lag": sum(behind.values()),
            **self.counts,
            "lost": self.lost,
            "partitions": [
                {"partition": partition, "offset": self.positions.get(partition), "log_start_offset": row.log_start_offset,
                 "end": min(row.high_watermark, row.last_stable_offset), "lag": behind[partition]}
                for partition, row in sorted(self.rows.items())
            ],
        }  # fmt: skip
