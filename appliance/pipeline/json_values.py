"""Values that are JSON objects into columns, by fields that are known. Owned by one task.

A column of strings takes anything: texts as they are, the rest as JSON. Every other column takes its type only; a record that does not fit, or is no JSON
object, is a bad record as a whole. Fields without a column are kept together, as JSON, in `other_fields`. Plain
ones are read all at once (`plain_objects`), the others one after the other in Python. Weak spot: nested contents are always read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from appliance.pipeline.json_conversion import INSTANT, MISFITS, Convert, convert_to, instants_of
from appliance.pipeline.json_fields import arrow_type, column_names
from appliance.pipeline.plain_objects import read_plain_objects, read_schema
from appliance.pipeline.record_decoder import ValueColumns
from appliance.pipeline.table_kind import Field

OTHER_FIELDS = "other_fields"


class JsonValues:
    """Columns for `fields` and one for all others; `taken` are names that columns must not have."""

    def __init__(self, fields: Sequence[Field], taken: Sequence[str] = (), required: tuple[str, ...] = ()) -> None:
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
        """None where one of them is not plain."""
        plain = None if self._plain is None else read_plain_objects(values, self._plain, self._required)
        if plain is None:
            return None
        try:
            columns = [instants_of(column) if field.type == INSTANT else column for column, field in zip(plain, self.fields)]
        except pa.ArrowInvalid:
            return None  # a time that only Python understands
        return ValueColumns([*columns, pa.nulls(len(values), pa.string())], {})

    def decode_one_by_one(self, values: pa.Array) -> ValueColumns:
        documents, rows, problems = self._open(values.to_pylist())
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

    def _open(self, values: list[bytes | None]) -> tuple[list[dict[str, Any]], list[int], dict[int, str]]:
        """(objects, the row of each, what is wrong with the rest)"""
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
            elif absent := [name for name in self._required if name not in document]:
                problems[row] = f"not a record of ingest: {', '.join(absent)} missing"
            else:
                documents.append(document)
                rows.append(row)
        return documents, rows, problems

    def _misfits(self, contents: list[list[Any]]) -> dict[int, str]:
        found: dict[int, str] = {}
        for name, convert, field, content in zip([*self._names, OTHER_FIELDS], self._converts, self.fields, contents):
            for number in _find_misfits(convert, content, 0):
                found.setdefault(number, f"field {name} is {_shown(content[number], field.type)}")
        return found


def _shown(content: Any, kind: pa.DataType) -> str:
    try:
        return f"{orjson.dumps(content).decode()[:200]}, which is no {kind}"
    except orjson.JSONEncodeError:
        return "nested too deeply"  # orjson reads deeper than it writes


def _find_misfits(convert: Convert, content: list[Any], start: int) -> list[int]:
    """Which of `content` do not convert: halved until what is wrong stands alone."""
    try:
        convert(content)
    except MISFITS:
        if len(content) == 1:
            return [start]
        half = len(content) // 2
        return _find_misfits(convert, content[:half], start) + _find_misfits(convert, content[half:], start + half)
    return []
