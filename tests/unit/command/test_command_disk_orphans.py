"""What `millrace disk orphans` finds in a log directory, and what it lets be adopted or removed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.base.model import TopicId
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.command.disk_orphans import OrphanDirectory, _remove_directory, choose_directories, choose_topic, orphans_in, print_orphans
from appliance.command.failures import UsageProblem
from appliance.storage.directory_identity import encode_partition_metadata

OWN, OTHER = TopicId(bytes(range(16))), TopicId(bytes(range(1, 17)))
PLACED = PartitionImage(1, 0, (1,), (1,), "d0")
IMAGE = MetadataImage(1, "c", 1, {}, {"t": TopicImage("t", OWN, (PLACED, PLACED._replace(disk="d1"), PLACED._replace(disk="d1", moving_to="d0")), {})})


def make(root: Path, name: str, topic_id: TopicId | None, *files: str) -> None:
    (root / name).mkdir()
    if topic_id is not None:
        (root / name / "partition.metadata").write_bytes(encode_partition_metadata(topic_id))
    for file in files:
        (root / name / file).write_bytes(b"x" * 5_000)
        os.utime(root / name / file, (100, 100))


def find(root: Path) -> list[OrphanDirectory]:
    return orphans_in("d0", str(root), IMAGE, 1, {}, {}, 160_000)


def test_what_no_topic_owns_is_found_with_the_reason(tmp_path: Path) -> None:
    make(tmp_path, "t-0", OWN)
    make(tmp_path, "t-2", OWN)
    make(tmp_path, f"t-2.{'0' * 32}-future", OWN)
    make(tmp_path, f"t-3.{'0' * 32}-delete", OWN)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "meta.properties").touch()
    assert find(tmp_path) == []
    make(tmp_path, "gone-0", OTHER, "00000000000000000040.log", "00000000000000000000.log")
    make(tmp_path, "t-1", OWN)
    make(tmp_path, "t-3", OWN)
    make(tmp_path, "t-4", OTHER)
    make(tmp_path, "torn-0", None)
    make(tmp_path, f"t-0.{'0' * 32}-stray", OWN)
    found = {each.directory: each for each in find(tmp_path)}
    assert {name: (each.reason, each.is_served) for name, each in found.items()} == {
        "gone-0": ("no topic of this name", True),
        "t-1": ("the cluster places it elsewhere", True),
        "t-3": ("the cluster places it elsewhere", True),
        "t-4": ("of an earlier topic of this name", True),
        "torn-0": ("partition.metadata is missing or damaged", False),
        f"t-0.{'0' * 32}-stray": ("set aside (-stray)", False),
    }
    gone = found["gone-0"]
    assert (gone.name, gone.topic_id, gone.log_start_offset, gone.end_offset) == ("d0/gone-0", str(OTHER), 0, 40)
    assert gone.size_bytes >= 10_000


def test_a_log_without_a_readable_id_is_no_orphan_where_its_name_is_placed_or_open(tmp_path: Path) -> None:
    for name in ("t-0", "t-1", "t-2"):
        make(tmp_path, name, None)
    assert [each.directory for each in find(tmp_path)] == ["t-1"]
    row: Any = SimpleNamespace(log_start_offset=0, log_end_offset=1)
    assert orphans_in("d0", str(tmp_path), IMAGE, 1, {("d0", str(OWN), 1): row}, {}, 160_000) == []


def test_the_list_says_if_the_disk_of_a_log_does_not_serve(tmp_path: Path) -> None:
    make(tmp_path, "t-1", OWN)
    (found,) = orphans_in("d0", str(tmp_path), IMAGE, 1, {}, {"d1": "offline"}, 160_000)
    assert found.reason == "the cluster places it elsewhere, on disk d1 (offline): perhaps the only copy, not removed"


def test_another_directory_of_a_listed_name_is_not_removed(tmp_path: Path) -> None:
    name = f"t-0.{'0' * 32}-stray"
    make(tmp_path, name, OWN)
    (listed,) = find(tmp_path)
    (tmp_path / name).rename(tmp_path / "kept")
    make(tmp_path, name, OWN)
    with pytest.raises(OSError, match="another directory now"):
        _remove_directory(str(tmp_path), listed)
    assert (tmp_path / name).is_dir()
    (tmp_path / name / "partition.metadata").unlink()
    (tmp_path / name).rmdir()
    (tmp_path / "kept").rename(tmp_path / name)
    _remove_directory(str(tmp_path), listed)
    assert not any(tmp_path.iterdir())


def test_logs_of_one_unknown_topic_can_be_adopted(tmp_path: Path) -> None:
    for name, topic_id in (("gone-0", OWN), ("gone-1", OWN), ("t-1", OWN), ("t-4", OTHER), ("torn-0", None)):
        make(tmp_path, name, topic_id)
    found = find(tmp_path)
    assert [each.directory for each in choose_topic(found, "gone", None)] == ["gone-0", "gone-1"]
    for name, words in (("t", "there is another topic t"), ("torn", "no orphan is a log of topic torn"), ("none", "no orphan")):
        with pytest.raises(UsageProblem, match=words):
            choose_topic(found, name, None)
    make(tmp_path, "gone-2", OTHER)
    with pytest.raises(UsageProblem, match="choose with --topic-id"):
        choose_topic(find(tmp_path), "gone", None)
    assert [each.partition for each in choose_topic(find(tmp_path), "gone", str(OTHER))] == [2]


def test_only_listed_directories_can_be_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "t-0", OWN)
    make(tmp_path, "gone-0", OTHER)
    found = find(tmp_path)
    assert choose_directories(found, ["d0/gone-0", "d0/gone-0"]) == choose_directories(found, ["all"]) == found
    with pytest.raises(UsageProblem, match="d0/t-0 is no orphan"):
        choose_directories(found, ["d0/t-0"])
    print_orphans(found)
    assert "d0/gone-0" in capsys.readouterr().out
    print_orphans([])
    assert capsys.readouterr().out.startswith("no orphans")
