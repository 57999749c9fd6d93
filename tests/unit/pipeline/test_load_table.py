"""Topics into a real PostgreSQL: rows and offsets in one transaction, whoever else is there. Tasks run in this process; reading is from memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from appliance.base.model import TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_problem import ConcurrentLoader, LoadProblem
from appliance.pipeline.load_task import LoadJob, Skips
from appliance.pipeline.loader import LoadRules
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.record_decoder import make_decoder
from appliance.pipeline.table_kind import Field, TableKind, TopicFormat
from tests.support.load_world import LoadWorld
from tests.support.real_postgres import RealPostgres, find_postgres, running_postgres

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


def test_a_table_of_somebody_else_is_left_alone(postgres: RealPostgres, world: LoadWorld) -> None:
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
    world.append("numbers", 0, [good, b"no json", b'{"host":"nul \\u0000 in it"}', b'{"tags":["nul \\u0000"]}', b'{"size":"big"}', None, b"{}"])
    names = {"host": "string", "size": "double", "ok": "boolean", "tags": "array<string>", "at": "timestamp", "empty": "string"}
    table = TableWorld(postgres, world, "documents", TopicFormat(None, "json", tuple(Field(*each) for each in names.items())))
    table.load()
    query = 'select "offset", host, size, ok, tags, "at"::text, empty, other_fields from documents order by 1'
    assert postgres.ask(query) == [
        (0, "a", 1.5, True, ["x", 'y "z"', None], "2026-11-22 05:00:00+00", "", '{"extra":{"n":1}}'),
        (6, None, None, None, None, None, None, None),
    ]
    problems = dict(postgres.ask("select \"offset\", problem from millrace_bad_records where table_name = 'documents'"))
    assert set(problems) == {1, 2, 3, 4, 5}
    assert "NUL" in problems[2] and "NUL" in problems[3] and problems[4].startswith('field size is "big"') and problems[5] == "the record has no value"
