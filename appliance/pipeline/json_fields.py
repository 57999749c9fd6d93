"""Fields of JSON records: their types by name, the text of `--schema` (`host string, latency double`), and inference.

Texts and values only. Weak spot: only flat fields have types of their own; nested contents stay JSON in a string.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any

import orjson
import pyarrow as pa

from appliance.pipeline.problems import LoadProblem
from appliance.pipeline.table_kind import JsonField

INFERRED_FIELDS_MAX = 500
"""Fields beyond this number go into `other_fields`."""
_SCALARS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_OTHER_NAMES = {"integer": "int", "long": "bigint", "bool": "boolean", "text": "string", "byte": "tinyint", "short": "smallint", "real": "float"}
_ARRAY = re.compile(r"array\s*<\s*(\w+)\s*>\Z")
_FIELD = re.compile(r"""\s*(?:`((?:[^`]|``)+)`|([^\s:,`]+))(?:\s*:\s*|\s+)([A-Za-z]\w*(?:\s*<\s*\w+\s*>)?)\s*(?:,|\Z)""")


def arrow_type(name: str) -> pa.DataType:
    """Raises LoadProblem for an unknown type."""
    text = name.strip().lower()
    if found := _ARRAY.match(text):
        return pa.list_(arrow_type(found.group(1)))
    try:
        return _SCALARS[_OTHER_NAMES.get(text, text)]
    except KeyError:
        types = ", ".join(_SCALARS)
        raise LoadProblem(f"there is no type {name!r}; there are {types}, and array<…> of these. What is nested fits into a string, as JSON") from None


def parse_fields(text: str) -> tuple[JsonField, ...]:
    """Parse `host string, latency double`, as Spark writes a schema; names with other characters in backticks."""
    fields = []
    position = 0
    while position < len(text.rstrip()):
        found = _FIELD.match(text, position)
        if found is None:
            raise LoadProblem(
                f"--schema: no `NAME TYPE` at {text[position:].strip()[:40]!r}; write for example 'host string, latency double, tags array<string>'"
            )
        name = found.group(1).replace("``", "`") if found.group(1) else found.group(2)
        arrow_type(found.group(3))
        fields.append(JsonField(name, found.group(3).lower()))
        position = found.end()
    names = [field.name for field in fields]
    if not fields:
        raise LoadProblem("--schema is empty; write for example 'host string, latency double'")
    if twice := {name for name in names if names.count(name) > 1}:
        raise LoadProblem(f"--schema names {', '.join(sorted(twice))} more than once")
    return tuple(fields)


def infer_fields(values: Iterable[bytes | None]) -> tuple[JsonField, ...]:
    """Infer fields from a sample, in order of appearance; records that are no JSON objects are ignored."""
    documents: list[dict[str, Any]] = []
    for value in values:
        try:
            document = orjson.loads(value or b"")
        except orjson.JSONDecodeError:
            continue
        if isinstance(document, dict):
            documents.append(document)
    return tuple(JsonField(name, kind or "string") for name, kind in kinds_of(documents, (), INFERRED_FIELDS_MAX).items())


def kinds_of(documents: Iterable[dict[str, Any]], known: Container[str], names_max: int = 10_000) -> dict[str, str | None]:
    """Return the type of each field that is not `known`, in order of appearance; None if it only was null."""
    kinds: dict[str, str | None] = {}
    for document in documents:
        for name, content in document.items():
            if name in known:
                continue
            if name in kinds:
                kinds[name] = _merged(kinds[name], _kind(content))
            elif len(kinds) < names_max:
                kinds[name] = _kind(content)
    return kinds


def _kind(content: Any) -> str | None:
    """Return the type of one JSON value; None for null, which fits all."""
    if content is None:
        return None
    if isinstance(content, bool):
        return "boolean"
    if isinstance(content, int):
        return "bigint" if -(2**63) <= content < 2**63 else "double"
    return "double" if isinstance(content, float) else "string"


def _merged(one: str | None, other: str | None) -> str | None:
    if one is None or one == other:
        return other
    if other is None:
        return one
    return "double" if {one, other} == {"bigint", "double"} else "string"


def column_names(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Return the columns of fields: their names, with a prefix `json_…` for one that equals another or one of `taken` but for case."""
    used = {name.lower() for name in taken}
    chosen = []
    for name in names:
        column = name if name.lower() not in used else f"json_{name}"
        number = 2
        while column.lower() in used:
            column = f"json_{name}_{number}"
            number += 1
        used.add(column.lower())
        chosen.append(column)
    return chosen
