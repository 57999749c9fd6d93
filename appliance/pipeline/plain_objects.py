"""JSON objects into columns by Arrow's own reader, in C++: for those that are as plain as most are. Whatever it is not sure of is left to `json_values`.

It takes a run of values only when the result must be the same as reading one by one: each value begins an object, none has a line end in it, and there are
as many rows as values; every field has a column, every value its column's type, every text is UTF-8, every number finite.
Owned by one task; no state.
Weak spot: one odd record sends its whole run (some 10,000) the slow way.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

_READ_AS = {"string": pa.string(), "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(), "double": pa.float64(), "timestamp[us, tz=UTC]": pa.string()}
"""Types that Arrow reads as strictly as `json_values` does; times are read as texts first."""


def read_schema(names: list[str], kinds: list[pa.DataType]) -> pa.Schema | None:
    """What Arrow is told to read, or None if it cannot read all of these."""
    if len(set(names)) != len(names) or any(str(kind) not in _READ_AS for kind in kinds):
        return None
    return pa.schema([(name, _READ_AS[str(kind)]) for name, kind in zip(names, kinds)])


def read_plain_objects(values: pa.Array, schema: pa.Schema, required: tuple[str, ...] = ()) -> list[pa.Array] | None:
    """Columns of `schema`, each as long as `values`; None if any of them is not plain. `required` must be there and not be null."""
    if not len(values) or values.null_count:
        return None
    if not pc.all(pc.starts_with(values, "{")).as_py() or pc.any(pc.match_substring(values, "\n")).as_py():
        return None
    text = b"\n".join(values.to_pylist())
    parse = pajson.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="error")
    try:
        table = pajson.read_json(pa.BufferReader(text), pajson.ReadOptions(use_threads=False, block_size=len(text) + 1), parse)
        if table.num_rows != len(values) or table.schema.names != schema.names:
            return None
        columns = [_one(column) for column in table.columns]
        for column in columns:
            column.validate(full=True)
    except pa.ArrowInvalid:
        return None
    if any(pa.types.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py() for column in columns):
        return None  # NaN and Infinity: Arrow reads them, JSON has neither
    if any(column.null_count for name, column in zip(schema.names, columns) if name in required):
        return None
    return columns


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else whole.chunk(0)
