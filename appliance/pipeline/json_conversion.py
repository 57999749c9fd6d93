"""Contents of JSON fields into Arrow arrays, each by its type and no other: 1.5 is no whole number, true is none, a text is no list of its letters.

What becomes of a value never depends on those beside it: contents fit if each of them does. A string takes anything: texts as they are, the rest as JSON.
Functions only; what does not fit raises one of MISFITS.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError, TypeError)
INSTANT = pa.timestamp("us", "UTC")
YEAR_1_US, YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Years that calendars have, in microseconds since 1970."""
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
    """Each by itself: Arrow would cut 1.5 to 1, take true for 1, and look at all to find how exact a float must be."""
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
    """RFC 3339 texts (without a zone: UTC), or seconds since 1970."""
    try:
        return instants_of(pa.array(content, pa.string()))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if each is None else instant(each) for each in content], INSTANT)


def instants_of(texts: pa.Array) -> pa.Array:
    """By Arrow, all at once. Raises ArrowInvalid where one of them needs Python, or has a year that calendars do not have."""
    found = texts.cast(INSTANT)
    ticks = found.cast(pa.int64())
    if pc.any(pc.or_(pc.less(ticks, YEAR_1_US), pc.greater_equal(ticks, YEAR_10000_US))).as_py():
        raise pa.ArrowInvalid("a time that no calendar has")
    return found


def instant(content: Any) -> datetime.datetime:
    """Everything that one of the two understands, whatever stands beside it: Python or Arrow."""
    if content.__class__ in (int, float):
        return _EPOCH + datetime.timedelta(seconds=content)
    if content.__class__ is not str:
        raise ValueError("neither a text nor a number")
    try:
        found = datetime.datetime.fromisoformat(content)
    except ValueError:
        found = pa.scalar(content).cast(INSTANT).as_py()
    return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found.astimezone(datetime.UTC)
