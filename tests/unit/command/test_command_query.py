"""`millrace query`: what DuckDB says of tables equals what was written to them, and a query reaches nothing else."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from click.testing import Result
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from typer.testing import CliRunner

from appliance.base.errors import ConfigurationProblems
from appliance.command import table as table_command
from appliance.command.failures import PartlyDone, UsageProblem
from appliance.command.finding import FoundBox
from appliance.command.query import query
from appliance.pipeline import table_query
from appliance.pipeline.table_query import QueryFailed, TableQuery
from lab.scratch_layout import scratch_layout
from tests.unit.base.test_settings import make_box

Ask = Callable[..., Result]
TOPICS = ("logs", "a.b-c", "select", "Logs2", "logs2")


def records(first: int, count: int) -> pa.Table:
    """Offsets from `first` on; times far away; bytes that are no text."""
    offsets = range(first, first + count)
    columns = {
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([(1 << 62) + each for each in offsets], pa.timestamp("us", "UTC")),
        "value": pa.array([b"\xff%d" % each if each % 2 else b"line %d" % each for each in offsets], pa.binary()),
        "headers": [[{"key": "k", "value": b"v"}]] * count,
        "load": pa.array([float("nan") if each % 5 == 0 else each / 4 for each in offsets]),
        "ok": pa.array([None if each % 3 == 0 else True for each in offsets]),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("srv")
    for topic in TOPICS:
        for first in (0, 10, 20):
            write_deltalake(str(directory / topic), records(first, 10), mode="append")
    return directory


def iceberg(directory: Path) -> str:
    """Write an Iceberg table of two files; return the path of its metadata."""
    catalog = SqlCatalog("test", uri=f"sqlite:///{directory}/catalog.db")
    catalog.create_namespace("ours")
    times = [pa.array(range(first, first + 10), pa.timestamp("us", "UTC")) for first in (0, 10)]
    parts = [records(first, 10).set_column(2, "timestamp", at) for first, at in zip((0, 10), times)]
    table = catalog.create_table(("ours", "frozen"), parts[0].schema, f"file://{directory}/frozen")
    for part in parts:
        table.append(part)
    catalog.close()
    return table.metadata_location.removeprefix("file://")


@pytest.fixture(scope="module")
def iceberg_metadata(tmp_path_factory: pytest.TempPathFactory) -> str:
    return iceberg(tmp_path_factory.mktemp("iceberg"))


@pytest.fixture
def ask(tables: Path, iceberg_metadata: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    with scratch_layout() as layout:
        shown = [{"topic": topic, "directory": str(tables / topic)} for topic in (*TOPICS, "gone", "new")]
        shown[-2]["last_commit_ms"] = "1"
        shown.append({"topic": "frozen", "directory": str(tables / "frozen"), "metadata": [iceberg_metadata, ""], "last_commit_ms": 1})
        Path(layout.tables_file).write_text(json.dumps({"tables": shown}))
        monkeypatch.setattr(table_command, "find_running_box", lambda _data, _config: FoundBox(layout, json.loads(make_box().to_json())))
        app = typer.Typer()
        app.command()(query)
        yield lambda *arguments, **more: CliRunner().invoke(app, arguments, **more)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exception is None, result.exception
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_rows_are_what_was_written(ask: Ask) -> None:
    found = rows(ask("select * from logs order by 2", "--json"))
    assert [row["offset"] for row in found] == list(range(30))
    assert found[1]["value"] == "\\xFF1" and found[2]["value"] == "line 2", "bytes that are no UTF-8 are escaped"
    assert found[0]["timestamp"].startswith("148108-07-06"), "no year is too large"
    assert (found[0]["load"], found[1]["load"], found[0]["ok"], found[1]["ok"]) == ("nan", 0.25, None, True)
    assert found[0]["headers"] == [{"key": "k", "value": "v"}]
    assert rows(ask('select sum("offset") as s, count(*) as s from logs', "--json")) == [{"s": 435, "s_1": 30}]
    table = ask('select partition, max("offset") as last from logs group by 1')
    assert table.stdout == "PARTITION  LAST\n        0    29\n"
    text = ask('select "offset", value, ok, \'\' as e, \'a,"b\' as q from logs where "offset" < 2 order by 1', "--csv").stdout
    assert text == 'offset,value,ok,e,q\n0,line 0,,"","a,""b"\n1,\\xFF1,true,"","a,""b"\n'
    assert list(csv.reader(io.StringIO(text)))[1] == ["0", "line 0", "", "", 'a,"b']


@pytest.mark.slow
def test_an_iceberg_table_is_read_by_its_metadata_without_files_that_cannot_match(ask: Ask, iceberg_metadata: str) -> None:
    found = rows(ask("select * from frozen order by 2", "--json"))
    assert [(row["offset"], row["value"]) for row in found[:3]] == [(0, "line 0"), (1, "\\xFF1"), (2, "line 2")] and len(found) == 20
    assert found[0]["headers"] == [{"key": "k", "value": "v"}]
    files = (Path(iceberg_metadata).parent.parent / "data").glob("*.parquet")
    (second,) = [path for path in files if pq.read_table(path).column("offset")[0].as_py() == 10]
    second.rename(f"{second}.away")
    assert len(rows(ask("select * from frozen where \"offset\" < 10 and timestamp < '1970-01-01'::timestamptz + interval 1 second", "--json"))) == 10
    Path(f"{second}.away").rename(second)


@pytest.mark.slow
def test_output_is_bounded_unless_a_program_reads_it(ask: Ask) -> None:
    shown = ask("from logs", "--max", "3")
    assert len(shown.stdout.splitlines()) == 4 and "the first 3 rows" in shown.stderr
    assert len(rows(ask("from logs", "--json", "--max", "3"))) == 30
    assert ask("-", "--csv", input="select 7 as x").stdout == "x\n7\n"


@pytest.mark.parametrize("name", ["logs", "LOGS", '"a.b-c"', '"A.B-C"', '"select"', '"Logs2"', '"logs2"', "logs2"])
def test_topics_are_tables_by_any_name(ask: Ask, name: str) -> None:
    assert rows(ask(f'with q as (select * from {name}) select count(*) n from q a join {name} b using ("offset")', "--json")) == [{"n": 30}]


@pytest.mark.slow
def test_names_that_cannot_be_meant_are_said(ask: Ask) -> None:
    for sql, words in (
        ('select * from "LOGS2"', "differ by capitals only"),
        ('select * from "Logs2" a, "logs2" b', "differ by capitals only"),
        ("select * from nothing", "Tables of this box: Logs2, a.b-c, frozen, gone, logs, logs2, new, select"),
        ("select * from gone", "gone: its directory is gone; mount it, or bring it back (millrace table list)"),
        ("select * from new", "new: it has no commit yet (millrace table list)"),
        ("select * from logs; select 1", "write one query"),
        ("insert into logs values (1)", "write one query"),
        ("delete from logs", "write one query"),
        ("create table x (a int)", "write one query"),
        ("selec 1", 'Parser Error: syntax error at or near "selec"'),
        ("select nothing from logs", "Columns of logs: partition, offset, timestamp, value, headers, load, ok"),
        ("select l.nothing from logs l", "Columns of logs: partition, offset"),
        ("select * from logs a join logs b using (nothing)", "Columns of logs"),
        ("select * from logs where nothing = 1", 'Referenced column "nothing" not found'),
        ("select 'x'::int from logs", "Could not convert string 'x'"),
    ):
        error = ask(sql).exception
        assert isinstance(error, UsageProblem if "write one" in words or "capitals" in words else QueryFailed) and words in str(error), (sql, error)
        assert "pg_" not in str(error), "tables of DuckDB are not meant"
    assert isinstance(ask("select 1", "--json", "--csv").exception, UsageProblem)


HOSTILE = [
    "select * from read_text('/etc/passwd')", "select * from '/etc/passwd'", "from read_csv('/etc/passwd')", "from glob('/etc/*')",
    "explain analyze select * from read_blob('/etc/passwd')", "from parquet_metadata('/etc/passwd')", "from read_duckdb('/etc/passwd')",
    "copy (select 1) to '{there}'", "explain analyze copy (select 1) to '{there}'", "attach '{there}'", "explain analyze attach '{there}'",
    "copy logs to ':memory:.wal'", "explain analyze copy (select 1) to ':memory:.wal'", "export database '{there}'", "import database '/etc'",
    "install httpfs", "load httpfs", "from 'https://127.0.0.1:1/x.parquet'", "set enable_external_access = true", "pragma enable_profiling",
    "select * from enable_logging(storage = 'file', storage_path = '{there}')", "from enable_profiling(save_location = '{there}')",
    "explain analyze set memory_limit = '100GB'", "select * from query('copy (select 1) to ''{there}''')", "from tables",
]  # fmt: skip


@pytest.mark.slow
def test_a_query_reads_and_writes_no_file_and_changes_no_setting(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "there"
    for sql in HOSTILE:
        error = ask(sql.format(there=there)).exception
        assert isinstance(error, QueryFailed | UsageProblem), f"{sql}: {error}"
    assert os.listdir(tmp_path) == []
    running = TableQuery({}, 64 << 20, 1)
    settings = "select name from duckdb_settings() where name in ('lock_configuration', 'enable_external_access') and value = 'false'"
    _, found = running.start(settings)
    assert list(found) == [[("enable_external_access",)]]
    assert list(running.start("select value from duckdb_settings() where name = 'allowed_paths'")[1]) == [[("[]",)]]


def test_a_query_that_needs_more_memory_than_allowed_fails(ask: Ask) -> None:
    error = ask("select max(x) from (select list(range) x from range(100000000))", "--memory", "64").exception
    assert isinstance(error, QueryFailed) and "Out of Memory" in str(error) and "--memory MIB" in str(error)


def test_files_that_cannot_match_are_not_opened(ask: Ask, tables: Path, tmp_path: Path) -> None:
    """Filters reach the scan, and of the three files of a table those that statistics exclude may be missing."""
    explained = ask("explain select value from logs where \"offset\" >= 20 and value <> 'x'::blob").stdout
    assert "Filters:" in explained and '"offset" >= 20' in explained and "Projections: value" in explained
    write_deltalake(str(tmp_path / "t"), records(0, 10))
    write_deltalake(str(tmp_path / "t"), records(10, 10), mode="append")
    actions = pa.table(DeltaTable(tmp_path / "t").get_add_actions(flatten=True)).to_pylist()
    (tmp_path / "t" / next(action["path"] for action in actions if action["min.offset"] == 0)).unlink()
    running = TableQuery({"t": str(tmp_path / "t")}, 64 << 20, 1)
    assert list(running.start('select count(*), min("offset") from t where "offset" > 9')[1]) == [[("10", "10")]]
    with pytest.raises(QueryFailed, match="No such file"):
        list(running.start('select sum("offset") from t')[1])


class InterruptedQuery(TableQuery):
    """Ctrl-C comes when it starts."""

    def start(self, sql: str) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return super().start(sql)


def test_ctrl_c_ends_a_query(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_query, "TableQuery", InterruptedQuery)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        error = ask("explain analyze select count(*) from range(100000000000) t where t.range % 7 = 3").exception
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(error, PartlyDone) and "interrupted by Ctrl-C" in str(error)


def test_where_duckdb_is_not_installed_it_is_said(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    monkeypatch.delitem(__import__("sys").modules, "appliance.pipeline.table_query", raising=False)
    error = ask("select 1").exception
    assert isinstance(error, ConfigurationProblems) and "pip install 'millrace[query]'" in str(error)
