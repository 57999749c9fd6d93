"""Write the rows of one task to Parquet files, one for each hour, or more if a task has too many hours at once.

Owned by one task. Rows wait in memory up to FLUSH_BYTES; then the hour with the most is written as a row group. The rest is
written file by file, so a topic with many different times costs files, not memory or descriptors. Each file is synced before
it is reported. Weak spot: a record larger than FLUSH_BYTES is a row group of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from appliance.pipeline.load_manifest import StagedFile
from appliance.storage import file_io

FLUSH_BYTES = 48 * 1024 * 1024
OPEN_FILES_MAX = 100
NO_HOUR = -1
"""Records without a time, or outside the calendar."""
UNKNOWN = "__HIVE_DEFAULT_PARTITION__"
"""Read as null in a directory's name by Hive, Spark and Arrow."""
_HOUR_US = 3_600_000_000
_HOUR_END = int(np.datetime64("10000-01-01T00", "h").astype(np.int64))

Hours = NDArray[np.int64]


def hours_of(timestamps_us: NDArray[np.int64]) -> Hours:
    """Return hours since 1970 UTC; NO_HOUR before 1970 and after 9999."""
    hours = timestamps_us // _HOUR_US
    hours[(timestamps_us < 0) | (hours >= _HOUR_END)] = NO_HOUR
    return hours


def hour_directory(hour: int) -> str:
    """`date=2026-11-22/hour=05`"""
    if hour == NO_HOUR:
        return f"date={UNKNOWN}/hour={UNKNOWN}"
    text = str(np.datetime64(int(hour), "h"))
    return f"date={text[:10]}/hour={text[11:]}"


class FileNames(NamedTuple):
    """Names of a task's files: `staged` before publication, unique for this attempt; `name` in an hour's directory below `base`."""

    directory: str
    staged: str
    base: str
    name: str


class _OpenFile:
    """A Parquet file in progress."""

    def __init__(self, path: str, schema: pa.Schema, options: dict[str, Any]) -> None:
        self.path = path
        self.rows = 0
        self._writer = pq.ParquetWriter(path, schema, **options)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows

    def close(self) -> int:
        """Close and sync the file; return its size in bytes."""
        self._writer.close()
        file_io.sync_path(self.path)
        return int(file_io.stat(self.path).st_size)


class HourFiles:
    """`add` rows, `finish` once. Readers see the files only after the loader has published them."""

    def __init__(self, names: FileNames, schema: pa.Schema, flush_bytes: int = FLUSH_BYTES, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._names = names
        self._schema = schema
        self._options = parquet_options(schema)
        self._flush_bytes = flush_bytes
        self._open_files_max = open_files_max
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._waiting_bytes: dict[int, int] = {}
        self._total_bytes = 0
        self._open: dict[int, _OpenFile] = {}
        self._parts: dict[int, int] = {}
        self._finished: list[StagedFile] = []

    def add(self, batch: pa.RecordBatch, hours: Hours) -> None:
        """Add rows in offset order; `hours` has one entry for each."""
        if batch.num_rows == 0:
            return
        first = int(hours[0])
        if (hours == first).all():
            self._keep(first, batch)
            return
        order = np.argsort(hours, kind="stable")
        found, starts = np.unique(hours[order], return_index=True)
        for hour, rows in zip(found.tolist(), np.split(order, starts[1:])):
            self._keep(hour, batch.take(pa.array(rows)))

    def _keep(self, hour: int, batch: pa.RecordBatch) -> None:
        size = batch.get_total_buffer_size() if batch.num_columns else 0
        size = min(size, batch.nbytes + 1)
        self._waiting.setdefault(hour, []).append(batch)
        self._waiting_bytes[hour] = self._waiting_bytes.get(hour, 0) + size
        self._total_bytes += size
        while self._total_bytes > self._flush_bytes:
            self._write(max(self._waiting_bytes, key=self._waiting_bytes.__getitem__))

    def _write(self, hour: int) -> None:
        file = self._open.pop(hour, None)
        if file is None:
            if len(self._open) >= self._open_files_max:
                self._close(next(iter(self._open)))  # the one that was written to longest ago
            part = self._parts[hour] = self._parts.get(hour, -1) + 1
            file = _OpenFile(f"{self._names.directory}/{self._staged_name(hour, part)}", self._schema, self._options)
        self._open[hour] = file
        file.write(self._waiting.pop(hour))
        self._total_bytes -= self._waiting_bytes.pop(hour)

    def _staged_name(self, hour: int, part: int) -> str:
        return f"{self._names.staged}-{hour}-{part}.staged"

    def _close(self, hour: int) -> None:
        size_bytes = self._open[hour].close()
        file = self._open.pop(hour)
        part = self._parts[hour]
        names = self._names
        name = f"{names.name}.parquet" if part == 0 else f"{names.name}-{part}.parquet"
        path = f"{names.base}/{hour_directory(hour)}/{name}"
        self._finished.append(StagedFile(self._staged_name(hour, part), path, file.rows, size_bytes))

    def finish(self) -> tuple[StagedFile, ...]:
        """Write the rest, sync, and return the files."""
        for hour in sorted(self._open):
            if hour in self._waiting:
                self._write(hour)
            self._close(hour)
        for hour in sorted(self._waiting):
            self._write(hour)
            self._close(hour)
        return tuple(self._finished)


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the encodings of columns: growing numbers as differences, repeated texts as dictionaries, values plain."""
    growing = {name: "DELTA_BINARY_PACKED" for name in ("offset", "timestamp", "arrival") if name in schema.names}
    single = {"value", "message", "raw", *growing}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [field.name for field in schema if field.name not in single and not pa.types.is_nested(field.type)],
        "column_encoding": growing,
        "write_statistics": [field.name for field in schema if field.name not in {"value", "raw", "message", "headers"}],
        "store_schema": True,
    }
