"""Which boxes count as running: what a killed one left behind looks like a box, too."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.runtime import running_boxes
from appliance.runtime.running_boxes import boxes_with, find_box
from appliance.shm.counters import Counters
from lab.scratch_layout import make_layout, remove_layout


@pytest.fixture
def make_box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bool], BoxLayout]]:
    layouts: list[BoxLayout] = []
    owned: list[Counters] = []
    monkeypatch.setattr(running_boxes, "known_boxes", lambda: layouts)

    def make(name: str, running: bool) -> BoxLayout:
        layout = make_layout()
        Path(layout.box_file).write_text(json.dumps({"disks": [{"name": "d0", "path": f"/{name}/d0"}, {"name": "d1", "path": f"/{name}/d1"}]}))
        if running:
            owned.append(Counters.create_or_adopt(layout, "ingest@0", 1))
        layouts.append(layout)
        return layout

    yield make
    for counters in owned:
        counters.close()
    for layout in layouts:
        remove_layout(layout)


def test_what_a_killed_box_left_is_not_a_running_box(make_box: Callable[[str, bool], BoxLayout]) -> None:
    make_box("killed", False)
    assert boxes_with(None) == [] and find_box(None) is None
    living = make_box("living", True)
    assert find_box(None) is living
    assert [box.data_directories for box in boxes_with(None)] == [["/living/d0", "/living/d1"]]


def test_of_several_running_boxes_none_is_meant(make_box: Callable[[str, bool], BoxLayout]) -> None:
    first, second = make_box("first", True), make_box("second", True)
    assert find_box(None) is None and [box.layout for box in boxes_with(None)] == [first, second]


@pytest.mark.parametrize("directory", ["/second/d1", "/second", "/second/d1/", "/elsewhere/../second"])
def test_a_directory_names_the_box_that_has_it(make_box: Callable[[str, bool], BoxLayout], directory: str) -> None:
    make_box("first", True)
    second = make_box("second", True)
    assert find_box(directory) is second
    assert find_box("/third") is None


def test_what_a_killed_box_left_is_found_by_its_directory_alone(make_box: Callable[[str, bool], BoxLayout]) -> None:
    """`millrace status --data DIR` reports a box that died; a running one with the same directory
    comes first.
    """
    dead = make_box("killed", False)
    assert find_box("/killed") is dead
    again = make_box("again", True)
    Path(again.box_file).write_text(Path(dead.box_file).read_text())
    assert find_box("/killed") is again


def test_a_runtime_directory_without_a_readable_box_file_is_passed_over(make_box: Callable[[str, bool], BoxLayout]) -> None:
    Path(make_box("torn", True).box_file).write_text("{")
    os.unlink(make_box("empty", True).box_file)
    assert boxes_with(None) == []
