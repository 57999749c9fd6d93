"""Write rows of a micro-batch to Parquet files of a staging directory: one for each task, and for each `date` if there is one.

Owned by one task at a time; the driver receives names and sizes. Each file is synced before it is reported, and has the
task's attempt in its name, so attempts do not share files. Weak spot: a task has one open file for each date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from appliance.pipeline.stream_directory import StagedPart
from appliance.storage import file_io

DATE = "date"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
"""Characters that Hive and Spark write as %XX in such names, and that readers decode."""
PART_SCHEMA = "staged string, path string, rows bigint, size_bytes bigint"
_PARTS = pa.schema([("staged", pa.string()), ("path", pa.string()), ("rows", pa.int64()), ("size_bytes", pa.int64())])


class TableParts:
    """`add` rows, `finish` once. `task` distinguishes the tasks of a batch, `attempt` the attempts of the job."""

    def __init__(self, staging: str, table: str, batch_number: int, task: int, attempt: str) -> None:
        self._staging = staging
        self._table = table
        self._name = f"part-{batch_number:08d}-{task:05d}"
        self._attempt = attempt
        self._writers: dict[str, tuple[pq.ParquetWriter, str]] = {}
        self._rows: dict[str, int] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if DATE not in rows.schema.names:
            self._write("", pa.Table.from_batches([rows]))
            return
        table = pa.Table.from_batches([rows])
        dates = table.column(DATE)
        for date in pc.unique(dates):
            mask = pc.equal(dates, date) if date.is_valid else pc.is_null(dates)
            self._write(f"{DATE}={_date_text(date)}/", table.filter(mask).drop_columns([DATE]))

    def _write(self, directory: str, rows: pa.Table) -> None:
        if directory not in self._writers:
            staged = f"{self._table}-{self._name}-{len(self._writers)}-{self._attempt}.parquet"
            self._writers[directory] = pq.ParquetWriter(f"{self._staging}/{staged}", rows.schema, compression="zstd"), staged
            self._rows[directory] = 0
        self._writers[directory][0].write_table(rows)
        self._rows[directory] += rows.num_rows

    def finish(self) -> list[StagedPart]:
        parts = []
        for directory, (writer, staged) in self._writers.items():
            writer.close()
            path = f"{self._staging}/{staged}"
            file_io.sync_path(path)
            size_bytes = int(file_io.stat(path).st_size)
            parts.append(StagedPart(staged, f"{self._table}/{directory}{self._name}.parquet", self._rows[directory], size_bytes))
        return parts


def _date_text(date: pa.Scalar) -> str:
    """Return the directory of a date; null and dates outside the years 1 to 9999, which readers cannot represent, share one."""
    try:
        value = date.as_py()
    except (OverflowError, ValueError):
        return NO_DATE
    return NO_DATE if value is None or value == "" else _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", str(value))


def write_rows(staging: str, table: str, batch_number: int, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> list[StagedPart]:
    """Write the few rows that the driver adds itself."""
    parts = TableParts(staging, table, batch_number, 0, "driver")
    parts.add(pa.RecordBatch.from_pylist(list(rows), schema=schema))
    return parts.finish()


def stage_frame(frame: Any, staging: str, table: str, batch_number: int) -> list[StagedPart]:
    """Write every row of a Spark DataFrame, in its tasks, in one pass."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        parts = TableParts(staging, table, batch_number, context.partitionId(), str(context.taskAttemptId()))
        for batch in batches:
            parts.add(batch)
        written = parts.finish()
        yield pa.RecordBatch.from_pylist([part._asdict() for part in written], schema=_PARTS)

    return [StagedPart(*row) for row in frame.mapInArrow(write, PART_SCHEMA).collect()]


def read_columns(paths: Iterable[str], columns: list[str]) -> pa.Table:
    """Read some columns of staged or placed files."""
    tables = [pq.ParquetFile(path).read(columns=columns) for path in paths]
    return pa.concat_tables(tables)
