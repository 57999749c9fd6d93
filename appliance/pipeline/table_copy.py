"""One task of a load into PostgreSQL: the rows of a range and the partition's new position, in one transaction.

The position moves first, and only from the start of the range: of two tasks the second waits for the first and finds that
the position has moved. So a task that outlived its driver did the work of its successor, or none. No plan is needed and
nothing is left to remove. Texts with a NUL character, and times before PostgreSQL's calendar, cannot be stored.
Weak spots: a range is one transaction, however long it takes; bytes, lists, and times whose year does not have four digits
are converted one by one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from psycopg import sql

from appliance.base.errors import MillraceError
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.json_values import YEAR_1_US, YEAR_10000_US
from appliance.pipeline.load_manifest import SkippedRange
from appliance.pipeline.load_task import Skips
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.postgres_table import BAD_RECORDS, POSITIONS, TableAddress
from appliance.pipeline.record_decoder import BAD_SCHEMA, Decoded, make_decoder
from appliance.pipeline.record_reader import read_range
from appliance.pipeline.table_kind import TopicFormat

NUL_PROBLEM = "a text has a NUL character, which PostgreSQL's do not"
FIRST_US = -210_866_803_200_000_000
"""24 November 4714 BC, the start of PostgreSQL's calendar. Its end is beyond 64 bits of microseconds."""


def csv_of(rows: pa.RecordBatch) -> bytes:
    """CSV for COPY: texts in quotation marks, so that an empty text differs from null."""
    columns = [_plain(column) for column in rows.columns]
    target = io.BytesIO()
    plain = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
    pacsv.write_csv(plain, target, pacsv.WriteOptions(include_header=False))
    return target.getvalue()


def _plain(column: pa.Array) -> pa.Array:
    """Convert columns for CSV: bytes to PostgreSQL's hexadecimal, far times to texts, lists to JSON or PostgreSQL's arrays."""
    kind = column.type
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string())
    if pa.types.is_timestamp(kind):
        ticks = column.cast(pa.int64())
        near = pc.and_(pc.greater_equal(ticks, YEAR_1_US), pc.less(ticks, YEAR_10000_US))
        if pc.all(near).as_py():
            return column
        return pa.array([None if each is None else _time_text(each) for each in ticks.to_pylist()], pa.string())
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return pa.array([None if value is None else _headers_json(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_list(kind):
        return pa.array([None if value is None else _array_text(value) for value in column.to_pylist()], pa.string())
    return column


def _time_text(ticks: int) -> str:
    """`12345-01-01T00:00:00.000000Z`, `0044-03-15T12:00:00.000000Z BC`; the year before 1 is 1 BC."""
    text = str(np.datetime64(ticks, "us"))
    month_on = text[-len("-01-01T00:00:00.000000") :]
    year = int(text.removesuffix(month_on))
    return f"{year:04}{month_on}Z" if year > 0 else f"{1 - year:04}{month_on}Z BC"


def _headers_json(headers: list[dict[str, Any]]) -> str:
    """Return `[[key, value], …]` as JSON; bytes that are no text, and NUL, as \\xNN."""
    return orjson.dumps([[_text(each["key"].encode()), None if each["value"] is None else _text(each["value"])] for each in headers]).decode()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def _array_text(values: list[Any]) -> str:
    """`{"a","b",NULL}`"""
    return "{" + ",".join("NULL" if value is None else '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def without_unfit(decoded: Decoded, batch: pa.RecordBatch) -> Decoded:
    """Turn rows that PostgreSQL cannot store into bad records; `batch` is their source. A time that it cannot store is left out."""
    problems: dict[int, str] = {}
    for name, column in zip(decoded.rows.schema.names, decoded.rows.columns):
        if pa.types.is_timestamp(column.type):
            ticks = column.cast(pa.int64())
            for row in _true(pc.less(ticks, FIRST_US)):
                problems[row] = _too_early(name, ticks[row].as_py())
        else:
            problems |= dict.fromkeys(_with_nul(column), NUL_PROBLEM)
    bad = decoded.bad
    if problems:
        spoilt = np.array(sorted(problems), np.int64)
        offsets = decoded.rows.column("offset").take(pa.array(spoilt))
        origin = batch.take(pc.index_in(offsets, batch.column("offset")))
        words = pa.array([problems[row] for row in spoilt.tolist()], pa.string())
        found = pa.RecordBatch.from_arrays([*(origin.column(name) for name in BAD_SCHEMA.names[:-1]), words], schema=BAD_SCHEMA)
        bad = found if bad is None else pa.concat_batches([bad, found])
        good = np.delete(np.arange(decoded.rows.num_rows), spoilt)
        decoded = Decoded(decoded.rows.take(pa.array(good)), decoded.hours[good])
    return decoded._replace(bad=None if bad is None else _with_times(bad))


def _with_times(bad: pa.RecordBatch) -> pa.RecordBatch:
    """Return bad records with a time that fits; for others the problem names the time."""
    times, problems = bad.column("timestamp"), bad.column("problem").to_pylist()
    early = pc.less(times.cast(pa.int64()), FIRST_US)
    for row in _true(early):
        words = _too_early("timestamp", times[row].cast(pa.int64()).as_py())
        problems[row] = problems[row] if problems[row] == words else f"{problems[row]}; {words}"
    columns = dict(zip(BAD_SCHEMA.names, bad.columns)) | {
        "timestamp": pc.if_else(early, pa.scalar(None, times.type), times),
        "problem": pa.array(problems, pa.string()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=BAD_SCHEMA)


def _too_early(name: str, ticks: int) -> str:
    return f"{name} is {-ticks} microseconds before 1970, which PostgreSQL's calendar does not have"


def _with_nul(column: pa.Array) -> list[int]:
    """Return the rows with a text, alone or in a list, that PostgreSQL cannot store."""
    if pa.types.is_string(column.type):
        return _true(pc.match_substring(column, "\0"))
    if pa.types.is_list(column.type) and pa.types.is_string(column.type.value_type):
        found = _true(pc.match_substring(column.flatten(), "\0"))
        return sorted(set(pc.list_parent_indices(column).take(pa.array(found, pa.int64())).to_pylist())) if found else []
    return []


def _true(found: pa.Array) -> list[int]:
    rows: list[int] = np.flatnonzero(pc.fill_null(found, False).to_numpy(zero_copy_only=False)).tolist()
    return rows


class CopyJob(NamedTuple):
    """The parameters that all tasks of a round share; pickled into each."""

    access: ClusterAccess
    address: TableAddress
    chosen: TopicFormat
    by_arrival: bool
    accept_loss: bool
    skip_corrupt: bool


class CopyResult(NamedTuple):
    """`moved`: another task has loaded (part of) the range, and this one nothing."""

    range: OffsetRange
    rows: int = 0
    bad_rows: int = 0
    skipped: tuple[SkippedRange, ...] = ()
    record_bytes: int = 0
    moved: bool = False
    problem: str | None = None


class _NotAllowed(MillraceError):
    """Records would be skipped without the user's consent."""


Read = Callable[..., Iterable[Any]]
"""`record_reader.read_range`, or a function with its signature."""


def copy_range(job: CopyJob, wanted: OffsetRange, read: Read = read_range) -> CopyResult:
    """Copy a range in one transaction."""
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
