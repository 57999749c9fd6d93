"""Whose a directory is, what a run may change about a table, and what a load says when records are gone."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

from appliance.base.model import TopicId, TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_manifest import Manifest, Plan, SkippedRange, StagedFile, decode_manifest, decode_plan
from appliance.pipeline.load_survey import Destination, LoadRequest, LogExtent, PartitionLag, Survey, choose_format, find_due, next_ranges, parse_destination
from appliance.pipeline.load_task import LoadJob, TaskResult
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.postgres_table import table_address
from appliance.pipeline.problems import DamagedTable, LoadProblem
from appliance.pipeline.table_kind import JsonField, TopicFormat
from appliance.storage import file_io
from tests.support.load_world import KIND, LoadWorld

ZERO = TopicPartition("t", 0)
ONE = TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["_delta_log/"], "is a foreign Delta table"),
        (["_spark_metadata/"], "is filled by a streaming query of Spark"),
        (["meta.properties"], "lies in a log directory of a box"),
        (["holiday.jpg"], r"is not empty, and nothing in it says that millrace load filled it \(holiday.jpg\)"),
    ],
)
def test_a_directory_with_foreign_files_is_not_changed(tmp_path: Path, names: list[str], words: str) -> None:
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    world = LoadWorld(tmp_path)
    world.append("t", 0, [b"v"])
    with pytest.raises(LoadProblem, match=words):
        world.load()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(name.rstrip("/") for name in names)


def test_below_a_log_directory_nothing_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    world = LoadWorld(tmp_path / "deep/er")
    world.append("t", 0, [b"v"])
    with pytest.raises(LoadProblem, match="where only that box may write"):
        world.load()


def test_a_table_keeps_its_cluster_partitioning_and_format(tmp_path: Path) -> None:
    world = LoadWorld(tmp_path)
    world.append("t", 0, [b"v"])
    world.load()
    for change, words in (
        ({"cluster_id": "other"}, "holds records of cluster cluster-of-the-test; these are of cluster other"),
        ({"partitioned_by": "arrival"}, "is partitioned by the time of record"),
        ({"file_format": "delta"}, "is a table of format parquet"),
    ):
        with pytest.raises(LoadProblem, match=words), world.opened(KIND._replace(**change)):
            pass


def test_an_empty_mount_and_a_half_made_table_are_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "_millrace").mkdir()
    world = LoadWorld(tmp_path)
    world.append("t", 0, [b"v"])
    world.load()
    world.expect_exactly_once()


@pytest.mark.parametrize("text", ["s3://bucket/x", "hdfs://nn/x", "gs://b", "abfss://c@a/x", "file://host/x", ""])
def test_what_has_no_link_and_rename_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(LoadProblem, match=r"only directories of local or shared POSIX|write file:///DIR|--to is empty"):
        parse_destination(text)


def test_directories_and_databases_are_distinguished(tmp_path: Path) -> None:
    assert parse_destination("/srv/x/") == parse_destination("file:///srv/x") == Destination(directory="/srv/x")
    assert parse_destination("file:///srv/a%20b") == Destination(directory="/srv/a b")
    assert parse_destination("postgresql://u@h/d?table=x") == Destination(database="postgresql://u@h/d?table=x")
    assert parse_destination("relative").directory == str(Path("relative").absolute())


@pytest.mark.parametrize("text", ["postgresql://u:secret@h/d", "postgres://u:secret@h/d", "postgresql://u@h/d?table=x&password=secret", "postgresql://u:@h/d"])
def test_a_password_on_the_command_line_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(LoadProblem, match="PGPASSFILE") as raised:
        parse_destination(text)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        "u@db.example/d",
        "u@192.0.2.7:5433/d",
        "u@/d?host=db.example",
        "u@[2001:db8::1]/d",
        "u@localhost,db.example/d",
        "/d?hostaddr=192.0.2.7",
        "u@/d?service=prod",
        "u@127.evil.example/d",
    ],
)
def test_a_database_on_another_machine_must_prove_its_name(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert "sslmode=verify-full" in table_address(f"postgresql://{address}", "t").connection
    weaker = table_address(f"postgresql://{address}{'&' if '?' in address else '?'}sslmode=require", "t").connection
    assert "sslmode=require" in weaker and "verify-full" not in weaker
    monkeypatch.setenv("PGSSLMODE", "prefer")
    assert "sslmode" not in table_address(f"postgresql://{address}", "t").connection


@pytest.mark.parametrize("address", ["u@localhost/d", "u@127.0.0.1:5433/d", "u@[::1]/d", "u@/d?host=%2Frun%2Fpostgresql", "/d"])
def test_a_database_on_this_machine_needs_no_certificate(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    assert "sslmode" not in table_address(f"postgresql://{address}", "t").connection


def test_a_file_system_without_links_is_refused_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(file_io, "link", refuse)
    world = LoadWorld(tmp_path)
    world.append("t", 0, [b"v"])
    with pytest.raises(LoadProblem, match="has no hard links"):
        world.load()


# --- what is due


def test_a_partition_is_due_from_its_position_to_its_end() -> None:
    due = find_due({ZERO: LogExtent(5, 20), ONE: LogExtent(0, 7)}, {ONE: 7})
    assert due.ranges == (OffsetRange("t", 0, 5, 20),) and due.lost == () and due.size == 15


def test_records_that_went_before_they_were_loaded_are_named() -> None:
    due = find_due({ZERO: LogExtent(9, 20), ONE: LogExtent(7, 7)}, {ZERO: 3, ONE: 2})
    assert due.lost == (SkippedRange("t", 0, 3, 9, "lost"), SkippedRange("t", 1, 2, 7, "lost"))
    assert next_ranges(due, 100) == (OffsetRange("t", 1, 7, 7), OffsetRange("t", 0, 9, 20))


def test_a_log_that_is_shorter_than_what_was_loaded_is_another_one() -> None:
    with pytest.raises(LoadProblem, match="was loaded up to offset 30, but its log ends at 20"):
        find_due({ZERO: LogExtent(0, 20)}, {ZERO: 30})


def test_a_commit_takes_of_each_partition_in_proportion() -> None:
    due = find_due({ZERO: LogExtent(0, 1000), ONE: LogExtent(0, 10)}, {})
    assert next_ranges(due, 101) == (OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 0, 1))
    assert next_ranges(due, 5000) == due.ranges


def test_lost_records_stop_a_load_until_it_may_skip_them(tmp_path: Path) -> None:
    world = LoadWorld(tmp_path)
    world.append("t", 0, (b"%d" % number for number in range(10)))
    world.append("t", 1, [b"x"])
    world.load()
    world.append("t", 0, (b"%d" % number for number in range(10, 20)))
    world.append("t", 1, [b"y"])
    world.delete_before("t", 0, 14)
    world.delete_before("t", 1, 2)
    with pytest.raises(LoadProblem, match="t-0: offsets 10 to 13 were deleted before they could be loaded; --accept-loss goes on without them"):
        world.load()
    world.rules = world.rules._replace(accept_loss=True)
    (manifest,) = world.load_commits()
    assert manifest.skipped == (SkippedRange("t", 1, 1, 2, "lost"), SkippedRange("t", 0, 10, 14, "lost"))
    for partition, numbers in ((ZERO, range(10, 14)), (ONE, range(1, 2))):
        world.logs[partition] = [each for each in world.logs[partition] if each.offset not in numbers]
    world.expect_exactly_once()
    assert world.load_commits() == []


def test_records_that_go_after_the_plan_was_made_are_found_out_by_the_task(tmp_path: Path) -> None:
    world = LoadWorld(tmp_path)
    world.append("t", 0, (b"%d" % number for number in range(10)))
    with world.opened() as directory:
        directory.keep_plan(Plan(1, (OffsetRange("t", 0, 0, 10),)))
    world.delete_before("t", 0, 4)
    with pytest.raises(LoadProblem, match="t-0: offsets 0 to 3 were deleted"):
        world.load()
    world.rules = world.rules._replace(accept_loss=True)
    assert world.load_commits()[0].skipped == (SkippedRange("t", 0, 0, 4, "lost"),)


def test_a_failed_commit_frees_its_files_and_the_next_run_commits(tmp_path: Path) -> None:
    world = LoadWorld(tmp_path)
    world.append("t", 0, (b"%d" % number for number in range(10)))
    run_tasks = world.run_tasks

    def fail_at_the_end(job: LoadJob, ranges: Iterable[OffsetRange]) -> list[TaskResult]:
        run_tasks(job, ranges)
        raise OSError(errno.ENOSPC, "No space left on device")

    world.run_tasks = fail_at_the_end  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space left"):
        world.load()
    assert list((tmp_path / "_millrace/staging").iterdir()) == []
    world.run_tasks = run_tasks  # type: ignore[method-assign]
    world.load()
    world.expect_exactly_once()


@pytest.mark.parametrize(
    ("lag", "expected"),
    [
        (PartitionLag("t", 0, None, 5, 20), (15, 0)),
        (PartitionLag("t", 0, 7, 5, 20), (13, 0)),
        (PartitionLag("t", 0, 3, 5, 20), (15, 2)),
        (PartitionLag("t", 0, 20, 5, 20), (0, 0)),
    ],
)
def test_lag_counts_what_is_there_and_not_loaded(lag: PartitionLag, expected: tuple[int, int]) -> None:
    assert (lag.lag, lag.lost) == expected


# --- the form of a topic


def survey(topic_id: bytes) -> Survey:
    return Survey(ClusterAccess((), topic_ids=(("t", topic_id),)), {})


def test_a_topic_keeps_its_form() -> None:
    first = choose_format("t", survey(b"1" * 16), LoadRequest("json", (JsonField("a", "int"),), True), None)
    assert first == TopicFormat(str(TopicId(b"1" * 16)), "json", (JsonField("a", "int"),), True)
    assert choose_format("t", survey(b"1" * 16), LoadRequest(), first) == first
    for wish, words in (
        (LoadRequest("raw"), "was loaded with decode json, not raw; a table keeps its form"),
        (LoadRequest(headers=False), "was loaded with headers on, not off"),
        (LoadRequest(fields=(JsonField("a", "bigint"),)), "was loaded with the schema 'a int'"),
    ):
        with pytest.raises(LoadProblem, match=words):
            choose_format("t", survey(b"1" * 16), wish, first)


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    kept = TopicFormat(str(TopicId(b"1" * 16)), "raw")
    with pytest.raises(LoadProblem, match="topic t was deleted and made anew since it was loaded"):
        choose_format("t", survey(b"2" * 16), LoadRequest(), kept)


def test_a_schema_is_for_json_only() -> None:
    with pytest.raises(LoadProblem, match="a schema is for --decode json; syslog has its own"):
        choose_format("t", survey(b"1" * 16), LoadRequest("syslog", (JsonField("a", "int"),)), None)


# --- plans and manifests


def test_plans_and_manifests_are_decoded_as_they_were_encoded() -> None:
    plan = Plan(3, (OffsetRange("t", 0, 1, 2), OffsetRange("u.v-w", 7, 0, 2**60)))
    assert decode_plan(plan.encode(), "plan") == plan
    file = StagedFile("0-0", "topic=t/date=2026-11-22/hour=05/part.parquet", 3, 99)
    manifest = Manifest(3, "life", 5, {ZERO: 2, TopicPartition("u.v-w", 7): 2**60}, plan.ranges, (file,), (file,), (SkippedRange("t", 0, 0, 1, "lost"),))
    assert decode_manifest(manifest.encode(), "manifest") == manifest


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version":2}', b'{"version":1}', b'{"version":1,"number":1,"ranges":[[1]]}'])
def test_damaged_plans_and_manifests_stop_a_load(content: bytes) -> None:
    with pytest.raises(DamagedTable):
        decode_plan(content, "plan")
    with pytest.raises(DamagedTable):
        decode_manifest(content, "manifest")
