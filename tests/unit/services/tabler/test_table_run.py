"""Runs of a table over segment files: what lands in it, and what each failure, kill and second writer leaves."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from appliance.base.model import TopicId
from appliance.pipeline.local_rows import LocalRow
from appliance.records.compression import Codec
from appliance.shm.partition_table import ROLE_FOLLOWER
from appliance.storage.transaction_index import AbortedTxn
from services.tabler.table_rules import TableOrder, TableResult, application_id
from services.tabler.table_run import TableJob, run_table
from services.tabler.topic_table import STAGING, TableConflict, TableTrouble
from tests.unit.pipeline.made_batches import made, made_of, marker
from tests.unit.services.search.test_partition_scan import TOPIC_ID, partition_at

LINE = b'{"time":"2026-11-21T01:54:57.55+00:00","host":"vm","app":"root","proc_id":null,"msg_id":null,"severity":5,"severity_name":"notice",' \
       b'"facility":1,"facility_name":"user","structured_data":{},"message":"disk %d is warm"}'  # fmt: skip
OTHER_TOPIC = TopicId(b"fedcba9876543210")


class Killed(BaseException):
    """The process ends here: nothing of it runs any more."""


class OneTable:
    """A topic with one partition, and its table."""

    def __init__(self, path: Path, content: bytes, end: int, **more: Any) -> None:
        self.location = path / "tables"
        self.location.mkdir()
        self.directory = self.location / "t"
        self._log = path / "log"
        self.found: LocalRow | str = partition_at(self._log, [(0, content)], end, **more)
        self.position: int | None = None
        self.expected_id = ""
        self.remembered: list[tuple[str, Mapping[int, tuple[int, int]]]] = []
        self.life = 0
        self.schema = "records"

    def grow(self, content: bytes, end: int) -> None:
        """Append to the log."""
        assert isinstance(self.found, LocalRow)
        with open(self._log / f"{0:020d}.log", "ab") as segment:
            segment.write(content)
        size = os.path.getsize(self._log / f"{0:020d}.log")
        row = self.found.row._replace(log_end_offset=end, high_watermark=end, last_stable_offset=end, active_position=size, watermark_position=size)
        self.set_row(row)

    def set_row(self, row: Any) -> None:
        assert isinstance(self.found, LocalRow)
        table: Any = self.found.table
        self.found = self.found._replace(row=row, table=table._replace(row=row))

    def job(self, **changes: Any) -> TableJob:
        order = TableOrder("t", changes.pop("topic_id", TOPIC_ID), "delta", str(self.location), 1_000, changes.pop("bytes_max", 1 << 20), self.schema)
        self.life += 1
        usual = TableJob(
            order,
            lambda _partition: self.found,
            [str(self.location)],
            [0],
            1,
            f"7-{self.life}",
            self.expected_id,
            lambda *what: self.remembered.append(what),
            {},
            frozenset(),
            {},
            0,
        )
        return usual._replace(**changes)

    def run(self, **changes: Any) -> TableResult:
        return run_table(self.job(**changes))

    def rows(self) -> list[dict[str, Any]]:
        return sorted(DeltaTable(self.directory).to_pyarrow_table().to_pylist(), key=lambda row: row["offset"])

    def offsets(self) -> list[int]:
        return [row["offset"] for row in self.rows()]

    def offset(self) -> int | None:
        version = DeltaTable(self.directory).transaction_version(application_id(TOPIC_ID, 0))
        return None if version is None else int(version)


def plain(path: Path, count: int = 10) -> OneTable:
    return OneTable(path, made(0, [b"%d" % number for number in range(count)]), count)


def test_records_of_every_codec_land_once_without_aborted_ones_and_markers(tmp_path: Path) -> None:
    content = b"".join(
        [
            made_of(0, [(1_000, b"k", b"v", (("h", b"x"), ("n", None))), (1_001, None, None, ())], Codec.ZSTD),
            made(2, [b"gone"] * 3, producer_id=7),
            made(5, [b"kept"], Codec.LZ4, producer_id=8),
            marker(6, 7, False),
            marker(7, 8, True),
            made(8, [b"last"], Codec.GZIP),
        ]
    )
    table = OneTable(tmp_path, content, 9, aborted=[AbortedTxn(7, 2, 6, 2)])
    result = table.run()
    assert (result.rows, result.committed, table.offset()) == (4, True, 9)
    rows = table.rows()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(0, b"k", b"v"), (1, None, None), (5, None, b"kept"), (8, None, b"last")]
    assert rows[0]["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}] and rows[0]["timestamp"].timestamp() == 1.0
    again = table.run(expected_id=result.table_id)
    assert (again.rows, again.committed, again.version) == (0, False, result.version), "nothing is new"


def test_records_of_ingest_have_columns_and_what_does_not_fit_is_kept_whole_with_the_reason(tmp_path: Path) -> None:
    good = [LINE % number for number in range(3)]
    bad = [b"no JSON", LINE.replace(b'"severity":5', b'"severity":"five"') % 9]
    table = OneTable(tmp_path, made(0, [good[0], bad[0], good[1], bad[1], good[2]]), 5)
    result = table.run()
    rows = table.rows()
    assert (result.rows, result.bad_rows) == (5, 2)
    assert [row["message"] for row in rows] == ["disk 0 is warm", None, "disk 1 is warm", None, "disk 2 is warm"]
    assert [row["value"] for row in rows] == [None, bad[0], None, bad[1], None]
    assert [row["problem"] is None for row in rows] == [True, False, True, False, True]
    assert (rows[0]["host"], rows[0]["severity"], rows[0]["time"].year) == ("vm", 5, 2026)
    table.grow(made(5, [b"raw now"]), 6)
    assert table.run(expected_id=result.table_id).bad_rows == 1, "its first commit decided what its columns are"


@pytest.mark.parametrize("dies_at", ["create", "write", "sync", "rename", "commit", "committed"])
def test_a_kill_at_any_step_leaves_each_record_once(tmp_path: Path, dies_at: str) -> None:
    table = plain(tmp_path)
    seen = []

    def step(name: str) -> None:
        seen.append(name)
        if name == dies_at:
            raise Killed

    with pytest.raises(Killed):
        table.run(step=step)
    table.grow(made(10, [b"more"]), 11)
    table.run()
    assert seen[-1] == dies_at and table.offsets() == list(range(11)) and table.offset() == 11


@pytest.mark.parametrize("dies_at", ["commit", "committed"])
def test_a_table_is_remembered_before_the_first_commit(tmp_path: Path, dies_at: str) -> None:
    table = plain(tmp_path)

    def step(name: str) -> None:
        if name == dies_at:
            raise Killed

    with pytest.raises(Killed):
        table.run(step=step)
    ((table.expected_id, _),) = table.remembered
    shutil.rmtree(table.directory)
    with pytest.raises(TableTrouble, match="is gone; bring it back"):
        table.run()


def test_a_kill_while_the_library_creates_the_table_leaves_nothing_that_matters(tmp_path: Path) -> None:
    table = plain(tmp_path)
    (table.directory / "_delta_log").mkdir(parents=True)
    (table.directory / "_delta_log" / "_commit_1.json.tmp").write_text("{")
    table.run()
    assert table.offsets() == list(range(10))


def test_what_a_killed_incarnation_staged_is_removed_by_the_next_one_of_its_box(tmp_path: Path) -> None:
    table = plain(tmp_path)

    def step(name: str) -> None:
        if name == "sync":
            raise Killed

    with pytest.raises(Killed):
        table.run(step=step)
    staging = table.directory / STAGING
    (staging / "part-8-1-another-box").touch()
    assert len(list(staging.iterdir())) == 2
    table.run()
    assert [path.name for path in staging.iterdir()] == ["part-8-1-another-box"]


def test_two_writers_of_a_partition_never_write_twice(tmp_path: Path) -> None:
    """The old leader does not know yet that there is a new one."""
    table = plain(tmp_path)
    first = table.run(bytes_max=1)
    table.grow(made(10, [b"a", b"b"]), 12)

    def new_leader(name: str) -> None:
        if name == "commit":
            table.run()

    with pytest.raises(TableConflict, match="another writer moved the offsets"):
        table.run(step=new_leader)
    assert table.offsets() == list(range(12)) and first.committed
    data_files = {name for name in os.listdir(table.directory) if name.endswith(".parquet")}
    assert {path.rpartition("/")[2] for path in DeltaTable(table.directory).file_uris()} == data_files, "the loser removed its file"


def test_a_commit_takes_a_bounded_part_and_the_next_one_goes_on(tmp_path: Path) -> None:
    table = OneTable(tmp_path, b"".join(made(100 * number, [b"x" * 1_000] * 100) for number in range(30)), 3_000)
    results = [table.run(bytes_max=1 << 20)]
    while results[-1].is_full:
        results.append(table.run(bytes_max=1 << 20, expected_id=results[0].table_id))
    assert len(results) > 1 and table.offsets() == list(range(3_000))


def test_each_file_has_bounds_by_which_readers_skip_it(tmp_path: Path) -> None:
    table = OneTable(tmp_path, made_of(0, [(5_000, None, b"a", ()), (1_000, None, b"b", ())]), 2)
    table.run()
    table.grow(made_of(2, [(1 << 61, None, b"no year of a calendar", ())]), 3)
    table.run()
    actions = sorted(pa.table(DeltaTable(table.directory).get_add_actions(flatten=True)).to_pylist(), key=lambda action: action["min.offset"])
    assert [(action["num_records"], action["min.offset"], action["max.offset"], action["max.partition"]) for action in actions] == [(2, 0, 1, 0), (1, 2, 2, 0)]
    times = [(action["min.timestamp"], action["max.timestamp"]) for action in actions]
    assert [at and at.timestamp() for at in times[0]] == [1.0, 5.0] and times[1] == (None, None), "a time beyond is not bounded"


def test_records_that_retention_deleted_first_are_said_with_their_offsets(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = table.run()
    table.grow(made(10, [b"a"]) + made(11, [b"b"]), 12)
    assert isinstance(table.found, LocalRow)
    table.set_row(table.found.row._replace(log_start_offset=11))
    result = table.run(expected_id=first.table_id)
    assert [(each.start, each.end) for each in result.lost] == [(10, 11)] and "begins at offset 11" in str(result.lost[0])
    assert table.offsets() == [*range(10), 11]
    assert "millrace.lost" in DeltaTable(table.directory).history(1)[0]


def test_a_damaged_batch_is_waited_for_and_then_passed_over_and_said(tmp_path: Path) -> None:
    damaged = bytearray(made(2, [b"damaged", b"damaged"]))
    damaged[-1] ^= 1
    table = OneTable(tmp_path, made(0, [b"a", b"b"]) + bytes(damaged) + made(4, [b"c"]), 5)
    result = table.run()
    assert table.offsets() == [0, 1] and [(each.start, each.end) for each in result.damaged] == [(2, 4)] and not result.lost
    assert result.positions == {0: 2} and table.run(expected_id=result.table_id).damaged == result.damaged
    passed = table.run(expected_id=result.table_id, accepted_damage=frozenset({(0, 2)}))
    assert table.offsets() == [0, 1, 4] and [(each.start, each.end) for each in passed.lost] == [(2, 4)]


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_full_run_that_ends_before_a_damaged_batch_leaves_nothing_out(tmp_path: Path, is_accepted: bool) -> None:
    damaged = bytearray(made(8_000, [b'{"a":2}'] * 100))
    damaged[-3] ^= 0xFF
    table = OneTable(tmp_path, made(0, [b'{"a":1}'] * 8_000) + bytes(damaged) + made(8_100, [b'{"a":3}'] * 100), 8_200)
    table.schema = "json"
    accepted = frozenset({(0, 8_000)}) if is_accepted else frozenset()
    first = table.run(bytes_max=1, accepted_damage=accepted)
    assert first.is_full and 0 < first.rows < 8_000 and table.offset() == first.rows
    while table.run(accepted_damage=accepted).rows:
        pass
    assert table.offsets() == [*range(8_000), *(range(8_100, 8_200) if is_accepted else ())]


def test_a_log_that_lost_records_is_said_and_what_it_has_instead_is_counted(tmp_path: Path) -> None:
    table = plain(tmp_path)
    first = table.run()
    assert isinstance(table.found, LocalRow)
    row = table.found.row
    table.set_row(row._replace(log_end_offset=7, high_watermark=7, last_stable_offset=7))
    result = table.run(expected_id=first.table_id)
    assert "its log ends at 7" in result.problems[0] and result.shortened == {0: (7, 10)}
    assert table.remembered[-1] == (first.table_id, result.shortened), "the process may end before it has them again"
    table.set_row(row)
    table.grow(made(10, [b"a"]), 11)
    result = table.run(expected_id=first.table_id, shortened=result.shortened)
    assert [(each.start, each.end) for each in result.lost] == [(7, 10)] and table.offsets() == list(range(11))
    assert table.remembered[-1] == (first.table_id, {}), "it is counted once"


def test_only_the_leader_writes(tmp_path: Path) -> None:
    table = plain(tmp_path)
    assert isinstance(table.found, LocalRow)
    table.set_row(table.found.row._replace(role=ROLE_FOLLOWER))
    assert not table.run().committed
    table.found = "the box does not serve it at the moment"
    assert not table.run().committed and not table.directory.exists()


def deleted(table: OneTable) -> None:
    table.directory.rename(table.location / "elsewhere")


def unmounted(table: OneTable) -> None:
    table.location.rename(table.location.with_name("elsewhere"))


def linked(table: OneTable) -> None:
    deleted(table)
    table.directory.symlink_to(table.location / "elsewhere")


def exchanged(table: OneTable) -> None:
    deleted(table)
    DeltaTable.create(str(table.directory), DeltaTable(table.location / "elsewhere").schema())


def without_column(table: OneTable) -> None:
    deleted(table)
    fields = [field for field in DeltaTable(table.location / "elsewhere").schema().fields if field.name != "offset"]
    configuration = {"millrace.topic.id": str(TOPIC_ID)}
    from deltalake import Schema

    made_again = DeltaTable.create(str(table.directory), Schema(fields), configuration=configuration, raise_if_key_not_exists=False)
    table.expected_id = str(made_again.metadata().id)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (deleted, "is gone; bring it back"),
        (unmounted, "does not exist; mount its file system"),
        (linked, "symbolic link"),
        (exchanged, "is that of another program"),
        (without_column, "no column offset any more"),
    ],
)
def test_a_table_that_is_gone_or_another_one_is_said_and_never_begun_again(tmp_path: Path, change: Callable[[OneTable], None], words: str) -> None:
    table = plain(tmp_path)
    table.expected_id = table.run().table_id
    change(table)
    table.grow(made(10, [b"a"]), 11)
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(TableTrouble, match=words):
        table.run()
    assert sorted(path for path in tmp_path.rglob("*")) == before, "it writes nothing"


def test_a_topic_that_was_made_again_does_not_continue_the_table_of_the_old_one(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    with pytest.raises(TableTrouble, match="a topic of this name that was deleted"):
        table.run(topic_id=OTHER_TOPIC)


def test_no_table_is_made_outside_of_the_allowed_directories_nor_in_a_log_or_another_table(tmp_path: Path) -> None:
    table = plain(tmp_path)
    with pytest.raises(TableTrouble, match="not below a directory of the setting"):
        table.run(allowed=[str(tmp_path / "others")])
    (table.location / "t").mkdir()
    (table.location / "t" / "notes.txt").touch()
    with pytest.raises(TableTrouble, match="is no table and not empty"):
        table.run()
    (tmp_path / "meta.properties").touch()
    with pytest.raises(TableTrouble, match="log directory of a box"):
        table.run()
    (tmp_path / "meta.properties").unlink()
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(TableTrouble, match="lies in another table"):
        table.run()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("at", ["write", "sync", "rename", "commit"])
def test_a_file_system_that_refuses_loses_nothing_and_leaves_nothing(tmp_path: Path, code: int, at: str) -> None:
    table = plain(tmp_path)
    table.expected_id = table.run().table_id
    table.grow(made(10, [b"a"]), 11)
    before = set(os.listdir(table.directory))

    def step(name: str) -> None:
        if name == at:
            raise OSError(code, os.strerror(code))

    with pytest.raises((TableTrouble, OSError)):
        table.run(step=step)
    assert table.offset() == 10 and os.listdir(table.directory / STAGING) == []
    assert set(os.listdir(table.directory)) == before
    assert table.run().rows == 1 and table.offsets() == list(range(11))


def test_small_files_are_merged_after_some_commits_and_offsets_stay(tmp_path: Path) -> None:
    table = plain(tmp_path)
    results = [table.run(compaction_commits=4)]
    for number in range(10, 16):
        table.grow(made(number, [b"%d" % number]), number + 1)
        results.append(table.run(compaction_commits=4))
    assert [result.compacted for result in results] == [0, 0, 0, 4, 0, 0, 4], "the merge is a commit, too"
    assert table.offsets() == list(range(16)) and table.offset() == 16
    assert len(DeltaTable(table.directory).file_uris()) == 1


def test_a_compaction_that_fails_does_not_fail_the_commit(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.run()
    (file,) = table.directory.glob("*.parquet")
    file.unlink()
    table.grow(made(10, [b"a"]), 11)
    result = table.run(compaction_commits=2)
    assert result.committed and "could not compact" in result.problems[0] and table.offset() == 11
