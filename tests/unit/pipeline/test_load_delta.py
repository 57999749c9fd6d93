"""Delta's log follows our manifests: each commit once, whatever dies between the two."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from appliance.pipeline.hour_files import NO_HOUR, hour_directory
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_run import DeltaLog, partition_values
from appliance.pipeline.loader import LoadRules
from appliance.pipeline.problems import LoadProblem
from appliance.pipeline.table_kind import JsonField, TopicFormat
from tests.support.load_world import LoadWorld, StoredRecord, hour_of

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
pytestmark = pytest.mark.slow
RAW = TopicFormat(None, "raw")


def world_of(directory: Path) -> LoadWorld:
    world = LoadWorld(directory, rules=LoadRules(commit_records=20, task_records=8))
    world.append("t", 0, (b"zero-%d" % number for number in range(30)))
    world.append("t", 1, [b"one"])
    return world


def follow(world: LoadWorld) -> int:
    books = LoadDirectory(str(world.directory), "delta")
    return DeltaLog(books, {"t": RAW}, by_arrival=False).follow(books.last_manifest())


def rows_of(world: LoadWorld) -> list[Any]:
    table = deltalake.DeltaTable(str(world.directory)).to_pyarrow_table().to_pylist()
    return sorted((row["topic"], row["partition"], row["offset"], row["value"], str(row["date"]), row["hour"]) for row in table)


def expected(world: LoadWorld) -> list[Any]:
    found = []
    for each, log in world.logs.items():
        for record in log:
            day, _, hour = hour_of(record).partition(" ")
            found.append((*each, record.offset, record.value, day, int(hour)))
    return sorted(found)


def test_a_delta_reader_sees_every_record_once_however_often_the_log_is_brought_up(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.load()
    assert follow(world) == 2 and rows_of(world) == expected(world)
    assert follow(world) == 0 and rows_of(world) == expected(world)
    world.append("t", 1, [b"later", b"later still"])
    world.load()
    assert follow(world) == 1 and rows_of(world) == expected(world)
    table = deltalake.DeltaTable(str(tmp_path))
    assert table.transaction_version("millrace-load") == 3
    assert table.metadata().partition_columns == ["topic", "date", "hour"]


def test_a_log_of_deltas_that_is_behind_gets_what_is_missing(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.load()
    follow(world)
    kept = tmp_path.parent / "kept"
    shutil.copytree(tmp_path / "_delta_log", kept)
    world.append("t", 0, (b"more-%d" % number for number in range(45)))
    world.load()
    shutil.rmtree(tmp_path / "_delta_log")
    shutil.copytree(kept, tmp_path / "_delta_log")
    assert follow(world) == 3 and rows_of(world) == expected(world)


def test_topics_of_other_columns_are_refused(tmp_path: Path) -> None:
    formats = {"a": RAW, "b": TopicFormat(None, "json", (JsonField("n", "int"),))}
    with pytest.raises(LoadProblem, match="topics a and b become different columns"):
        DeltaLog(LoadDirectory(str(tmp_path), "delta"), formats, by_arrival=False)


def test_a_record_without_a_time_has_no_date(tmp_path: Path) -> None:
    world = LoadWorld(tmp_path)
    world.append("t", 0, [b"first"])
    next(iter(world.logs.values())).append(StoredRecord(1, -1, None, b"none"))
    world.load()
    follow(world)
    assert [row[4] for row in rows_of(world)] == ["2025-11-22", "None"]
    assert partition_values(f"topic=t/{hour_directory(NO_HOUR)}/x.parquet") == {"topic": "t", "date": None, "hour": None}
