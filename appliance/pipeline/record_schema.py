"""The columns of Spark's Kafka connector as Arrow types, built from decoded records. Owned by one reader of one partition.

The types must equal Spark's own translation of the schema, or Spark refuses the first batch; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from appliance.pipeline.problems import SourceProblem
from appliance.pipeline.record_columns import HEADERS_TYPE, RecordColumns, WantedColumns

_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
ALL_COLUMNS = tuple(_TYPES)
COLUMNS = ALL_COLUMNS[:-1]
"""Without headers, which are off by default in the connector."""
SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The same types in Spark's SQL."""
_MILLISECONDS_MAX = (2**63 - 1) // 1000


def spark_schema(columns: Sequence[str]) -> str:
    """Return Spark's DDL: `key binary, …`."""
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in columns)


def record_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of batches with these columns, in this order. Raises `SourceProblem` for an unknown name."""
    unknown = [name for name in columns if name not in _TYPES]
    if unknown:
        raise SourceProblem(f"there is no column '{unknown[0]}'; a topic's records have {', '.join(ALL_COLUMNS)}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


class RecordBatches:
    """Turns decoded records of one partition into record batches with the requested columns."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str]) -> None:
        self.schema = record_schema(columns)
        self.wanted = WantedColumns("key" in columns, "value" in columns, "headers" in columns)
        self._columns = tuple(columns)
        self._topic = pa.array([topic], pa.string())
        self._partition = pa.array([partition], pa.int32())
        self._topics = self._topic
        self._partitions = self._partition

    def make(self, records: RecordColumns) -> pa.RecordBatch:
        """Return a record batch with one row for each record."""
        count = len(records.offsets)
        if count > len(self._topics):
            repeat = pa.array(np.zeros(count, np.int32))
            self._topics, self._partitions = self._topic.take(repeat), self._partition.take(repeat)
        return pa.RecordBatch.from_arrays([self._column(name, records, count) for name in self._columns], schema=self.schema)

    def _column(self, name: str, records: RecordColumns, count: int) -> pa.Array:
        match name:
            case "key":
                return records.keys
            case "value":
                return records.values
            case "topic":
                return self._topics[:count]
            case "partition":
                return self._partitions[:count]
            case "offset":
                return pa.array(records.offsets)
            case "timestamp":
                milliseconds = np.clip(records.timestamps_ms, -_MILLISECONDS_MAX, _MILLISECONDS_MAX)
                return pa.array(milliseconds * 1000).cast(pa.timestamp("us", "UTC"))
            case "timestampType":
                return pa.array(records.timestamp_types)
            case _:
                return records.headers
