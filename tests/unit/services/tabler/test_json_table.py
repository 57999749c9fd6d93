"""Topics of JSON objects as tables: columns follow the fields, and what cannot be a row is in the table of bad records, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from appliance.pipeline.opened_batches import BatchOpener
from appliance.pipeline.table_query import TableQuery
from appliance.records.compression import Codec
from services.tabler.json_columns import COLUMNS_MAX, JSON_SCHEMA, NAME_BYTES_MAX, TOO_LONG, VALUE_BYTES_MAX, JsonRows
from services.tabler.table_columns import PIECE_ROWS
from services.tabler.topic_table import BAD, TableTrouble
from tests.unit.pipeline.made_batches import made, made_of, stored
from tests.unit.services.tabler.test_table_run import LINE, Killed, OneTable

BASE = {"partition", "offset", "timestamp", "key", "headers", "other_fields"}


def json_table(path: Path, values: list[bytes | None]) -> OneTable:
    table = OneTable(path, made_of(0, [(1_000, None, value, ()) for value in values]), len(values))
    table.schema = "json"
    return table


def fields(row: dict[str, Any]) -> dict[str, Any]:
    """What a row has of its record, as JSON would have it."""
    found = {name.removeprefix("json_"): value for name, value in row.items() if name not in BASE and value is not None}
    return found | json.loads(row["other_fields"] or "{}")


def bad_rows(table: OneTable) -> list[dict[str, Any]]:
    return sorted(DeltaTable(table.directory / BAD).to_pyarrow_table().to_pylist(), key=lambda row: row["offset"])


@pytest.mark.slow
def test_columns_follow_the_fields_and_no_value_is_lost(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = [
        {"host": "a", "load": 1, "up": True},
        {"host": "b", "load": 2, "up": False, "temperature": 20.5},
        {"host": 7, "load": 2.5, "up": "yes", "temperature": 3, "tags": "one"},
        {"host": {"n": [1, "ü"]}, "load": "high", "nothing": None, "key": "k", "Host": "c", "a b": 1, "": 2},
        {"load": 1 << 60, "temperature": 1e300},
    ]
    table = json_table(tmp_path, [json.dumps(each).encode() for each in sent[:2]])
    assert table.run().rows == 2
    names = set(pa.schema(DeltaTable(table.directory).schema().to_arrow()).names)
    assert names == BASE | {"host", "load", "up", "temperature"}
    table.grow(made(2, [json.dumps(each).encode() for each in sent[2:4]]) + made(4, [json.dumps(sent[4]).encode()], Codec.ZSTD), 5)
    table.run()
    rows = table.rows()
    assert [row["load"] for row in rows] == [1, 2, None, None, 1 << 60], "a column keeps its type; the rest is in other_fields"
    assert [row["host"] for row in rows] == ["a", "b", "7", '{"n":[1,"ü"]}', None], "text takes everything"
    expected = [{name: value for name, value in each.items() if value is not None} for each in sent]
    expected[2]["host"], expected[3]["host"] = "7", '{"n":[1,"ü"]}'
    assert [fields(row) for row in rows] == expected
    assert rows[3]["json_key"] == "k" and rows[3]["key"] is None
    assert not (table.directory / BAD).exists()


HOSTILE: list[tuple[bytes | None, str]] = [
    (None, "has no value"),
    (b"", "not JSON"),
    (b"no JSON", "not JSON"),
    (b"[1]", "not a JSON object"),
    (b'{"a":NaN}', "not JSON"),
    (b'{"a":Infinity}', "not JSON"),
    (b'{"a":1e999}', "not JSON"),
    (b'{"a":"\\ud800"}', "not JSON"),
    (b'{"a":"\xff"}', "not JSON"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
    (b'{"a":' + b'{"a":' * 300 + b"1" + b"}" * 301, "nested too deeply"),
    (b'{"a":1}{"a":2}', "not JSON"),
    (b'{"a":1', "not JSON"),
]


def test_what_is_no_object_is_in_the_table_of_bad_records_with_its_reason_and_bytes(tmp_path: Path) -> None:
    good = [b'{"a":1}', b'{"a":1,"a":2}', b'{"a":123456789012345678901234567890}', b'{"a":-0}', b' {"a":\n5}']
    values = [value for pair in zip(good, [value for value, _ in HOSTILE]) for value in pair] + [value for value, _ in HOSTILE[len(good) :]]
    table = json_table(tmp_path, values)
    result = table.run()
    assert (result.rows, result.bad_rows, table.offset()) == (len(values), len(HOSTILE), len(values))
    bad = bad_rows(table)
    assert [row["value"] for row in bad] == [value for value, _ in HOSTILE]
    for row, (value, words) in zip(bad, HOSTILE):
        assert words in row["reason"] and values[row["offset"]] == value and (row["topic"], row["partition"]) == ("t", 0)
    assert [row["a"] for row in table.rows()] == [1.0, 2.0, 123456789012345678901234567890.0, 0.0, 5.0], "the last of equal names; doubles"
    with pytest.raises(TableTrouble, match=r"millrace\.table.schema is records; set that to json"):
        table.schema = "records"
        table.run()


@pytest.mark.slow
def test_many_short_records_in_a_wide_table_are_written_piece_by_piece(tmp_path: Path) -> None:
    """Rows times columns count: a batch of 2 KB may have a million records `{}`."""
    table = json_table(tmp_path, [json.dumps(dict.fromkeys([f"f{number}" for number in range(COLUMNS_MAX)], 1)).encode()])
    table.run()
    table.grow(made(1, [b"{}"] * 20_000, Codec.ZSTD), 20_001)
    result = table.run(bytes_max=1 << 20)
    assert (result.rows, result.is_full, table.offset()) == (PIECE_ROWS, True, 1 + PIECE_ROWS)
    assert table.run(bytes_max=1 << 20).rows == PIECE_ROWS
    offsets = DeltaTable(table.directory).to_pyarrow_table(columns=["offset"]).column("offset").to_pylist()
    assert sorted(offsets) == list(range(1 + 2 * PIECE_ROWS))


@pytest.mark.slow
def test_a_few_compressed_bytes_do_not_become_much_memory(tmp_path: Path) -> None:
    """A batch that holds far more than it stores is damaged, long values are not parsed, and little is open at a time."""
    long = b'{"a":[' + b"[]," * (VALUE_BYTES_MAX // 3) + b"[]]}"
    bomb = made(2, [b" " * (17 << 20)], Codec.ZSTD)
    assert len(bomb) < 10_000
    table = OneTable(tmp_path, made(0, [b'{"a":1}', long], Codec.ZSTD) + bomb + made(3, [b'{"a":2}'], Codec.ZSTD), 4)
    table.schema = "json"
    result = table.run(accepted_damage=frozenset({(0, 2)}), bytes_max=1 << 30)
    assert table.offsets() == [0, 3] and [(each.start, each.end) for each in result.lost] == [(2, 3)]
    assert [(row["offset"], row["reason"], row["value"]) for row in bad_rows(table)] == [(1, TOO_LONG, long)]
    log = b"".join(made(number, [b" " * (15 << 20)], Codec.ZSTD) for number in range(6))
    opened = [len(group.memory) >> 20 for group in BatchOpener(is_bounded=True).open(memoryview(log), stored(log))]
    assert opened == [45, 45]


def test_long_lines_of_senders_are_kept_whole(tmp_path: Path) -> None:
    long = LINE % 1 + b" " * VALUE_BYTES_MAX
    table = OneTable(tmp_path, made(0, [LINE % 0, long, LINE % 2], Codec.ZSTD), 3)
    table.run(bytes_max=1 << 30)
    assert [(row["message"], row["problem"], row["value"]) for row in table.rows()] == [
        ("disk 0 is warm", None, None), (None, TOO_LONG, long), ("disk 2 is warm", None, None)
    ]  # fmt: skip


def test_a_topic_without_any_object_is_a_table_without_rows(tmp_path: Path) -> None:
    table = json_table(tmp_path, [b"x", b"y"])
    assert table.run().committed and table.rows() == [] and len(bad_rows(table)) == 2 and table.offset() == 2


STEPS = ["create", "add columns", "write", "sync", "rename", "commit", "committed"]
BAD_STEPS = [f"bad records: {name}" for name in ("create", "write", "sync", "rename", "commit", "committed")]


@pytest.mark.parametrize("dies_at", [*BAD_STEPS, *STEPS])
def test_a_kill_at_any_step_leaves_each_record_once_in_one_of_both_tables(tmp_path: Path, dies_at: str) -> None:
    table = json_table(tmp_path, [b'{"a":1}', b"bad", b'{"a":2}'])
    creates = dies_at.endswith("create")
    if not creates:
        table.run()
        table.grow(made(3, [b'{"a":3}', b"worse", b'{"b":4}']), 6)
    seen = []

    def step(name: str) -> None:
        seen.append(name)
        if name == dies_at:
            raise Killed

    with pytest.raises(Killed):
        table.run(step=step)
    end = 3 if creates else 6
    table.grow(made(end, [b'{"c":5}', b"last"]), end + 2)
    table.run()
    good, bad = table.offsets(), [row["offset"] for row in bad_rows(table)]
    assert seen[-1] == dies_at and sorted(good + bad) == list(range(end + 2))
    assert bad == ([1, 4, 7] if end == 6 else [1, 4])


@pytest.mark.parametrize("at", ["bad records: create", "bad records: commit", "add columns", "commit"])
def test_of_two_writers_one_writes_both_tables(tmp_path: Path, at: str) -> None:
    """The old leader does not know yet that there is a new one, which sees further fields."""
    table = json_table(tmp_path, [b'{"a":1}', b"bad"])
    if not at.endswith("create"):
        table.run()
    end = 2 if at.endswith("create") else 4
    if end == 4:
        table.grow(made(2, [b'{"b":2}', b"worse"]), end)
    seen: list[str] = []

    def new_leader(name: str) -> None:
        seen.append(name)
        if name == at and seen.count(at) == 1:
            table.grow(made(end, [b'{"b":3,"c":"x"}', b"last"]), end + 2)
            table.run()

    with pytest.raises(TableTrouble, match=r"another writer|another box|add columns"):
        table.run(step=new_leader)
    table.run()
    good, bad = table.offsets(), [row["offset"] for row in bad_rows(table)]
    assert at in seen and sorted(good + bad) == list(range(end + 2)) and len(bad) == (end + 2) // 2
    for directory in (table.directory, table.directory / BAD):
        named = {path.rpartition("/")[2] for path in DeltaTable(directory).file_uris()}
        assert named == {path.name for path in directory.glob("*.parquet")}, "the loser removed its files"


@pytest.mark.slow
def test_columns_are_bounded_in_number_and_name(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(COLUMNS_MAX + 50)]
    record: dict[str, Any] = dict.fromkeys(names, 1) | {"x" * (NAME_BYTES_MAX + 1): 2}
    table = json_table(tmp_path, [json.dumps(record).encode()] * 2)
    table.run()
    assert len(DeltaTable(table.directory).schema().fields) == len(BASE) + COLUMNS_MAX
    assert [fields(row) for row in table.rows()] == [record, record]
    (tmp_path / "long").mkdir()
    long = json_table(tmp_path / "long", [json.dumps({"x" * (NAME_BYTES_MAX + 1): 2, "json_offset": 1, "offset": 3}).encode()])
    long.run()
    (row,) = long.rows()
    assert row["json_offset"] == 3 and json.loads(row["other_fields"]) == {"x" * (NAME_BYTES_MAX + 1): 2, "json_offset": 1}


def batch_of(values: list[bytes]) -> pa.RecordBatch:
    count = len(values)
    columns = {"partition": pa.array([0] * count, pa.int32()), "offset": pa.array(range(count), pa.int64())}
    columns |= {"timestamp": pa.array([1] * count, pa.timestamp("us", "UTC")), "key": pa.nulls(count, pa.binary())}
    return pa.RecordBatch.from_pydict({**columns, "headers": pa.nulls(count, JSON_SCHEMA.field("headers").type), "value": pa.array(values)})


def test_flat_records_are_decoded_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second batch needs no Python for each record."""
    rows = JsonRows("t")
    batch = batch_of([b'{"a":%d,"b":"x"}' % number for number in range(100)])
    first = rows.make(batch)
    monkeypatch.setattr("services.tabler.json_columns.open_objects", None)
    assert rows.make(batch).rows == first.rows


PIECES = [
    b"{",
    b"}",
    b'"a":',
    b'"s":',
    b"1",
    b"-0",
    b"1.5",
    b"1e999",
    b"9" * 30,
    b"NaN",
    b"true",
    b"null",
    b'"x"',
    b'"\\ud800"',
    b'"\xff"',
    b",",
    b" ",
    b"\n",
    b"[]",
]
KNOWN = pa.schema([*JSON_SCHEMA, pa.field("a", pa.int64()), pa.field("s", pa.string())])


@pytest.mark.slow
@given(st.sampled_from((b"", b'{"a":1,"s":"x"')), st.lists(st.sampled_from(PIECES), max_size=5), st.sampled_from((b"", b"}")))
def test_a_record_is_bad_by_its_bytes_alone(start: bytes, middle: list[bytes], end: bytes) -> None:
    """Whether Arrow or Python reads it, and whatever columns there are: a repeated run must decide the same."""
    batch = batch_of([start + b"".join(middle) + end])
    known, fresh = JsonRows("t", KNOWN).make(batch), JsonRows("t").make(batch)
    assert (known.bad is None) == (fresh.bad is None)


def test_duckdb_reads_what_was_sent(tmp_path: Path) -> None:
    table = json_table(tmp_path, [json.dumps({"host": f"h{number % 3}", "size": number}).encode() for number in range(100)] + [b"bad"])
    table.run()
    query = TableQuery({"t": str(table.directory), "t/_bad": str(table.directory / BAD)}, 64 << 20, 1)
    sums = {f"h{host}": sum(number for number in range(100) if number % 3 == host) for host in range(3)}
    assert list(query.start("select host, sum(size) from t group by 1 order by 1")[1]) == [[(host, str(size)) for host, size in sums.items()]]
    assert list(query.start('select "offset", value from "t/_bad"')[1]) == [[("100", "bad")]]
