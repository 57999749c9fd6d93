"""A load without a cluster and without Spark: topics in memory, tasks in this process, everything else real. And what must be true of the result.

`dying_at(n)` lets the process die before its n-th call of the operating system (through `file_io`): nothing
is done from then on. `interrupted_at(n, other)` calls `other` just before that call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from appliance.base.clock import ManualClock
from appliance.base.model import TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_manifest import CommitDone, Manifest, Positions
from appliance.pipeline.load_survey import LogExtent
from appliance.pipeline.load_task import LoadJob, Skips, TaskResult, run_task
from appliance.pipeline.loader import Loader, LoadRules
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import DataLoss
from appliance.pipeline.table_kind import TableKind, TopicFormat
from appliance.storage import file_io

MINUTE_MS = 60_000
START_MS = 1_763_787_600_000
"""2025-11-22 05:00 UTC"""
CLUSTER = "cluster-of-the-test"
KIND = TableKind(CLUSTER, "record", "parquet")
BATCH_ROWS = 7
INSTANT = pa.timestamp("us", "UTC")
SOURCE_TYPES = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": INSTANT, "key": pa.binary(), "value": pa.binary(), "timestampType": pa.int32()}
SOURCE_TYPES["headers"] = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class StoredRecord(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_type: int = 0


class Died(BaseException):
    """The process is dead. No `except` of the code under test may catch it."""


class LoadWorld:
    """Logs, and loads of them into `directory`."""

    def __init__(self, directory: Path, formats: dict[str, TopicFormat] | None = None, rules: LoadRules | None = None) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, list[StoredRecord]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.formats = formats or {}
        self.rules = rules or LoadRules(commit_records=20, task_records=8)
        self.lives = 0
        self.clock = ManualClock()

    # --- the logs

    def append(self, topic: str, partition: int, values: Iterable[bytes | None], every_ms: int = 7 * MINUTE_MS, **more: Any) -> None:
        log = self.logs.setdefault(TopicPartition(topic, partition), [])
        for value in values:
            offset = log[-1].offset + 1 if log else 0
            log.append(StoredRecord(offset, START_MS + offset * every_ms, b"k%d" % offset, value, **more))

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.starts[TopicPartition(topic, partition)] = offset

    def extents(self) -> dict[TopicPartition, LogExtent]:
        ends = {each: log[-1].offset + 1 if log else 0 for each, log in self.logs.items()}
        return {each: LogExtent(start := self.starts.get(each, 0), max(start, end)) for each, end in ends.items()}

    def read(self, job: LoadJob, wanted: OffsetRange, columns: Sequence[str], skips: Skips) -> Iterator[pa.RecordBatch]:
        start = self.starts.get(wanted.topic_partition, 0)
        if wanted.start < start:
            skips.lost(DataLoss(wanted.topic, wanted.partition, wanted.start, min(start, wanted.end), "deleted"))
        records = [each for each in self.logs[wanted.topic_partition] if max(wanted.start, start) <= each.offset < wanted.end]
        for at in range(0, len(records), BATCH_ROWS):
            yield record_batch(wanted.partition, records[at : at + BATCH_ROWS], columns)

    def run_tasks(self, job: LoadJob, ranges: Iterable[OffsetRange]) -> list[TaskResult]:
        return [run_task(job, wanted, str(number), self.read) for number, wanted in enumerate(ranges)]

    # --- a run of the loader

    @contextmanager
    def opened(self, kind: TableKind = KIND) -> Iterator[LoadDirectory]:
        self.lives += 1
        directory = LoadDirectory(str(self.directory), f"life{self.lives}")
        try:
            directory.open(kind)
            yield directory
        finally:
            directory.close()

    def load(self, on_commit: Callable[[CommitDone], None] = lambda done: None) -> Positions:
        with self.opened() as directory:
            topics = {each.topic for each in self.logs}
            formats = {topic: directory.keep_topic_format(topic, self.formats.get(topic, TopicFormat(None, "raw"))) for topic in sorted(topics)}
            loader = Loader(directory, ClusterAccess(()), formats, self.rules, self.run_tasks, self.clock)
            return loader.run(self.extents(), on_commit)

    def load_commits(self) -> list[Manifest]:
        """The manifests of one run."""
        numbers: list[int] = []
        self.load(lambda done: numbers.append(done.number))
        return [LoadDirectory(str(self.directory), "look").manifest(number) for number in numbers]

    # --- what must be true

    def expected(self) -> list[tuple[str, int, int, bytes | None, str]]:
        return sorted((*each, record.offset, record.value, hour_of(record)) for each, log in self.logs.items() for record in log)

    def expect_exactly_once(self) -> None:
        assert rows_of(self.directory) == self.expected()
        assert list((self.directory / "_millrace/staging").iterdir()) == []
        assert list((self.directory / "_millrace/plans").iterdir()) == []
        assert not list(self.directory.rglob("*.tmp")) and not list((self.directory / "_millrace").glob("new-*"))

    def expect_nothing_wrong_in_sight(self) -> None:
        """At any moment: every row that a listing shows is one of the log, and none is there twice."""
        rows = rows_of(self.directory)
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(self.expected())


def record_batch(partition: int, records: Sequence[StoredRecord], columns: Sequence[str]) -> pa.RecordBatch:
    """What `record_reader` would give."""
    contents: dict[str, list[Any]] = {
        "partition": [partition] * len(records),
        "offset": [each.offset for each in records],
        "timestamp": [each.timestamp_ms * 1000 for each in records],
        "key": [each.key for each in records],
        "value": [each.value for each in records],
        "timestampType": [each.timestamp_type for each in records],
        "headers": [[{"key": key, "value": value} for key, value in each.headers] for each in records],
    }
    return pa.RecordBatch.from_arrays([pa.array(contents[name], SOURCE_TYPES[name]) for name in columns], names=list(columns))


def hour_of(record: StoredRecord) -> str:
    text = str(pa.scalar(record.timestamp_ms, pa.timestamp("ms")).as_py())
    return f"{text[:10]} {int(text[11:13])}"


def table_files(directory: Path) -> list[str]:
    """By a plain listing: everything called .parquet, apart from what begins with an underscore."""
    found = directory.rglob("*.parquet")
    return sorted(str(path) for path in found if not any(part.startswith("_") for part in path.relative_to(directory).parts))


def table_of(directory: Path) -> pa.Table:
    """The table as Arrow, DuckDB or Spark read it."""
    partitioning = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string()), ("hour", pa.int32())]), flavor="hive")
    return ds.dataset(table_files(directory), format="parquet", partitioning=partitioning, partition_base_dir=str(directory)).to_table()


def rows_of(directory: Path) -> list[tuple[str, int, int, bytes | None, str]]:
    """(topic, partition, offset, value, date and hour) of every row, sorted."""
    if not table_files(directory):
        return []
    rows = table_of(directory).select(["topic", "partition", "offset", "value", "date", "hour"]).to_pylist()
    return sorted((row["topic"], row["partition"], row["offset"], row["value"], f"{row['date']} {row['hour']}") for row in rows)


# --- deaths


@contextmanager
def _at_call(number: int, act: Callable[[], None], *, forever: bool) -> Iterator[list[str]]:
    """`act` before call `number` of `file_io` (and, `forever`, before every later one). Yields the names of the calls that were made."""
    originals = {name: getattr(file_io, name) for name in file_io.CALLS}
    made: list[str] = []

    def counted(name: str, *arguments: Any, **options: Any) -> Any:
        made.append(name)
        if len(made) == number or (forever and len(made) > number):
            if not forever:
                restore()
            act()
        return originals[name](*arguments, **options)

    def restore() -> None:
        for name, original in originals.items():
            setattr(file_io, name, original)

    for name in originals:
        setattr(file_io, name, functools.partial(counted, name))
    try:
        yield made
    finally:
        restore()


@contextmanager
def dying_at(number: int) -> Iterator[list[str]]:
    """The block dies before call `number`; what it opened stays open, as far as it is no lock."""

    def die() -> None:
        raise Died

    with _at_call(number, die, forever=True) as made:
        try:
            yield made
        except Died:
            pass


@contextmanager
def interrupted_at(number: int, act: Callable[[], None]) -> Iterator[list[str]]:
    """`act` happens just before call `number`."""
    with _at_call(number, act, forever=False) as made:
        yield made
