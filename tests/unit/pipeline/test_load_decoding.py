"""Values become rows; what cannot is kept beside, with its offset and the reason."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from appliance.pipeline.hour_files import FileNames, HourFiles, hour_directory
from appliance.pipeline.json_fields import column_names, infer_fields, parse_fields
from appliance.pipeline.loader import LoadRules
from appliance.pipeline.problems import LoadProblem
from appliance.pipeline.record_decoder import BAD_SCHEMA, Decoded, make_decoder
from appliance.pipeline.table_kind import JsonField, TopicFormat
from services.ingest.protocols.syslog.syslog_message import SyslogParser
from services.ingest.records.event import value_of
from tests.support.load_world import START_MS, LoadWorld, StoredRecord, record_batch, rows_of, table_files, table_of

ARRIVAL_MS = 1_763_787_600_000


def decoded(values: list[bytes | None], chosen: TopicFormat, **more: object) -> Decoded:
    decoder = make_decoder(chosen, by_arrival=bool(more.pop("by_arrival", False)))
    records = [StoredRecord(number, START_MS, b"k", value, **more) for number, value in enumerate(values)]  # type: ignore[arg-type]
    return decoder.decode(record_batch(3, records, decoder.source_columns))


def json_format(fields: str) -> TopicFormat:
    return TopicFormat(None, "json", parse_fields(fields))


def test_what_ingest_writes_of_syslog_lines_becomes_columns() -> None:
    parser = SyslogParser()
    lines = [
        b'<13>1 2026-11-21T01:54:57.550284+01:00 vm root 77 ID1 [a@1 x="y"] disk d3 is warm',
        b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
        b"no priority at all",
        b"<13>1 2016-12-31T23:59:60Z vm app - - - a leap second",
        b"<13>1 - vm app - - - bytes \xff\xfe",
    ]
    found = decoded([value_of(parser.parse(line, ARRIVAL_MS)) for line in lines], TopicFormat(None, "syslog"))
    assert found.bad is None
    rows = found.rows.to_pylist()
    assert rows[0]["time"] == datetime(2026, 11, 21, 0, 54, 57, 550284, UTC)
    assert (rows[0]["host"], rows[0]["app"], rows[0]["proc_id"], rows[0]["msg_id"]) == ("vm", "root", "77", "ID1")
    assert (rows[0]["severity"], rows[0]["severity_name"], rows[0]["facility_name"]) == (5, "notice", "user")
    assert orjson.loads(rows[0]["structured_data"]) == {"a@1": {"x": "y"}} and rows[0]["message"] == "disk d3 is warm"
    assert rows[1]["host"] == "mymachine" and rows[1]["severity_name"] == "crit"
    assert (rows[2]["parse_error"], rows[2]["raw"], rows[2]["parsed"]) == ("no priority", "no priority at all", False)
    assert rows[3]["time"] in (datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2017, 1, 1, tzinfo=UTC))
    assert rows[4]["raw_base64"] is not None
    assert all((row["partition"], row["offset"], row["key"], row["other_fields"]) == (3, number, b"k", None) for number, row in enumerate(rows))


def test_a_syslog_topic_may_hold_what_is_no_syslog() -> None:
    found = decoded(
        [b"plain", None, b"[1]", b"{}", b'{"severity":5,"facility":1,"message":"m"}', b'{"severity":"x","facility":1,"message":"m"}'],
        TopicFormat(None, "syslog"),
    )
    assert found.rows.column("offset").to_pylist() == [4]
    assert found.bad is not None and found.bad.schema == BAD_SCHEMA
    assert found.bad.column("offset").to_pylist() == [0, 1, 2, 3, 5] and found.bad.column("value").to_pylist()[:3] == [b"plain", None, b"[1]"]
    problems = found.bad.column("problem").to_pylist()
    assert problems[0].startswith("not JSON: ") and problems[1:4] == [
        "the record has no value",
        "not a JSON object",
        "not a record of ingest: severity, facility, message missing",
    ]
    assert problems[4] == 'field severity is "x", which is no int32'


@pytest.mark.parametrize(
    ("kind", "value", "becomes"),
    [
        ("bigint", 5, 5),
        ("bigint", -(2**63), -(2**63)),
        ("bigint", 2.0, 2),
        ("double", 2**53 + 1, float(2**53)),
        ("int", 7, 7),
        ("double", 1.5, 1.5),
        ("double", 3, 3.0),
        ("string", "x", "x"),
        ("string", "", ""),
        ("string", 5, "5"),
        ("string", {"a": [1]}, '{"a":[1]}'),
        ("boolean", True, True),
        ("date", "2026-11-22", date(2026, 11, 22)),
        ("timestamp", "2026-11-22T05:00:00.5+02:00", datetime(2026, 11, 22, 3, 0, 0, 500_000, UTC)),
        ("timestamp", "2026-11-22 05:00:00", datetime(2026, 11, 22, 5, tzinfo=UTC)),
        ("timestamp", 1_763_787_600, datetime(2025, 11, 22, 5, tzinfo=UTC)),
        ("array<bigint>", [1, None, 3], [1, None, 3]),
        ("array<string>", ["a", 1], ["a", "1"]),
        ("array<string>", [], []),
        ("bigint", None, None),
        ("array<bigint>", None, None),
    ],
)
def test_a_field_takes_its_type(kind: str, value: object, becomes: object) -> None:
    others = [b'{"f":null}', b"{}"]
    found = decoded([orjson.dumps({"f": value}), *others], json_format(f"f {kind}"))
    assert found.bad is None and found.rows.column("f").to_pylist() == [becomes, None, None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("bigint", value) for value in (1.5, "1", True, 2**63, [1], {})),
        *(("int", value) for value in (2**31, "x", False)),
        *(("double", value) for value in ("1.5", True, [])),
        *(("boolean", value) for value in (1, "true")),
        *(("timestamp", value) for value in ("yesterday", True, [], 1e300, 67768036191676800)),
        *(("date", value) for value in ("2026-13-01", 5)),
        *(("array<bigint>", value) for value in ("abc", 5, ["x"], [1.5], [True])),
    ],
)
def test_a_field_refuses_what_is_not_its_type_and_only_that_record(kind: str, value: object) -> None:
    good = {"bigint": 1, "int": 1, "double": 1.0, "boolean": False, "timestamp": "2026-11-22T05:00:00Z", "date": "2026-11-22", "array<bigint>": [1]}[kind]
    content = [good, good, value, good]
    found = decoded([orjson.dumps({"f": each}) for each in content], json_format(f"f {kind}"))
    assert found.rows.column("offset").to_pylist() == [0, 1, 3]
    assert found.bad is not None and found.bad.column("offset").to_pylist() == [2]
    assert found.bad.column("problem").to_pylist()[0].startswith("field f is ")


def test_what_becomes_of_a_value_does_not_depend_on_those_beside_it() -> None:
    """Arrow, asked for all at once, takes each of these alone and refuses them together."""
    values = [b'{"n":1.0,"t":"2026-11-22"}', b'{"n":9007199254740993,"t":"2026-11-22T05:00:00.1234567Z"}', b'{"t":"x"}']
    found = decoded([*values], json_format("n bigint, t timestamp"))
    assert found.rows.column("n").to_pylist() == [1, 2**53 + 1]
    assert found.bad is not None and found.bad.column("offset").to_pylist() == [2]


@pytest.mark.parametrize("fields", ["a bigint", "a bigint, z string", "a bigint, z array<string>", "a bigint, z double", "a bigint, z timestamp"])
@pytest.mark.parametrize("depth", [300, 1023, 100_000])
def test_a_record_that_is_nested_too_deeply_is_a_bad_one_and_the_only_one(depth: int, fields: str) -> None:
    deep = b'{"a":1,"z":%s%s}' % (b"[" * depth, b"]" * depth)
    found = decoded([b'{"a":1}', deep, b'{"a":2,"w":{"y":1}}', b'{"a":"x"}'], json_format(fields))
    assert found.rows.column("offset").to_pylist() == [0, 2]
    assert found.rows.column("other_fields").to_pylist() == [None, '{"w":{"y":1}}']
    assert found.bad is not None and found.bad.column("offset").to_pylist() == [1, 3] and found.bad.column("value")[0].as_py() == deep
    assert re.match(r"field (z|other_fields) is nested too deeply$|not JSON: depth limit", found.bad.column("problem")[0].as_py())


def test_a_syslog_record_that_is_nested_too_deeply_is_a_bad_one() -> None:
    start = b'{"severity":5,"facility":1,"message":"m"'
    deep = start + b',"structured_data":%s%s}' % (b'{"a":' * 300, b"1" + b"}" * 300)
    found = decoded([start + b"}", deep, start + b',"structured_data":{}}'], TopicFormat(None, "syslog"))
    assert found.rows.column("offset").to_pylist() == [0, 2]
    assert found.bad is not None and found.bad.column("problem").to_pylist() == ["field structured_data is nested too deeply"]


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity", b"Inf", b"-NaN"])
@pytest.mark.parametrize("beside", [b'{"a":1.5}', b'{"a":1.5,"unknown":1}'])
def test_json_has_no_number_that_is_none(token: bytes, beside: bytes) -> None:
    found = decoded([b'{"a":%s}' % token, beside], json_format("a double"))
    assert found.rows.column("a").to_pylist() == [1.5]
    assert found.bad is not None and found.bad.column("offset").to_pylist() == [0]
    assert found.bad.column("problem")[0].as_py().startswith("not JSON: ")


@pytest.mark.parametrize("time", ["0000-06-01T00:00:00Z", "0001-01-01T00:00:00+05:00", "9999-12-31T23:00:00-05:00"])
@pytest.mark.parametrize("beside", ['{"f":"1815-12-10T00:00:00Z"}', '{"f":"1815-12-10"}', '{"f":"1815-12-10","unknown":1}'])
def test_a_time_that_no_calendar_has_is_a_bad_record_whatever_stands_beside_it(time: str, beside: str) -> None:
    found = decoded([beside.encode(), b'{"f":"%s"}' % time.encode()], json_format("f timestamp"))
    assert found.rows.column("f").to_pylist() == [datetime(1815, 12, 10, tzinfo=UTC)]
    assert found.bad is not None and found.bad.column("offset").to_pylist() == [1]


def test_fields_without_a_column_are_kept_together() -> None:
    found = decoded([b'{"a":1,"z":{"y":[1,2]},"w":null}', b'{"a":2}'], json_format("a bigint"))
    assert found.rows.column("other_fields").to_pylist() == ['{"z":{"y":[1,2]},"w":null}', None]


def test_a_sample_shows_fields_and_types() -> None:
    sample = [
        b'{"n":1,"s":"x","b":true,"o":{"k":1}}',
        b"no json",
        None,
        b'{"n":1.5,"late":null}',
        b'{"s":3,"b":null,"late":2}',
        b"[]",
        b'{"big":18446744073709551615}',
    ]
    expected = {"n": "double", "s": "string", "b": "boolean", "o": "string", "late": "bigint", "big": "double"}
    assert dict(infer_fields(sample)) == expected


def test_no_two_columns_differ_in_case_only_and_none_is_called_like_a_directory() -> None:
    taken = ("partition", "offset", "timestamp", "key", "topic", "date", "hour")
    assert column_names(["Timestamp", "date", "a", "A", "json_A", "other_fields", "other_fields"], taken) == [
        *("json_Timestamp", "json_date", "a", "json_A", "json_json_A", "other_fields", "json_other_fields"),
    ]


def test_a_schema_is_written_as_spark_writes_it() -> None:
    assert parse_fields("host string, `a b` DOUBLE,tags: array<string> ,n long") == (
        *(JsonField("host", "string"), JsonField("a b", "double"), JsonField("tags", "array<string>"), JsonField("n", "long")),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("host", "no `NAME TYPE`"),
        ("host strin", "no type 'strin'"),
        ("a int, a string", "names a more than once"),
        ("s struct<a:int>", "no `NAME TYPE`|no type"),
    ],
)
def test_a_schema_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(LoadProblem, match=words):
        parse_fields(text)


def test_arrival_is_the_header_of_ingest_or_the_time_of_the_record() -> None:
    decoder = make_decoder(TopicFormat(None, "raw"), by_arrival=True)
    day = 86_400_000
    records = [
        StoredRecord(0, START_MS, b"k", b"v", (("source", b"x"), ("arrival_ms", b"%d" % (START_MS + day)))),
        StoredRecord(1, START_MS, b"k", b"v"),
        StoredRecord(2, START_MS, b"k", b"v", (("arrival_ms", b"soon"), ("arrival_ms", None))),
        StoredRecord(3, START_MS, b"k", b"v", (("arrival_ms", b"%d" % (START_MS + day)),), timestamp_type=1),
    ]
    found = decoder.decode(record_batch(0, records, decoder.source_columns))
    assert [each - START_MS // 3_600_000 for each in found.hours.tolist()] == [24, 0, 0, 0]
    assert found.rows.column("arrival").to_pylist()[0] == datetime.fromtimestamp((START_MS + day) / 1000, UTC)
    assert "headers" not in found.rows.schema.names


def test_headers_are_kept_where_they_are_wanted() -> None:
    found = decoded([b"v"], TopicFormat(None, "raw", headers=True), headers=(("a", b"1"), ("a", None)))
    assert found.rows.column("headers").to_pylist() == [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}]]


# --- into files


def test_times_that_no_calendar_has_get_a_place_of_their_own(tmp_path: Path) -> None:
    world = LoadWorld(tmp_path)
    world.append("times", 0, [b"a"])
    log = next(iter(world.logs.values()))
    log += [StoredRecord(1, -1, None, b"none"), StoredRecord(2, 2**53, None, b"far"), StoredRecord(3, 253_402_300_799_999, None, b"last")]
    world.load()
    table = table_of(tmp_path)
    places = dict(zip(table["value"].to_pylist(), table["date"].to_pylist(), strict=True))
    assert places == {b"a": "2025-11-22", b"none": None, b"far": None, b"last": "9999-12-31"}


def test_a_topic_with_times_all_over_the_calendar_costs_files_and_nothing_else(tmp_path: Path) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    files = HourFiles(FileNames(str(tmp_path), "staged", "topic=t", "part"), schema, flush_bytes=2_000, open_files_max=3)
    for start in range(0, 600, 20):
        offsets = np.arange(start, start + 20)
        values = [b"%d" % each * 9 for each in offsets.tolist()]
        files.add(pa.RecordBatch.from_arrays([pa.array(offsets), pa.array(values, pa.binary())], schema=schema), 490_000 + offsets * 7 % 10)
    found = files.finish()
    assert len({file.path for file in found}) == len(found) > 10, "an hour whose file was closed gets another one"
    assert sum(file.rows for file in found) == 600
    read = [(row["offset"], file.path) for file in found for row in pq.read_table(tmp_path / file.staged).to_pylist()]
    assert sorted(offset for offset, _ in read) == list(range(600))
    assert all(hour_directory(490_000 + offset * 7 % 10) in path for offset, path in read)


def test_bad_records_stand_in_a_table_of_their_own_out_of_sight_of_a_listing(tmp_path: Path) -> None:
    world = LoadWorld(tmp_path, {"docs": json_format("n bigint")})
    world.append("docs", 0, [b'{"n":1}', b"bad one", b'{"n":"x"}', b'{"n":2}'])
    manifests = world.load_commits()
    assert table_of(tmp_path)["n"].to_pylist() == [1, 2]
    import pyarrow.parquet as pq

    (side_table,) = (tmp_path / "_bad_records/topic=docs").rglob("*.parquet")
    rows = pq.read_table(side_table, partitioning=None).to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(1, b"k1", b"bad one"), (2, b"k2", b'{"n":"x"}')]
    assert (manifests[0].rows, manifests[0].bad_rows) == (2, 2)


def test_numbers_that_grow_and_texts_that_repeat_are_packed(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    world = LoadWorld(tmp_path, rules=LoadRules())
    world.append("packed", 0, (b"v%d" % number for number in range(500)), every_ms=1)
    world.load()
    assert len(rows_of(tmp_path)) == 500
    group = pq.ParquetFile(table_files(tmp_path)[0]).metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings and columns["offset"].compression == "ZSTD"
    assert columns["offset"].total_compressed_size < 400
    assert isinstance(pq.read_schema(table_files(tmp_path)[0]), pa.Schema)
