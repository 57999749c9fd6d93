"""A process learns of its box's disks from box.json; time is the test's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box
from appliance.ipc.box_disks import LOOK_NS, NO_CHANGES, BoxDisks, DiskSetChange
from lab.scratch_layout import scratch_layout

OLD, NEW = Disk("d0", "/srv/d0"), Disk("d0", "/mnt/new", 1)
OTHER, THIRD = Disk("d1", "/srv/d1"), Disk("d2", "/srv/d2")


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


def write(layout: BoxLayout, disks: list[Disk], changed_ns: int) -> Box:
    box = Box("test", 1, disks, "/state", "::", "me", 9092, 1, 1)
    Path(layout.box_file).write_bytes(box.to_json())
    os.utime(layout.box_file, ns=(changed_ns, changed_ns))
    return box


def test_added_removed_and_replaced_disks_are_reported_once(layout: BoxLayout) -> None:
    box = write(layout, [OLD, OTHER], 1_000)
    disks = BoxDisks(layout, box)
    assert disks.look(LOOK_NS) == NO_CHANGES
    write(layout, [NEW, THIRD], 2_000)
    assert disks.look(LOOK_NS + 1) == NO_CHANGES, "not more often than once a second"
    assert disks.look(2 * LOOK_NS) == DiskSetChange([THIRD], [OTHER], [NEW])
    assert box.disks == [NEW, THIRD] and disks.look(3 * LOOK_NS) == NO_CHANGES


def test_another_directory_at_the_same_path_is_another_one(layout: BoxLayout) -> None:
    disks = BoxDisks(layout, write(layout, [OLD], 1_000))
    write(layout, [OLD._replace(replacements=1)], 2_000)
    assert disks.look(LOOK_NS).replaced == [OLD._replace(replacements=1)]
