"""Filters of DuckDB and of deltalake find in a table what they find in the rows of its files, whose statistics name three columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from appliance.pipeline.table_query import TableQuery
from tests.unit.pipeline.made_batches import made_of
from tests.unit.services.tabler.test_table_run import LINE, OneTable

HOSTS = ("web7", "web8", None)
INGEST_FIELDS, JSON_FIELDS = "records", "json"
AFTER_CALENDAR_MS = 1 << 61


def record(number: int, schema: str) -> bytes:
    message = f"disk {number} is {'warm' if number % 4 else 'x' * 5_000}" if number % 5 else None
    fields: dict[str, Any] = {"host": HOSTS[number % 3], "severity": number % 8, "message": message}
    if schema == INGEST_FIELDS:
        return json.dumps(json.loads(LINE % number) | fields | {"message": message or ""}).encode()
    return json.dumps(fields | ({"size": number / 4 if number % 2 else None, "late": f"l{number}"} if number >= 20 else {})).encode()


def batch(first: int, schema: str, first_ms: int) -> bytes:
    return made_of(first, [(first_ms + number, b"k%d" % number, record(number, schema), ()) for number in range(first, first + 20)])


@pytest.fixture(scope="module", params=[INGEST_FIELDS, JSON_FIELDS])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OneTable:
    """Three commits: the columns of the first are fewer if they follow the records; the times of the last have no calendar."""
    made = OneTable(tmp_path_factory.mktemp(request.param), batch(0, request.param, 1_000), 20)
    made.schema = request.param
    table_id = made.run().table_id
    for first, first_ms in ((20, 1_000), (40, AFTER_CALENDAR_MS)):
        made.grow(batch(first, request.param, first_ms), first + 20)
        made.run(expected_id=table_id)
    return made


def all_rows(table: OneTable) -> pa.Table:
    """The rows of the files, without Delta's log."""
    return pa.concat_tables([pq.read_table(path) for path in table.directory.glob("*.parquet")], promote_options="default")


host, severity, message, offset = (pc.field(name) for name in ("host", "severity", "message", "offset"))
FILTERS = [
    ("host = 'web7'", host == "web7"), ("host <> 'web7'", host != "web7"), ("host < 'web8'", host < "web8"), ("host is null", host.is_null()),
    ("host is not null", host.is_valid()), ("host in ('web8', 'x')", host.isin(["web8", "x"])), ("not (host = 'web8')", ~(host == "web8")),
    ("severity < 4", severity < 4), ("severity = 7", severity == 7), ("severity between 2 and 5", (severity >= 2) & (severity <= 5)),
    ("severity in (1, 3)", severity.isin([1, 3])), ("severity not in (1, 3)", ~severity.isin([1, 3])), ("severity > 7", severity > 7),
    ("message like 'disk 2%'", pc.starts_with(message, "disk 2")), ("message like '%warm'", pc.ends_with(message, "warm")),
    ("message is null or severity = 1", message.is_null() | (severity == 1)), ("message >= 'disk 3'", message >= "disk 3"),
    ("host = 'web7' and severity < 4", (host == "web7") & (severity < 4)), ("key = 'k3'::blob", pc.field("key") == b"k3"),
    ('"offset" >= 20 and host = \'web7\'', (offset >= 20) & (host == "web7")), ('"offset" = 3 or host is null', (offset == 3) | host.is_null()),
    ("timestamp > '1970-01-01 00:00:01.025Z' and severity < 4", (pc.field("timestamp") > pa.scalar(1_025_000, pa.timestamp("us", "UTC"))) & (severity < 4)),
    ('"partition" = 0', pc.field("partition") == 0), ('"partition" = 1 and host is null', (pc.field("partition") == 1) & host.is_null()),
]  # fmt: skip
size, late = pc.field("size"), pc.field("late")
LATE_FILTERS = [
    ("late is null", late.is_null()), ("late is not null", late.is_valid()), ("late = 'l21'", late == "l21"), ("late < 'l3'", late < "l3"),
    ("late is null or host = 'web7'", late.is_null() | (host == "web7")), ("not (late = 'l21')", ~(late == "l21")),
    ("size is null", size.is_null()), ("size > 7", size > 7), ("size in (5.25, 5.75)", size.isin([5.25, 5.75])),
]  # fmt: skip


def filters(table: OneTable) -> list[tuple[str, pc.Expression]]:
    return FILTERS + (LATE_FILTERS if table.schema == JSON_FIELDS else [])


@pytest.mark.slow
def test_duckdb_finds_what_is_in_the_files(table: OneTable) -> None:
    rows = all_rows(table)
    query = TableQuery({"t": str(table.directory)}, 64 << 20, 1)
    assert rows.num_rows == 60
    for sql, expression in filters(table):
        found = [int(row[0]) for batch in query.start(f'select "offset" from t where {sql} order by 1')[1] for row in batch]
        assert found == sorted(rows.filter(expression)["offset"].to_pylist()), sql
    grouped = query.start("select host, count(*) from t where severity < 4 group by 1")[1]
    counts = rows.filter(severity < 4).group_by("host").aggregate([([], "count_all")]).to_pylist()
    assert dict(row for batch in grouped for row in batch) == {each["host"]: str(each["count_all"]) for each in counts}


@pytest.mark.slow
def test_deltalake_finds_what_is_in_files_with_times_of_a_calendar(table: OneTable) -> None:
    rows = all_rows(table).filter(offset < 40)
    dataset = DeltaTable(table.directory).to_pyarrow_dataset()
    for sql, expression in filters(table):
        found = [each for each in dataset.to_table(filter=expression)["offset"].to_pylist() if each < 40]
        assert sorted(found) == sorted(rows.filter(expression)["offset"].to_pylist()), sql


@pytest.mark.slow
def test_a_file_that_its_bounds_exclude_is_not_opened(tmp_path: Path) -> None:
    made = OneTable(tmp_path, batch(0, INGEST_FIELDS, 1_000), 20)
    table_id = made.run().table_id
    (first,) = made.directory.glob("*.parquet")
    made.grow(batch(20, INGEST_FIELDS, 1_000), 40)
    made.run(expected_id=table_id)
    first.unlink()
    query = TableQuery({"t": str(made.directory)}, 64 << 20, 1)
    for sql in ('"offset" >= 20', "timestamp >= '1970-01-01 00:00:01.021Z'", "\"offset\" > 25 and host = 'web7'"):
        assert list(query.start(f"select count(*) > 0 from t where {sql}")[1]) == [[("true",)]]
