"""Records that are JSON objects as rows of a table whose columns follow their fields. Owned by one run.

A field gets a column with its first value that is not null: boolean, int64, double, or text, which takes all that is nested or of several
kinds. Columns keep their types: an older file with another one needs readers that have Delta's type widening. What does not fit its column, has a
name that no column can have, or comes when there are `COLUMNS_MAX`, stays in `other_fields`, as JSON. A record is bad if it is no JSON object,
too long, or nested too deeply: this depends on its bytes alone, so a repeated run decides the same. Bad records go into a table of their own.

Arrow's reader decodes a batch at once if all its fields have columns and nothing is nested; otherwise Python does. Weak: whole numbers beyond
64 bits are doubles; of equal names in an object the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from appliance.pipeline.json_fields import arrow_type, kinds_of
from appliance.pipeline.json_values import MISFITS, OTHER_FIELDS, JsonValues, ValueColumns, convert_to, find_misfits, open_objects
from appliance.pipeline.record_schema import record_schema
from appliance.pipeline.table_kind import JsonField

VALUE_BYTES_MAX = 1 << 20
"""Longer values are not parsed: objects in Python take up to 32 times the memory."""
TOO_LONG = f"longer than {VALUE_BYTES_MAX} bytes"
COLUMNS_MAX = 1_000
NAME_BYTES_MAX = 128
_BASE = (*record_schema(("partition", "offset", "timestamp", "key", "headers")), pa.field(OTHER_FIELDS, pa.string()))
_SOURCE = record_schema(("partition", "offset", "timestamp", "key", "value", "headers"))
JSON_SCHEMA = pa.schema(_BASE)
BAD_SCHEMA = pa.schema([pa.field("topic", pa.string()), *_SOURCE, pa.field("reason", pa.string())])
_RESERVED = {field.name for field in _BASE} | {"value", "problem"}
_TYPES = {"bool": "boolean", "int64": "bigint", "double": "double", "string": "string"}
_UNUSABLE = re.compile(r"[ ,;{}()\n\t=`\x00-\x1f\x7f]")
"""What Delta and Parquet do not take in the name of a column."""


class MadeRows(NamedTuple):
    """Rows of the table, and those of the table of bad records."""

    rows: pa.RecordBatch
    bad: pa.RecordBatch | None = None


class JsonRows:
    """Turns record batches into rows of `schema`, which grows. `existing`: the table's columns, if there is one."""

    def __init__(self, topic: str, existing: pa.Schema | None = None) -> None:
        self._topic = topic
        self._fields: dict[str, JsonField] = {}
        self._used = {field.name.lower() for field in _BASE}
        for field in existing or ():
            if field.name in _RESERVED:
                continue
            self._used.add(field.name.lower())
            if (kind := _TYPES.get(str(field.type))) is not None:
                name = _field_name(field.name)
                self._fields[name] = JsonField(name, kind)
        self._on_fields()

    def _on_fields(self) -> None:
        fields = list(self._fields.values())
        self._values = JsonValues(fields)
        self._converts = [convert_to(arrow_type(field.type)) for field in fields]
        self.schema = pa.schema([*_BASE, *(pa.field(_column_name(field.name), arrow_type(field.type)) for field in fields)])

    def make(self, batch: pa.RecordBatch) -> MadeRows:
        """Return the rows of a batch with the columns that sources have."""
        values, long = without_long(batch.column("value"))
        found = self._values.decode_at_once(values) or self._decode_one_by_one(values)
        found.problems.update(dict.fromkeys(long, TOO_LONG))
        *columns, others = found.columns
        bad = None
        if found.problems:
            numbers = sorted(found.problems)
            part = batch.take(pa.array(numbers))
            reasons = pa.array([found.problems[number] for number in numbers], pa.string())
            topics = pa.array([self._topic] * len(numbers), pa.string())
            bad = pa.RecordBatch.from_arrays([topics, *(part.column(field.name) for field in _SOURCE), reasons], schema=BAD_SCHEMA)
            batch = batch.take(pa.array(np.delete(np.arange(batch.num_rows), numbers)))
        base = [batch.column(field.name) for field in _BASE[:-1]]
        return MadeRows(pa.RecordBatch.from_arrays([*base, others, *columns], schema=self.schema), bad)

    def _decode_one_by_one(self, values: pa.Array) -> ValueColumns:
        documents, rows, problems = open_objects(values.to_pylist())
        flat: list[dict[str, Any]] = []
        for document, row in zip(documents, rows):
            if any(content.__class__ in (dict, list) for content in document.values()):
                try:
                    orjson.dumps(document)
                except TypeError:
                    problems[row] = "nested too deeply"  # orjson reads deeper than it writes
                    continue
            flat.append(document)
        self._evolve(flat)
        columns = []
        for name, convert in zip(self._fields, self._converts):
            content = [document.pop(name, None) for document in flat]
            try:
                columns.append(convert(content))
            except MISFITS:
                for number in find_misfits(convert, content, 0):
                    flat[number][name], content[number] = content[number], None
                columns.append(convert(content))
        rest = [{name: content for name, content in document.items() if content is not None} for document in flat]
        columns.append(pa.array([orjson.dumps(document).decode() if document else None for document in rest], pa.string()))
        return ValueColumns(columns, problems)

    def _evolve(self, documents: list[dict[str, Any]]) -> None:
        count = len(self._fields)
        for name, kind in kinds_of(documents, self._fields).items():
            column = _column_name(name)
            if kind is None or len(self._fields) >= COLUMNS_MAX or column.lower() in self._used or not _is_usable(name):
                continue
            self._used.add(column.lower())
            self._fields[name] = JsonField(name, kind)
        if len(self._fields) != count:
            self._on_fields()


def without_long(values: pa.Array) -> tuple[pa.Array, list[int]]:
    """Return the values with null for those that are too long to be parsed, and which these are."""
    is_long = pc.fill_null(pc.greater(pc.binary_length(values), VALUE_BYTES_MAX), False)
    if not pc.any(is_long).as_py():
        return values, []
    return pc.if_else(is_long, pa.scalar(None, values.type), values), np.flatnonzero(is_long.to_numpy(zero_copy_only=False)).tolist()


def _column_name(name: str) -> str:
    return f"json_{name}" if name.lower() in _RESERVED else name


def _field_name(column: str) -> str:
    """Return the field of a column."""
    return column.removeprefix("json_") if column.removeprefix("json_").lower() in _RESERVED else column


def _is_usable(name: str) -> bool:
    """Return whether a field of this name can have a column, from which the field's name follows."""
    if not name or len(name.encode()) > NAME_BYTES_MAX or _UNUSABLE.search(name) or not name.isprintable():
        return False
    return _field_name(_column_name(name)) == name


def without(batch: pa.RecordBatch, offsets: Mapping[int, int]) -> pa.RecordBatch:
    """Return the rows of one partition at or after the offset that a table has of it."""
    partition = batch.column("partition")[0].as_py()
    return batch.filter(pc.greater_equal(batch.column("offset"), offsets.get(partition, 0)))
