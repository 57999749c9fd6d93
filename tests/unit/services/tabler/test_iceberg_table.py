"""Runs of an Iceberg table with pyiceberg's SQL catalog: what each kill, second writer, refusal and other program leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError

from appliance.pipeline.local_rows import LocalRow
from services.tabler import iceberg_upkeep
from services.tabler.iceberg_table import IcebergTopicTable
from services.tabler.table_rules import TableResult
from services.tabler.table_run import HOURS_MAX, TableJob
from services.tabler.topic_table import BAD, STAGING, TableConflict, TableTrouble, read_properties
from tests.unit.pipeline.made_batches import made, made_of
from tests.unit.services.tabler.test_table_run import LINE, OTHER_TOPIC, Killed, OneTable

pytestmark = pytest.mark.slow
HOUR_MS = 3_600_000


class IcebergTable(OneTable):
    """A topic with one partition, and its Iceberg table."""

    def __init__(self, path: Path, content: bytes, end: int) -> None:
        super().__init__(path, content, end)
        self.uri = f"sqlite:///{path}/catalog.db"

    def job(self, **changes: Any) -> TableJob:
        job = super().job(**changes)
        return job._replace(order=job.order._replace(file_format="iceberg"), properties={"type": "sql", "uri": self.uri})

    def open(self, namespace: str = "millrace") -> Table:
        """The table as another program opens it."""
        catalog = load_catalog("millrace", type="sql", uri=self.uri)
        try:
            return catalog.load_table((namespace, "t"))
        finally:
            catalog.close()

    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.open().scan().to_arrow().to_pylist(), key=lambda row: row["offset"])

    def offset(self) -> int | None:
        snapshot = self.open().current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        return int(json.loads(snapshot.summary.additional_properties["millrace.offsets"])["0"])

    def data(self) -> set[str]:
        return set(os.listdir(self.directory / "data"))

    def files(self) -> set[str]:
        return {task.file.file_path.rpartition("/")[2] for task in self.open().scan().plan_files()}


def plain(path: Path, count: int = 10) -> IcebergTable:
    return IcebergTable(path, made(0, [b"%d" % number for number in range(count)]), count)


def grown(table: IcebergTable, until: int, **changes: Any) -> TableResult:
    """Append a record and do a run, until the log ends there; return what the last one did."""
    assert isinstance(table.found, LocalRow)
    for offset in range(table.found.row.log_end_offset, until):
        table.grow(made(offset, [b"%d" % offset]), offset + 1)
        result = table.run(**changes)
    return result


def test_rows_of_ingest_are_read_by_ids_and_the_next_run_adds_none(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path, made(0, [LINE % 0, b"no JSON", LINE % 1]), 3)
    result = table.run()
    rows = table.rows()
    assert [row["message"] for row in rows] == ["disk 0 is warm", None, "disk 1 is warm"] and rows[1]["value"] == b"no JSON"
    assert (rows[0]["host"], rows[0]["severity"], rows[0]["time"].year) == ("vm", 5, 2026)
    assert (result.rows, result.bad_rows, result.committed, table.offset()) == (3, 1, True, 3)
    again = table.run(expected_id=result.table_id)
    assert (again.rows, again.committed, again.version) == (0, False, result.version), "nothing is new"
    assert StaticTable.from_metadata(again.metadata[0]).scan().to_arrow().num_rows == 3, "readers need no catalog"
    ids = [pq.read_schema(table.directory / "data" / name).field("offset").metadata[b"PARQUET:field_id"] for name in table.data()]
    assert ids == [b"2"]


@pytest.mark.parametrize("dies_at", ["create", "rename", "commit", "committed"])
def test_a_kill_at_any_step_leaves_each_record_once(tmp_path: Path, dies_at: str) -> None:
    table = plain(tmp_path)

    def step(name: str) -> None:
        if name == dies_at:
            raise Killed

    with pytest.raises(Killed):
        table.run(step=step)
    table.grow(made(10, [b"more"]), 11)
    table.run()
    assert table.offsets() == list(range(11)) and table.offset() == 11


def test_a_kill_before_the_catalog_has_the_table_is_no_obstacle_but_other_files_are(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    unregistered(table)
    shutil.rmtree(table.directory / "data")
    for path in (table.directory / "metadata").iterdir():
        if not path.name.startswith("00000-"):
            path.unlink()
    table.run()
    assert table.offsets() == list(range(10))
    unregistered(table)
    with pytest.raises(TableTrouble, match="not empty"):
        table.run()


def test_two_writers_of_a_partition_never_write_twice(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    table.grow(made(10, [b"a", b"b"]), 12)

    def new_leader(name: str) -> None:
        if name == "commit":
            table.run()

    with pytest.raises(TableConflict, match="another writer moved the offsets"):
        table.run(step=new_leader)
    assert table.offsets() == list(range(12)) and table.files() == table.data(), "the loser removed its file"


def test_a_commit_of_another_program_between_is_kept_and_so_are_the_offsets(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    table.grow(made(10, [b"a"]), 11)
    seen = []

    def delete(name: str) -> None:
        if name == "commit" and not seen:
            seen.append(name)
            table.open().delete("offset < 10")

    table.run(step=delete)
    assert table.offsets() == [10] and seen
    table.open().delete("offset = 10")
    table.grow(made(11, [b"b"]), 12)
    assert table.run().rows == 1 and table.offset() == 12, "its snapshot has no offsets: those of the one before count"


def test_offsets_outlive_snapshots_that_another_program_expires(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    opened = table.open()
    opened.delete("offset < 10")
    opened.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in opened.metadata.snapshots[:-1]]).commit()
    table.grow(made(10, [b"a"]), 11)
    assert table.run().rows == 1


def test_each_hour_has_files_of_its_own_unless_there_are_too_many(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path, made_of(0, [(number % 3 * HOUR_MS - 1, None, b"%d" % number, ()) for number in range(9)]), 9)
    table.run()
    found = [(task.file.partition[0], task.file.record_count) for task in table.open().scan().plan_files()]
    assert sorted(found) == [(-1, 3), (0, 3), (1, 3)]
    assert sorted(row["offset"] for row in table.open().scan("timestamp >= '1970-01-01T01:00:00+00:00'").to_arrow().to_pylist()) == [2, 5, 8]
    many = [(number * HOUR_MS, None, b"", ()) for number in range(HOURS_MAX + 20)]
    table.grow(made_of(9, many), 9 + len(many))
    table.run()
    assert len(table.data()) == 3 + HOURS_MAX + 1 and table.open().spec().is_unpartitioned()
    table.grow(made(9 + len(many), [b"one"]), 10 + len(many))
    table.run()
    assert table.open().spec().fields[0].name == "timestamp_hour" and table.offsets() == list(range(10 + len(many)))


def test_times_without_a_calendar_are_in_the_table(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path, made_of(0, [(1 << 62, None, b"a", ()), (1_000, None, b"b", ())]), 2)
    table.run()
    assert [task.file.record_count for task in table.open().scan("offset >= 0").plan_files()] == [1, 1]
    assert table.open().scan(selected_fields=("offset",)).to_arrow().num_rows == 2


def test_fields_of_json_become_columns_and_bad_records_are_in_a_table_of_their_own(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path, made(0, [b'{"a":1}', b"bad"]), 2)
    table.schema = "json"
    table.run()
    table.grow(made(2, [b'{"a":2,"b.c":"x"}', b'{"A":3,"d":true}']), 4)
    table.run()
    rows = table.rows()
    assert [(row["a"], row["b.c"], row["d"]) for row in rows] == [(1, None, None), (2, "x", None), (None, None, True)]
    assert [row["value"] for row in table.open("millrace_bad").scan().to_arrow().to_pylist()] == [b"bad"]
    assert (table.directory / BAD / "data").is_dir()


def deleted(table: IcebergTable) -> None:
    shutil.rmtree(table.directory)


def unregistered(table: IcebergTable) -> None:
    catalog = SqlCatalog("millrace", uri=table.uri)
    catalog.drop_table(("millrace", "t"))
    catalog.close()


def exchanged(table: IcebergTable) -> None:
    unregistered(table)
    catalog = SqlCatalog("millrace", uri=table.uri)
    catalog.create_table(("millrace", "t"), Schema(NestedField(1, "a", LongType())), f"file://{table.directory}")
    catalog.close()


def partitioned(table: IcebergTable) -> None:
    with table.open().update_spec() as update:
        update.add_identity("partition")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (deleted, "is gone; bring it back"),
        (unregistered, "the catalog has no table millrace.t any more"),
        (exchanged, "is that of another program"),
        (partitioned, "was partitioned by partition"),
    ],
)
def test_a_table_that_is_gone_or_another_one_is_said_and_never_begun_again(tmp_path: Path, change: Callable[[IcebergTable], None], words: str) -> None:
    table = plain(tmp_path)
    table.expected_id = table.run().table_id
    change(table)
    table.grow(made(10, [b"a"]), 11)
    before = sorted(table.location.rglob("*"))
    with pytest.raises(TableTrouble, match=words):
        table.run()
    assert sorted(table.location.rglob("*")) == before, "it writes nothing"


def test_a_deleted_table_is_begun_again_if_that_is_ordered(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    deleted(table)
    table.expected_id = ""
    table.run()
    assert table.offsets() == list(range(10))
    with pytest.raises(TableTrouble, match="a topic of this name that was deleted"):
        table.run(topic_id=OTHER_TOPIC)


def test_a_box_that_knows_another_catalog_leaves_the_table_alone(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    table.uri = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(TableTrouble, match="all need one catalog"):
        table.run()


@pytest.mark.parametrize("at", ["sync", "commit"])
def test_a_file_system_that_is_full_loses_nothing_and_leaves_nothing(tmp_path: Path, at: str) -> None:
    table = plain(tmp_path)
    table.expected_id = table.run().table_id
    table.grow(made(10, [b"a"]), 11)
    before = table.data()

    def step(name: str) -> None:
        if name == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises((TableTrouble, OSError)):
        table.run(step=step)
    assert table.offset() == 10 and os.listdir(table.directory / STAGING) == [] and table.data() == before
    assert table.run().rows == 1 and table.offsets() == list(range(11))


def test_a_catalog_that_answers_with_an_error_after_it_committed_adds_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain(tmp_path)
    table.run()
    table.grow(made(10, [b"a"]), 11)
    commit = SqlCatalog.commit_table

    def lost_answer(*arguments: Any) -> Any:
        commit(*arguments)
        raise OperationalError("commit", None, Exception("the connection was lost"))

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lost_answer)
        with pytest.raises(TableTrouble, match="the connection was lost"):
            table.run()
    assert table.files() <= table.data(), "its file stays"
    assert table.run().rows == 0 and table.offsets() == list(range(11))


def test_small_files_are_merged_and_removed_when_readers_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain(tmp_path)
    table.run()
    assert grown(table, 13, compaction_commits=4).compacted == 4
    assert len(table.files()) == 1 and len(table.data()) == 5, "a reader of the snapshot before finds its files"
    assert table.offsets() == list(range(13)) and table.offset() == 13
    (merged,) = table.files()
    assert pq.ParquetFile(table.directory / "data" / merged).num_row_groups == 1
    assert pq.read_table(table.directory / "data" / merged).select(("value", "headers")).slice(12).to_pylist() == [{"value": b"12", "headers": None}]
    kept, unmerged = len(table.open().metadata.snapshots), table.data() - table.files()
    monkeypatch.setattr(iceberg_upkeep, "KEPT", timedelta())
    (table.directory / "data" / "part-7-0-left.zstd.parquet").touch()
    os.utime(table.directory / "data" / "part-7-0-left.zstd.parquet", (0, 0))
    (table.directory / "data" / "part-8-0-of-another-box.zstd.parquet").touch()
    grown(table, 19, compaction_commits=4)
    assert not table.data() & unmerged and {name for name in table.data() if "-0-" in name and "merged" not in name} == {"part-8-0-of-another-box.zstd.parquet"}
    opened = table.open()
    assert len(opened.metadata.snapshots) < kept and table.offsets() == list(range(19)) and table.offset() == 19
    lists = {each.manifest_list.removeprefix("file://") for each in opened.metadata.snapshots}
    assert {str(path) for path in (table.directory / "metadata").glob("snap-*")} == lists


def test_snapshots_are_forgotten_though_nothing_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_upkeep, "SNAPSHOTS_MAX", 3)
    monkeypatch.setattr(IcebergTopicTable, "upkeep_commits", 5)
    table = plain(tmp_path)
    table.run()
    assert grown(table, 16).compacted == 0
    assert len(table.open().metadata.snapshots) <= 3 + 5 and table.offsets() == list(range(16)) and len(table.files()) == 7


def test_files_that_other_programs_branches_have_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_upkeep, "KEPT", timedelta())
    table = plain(tmp_path)
    table.run()
    first = table.open().metadata.current_snapshot_id
    table.open().manage_snapshots().create_tag(first, "mine").commit()
    grown(table, 19, compaction_commits=4)
    assert table.open().scan(snapshot_id=first).to_arrow().num_rows == 10


def test_properties_with_credentials_are_read_from_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "tables.properties"
    with pytest.raises(TableTrouble, match="no such file"):
        read_properties(str(path))
    path.write_text("# the catalog\nuri = https://iceberg.example?a=b\n\ntoken=x y\n")
    with pytest.raises(TableTrouble, match="other users may read"):
        read_properties(str(path))
    path.chmod(0o600)
    assert read_properties(str(path)) == {"uri": "https://iceberg.example?a=b", "token": "x y"}
    path.write_text("uri\n")
    with pytest.raises(TableTrouble, match="line 1: write NAME=VALUE"):
        read_properties(str(path))
