"""One run of a table: read what the log has behind the table's offsets, write one file, commit. Runs in a thread of the tabler.

The segments are read in place up to the last stable offset; aborted and control batches are left out. The offsets in the table
are the truth: they are read at the start of each run, so it does not matter which box or incarnation wrote them. A run ends at `bytes_max` of decoded
records, so memory is bounded. Weak: all of it is one core's work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from appliance.base.errors import MillraceError
from appliance.base.model import Offset
from appliance.pipeline.local_rows import LocalRow
from appliance.pipeline.local_segments import LocalSegments, NotReadHere
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import CorruptRange, DataLoss
from appliance.pipeline.record_reader import RangeReader
from appliance.shm.partition_table import ROLE_LEADER
from appliance.storage import file_io
from services.tabler.delta_table import DeltaTopicTable
from services.tabler.json_columns import BAD_SCHEMA, JsonRows, without
from services.tabler.table_columns import SOURCE_COLUMNS, Statistics, TableRows, has_fields, pieces, same_type, schema_problem
from services.tabler.table_rules import MissingRange, PartitionStart, TableOrder, TableResult, is_compaction_due, plan_partition, rotated
from services.tabler.topic_table import BAD, ROW_GROUP_BYTES, Step, TableFile, TableTrouble, TopicTable, location_problem, trouble

ROW_GROUP_BYTES_MIN = 1 << 20
"""Row groups are the smaller, the more files a run writes at a time."""
HOURS_MAX = 32
FILES_MAX = 1 << 31
"""More files than a table has: nothing is merged."""
_HOUR_US = 3_600_000_000
WINDOW_BYTES = 4 << 20
Shortened = Mapping[int, tuple[int, int]]


class TableJob(NamedTuple):
    """What a run is to do."""

    order: TableOrder
    find: Callable[[int], LocalRow | str]
    """Finds a partition on the disks of this box, or says why not."""
    allowed: Sequence[str]
    partitions: Sequence[int]
    turn: int
    writer: str
    expected_id: str
    remember: Callable[[str, Shortened], None]
    """Takes the id of the table before anything is committed to it: a table that is deleted later must be missed; and what replaces
    `shortened`. Raises OSError."""
    scanned: Mapping[int, int]
    """Offsets up to which an earlier run found no record behind the table's."""
    accepted_damage: frozenset[tuple[int, int]]
    """Partition and offset of damaged batches that are not waited for any more."""
    shortened: Shortened
    """Partition → log end that an earlier run saw below the table's offset, and that offset: the table lacks what was appended between."""
    compaction_commits: int
    """Commits between two compactions; 0: none."""
    properties: Mapping[str, str] = {}
    """Those of the Iceberg catalog, by pyiceberg's names, and of the object store, by its own."""
    staging: str = ""
    """The directory in which files wait for an object store."""
    is_cancelled: Callable[[], bool] = lambda: False
    step: Step = lambda _step: None


class RunCancelled(MillraceError):
    """The process stops."""


class _Part(NamedTuple):
    partition: int
    found: LocalRow
    plan: PartitionStart


def run_table(job: TableJob) -> TableResult:
    """Do one run. Raises TableTrouble, RunCancelled."""
    if (problem := location_problem(job.order.location, job.allowed)) is not None:
        raise TableTrouble(problem)
    with closing(topic_table(job)) as table, closing(topic_table(job, f"/{BAD}")) as bad_table:
        return _run(job, table, bad_table)


def topic_table(job: TableJob, below: str = "") -> TopicTable:
    """Return the topic's table, or one in a directory below it."""
    order = job.order
    where = f"{order.directory}{below}", order.topic, order.topic_id, job.writer, job.properties, job.staging
    if order.file_format == "delta":
        return DeltaTopicTable(*where)
    from services.tabler.iceberg_table import IcebergTopicTable

    return IcebergTopicTable(*where)


def _run(job: TableJob, table: TopicTable, bad_table: TopicTable) -> TableResult:
    table.open(job.expected_id)
    table.sweep()
    if table.exists and (problem := schema_problem(table.schema(), job.order.schema)) is not None:
        raise TableTrouble(f"the columns of {job.order.directory} were changed: {problem}; move the table away, or restore an earlier version")
    if table.exists:
        remember(job, table, job.shortened)
    return _TableRun(job, table, bad_table).run()


def remember(job: TableJob, table: TopicTable, shortened: Shortened) -> None:
    """Remember which table it is, and ends of logs that are shorter, if that is not known."""
    try:
        if table.table_id != job.expected_id or shortened != job.shortened:
            job.remember(table.table_id, shortened)
    except OSError as error:
        raise TableTrouble(f"could not remember the table {job.order.directory} in the state directory: {error.strerror or error}") from error


class _TableRun:
    def __init__(self, job: TableJob, table: TopicTable, bad_table: TopicTable) -> None:
        self._job = job
        self._table = table
        self._offsets = table.offsets(job.partitions)
        self._rows: TableRows | JsonRows | None = None
        if job.order.schema == "json":
            self._rows = JsonRows(job.order.topic, table.schema() if table.exists else None)
        elif table.exists:
            self._rows = TableRows("message" in table.schema().names)
        self._bad_table = bad_table
        if job.order.schema == "json":
            self._bad_table.open("")
            self._bad_table.sweep()
        self._bad_offsets = self._bad_table.offsets(job.partitions)
        self._files = _StagedFiles(table, job.writer)
        self._bad = _StagedFiles(self._bad_table, job.writer)
        self._positions: dict[int, int] = dict(self._offsets)
        self._lost: list[MissingRange] = []
        self._damaged: list[MissingRange] = []
        self._shortened = dict(job.shortened)
        self._problems: list[str] = []

    def run(self) -> TableResult:
        parts: list[_Part] = []
        try:
            parts = self._parts()
            if self._table.exists:
                remember(self._job, self._table, {**self._job.shortened, **self._shortened})
            for part in parts:
                if not self._is_full:
                    self._read(part)
            before = self._table.version if self._table.exists else -1
            committed = self._commit()
            self._forget_shortened()
        except Exception:
            self._files.discard()
            self._bad.discard()
            raise
        finally:
            for part in parts:
                part.found.table.close()
        compacted = self._compact(before) if committed else 0
        files = self._files
        table_id, version = (self._table.table_id, self._table.version) if self._table.exists else ("", -1)
        return TableResult(
            table_id,
            version,
            self._positions,
            files.rows + self._bad.rows,
            files.bad_rows + self._bad.rows,
            files.written_bytes + self._bad.written_bytes,
            committed,
            compacted,
            self._is_full,
            tuple(self._lost),
            tuple(self._damaged),
            self._shortened,
            tuple(self._problems),
            (self._table.metadata_file, self._bad_table.metadata_file),
        )

    @property
    def _is_full(self) -> bool:
        return self._files.size_bytes + self._bad.size_bytes >= self._job.order.bytes_max

    def _parts(self) -> list[_Part]:
        """Return the partitions that this box leads and that have something to read."""
        parts = []
        for partition in rotated(self._job.partitions, self._job.turn):
            found = self._job.find(partition)
            if isinstance(found, str) or found.row.role != ROLE_LEADER:
                continue  # another box leads it now, or its disk is away: `millrace status` has that
            plan = plan_partition(found.row, self._offsets.get(partition), self._job.scanned.get(partition))
            self._positions[partition] = plan.start
            if plan.problem is not None:
                self._problems.append(f"partition {partition}: {plan.problem}")
                end, offset = self._job.shortened.get(partition, (plan.start, plan.start))
                self._shortened[partition] = min(found.row.log_end_offset, end), max(plan.start, offset)
            elif partition in self._job.shortened:
                reason = "the log lost records and has others at these offsets"
                self._lost.append(MissingRange(partition, *self._shortened.pop(partition), reason))
            if plan.end > plan.start:
                parts.append(_Part(partition, found, plan))
            else:
                found.table.close()
        return parts

    def _read(self, part: _Part) -> None:
        partition = part.partition
        wanted = OffsetRange(self._job.order.topic, partition, part.plan.start, part.plan.end)
        lost: list[MissingRange] = []
        damaged: list[MissingRange] = []

        def on_loss(loss: DataLoss) -> None:
            lost.append(MissingRange(partition, loss.start, loss.end, loss.reason))

        def on_corrupt(found: CorruptRange) -> None:
            known = lost if (partition, found.offset) in self._job.accepted_damage else damaged
            known.append(MissingRange(partition, found.offset, found.end, f"damaged batch: {found.reason}"))

        reader = RangeReader(wanted, SOURCE_COLUMNS, on_corrupt, is_bounded=True)
        segments = LocalSegments(part.found, wanted, True, WINDOW_BYTES)
        reached: int = part.plan.start
        end: int | None = None
        is_cut = False
        try:
            with closing(reader.read(segments, on_loss)) as batches:
                for batch in batches:
                    if self._job.is_cancelled():
                        raise RunCancelled("the process stops")
                    if damaged:
                        batch = _before(batch, damaged[0].start)
                    for piece in pieces(batch):
                        self._add(piece)
                        reached = piece.column("offset")[-1].as_py() + 1
                        if self._is_full:
                            is_cut = True
                            break
                    if damaged or is_cut:
                        end = reached
                        break
                else:
                    end = part.plan.end
        except NotReadHere as reason:
            end = reached
            self._problems.append(f"partition {partition}: {reason}")
        if damaged and not is_cut:  # a run that is full may end before the damage: the next one comes to it
            end = max(reached, damaged[0].start)
            self._damaged.append(damaged[0])
        assert end is not None
        self._positions[partition] = max(self._positions[partition], end)
        self._lost += [each._replace(end=min(each.end, end)) for each in lost if each.start < end]

    def _add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._rows is None:
            self._rows = TableRows(has_fields(batch))
        if isinstance(self._rows, TableRows):
            self._files.add(self._rows.make(batch))
            return
        made = self._rows.make(batch)
        self._files.add(made.rows)
        if made.bad is not None:
            self._bad.add(without(made.bad, self._bad_offsets))

    def _commit(self) -> bool:
        """Commit what was read, if there is anything. What only moved past aborted records and markers needs no commit."""
        if not self._files.rows and not self._bad.rows and not self._lost:
            return False
        moved = {partition: offset for partition, offset in self._positions.items() if offset != self._offsets.get(partition)}
        self._commit_bad(moved)
        if not self._table.exists:
            self._job.step("create")
            self._table.create((self._rows or TableRows(False)).schema)
            remember(self._job, self._table, self._job.shortened)
            if self._offsets != self._table.offsets(self._job.partitions):
                raise self._is_others()
        self._add_columns()
        files = self._files.finish(self._job.step)
        self._table.append(files, moved, self._lost, self._job.step)
        return True

    def _commit_bad(self, moved: Mapping[int, int]) -> None:
        """Commit bad records, with the offsets up to which they are there, before the rest: after a kill between both commits, the next
        run reads the same records again, and leaves out the bad ones that the table has."""
        if not self._bad.rows:
            return
        if not self._bad_table.exists:
            self._bad_step("create")
            self._bad_table.create(BAD_SCHEMA)
            if self._bad_offsets != self._bad_table.offsets(self._job.partitions):
                raise self._is_others()
        further = {partition: offset for partition, offset in moved.items() if offset > self._bad_offsets.get(partition, -1)}
        self._bad_table.append(self._bad.finish(self._bad_step), further, (), self._bad_step)

    def _bad_step(self, name: str) -> None:
        self._job.step(f"bad records: {name}")

    def _add_columns(self) -> None:
        """Give the table the columns that rows have. Another box may have added some that do not go with ours."""
        if self._rows is None:
            return
        there = self._table.schema()
        known = {name.lower(): name for name in there.names}
        new = [field for field in self._rows.schema if field.name.lower() not in known]
        for field in self._rows.schema:
            if field not in new and (field.name not in there.names or not same_type(there.field(field.name).type, field.type)):
                raise self._is_others()
        if new and isinstance(self._rows, TableRows):
            raise self._is_others()
        if new:
            self._job.step("add columns")
            self._table.add_columns(new)

    def _is_others(self) -> TableTrouble:
        return TableTrouble(f"the table {self._job.order.directory} was created or changed by another box at the same time; reading on from its offsets")

    def _forget_shortened(self) -> None:
        """Remember no longer what this commit counts as lost; a kill just before makes the next run count it again."""
        if self._job.shortened.keys() - self._shortened.keys():
            try:
                self._job.remember(self._table.table_id, self._shortened)
            except OSError as error:
                self._problems.append(f"could not write the memory of the table: {error.strerror or error}")

    def _compact(self, version_before: int) -> int:
        """Merge small files now and then. What was committed stays, if it fails."""
        every = self._job.compaction_commits
        if not is_compaction_due(version_before, self._table.version, every or self._table.upkeep_commits):
            return 0
        files_min = every // 2 or FILES_MAX
        try:
            if self._bad_table.exists:
                self._bad_table.compact(files_min)
            return self._table.compact(files_min)
        except TableTrouble as trouble:
            self._problems.append(f"{trouble}; trying again after {every or self._table.upkeep_commits} commits")
            return 0


class _StagedFiles:
    """The Parquet files of a run: another one from each batch on that has more columns than those before, and of each hour if the table wants it.

    The rows of hours that come when there are `HOURS_MAX` files go into one, which has no hour.
    """

    def __init__(self, table: TopicTable, writer: str) -> None:
        self._table = table
        self._writer = writer
        self._files: list[_StagedTableFile] = []
        self._open: dict[int | None, _StagedTableFile] = {}
        self._schema: pa.Schema | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if rows.schema != self._schema:
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._schema = rows.schema
        for hour, part in self._parts(rows):
            if hour not in self._open:
                self._open[hour] = _StagedTableFile(self._table, self._writer, hour)
                self._files.append(self._open[hour])
            self._open[hour].add(part, max(ROW_GROUP_BYTES // len(self._open), ROW_GROUP_BYTES_MIN))

    def _parts(self, rows: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        if not self._table.by_hour:
            yield None, rows
            return
        hours = rows.column("timestamp").cast(pa.int64()).to_numpy() // _HOUR_US
        is_left = np.ones(len(hours), bool)
        found = np.unique(hours).tolist()
        for hour in found:
            if abs(hour) < 1 << 31 and (hour in self._open or len(self._files) < HOURS_MAX):
                if len(found) == 1:
                    yield hour, rows
                    return
                is_hour = hours == hour
                is_left &= ~is_hour
                yield hour, rows.filter(pa.array(is_hour))
        if is_left.any():
            yield None, rows.filter(pa.array(is_left))

    @property
    def rows(self) -> int:
        return sum(file.statistics.rows for file in self._files)

    @property
    def bad_rows(self) -> int:
        return sum(file.bad_rows for file in self._files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files)

    @property
    def written_bytes(self) -> int:
        return sum(file.written_bytes for file in self._files)

    def finish(self, step: Step) -> list[TableFile]:
        step("write")
        return [file.close() for file in self._files]

    def discard(self) -> None:
        for file in self._files:
            file.discard()


class _StagedTableFile:
    """One of them; it exists from the first row on."""

    def __init__(self, table: TopicTable, writer: str, hour: int | None) -> None:
        self._table = table
        self._hour = hour
        self._name = f"part-{writer}-{os.urandom(8).hex()}.zstd.parquet"
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self.statistics = Statistics()
        self.size_bytes = self.bad_rows = self.written_bytes = 0

    @property
    def _path(self) -> str:
        return f"{self._table.staging}/{self._name}"

    def add(self, rows: pa.RecordBatch, group_bytes: int) -> None:
        self.statistics.add(rows)
        if "problem" in rows.schema.names:
            self.bad_rows += rows.num_rows - rows.column("problem").null_count
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self.size_bytes += rows.nbytes
        if self._waiting_bytes >= group_bytes:
            self._flush()

    def _flush(self) -> None:
        with trouble("write", self._table.staging):
            if self._writer is None:
                self._table.make_staging()
                self._writer = pq.ParquetWriter(self._path, self._table.file_schema(self._waiting[0].schema), compression="zstd")
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> TableFile:
        """Write the rest. May be called again."""
        if self._waiting:
            self._flush()
        with trouble("write", self._table.staging):
            self._writer.close()
            self.written_bytes = file_io.stat(self._path).st_size
        return TableFile(self._name, self.statistics.rows, self.statistics.document(), self._hour)

    def discard(self) -> None:
        """Remove it: a full disk needs the space."""
        if self._writer is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
        with suppress(OSError):
            file_io.unlink_if_there(self._path)


def _before(batch: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    return batch.filter(pa.compute.less(batch.column("offset"), Offset(offset)))
