"""Decode records into rows: the common part of all decoders, and the decoder `raw`. Owned by one task.

Every row has its source: `partition`, `offset`, `timestamp` (the record's), `key`; `arrival` if the table is partitioned by
it. A record that cannot be decoded goes unchanged into a side table, with its offset and the reason.
Weak spot: headers, and so `arrival`, are read one record at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from appliance.pipeline.hour_files import Hours, hours_of
from appliance.pipeline.json_values import JsonValues, ValueColumns, ValueDecoder
from appliance.pipeline.problems import LoadProblem
from appliance.pipeline.table_kind import TopicFormat

INSTANT = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARRIVAL_HEADER = "arrival_ms"
"""Header of records that ingest wrote: the time when the line was received."""
PARTITION_COLUMNS = ("topic", "date", "hour")
"""Columns that readers take from directory names; no other column may have these names."""
LOG_APPEND_TIME = 1
SOURCE_COLUMNS = ("partition", "offset", "timestamp", "key", "value")
"""Columns that are always requested from the reader."""

BAD_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", INSTANT),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("problem", pa.string()),
    ]
)


class Decoded(NamedTuple):
    """Rows and bad records, each with its hour."""

    rows: pa.RecordBatch
    hours: Hours
    bad: pa.RecordBatch | None = None
    bad_hours: Hours | None = None


class RawValues:
    """Keeps the value unchanged."""

    fields = (pa.field("value", pa.binary()),)

    def decode(self, values: pa.Array) -> ValueColumns:
        return ValueColumns([values], {})


class RecordDecoder:
    """Decodes batches of `record_reader` (with `source_columns`) into rows of `schema`."""

    def __init__(self, values: ValueDecoder, *, by_arrival: bool = False, headers: bool = False) -> None:
        self._values = values
        self._by_arrival = by_arrival
        self._headers = headers
        origin = [pa.field("partition", pa.int32()), pa.field("offset", pa.int64()), pa.field("timestamp", INSTANT)]
        arrival = [pa.field("arrival", INSTANT)] if by_arrival else []
        extra = [pa.field("headers", HEADERS)] if headers else []
        self.schema = pa.schema([*origin, *arrival, pa.field("key", pa.binary()), *values.fields, *extra])
        self.source_columns = [*SOURCE_COLUMNS, *(["timestampType"] if by_arrival else []), *(["headers"] if headers or by_arrival else [])]

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        timestamps = batch.column("timestamp")
        arrivals = _arrivals(batch) if self._by_arrival else None
        hours = hours_of(np.array((timestamps if arrivals is None else arrivals).cast(pa.int64()).to_numpy(zero_copy_only=False)))
        columns, problems = self._values.decode(batch.column("value"))
        good = None
        if problems:
            is_good = np.ones(batch.num_rows, bool)
            is_good[list(problems)] = False
            good = np.flatnonzero(is_good)
        origin = [_taken(each, good) for each in (batch.column("partition"), batch.column("offset"), timestamps)]
        if arrivals is not None:
            origin.append(_taken(arrivals, good))
        origin.append(_taken(batch.column("key"), good))
        extra = [_taken(batch.column("headers"), good)] if self._headers else []
        rows = pa.RecordBatch.from_arrays([*origin, *columns, *extra], schema=self.schema)
        if good is None:
            return Decoded(rows, hours)
        numbers = np.array(sorted(problems), np.int64)
        bad = [_taken(batch.column(name), numbers) for name in BAD_SCHEMA.names[:-1]]
        bad.append(pa.array([problems[number] for number in numbers.tolist()], pa.string()))
        return Decoded(rows, hours[good], pa.RecordBatch.from_arrays(bad, schema=BAD_SCHEMA), hours[numbers])


def _taken(column: pa.Array, rows: NDArray[np.int64] | None) -> pa.Array:
    return column if rows is None else column.take(pa.array(rows))


def _arrivals(batch: pa.RecordBatch) -> pa.Array:
    """Return the header `arrival_ms`, else the record's time (the arrival, if the topic stamps it)."""
    headers = batch.column("headers")
    parents = pc.list_parent_indices(headers).to_numpy()
    entries = headers.flatten()
    named = np.flatnonzero(pc.equal(entries.field("key"), ARRIVAL_HEADER).to_numpy(zero_copy_only=False))
    arrivals = np.array(batch.column("timestamp").cast(pa.int64()).to_numpy())
    stamped = batch.column("timestampType").to_numpy() == LOG_APPEND_TIME
    for parent, value in zip(parents[named].tolist(), entries.field("value").take(pa.array(named)).to_pylist()):
        if not stamped[parent] and value is not None and value.isdigit() and len(value) < 15:
            arrivals[parent] = int(value) * 1000
    return pa.array(arrivals, pa.int64()).cast(INSTANT)


def make_decoder(chosen: TopicFormat, *, by_arrival: bool) -> RecordDecoder:
    """Return the decoder of a topic."""
    values: ValueDecoder
    if chosen.decode == "raw":
        values = RawValues()
    elif chosen.decode == "json":
        values = JsonValues(chosen.fields, taken=("partition", "offset", "timestamp", "key", "headers", "arrival", *PARTITION_COLUMNS))
    elif chosen.decode == "syslog":
        from appliance.pipeline.syslog_values import SyslogValues

        values = SyslogValues()
    else:
        raise LoadProblem(f"there is no decoding {chosen.decode!r}; there are raw, syslog and json")
    return RecordDecoder(values, by_arrival=by_arrival, headers=chosen.headers)
