"""A stream's directory: a micro-batch is in once, whatever dies when; and it belongs to one job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.pipeline.problems import ConcurrentStream, StreamProblem
from appliance.pipeline.stream_directory import StagedPart, StreamDirectory
from appliance.storage import file_io

IDENTITY = {"job": "j", "topics": ["t"]}


class Killed(BaseException):
    """Not caught by any handler, as SIGKILL is not."""


def opened(place: Path, life: str, identity: dict[str, Any] = IDENTITY) -> StreamDirectory:
    directory = StreamDirectory(str(place), life)
    try:
        directory.open(identity)
    except BaseException:
        directory.close()
        raise
    return directory


def add(directory: StreamDirectory, number: int, text: str) -> None:
    """As Spark has a micro-batch added: unless it is in."""
    (Path(directory.checkpoint) / "offsets").mkdir(parents=True, exist_ok=True)
    (Path(directory.checkpoint) / "offsets" / str(number)).touch()
    if directory.is_in(number):
        return
    staging = Path(directory.begin(number))
    parts = []
    for index in range(2):
        name = f"{directory.life}-{index}.parquet"
        (staging / name).write_text(f"{text}{index}")
        parts.append(StagedPart(name, f"rows/date=2026-11-22/part-{number}-{index}.parquet", 1, 2))
    directory.publish(number, parts, {"seen": number})


def rows(place: Path) -> list[str]:
    """What a reader sees that knows nothing of Millrace: files whose names do not begin with `_` or `.`, wherever they are."""
    found = [file for file in place.rglob("*.parquet") if not any(part.startswith(("_", ".")) for part in file.relative_to(place).parts)]
    return sorted(file.read_text() for file in found)


def test_a_batch_that_is_in_is_not_added_again(tmp_path: Path) -> None:
    place = tmp_path / "out"
    directory = opened(place, "one")
    add(directory, 0, "a")
    add(directory, 0, "replayed")
    directory.close()
    directory = opened(place, "two")
    assert directory.last is not None and directory.last.state == {"seen": 0}
    add(directory, 0, "replayed")
    add(directory, 1, "b")
    directory.close()
    assert rows(place) == ["a0", "a1", "b0", "b1"]


@pytest.mark.slow
def test_after_a_kill_at_any_file_call_a_later_run_has_every_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [name for name in ("rename", "link", "mkdir", "unlink", "rmdir", "fsync", "open_file", "pwritev") if hasattr(file_io, name)]
    real: dict[str, Callable[..., Any]] = {name: getattr(file_io, name) for name in calls}
    for after in (False, True):
        step = 0
        while True:
            step += 1
            place = tmp_path / f"{after}-{step}"
            left = step

            def dying(name: str, after: bool = after) -> Callable[..., Any]:
                def call(*arguments: Any, **named: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0 and not after:
                        raise Killed
                    answer = real[name](*arguments, **named)
                    if left == 0:
                        raise Killed
                    return answer

                return call

            for name in calls:
                monkeypatch.setattr(file_io, name, dying(name))
            died = False
            directory = StreamDirectory(str(place), "one")
            try:
                directory.open(IDENTITY)
                add(directory, 0, "a")
                add(directory, 1, "b")
            except Killed:
                died = True
            monkeypatch.undo()
            directory.close()
            directory = opened(place, "two")
            add(directory, 0, "a")  # Spark runs again what it has not noted
            add(directory, 1, "b")
            directory.close()
            assert rows(place) == ["a0", "a1", "b0", "b1"], f"killed {'after' if after else 'before'} call {step}"
            assert file_io.listdir(f"{place}/_millrace/staging") == []
            if not died:
                break
        assert step > 20


def test_a_second_job_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "out", "one")
    with pytest.raises(ConcurrentStream, match="another job is at work"):
        opened(tmp_path / "out", "two")
    first.close()
    opened(tmp_path / "out", "three").close()


def test_a_directory_of_another_job_or_with_foreign_files_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "out", "one").close()
    with pytest.raises(StreamProblem, match=r"begun by another job .job was j, and is k now.*another directory"):
        opened(tmp_path / "out", "two", {**IDENTITY, "job": "k"})
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").touch()
    with pytest.raises(StreamProblem, match="is not empty"):
        opened(tmp_path / "theirs", "one")
    with pytest.raises(StreamProblem, match="is a file"):
        opened(tmp_path / "theirs/file", "one")


def test_topics_that_were_made_anew_and_another_cluster_are_refused_and_ids_are_added_where_there_are_none(tmp_path: Path) -> None:
    ids = {"cluster_id": "c1", "topic_ids": {"t": "id1"}}
    opened(tmp_path / "out", "one").close()  # as it was begun before there were ids
    opened(tmp_path / "out", "two", {**IDENTITY, **ids}).close()
    anew, elsewhere = {**ids, "topic_ids": {"t": "id2"}}, {**ids, "cluster_id": "c2"}
    for other, said in ((anew, "earlier topic t, which was deleted and made anew"), (elsewhere, "of cluster c1, and this one is c2")):
        with pytest.raises(StreamProblem, match=f"{said}.*another directory"):
            opened(tmp_path / "out", "three", {**IDENTITY, **other})
    # Of a cluster that reports none.
    directory = opened(tmp_path / "out", "four", {**IDENTITY, "cluster_id": "", "topic_ids": {}})
    assert directory.id == "one"
    directory.close()
    opened(tmp_path / "out", "five", {**IDENTITY, **ids}).close()


def test_a_directory_that_a_load_owns_is_refused_before_anything_is_made_in_it(tmp_path: Path) -> None:
    (tmp_path / "_millrace").mkdir()
    (tmp_path / "_millrace/table.json").write_text('{"format": "millrace load"}')
    (tmp_path / "_millrace/lock").write_text("process 7 on host")
    with pytest.raises(StreamProblem, match="belongs to millrace load"):
        opened(tmp_path, "one")
    assert sorted(os.listdir(tmp_path / "_millrace")) == ["lock", "table.json"]
    assert (tmp_path / "_millrace/lock").read_text() == "process 7 on host"


def test_without_the_checkpoint_that_it_was_made_with_a_directory_is_refused(tmp_path: Path) -> None:
    directory = opened(tmp_path / "out", "one")
    add(directory, 0, "a")
    directory.close()
    (Path(directory.checkpoint) / "offsets/0").unlink()
    with pytest.raises(StreamProblem, match="knows nothing of batch 0"):
        opened(tmp_path / "out", "two")
