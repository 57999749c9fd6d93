"""Records of a topic as rows of its table. Owned by one run.

Every table has `partition`, `offset`, `timestamp`, `key`, `value`, `headers` and `problem`. A topic whose first records are those that ingest
writes (docs/senders.md) also has their fields as columns; `value` is null then, unless the record is no JSON object or has a field of another type:
such a record is kept whole in `value`, with the reason in `problem`. So no record is lost, and none is twice as large. Which of both a table is was
decided by its first commit, and its columns say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from appliance.pipeline.record_schema import record_schema
from appliance.pipeline.syslog_values import SyslogValues
from services.tabler.json_columns import JSON_SCHEMA, TOO_LONG, without_long

SOURCE_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
_RAW = record_schema(SOURCE_COLUMNS)
_PROBLEM = pa.field("problem", pa.string())
_FIELDS = SyslogValues().fields
RAW_SCHEMA = pa.schema([*_RAW, _PROBLEM])
FIELDS_SCHEMA = pa.schema([*_RAW, *_FIELDS, _PROBLEM])
RECOGNISED_SHARE = 0.5
PIECE_BYTES = 4 << 20
PIECE_ROWS = 5_000
"""With 1,000 columns, 40 MB, however short the values are."""
_REQUIRED = ("severity", "message")
_YEAR_10000_US = 253_402_300_800_000_000


class TableRows:
    """Turns record batches with `SOURCE_COLUMNS` into rows of `schema`."""

    def __init__(self, with_fields: bool) -> None:
        self.schema = FIELDS_SCHEMA if with_fields else RAW_SCHEMA
        self._values = SyslogValues() if with_fields else None

    def make(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        source = {name: batch.column(name) for name in SOURCE_COLUMNS}
        if self._values is None:
            return pa.RecordBatch.from_arrays([*source.values(), pa.nulls(count, pa.string())], schema=self.schema)
        values, long = without_long(source["value"])
        columns, problems = self._values.decode(values)
        problems.update(dict.fromkeys(long, TOO_LONG))
        if problems:
            is_bad = np.zeros(count, bool)
            is_bad[list(problems)] = True
            place = pa.array(np.cumsum(~is_bad) - 1, mask=is_bad)  # of each record among the decoded ones
            columns = [column.take(place) for column in columns]
            source["value"] = pc.if_else(pa.array(is_bad), source["value"], pa.scalar(None, pa.binary()))
            problem = pa.array([problems.get(number) for number in range(count)], pa.string())
        else:
            source["value"] = pa.nulls(count, pa.binary())
            problem = pa.nulls(count, pa.string())
        return pa.RecordBatch.from_arrays([*source.values(), *columns, problem], schema=self.schema)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of about `PIECE_BYTES` of values, which take many times as much in Python, and at most `PIECE_ROWS`."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(batch.column("value")), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, min(first + PIECE_ROWS, int(np.searchsorted(ends, before + PIECE_BYTES, "right"))))
        yield batch.slice(first, end - first)
        first = end


def has_fields(batch: pa.RecordBatch) -> bool:
    """Return whether these records are mostly those that ingest writes."""
    columns, problems = SyslogValues().decode(without_long(batch.column("value"))[0])
    found = dict(zip([field.name for field in _FIELDS], columns))
    known = pc.and_(*(pc.is_valid(found[name]) for name in _REQUIRED))
    return (pc.sum(known).as_py() or 0) >= RECOGNISED_SHARE * (len(known) + len(problems))


def schema_problem(schema: pa.Schema, config: str) -> str | None:
    """Return why rows cannot be appended to a table with these columns, or None. Columns that others added stay null."""
    known = "records" if _PROBLEM.name in schema.names else "json"
    if known != config:
        return f"it has those of {known}, but millrace.table.schema is {config}; set that to {known}"
    wanted = JSON_SCHEMA if known == "json" else FIELDS_SCHEMA if "message" in schema.names else RAW_SCHEMA
    for field in wanted:
        if field.name not in schema.names:
            return f"it has no column {field.name} any more"
        if not same_type(schema.field(field.name).type, field.type):
            return f"its column {field.name} is {schema.field(field.name).type} now, not {field.type}"
    return None


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_list(one) and pa.types.is_list(other):
        return same_type(one.value_type, other.value_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return [field.name for field in one] == [field.name for field in other] and all(same_type(a.type, b.type) for a, b in zip(one, other))
    return bool(one == other)


class Statistics:
    """Smallest and largest values of a file, by which readers skip it."""

    def __init__(self) -> None:
        self.rows = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in ("partition", "offset", "timestamp"):
            column = batch.column(name)
            found = pc.min_max(column.cast(pa.int64()) if name == "timestamp" else column).as_py()
            low, high = self._bounds.get(name, (found["min"], found["max"]))
            self._bounds[name] = min(low, found["min"]), max(high, found["max"])

    def document(self) -> dict[str, Any]:
        """Return them as Delta's log has them, without times that have no calendar."""
        bounds = dict(self._bounds)
        low, high = bounds.pop("timestamp", (-1, -1))
        if 0 <= low and high < _YEAR_10000_US:
            bounds["timestamp"] = _instant(low), _instant(high)
        document: dict[str, Any] = {"numRecords": self.rows}
        for number, name in enumerate(("minValues", "maxValues")):
            document[name] = {column: pair[number] for column, pair in bounds.items()}
        return document | {"nullCount": dict.fromkeys(bounds, 0)}


def _instant(microseconds: int) -> str:
    return str(np.datetime64(microseconds // 1_000, "ms")) + "Z"
