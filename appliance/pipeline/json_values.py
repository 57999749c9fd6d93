"""Decode JSON objects into Arrow columns for known fields. Owned by one task.

A string column takes any content: texts as they are, the rest as JSON. Every other column takes its own type only: 1.5 is
no integer, true is no number, a text is no list of characters. A record that does not fit, or is no JSON object, is a bad
record as a whole. Whether a record fits never depends on other records. Fields without a column are stored together, as
JSON, in `other_fields`.

Arrow's JSON reader (C++) decodes a run of values (about 10,000) at once, but only if the result must equal that of the
Python code: each value begins with `{`, none contains a line end, there are as many rows as values, every field has a
column, and texts are UTF-8. Otherwise Python decodes them one by one.
Weak spots: one irregular record sends its whole run to Python; nested contents are always decoded in Python.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from appliance.pipeline.json_fields import arrow_type, column_names
from appliance.pipeline.table_kind import JsonField

MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError, TypeError)
INSTANT = pa.timestamp("us", "UTC")
YEAR_1_US, YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The years of a calendar, in microseconds since 1970."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NUMBERS = frozenset((int, float, type(None)))
Convert = Callable[[list[Any]], pa.Array]


def convert_to(kind: pa.DataType) -> Convert:
    if pa.types.is_list(kind):
        inner = convert_to(kind.value_type)
        return lambda content: _lists(content, inner)
    if pa.types.is_string(kind):
        return _texts
    if pa.types.is_timestamp(kind):
        return instants
    if pa.types.is_date(kind):
        return lambda content: pa.array([None if each is None else datetime.date.fromisoformat(each) for each in content], kind)
    if pa.types.is_boolean(kind):
        return lambda content: pa.array(content, kind)
    return lambda content: _numbers(content, kind)


def _texts(content: list[Any]) -> pa.Array:
    try:
        return pa.array(content, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([each if each is None or each.__class__ is str else orjson.dumps(each).decode() for each in content], pa.string())


def _numbers(content: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert each value by itself: Arrow would cut 1.5 to 1, accept true as 1, and let one float decide for the column."""
    kinds = set(map(type, content))
    if not NUMBERS.issuperset(kinds):
        raise ValueError("not all are numbers")
    if pa.types.is_floating(kind):
        return pa.array([float(each) if each.__class__ is int else each for each in content] if int in kinds else content, kind)
    return pa.array([_whole(each) for each in content] if float in kinds else content, kind)


def _whole(number: float | int | None) -> int | None:
    if number.__class__ is float:
        if number != (whole := int(number)):
            raise ValueError("not a whole number")
        return whole
    return number  # type: ignore[return-value]


def _lists(content: list[Any], inner: Convert) -> pa.Array:
    if any(each is not None and each.__class__ is not list for each in content):
        raise ValueError("not all are lists")
    lengths = [0 if each is None else len(each) for each in content]
    starts: list[int | None] = [None if each is None else start for each, start in zip(content, accumulate(lengths, initial=0))]
    return pa.ListArray.from_arrays(pa.array([*starts, sum(lengths)], pa.int32()), inner([each for some in content if some for each in some]))


def instants(content: list[Any]) -> pa.Array:
    """Convert RFC 3339 texts (without a zone: UTC), or seconds since 1970."""
    try:
        return instants_of(pa.array(content, pa.string()))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if each is None else instant(each) for each in content], INSTANT)


def instants_of(texts: pa.Array) -> pa.Array:
    """Convert all at once in Arrow. Raises ArrowInvalid if one needs Python, or has a year outside the calendar."""
    found = texts.cast(INSTANT)
    ticks = found.cast(pa.int64())
    if pc.any(pc.or_(pc.less(ticks, YEAR_1_US), pc.greater_equal(ticks, YEAR_10000_US))).as_py():
        raise pa.ArrowInvalid("a time that no calendar has")
    return found


def instant(content: Any) -> datetime.datetime:
    """Convert what Python or Arrow understands, independent of other values."""
    if content.__class__ in (int, float):
        return _EPOCH + datetime.timedelta(seconds=content)
    if content.__class__ is not str:
        raise ValueError("neither a text nor a number")
    try:
        found = datetime.datetime.fromisoformat(content)
    except ValueError:
        found = pa.scalar(content).cast(INSTANT).as_py()
    return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found.astimezone(datetime.UTC)


_READ_AS = {"string": pa.string(), "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(), "double": pa.float64(), "timestamp[us, tz=UTC]": pa.string()}
"""Types for which Arrow is as strict as this module; times are read as texts first."""


def read_schema(names: list[str], kinds: list[pa.DataType]) -> pa.Schema | None:
    """Return the schema that Arrow reads, or None if Arrow cannot read all of these types."""
    if len(set(names)) != len(names) or any(str(kind) not in _READ_AS for kind in kinds):
        return None
    return pa.schema([(name, _READ_AS[str(kind)]) for name, kind in zip(names, kinds)])


def read_plain_objects(values: pa.Array, schema: pa.Schema, required: tuple[str, ...] = ()) -> list[pa.Array] | None:
    """Return columns of `schema`, each as long as `values`; None if any value is irregular. `required` fields must not be missing or null."""
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


class ValueColumns(NamedTuple):
    """Decoded values: columns of the good rows, and the problem of each other row (index → problem)."""

    columns: list[pa.Array]
    problems: dict[int, str]


class ValueDecoder(Protocol):
    """Decodes values of records into columns with the names `fields`."""

    @property
    def fields(self) -> Sequence[pa.JsonField]: ...

    def decode(self, values: pa.Array) -> ValueColumns: ...


OTHER_FIELDS = "other_fields"


class JsonValues:
    """Columns for `fields` and one for all others; `taken` are names that they must not have."""

    def __init__(self, fields: Sequence[JsonField], taken: Sequence[str] = (), required: tuple[str, ...] = ()) -> None:
        self._names = [field.name for field in fields]
        kinds = [arrow_type(field.type) for field in fields]
        self._converts = [convert_to(kind) for kind in (*kinds, pa.string())]
        self._plain = read_schema(self._names, kinds)
        self._required = required
        columns = column_names([*self._names, OTHER_FIELDS], taken)
        self.fields = (
            *(pa.field(column, arrow_type(field.type)) for column, field in zip(columns, fields)),
            pa.field(columns[-1], pa.string()),
        )

    def decode(self, values: pa.Array) -> ValueColumns:
        return self.decode_at_once(values) or self.decode_one_by_one(values)

    def decode_at_once(self, values: pa.Array) -> ValueColumns | None:
        """Return None if one value is irregular."""
        plain = None if self._plain is None else read_plain_objects(values, self._plain, self._required)
        if plain is None:
            return None
        try:
            columns = [instants_of(column) if field.type == INSTANT else column for column, field in zip(plain, self.fields)]
        except pa.ArrowInvalid:
            return None  # a time that only Python understands
        return ValueColumns([*columns, pa.nulls(len(values), pa.string())], {})

    def decode_one_by_one(self, values: pa.Array) -> ValueColumns:
        documents, rows, problems = open_objects(values.to_pylist(), self._required)
        contents: list[list[Any]] = [[document.pop(name, None) for document in documents] for name in self._names]
        contents.append([document or None for document in documents])
        try:
            columns = [convert(content) for convert, content in zip(self._converts, contents)]
        except MISFITS:
            misfits = self._misfits(contents)
            problems |= {rows[number]: problem for number, problem in misfits.items()}
            fitting = [number for number in range(len(rows)) if number not in misfits]
            columns = [convert([content[number] for number in fitting]) for convert, content in zip(self._converts, contents)]
        return ValueColumns(columns, problems)

    def _misfits(self, contents: list[list[Any]]) -> dict[int, str]:
        found: dict[int, str] = {}
        for name, convert, field, content in zip([*self._names, OTHER_FIELDS], self._converts, self.fields, contents):
            for number in find_misfits(convert, content, 0):
                found.setdefault(number, f"field {name} is {_shown(content[number], field.type)}")
        return found


def _shown(content: Any, kind: pa.DataType) -> str:
    try:
        return f"{orjson.dumps(content).decode()[:200]}, which is no {kind}"
    except orjson.JSONEncodeError:
        return "nested too deeply"  # orjson reads deeper than it writes


def open_objects(values: list[bytes | None], required: tuple[str, ...] = ()) -> tuple[list[dict[str, Any]], list[int], dict[int, str]]:
    """Return (objects, the row of each, the problems of the other rows)."""
    documents, rows, problems = [], [], {}
    for row, value in enumerate(values):
        if value is None:
            problems[row] = "the record has no value"
            continue
        try:
            document = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            problems[row] = f"not JSON: {error}"
            continue
        if document.__class__ is not dict:
            problems[row] = "not a JSON object"
        elif absent := [name for name in required if name not in document]:
            problems[row] = f"not a record of ingest: {', '.join(absent)} missing"
        else:
            documents.append(document)
            rows.append(row)
    return documents, rows, problems


def find_misfits(convert: Convert, content: list[Any], start: int) -> list[int]:
    """Return which of `content` do not convert, by halving until the failing values stand alone."""
    try:
        convert(content)
    except MISFITS:
        if len(content) == 1:
            return [start]
        half = len(content) // 2
        return find_misfits(convert, content[:half], start) + find_misfits(convert, content[half:], start + half)
    return []
