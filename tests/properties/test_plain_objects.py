"""JSON records read all at once become the same columns, and the same problems, as read one by one."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from appliance.pipeline.json_fields import parse_fields
from appliance.pipeline.json_values import JsonValues
from appliance.pipeline.syslog_values import SyslogValues

FIELDS = "s string, n bigint, i int, d double, b boolean, t timestamp"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
TIMES = ("2026-11-22T05:00:00Z", "2026-11-22T05:00:00.123456+02:00", "2026-11-22 05:00:00", "2026-11-22", "yesterday", "2026-11-22T05:00:00.1234567Z", "")
times = st.sampled_from(TIMES)
oddities = st.one_of(st.none(), texts, st.booleans(), st.integers(-(2**65), 2**64), st.floats(allow_nan=False, allow_infinity=False), st.just([]), st.just({}))
documents = st.fixed_dictionaries(
    {},
    optional={
        "s": st.one_of(st.none(), texts),
        "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "i": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        "d": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-1000, 1000)),
        "b": st.one_of(st.none(), st.booleans()),
        "t": st.one_of(st.none(), times),
    },
)
JUNK = (
    *(b"", b"{}", b"{}{}", b"{}\n{}", b" {}", b"null", b"[]", b'{"s":"a","s":"b"}', b'{"s":"\xff"}', b'{"s":"\\ud800"}', b'{"s":"\\u0000"}'),
    *(b'{"n":1.0}', b'{"n":1e2}', b'{"d":1e999}', b'{"n":-0}', b'{"d":-0}', b'{"x":1}', b'{"s":"a"', b'{"s":"\t"}', b'{"b":tru}'),
)
junk = st.one_of(st.none(), st.binary(max_size=8), st.sampled_from(JUNK))


def encoded(document: dict[str, Any]) -> bytes:
    """Any integer, as other writers of JSON would have it."""
    import json

    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


plain_values = st.lists(documents.map(encoded), min_size=1, max_size=12)
odd_values = st.lists(st.one_of(documents.map(encoded), st.dictionaries(st.sampled_from("sndbtx"), oddities, max_size=3).map(encoded), junk), max_size=12)


@given(st.one_of(plain_values, odd_values))
def test_all_at_once_gives_what_one_by_one_gives(values: list[bytes | None]) -> None:
    decoder = JsonValues(parse_fields(FIELDS))
    expect_the_same(decoder, values)


syslog_documents = st.fixed_dictionaries(
    {
        "time": st.one_of(st.none(), st.sampled_from(["2026-11-22T05:00:00Z", "2026-11-22T05:00:00.123456-08:00", "2016-12-31T23:59:60Z"])),
        "host": st.one_of(st.none(), texts),
        "severity": st.integers(0, 7),
        "facility": st.integers(0, 23),
        "structured_data": st.one_of(st.just({}), st.just({}), st.dictionaries(texts, st.dictionaries(texts, texts, max_size=2), max_size=2)),
        "message": st.one_of(texts, st.just('"structured_data":{}'), st.just("a\nb")),
    },
    optional={"parsed": st.just(False), "parse_error": texts, "raw": texts, "extra": st.one_of(oddities, st.just({"structured_data": {}}))},
)


@given(st.lists(st.one_of(syslog_documents.map(encoded), junk), max_size=12))
def test_lines_of_syslog_with_and_without_structured_data_come_in_their_order(values: list[bytes | None]) -> None:
    expect_the_same(SyslogValues(), values)


def expect_the_same(decoder: JsonValues, values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    found, expected = decoder.decode(array), decoder.decode_one_by_one(array)
    assert found.problems == expected.problems
    for field, one, other in zip(decoder.fields, found.columns, expected.columns, strict=True):
        one.validate(full=True)
        assert one.type == field.type and one.equals(other), (field.name, one, other)


def test_what_is_plain_is_read_all_at_once() -> None:
    from appliance.pipeline.json_values import read_plain_objects, read_schema

    kinds = JsonValues(parse_fields(FIELDS)).fields[:-1]
    schema = read_schema([field.name for field in kinds], [field.type for field in kinds])
    assert schema is not None
    line = orjson.dumps({"s": "x", "n": 1, "i": None, "d": 1.5, "b": True, "t": "2026-11-22T05:00:00Z"})
    columns = read_plain_objects(pa.array([line, b"{}"], pa.binary()), schema)
    assert columns is not None and columns[1].to_pylist() == [1, None]
