"""Places in a disk's queue, as settings and as numbers."""

from __future__ import annotations

import pytest

from appliance.base.io_class import classes_of_disks, io_class_problems, io_priority
from appliance.base.settings import default_settings, resolve_settings


@pytest.mark.parametrize(
    ("text", "number"), [("realtime:0", 1 << 13), ("best-effort", 2 << 13 | 4), ("best-effort:7", 2 << 13 | 7), ("idle", 3 << 13), (" idle ", 3 << 13)]
)
def test_a_class_has_the_number_of_ioprio_set(text: str, number: int) -> None:
    assert io_priority(text) == number


@pytest.mark.parametrize("text", ["", "fast", "best-effort:8", "best-effort:-1", "idle:1", "best-effort:x", "2"])
def test_what_is_no_class_has_no_number(text: str) -> None:
    assert io_priority(text) is None


def test_disks_have_classes_of_their_own_where_the_setting_says_so() -> None:
    assert classes_of_disks("none") == {}
    assert classes_of_disks("d0=idle, d3=best-effort:7") == {"d0": "idle", "d3": "best-effort:7"}
    assert classes_of_disks("d0") is classes_of_disks("d0=idle,") is classes_of_disks("=idle") is None


def test_every_wrong_class_is_named() -> None:
    assert io_class_problems(default_settings()) == []
    _, problems = resolve_settings({"log.writer.io.class": "x", "log.reader.io.class": "idle:2", "disk.io.classes": "d0=y"}, "m.toml")
    assert [problem.split()[1] for problem in problems] == ["log.writer.io.class", "log.reader.io.class", "disk.io.classes"]
