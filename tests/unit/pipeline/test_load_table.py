"""Topics into a real PostgreSQL: rows and offsets in one transaction, with concurrent loaders.
Tasks run in this process; reading is from memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from appliance.base.model import TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.json_fields import parse_fields
from appliance.pipeline.load_task import LoadJob, Skips
from appliance.pipeline.loader import LoadRules
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import ConcurrentLoader, LoadProblem
from appliance.pipeline.record_decoder import make_decoder
from appliance.pipeline.table_kind import JsonField, TableKind, TopicFormat
from lab.real_postgres import RealPostgres, find_postgres, running_postgres
from tests.support.load_world import LoadWorld, StoredRecord

pytest.importorskip("psycopg")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not there (./install.sh test unpacks it)")]
RAW = TopicFormat(None, "raw")
KIND = TableKind("cluster-of-the-test", "record", "postgresql")


@pytest.fixture(scope="module")
def postgres() -> Iterator[RealPostgres]:
    with running_postgres() as running:
        yield running


class TableWorld:
    """A topic in memory and its table."""

    def __init__(self, postgres: RealPostgres, world: LoadWorld, table: str, chosen: TopicFormat = RAW) -> None:
        from appliance.pipeline.postgres_table import table_address

        self.postgres = postgres
        self.world = world
        self.chosen = chosen
        self.address = table_address(f"{postgres.url}&table={table}", "unused")
        self.rules = LoadRules(task_records=10)

    def read(self, access: Any, wanted: OffsetRange, columns: Any, *, on_data_loss: Any, on_corrupt: Any) -> Iterator[Any]:
        skips = Skips()
        yield from self.world.read(LoadJob(ClusterAccess(()), "", {}, False), wanted, columns, skips)
        for skip in skips.found:
            on_data_loss(skip)

    def run_tasks(self, job: Any, ranges: Iterable[OffsetRange]) -> list[Any]:
        from appliance.pipeline.table_copy import copy_range

        return [copy_range(job, each, self.read) for each in ranges]

    def load(self, run_tasks: Any = None) -> list[Any]:
        from appliance.pipeline.load_table import TableLoad
        from appliance.pipeline.postgres_table import PostgresTable
        from appliance.pipeline.table_copy import CopyJob

        rounds: list[Any] = []
        with PostgresTable(self.address) as table:
            table.open("numbers", KIND, self.chosen, make_decoder(self.chosen, by_arrival=False).schema)
            table.keep_positions({partition: extent.start for partition, extent in self.world.extents().items()})
            job = CopyJob(ClusterAccess(()), self.address, self.chosen, False, self.rules.accept_loss, self.rules.skip_corrupt)
            TableLoad(table, job, self.rules, run_tasks or self.run_tasks).run("numbers", self.world.extents(), rounds.append)
        return rounds

    def rows(self) -> list[tuple[int, int, bytes]]:
        found = self.postgres.ask(f'select "partition", "offset", value from {self.address.table} order by 1, 2')
        return [(partition, offset, bytes(value)) for partition, offset, value in found]

    def expected(self) -> list[tuple[int, int, bytes]]:
        return sorted((each.partition, record.offset, record.value or b"") for each, log in self.world.logs.items() for record in log)


@pytest.fixture
def world(tmp_path: Any) -> LoadWorld:
    made = LoadWorld(tmp_path)
    made.append("numbers", 0, (b"zero-%d" % number for number in range(35)))
    made.append("numbers", 1, (b"one-%d" % number for number in range(7)))
    return made


def test_every_record_is_a_row_and_a_second_run_adds_what_is_new(postgres: RealPostgres, world: LoadWorld) -> None:
    table = TableWorld(postgres, world, "plain")
    assert sum(each.rows for each in table.load()) == 42
    assert table.rows() == table.expected()
    assert table.load() == []
    world.append("numbers", 1, [b"later"])
    assert [each.rows for each in table.load()] == [1]
    assert table.rows() == table.expected()


def test_a_task_that_dies_in_the_middle_leaves_neither_rows_nor_a_position(postgres: RealPostgres, world: LoadWorld) -> None:
    table = TableWorld(postgres, world, "deaths")

    class Died(BaseException):
        pass

    def dying(after: int) -> Any:
        def read(*arguments: Any, **options: Any) -> Iterator[Any]:
            for number, batch in enumerate(table.read(*arguments, **options)):
                if number == after:
                    raise Died
                yield batch

        from appliance.pipeline.table_copy import copy_range

        return lambda job, ranges: [copy_range(job, each, read) for each in ranges]

    for after in (0, 1):
        with pytest.raises(Died):
            table.load(dying(after))
        loaded = {(partition, offset) for partition, offset, _ in table.rows()}
        positions = dict(postgres.ask("select partition, next_offset from millrace_load_positions where table_name = 'deaths'"))
        assert loaded == {(partition, offset) for partition, end in positions.items() for offset in range(end)}
    table.load()
    assert table.rows() == table.expected()


def test_a_task_that_outlived_its_driver_does_no_harm(postgres: RealPostgres, world: LoadWorld) -> None:
    table = TableWorld(postgres, world, "outlived")

    def with_a_straggler(job: Any, ranges: Iterable[OffsetRange]) -> list[Any]:
        tasks = list(ranges)
        straggler = threading.Thread(target=table.run_tasks, args=(job, tasks[:1]))
        straggler.start()
        results = table.run_tasks(job, tasks)
        straggler.join()
        return results

    try:
        table.load(with_a_straggler)
    except ConcurrentLoader:
        table.load()
    assert table.rows() == table.expected()


def test_a_second_loader_is_refused(postgres: RealPostgres, world: LoadWorld) -> None:
    table = TableWorld(postgres, world, "refused")

    def with_another(job: Any, ranges: Iterable[OffsetRange]) -> list[Any]:
        with pytest.raises(ConcurrentLoader, match=r"another loader is at work in .* table refused"):
            table.load()
        return table.run_tasks(job, ranges)

    table.load(with_another)
    assert table.rows() == table.expected()


def test_a_foreign_table_is_not_changed(postgres: RealPostgres, world: LoadWorld) -> None:
    postgres.tell("create table accounts (id integer)")
    with pytest.raises(LoadProblem, match="millrace load did not make it"):
        TableWorld(postgres, world, "accounts").load()
    TableWorld(postgres, world, "mine").load()
    other = TableWorld(postgres, world, "mine")
    from appliance.pipeline.postgres_table import PostgresTable

    with PostgresTable(other.address) as table, pytest.raises(LoadProblem, match="holds topic numbers, not letters"):
        table.look("letters", KIND)
    with PostgresTable(other.address) as table, pytest.raises(LoadProblem, match="holds records of cluster"):
        table.look("numbers", KIND._replace(cluster_id="another"))


def test_deleted_records_are_passed_over_only_when_that_was_allowed(postgres: RealPostgres, world: LoadWorld) -> None:
    table = TableWorld(postgres, world, "lost")
    kept = world.logs[TopicPartition("numbers", 0)]
    world.logs[TopicPartition("numbers", 0)] = kept[:3]
    table.load()
    world.logs[TopicPartition("numbers", 0)] = kept
    world.delete_before("numbers", 0, 9)
    with pytest.raises(LoadProblem, match=r"numbers-0 offsets 3 to 8 .*--accept-loss"):
        table.load()
    table.rules = table.rules._replace(accept_loss=True)
    skipped = [str(skip) for each in table.load() for skip in each.skipped]
    assert skipped == ["numbers-0 offsets 3 to 8 (lost)"]
    assert {offset for partition, offset, _ in table.rows() if partition == 0} == {0, 1, 2, *range(9, 35)}


def test_json_becomes_columns_and_what_does_not_fit_is_kept_beside(postgres: RealPostgres, world: LoadWorld) -> None:
    world.logs.clear()
    good = b'{"host":"a","size":1.5,"ok":true,"tags":["x","y \\"z\\"",null],"at":"2026-11-22T05:00:00Z","empty":"","extra":{"n":1}}'
    world.append("numbers", 0, [good, b"no json", b'{"host":"nul \\u0000 in it"}', b'{"tags":["nul \\u0000",null]}', b'{"size":"big"}', None, b"{}"])
    names = {"host": "string", "size": "double", "ok": "boolean", "tags": "array<string>", "at": "timestamp", "empty": "string"}
    table = TableWorld(postgres, world, "documents", TopicFormat(None, "json", tuple(JsonField(*each) for each in names.items())))
    table.load()
    query = 'select "offset", host, size, ok, tags, "at"::text, empty, other_fields from documents order by 1'
    assert postgres.ask(query) == [
        (0, "a", 1.5, True, ["x", 'y "z"', None], "2026-11-22 05:00:00+00", "", '{"extra":{"n":1}}'),
        (6, None, None, None, None, None, None, None),
    ]
    problems = dict(postgres.ask("select \"offset\", problem from millrace_bad_records where table_name = 'documents'"))
    assert set(problems) == {1, 2, 3, 4, 5}
    assert "NUL" in problems[2] and "NUL" in problems[3] and problems[4].startswith('field size is "big"') and problems[5] == "the record has no value"


def test_times_are_there_as_far_as_postgresqls_calendar_goes_and_others_are_bad_records(postgres: RealPostgres, world: LoadWorld) -> None:
    world.logs.clear()
    world.append("numbers", 0, [b'{"birth":"1815-12-10","day":"1815-12-10","all":["1969-12-09T00:00:00Z",null]}', b'{"birth":"1969-12-09T00:00:00Z"}'])
    world.append("numbers", 0, [b'{"birth":"0001-01-01T00:00:00Z","day":"0001-01-01","all":["0001-01-01"]}', b'{"birth":"9999-12-31","day":"9999-12-31"}'])
    log = world.logs[TopicPartition("numbers", 0)]
    first_ms = -210_866_803_200_000
    log += [StoredRecord(4 + number, time_ms, None, b"{}") for number, time_ms in enumerate((-1, first_ms, 2**53, first_ms - 1))]
    log += [StoredRecord(8, first_ms - 1, None, b"no json")]
    table = TableWorld(postgres, world, "births", TopicFormat(None, "json", parse_fields("birth timestamp, day date, `all` array<timestamp>")))
    table.load()
    assert postgres.ask('select birth::text, day::text, "all"::text from births where "offset" < 4 order by "offset"') == [
        ("1815-12-10 00:00:00+00", "1815-12-10", '{"1969-12-09 00:00:00+00",NULL}'),
        ("1969-12-09 00:00:00+00", None, None),
        ("0001-01-01 00:00:00+00", "0001-01-01", '{"0001-01-01 00:00:00+00"}'),
        ("9999-12-31 00:00:00+00", "9999-12-31", None),
    ]
    assert postgres.ask('select "timestamp"::text from births where "offset" >= 4 order by "offset"') == [
        *(("1969-12-31 23:59:59.999+00",), ("4714-11-24 00:00:00+00 BC",), ("287396-10-12 08:59:00.992+00",)),
    ]
    bad = postgres.ask('select "offset", "timestamp", problem from millrace_bad_records where table_name = \'births\' order by 1')
    early = "timestamp is 210866803200001000 microseconds before 1970, which PostgreSQL's calendar does not have"
    assert [(offset, time) for offset, time, _ in bad] == [(7, None), (8, None)]
    assert bad[0][2] == early and bad[1][2].startswith("not JSON: ") and bad[1][2].endswith(f"; {early}")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((63 * "a" + "b", 63 * "a" + "c"), "are the same column in PostgreSQL"),
        (("", "a"), "no column of PostgreSQL's can be called ''"),
        (("a\0", "b"), "no column of PostgreSQL's can be called"),
        (("ctid", "b"), "no column of PostgreSQL's can be called 'ctid'"),
    ],
)
def test_fields_that_cannot_be_columns_are_refused_before_anything_is_made(
    postgres: RealPostgres, world: LoadWorld, names: tuple[str, ...], words: str
) -> None:
    table = TableWorld(postgres, world, "refused_fields", TopicFormat(None, "json", tuple(JsonField(name, "string") for name in names)))
    with pytest.raises(LoadProblem, match=f"{words}.*--schema"):
        table.load()
    assert postgres.ask("select to_regclass('refused_fields')") == [(None,)]


def test_how_a_table_was_loaded_can_be_asked(postgres: RealPostgres, world: LoadWorld) -> None:
    from appliance.pipeline.postgres_table import PostgresTable

    asked = TableWorld(postgres, world, "asked")
    with PostgresTable(asked.address) as table:
        assert table.kind() is None
    asked.load()
    with PostgresTable(asked.address) as table:
        assert table.kind() == KIND
