"""What one task of a load into PostgreSQL does: a range's rows and the partition's new position, in one transaction. Needs no plan and leaves nothing to sweep.

The position moves first, and only from where the range begins: whoever comes second waits for the first, and finds that it has moved. So a task that
outlived its driver either did its work for the next one, or none. Weak spot: a range is one transaction, however long it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from appliance.base.errors import MillraceError
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.copy_rows import csv_of, without_unfit
from appliance.pipeline.load_manifest import SkippedRange
from appliance.pipeline.load_task import Skips
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.postgres_table import BAD_RECORDS, POSITIONS, TableAddress
from appliance.pipeline.record_decoder import BAD_SCHEMA, make_decoder
from appliance.pipeline.record_reader import read_range
from appliance.pipeline.table_kind import TopicFormat


class CopyJob(NamedTuple):
    """The same for all tasks of a round; pickled into each."""

    access: ClusterAccess
    address: TableAddress
    chosen: TopicFormat
    by_arrival: bool
    accept_loss: bool
    skip_corrupt: bool


class CopyResult(NamedTuple):
    """`moved`: somebody else has loaded (part of) the range meanwhile, and this task nothing."""

    range: OffsetRange
    rows: int = 0
    bad_rows: int = 0
    skipped: tuple[SkippedRange, ...] = ()
    record_bytes: int = 0
    moved: bool = False
    problem: str | None = None


class _NotAllowed(MillraceError):
    """Something would be left out that may not be."""


Read = Callable[..., Iterable[Any]]
"""`record_reader.read_range`, or another with its signature."""


def copy_range(job: CopyJob, wanted: OffsetRange, read: Read = read_range) -> CopyResult:
    """One transaction: all of it, or nothing."""
    try:
        with psycopg.connect(job.address.connection, connect_timeout=10) as connection, connection.cursor() as cursor:
            moved = f"update {POSITIONS} set next_offset = %s where table_name = %s and partition = %s and next_offset = %s"
            cursor.execute(moved, (wanted.end, job.address.table, wanted.partition, wanted.start))
            if cursor.rowcount != 1:
                return CopyResult(wanted, moved=True)
            return _copy(job, wanted, cursor, read)
    except psycopg.Error as error:
        return CopyResult(wanted, problem=f"{job.address}: {str(error).strip()}")
    except MillraceError as error:
        return CopyResult(wanted, problem=str(error))


def _copy(job: CopyJob, wanted: OffsetRange, cursor: psycopg.Cursor[Any], read: Read) -> CopyResult:
    decoder = make_decoder(job.chosen, by_arrival=job.by_arrival)
    into_table = _copy_statement(job.address.table, decoder.schema.names)
    into_bad = _copy_statement(BAD_RECORDS, ["table_name", *BAD_SCHEMA.names])
    skips = Skips()
    rows = bad_rows = record_bytes = 0
    for batch in read(job.access, wanted, decoder.source_columns, on_data_loss=skips.lost, on_corrupt=skips.corrupt):
        record_bytes += batch.column("key").nbytes + batch.column("value").nbytes
        decoded = without_unfit(decoder.decode(batch), batch)
        _send(cursor, into_table, decoded.rows)
        rows += decoded.rows.num_rows
        if decoded.bad is not None:
            names = pa.array([job.address.table] * decoded.bad.num_rows, pa.string())
            _send(cursor, into_bad, pa.RecordBatch.from_arrays([names, *decoded.bad.columns], names=["table_name", *BAD_SCHEMA.names]))
            bad_rows += decoded.bad.num_rows
    for skip in skips.found:
        if not (job.accept_loss if skip.reason == "lost" else job.skip_corrupt):
            option = "--accept-loss" if skip.reason == "lost" else "--skip-corrupt"
            raise _NotAllowed(f"{skip} cannot be loaded; {option} goes on without them")
    return CopyResult(wanted, rows, bad_rows, tuple(skips.found), record_bytes)


def _copy_statement(table: str, columns: Sequence[str]) -> sql.Composed:
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("copy {} ({}) from stdin (format csv)").format(sql.Identifier(table), names)


def _send(cursor: psycopg.Cursor[Any], statement: sql.Composed, rows: pa.RecordBatch) -> None:
    if rows.num_rows == 0:
        return
    with cursor.copy(statement) as copy:
        copy.write(csv_of(rows))
