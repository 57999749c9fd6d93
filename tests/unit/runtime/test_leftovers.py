"""What a dead box leaves, and what its next start may remove."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.base.settings import Box
from appliance.runtime import leftovers
from appliance.runtime.leftovers import DEPTH_MAX, clear_box, clear_previous_life, clear_vanished_boxes, living_processes
from appliance.runtime.preflight import write_box
from appliance.shm.counters import Counters
from appliance.shm.mapping import SharedObject, list_names
from lab.running_box import eventually
from lab.scratch_layout import open_descriptors, scratch_layout


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


def create(layout: BoxLayout, purpose: str, owner: str) -> str:
    name = layout.shared_memory_name(purpose, owner, 7)
    SharedObject.create(name, b"MLRtests", 4096, 7).close()
    return name


def test_a_new_start_keeps_what_the_owners_must_read_first(layout: BoxLayout) -> None:
    kept = [create(layout, "table", "d0")]
    create(layout, "arena", "acceptor@0")
    Counters.create_or_adopt(layout, "ingest@0", 1).close()
    assert clear_previous_life(layout) == 1
    assert sorted(list_names(layout.shared_memory_prefix)) == sorted([*kept, layout.shared_memory_name("counters", "ingest@0")])


def test_the_last_act_of_a_box_leaves_nothing(layout: BoxLayout) -> None:
    create(layout, "table", "d0")
    Path(layout.runtime_directory, "image").write_text("x")
    os.mkdir(f"{layout.runtime_directory}/sub")
    Path(layout.runtime_directory, "sub", "file").write_text("x")
    clear_box(layout)
    assert list_names(layout.shared_memory_prefix) == [] and not os.path.exists(layout.runtime_directory)
    clear_box(layout)


def test_directories_that_lie_too_deep_are_left_alone(layout: BoxLayout) -> None:
    """A process that faces the network may create them, and each level holds a descriptor."""
    os.makedirs(f"{layout.runtime_directory}/{'d/' * (DEPTH_MAX + 2)}")
    Path(layout.runtime_directory, "file").write_text("x")
    before = open_descriptors()
    assert clear_box(layout) and os.listdir(layout.runtime_directory) == ["d"]
    assert open_descriptors() == before


def test_only_dead_boxes_without_a_state_directory_are_cleared_by_others(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "known_boxes", lambda: [layout])
    state = tmp_path / "state"
    state.mkdir()
    Path(layout.box_file).write_text(json.dumps({"state_directory": str(state), "pid": 2**22 + 1, "disks": []}))
    create(layout, "table", "d0")
    assert clear_vanished_boxes() == []
    state.rmdir()
    assert clear_vanished_boxes() == [layout.box]
    assert list_names(layout.shared_memory_prefix) == []


def test_a_box_that_starts_makes_its_runtime_directory_again_if_another_removes_it(layout: BoxLayout) -> None:
    """The other one found the state directory missing, and its disk was mounted since."""
    clear_box(layout)
    write_box(layout, Box(layout.box, 1, [], "/state", "127.0.0.1", "127.0.0.1", 1, 2, 3))
    assert layout.read_box()["state_directory"] == "/state"


def test_a_running_box_whose_state_directory_is_away_has_not_vanished(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk may be unmounted for a moment."""
    monkeypatch.setattr(leftovers, "known_boxes", lambda: [layout])
    (tmp_path / "millrace").symlink_to("/bin/sleep")  # the name of a process is that of its file
    with subprocess.Popen([tmp_path / "millrace", "60"]) as supervisor, ExitStack() as ending:
        ending.callback(supervisor.kill)
        eventually(lambda: Path(f"/proc/{supervisor.pid}/comm").read_text() == "millrace\n", "the supervisor has its name")
        Path(layout.box_file).write_text(json.dumps({"state_directory": str(tmp_path / "away"), "pid": supervisor.pid, "disks": []}))
        assert clear_vanished_boxes() == []
        child = Counters.create_or_adopt(layout, "ingest@0", 1)
        supervisor.kill()
        supervisor.wait()
        assert clear_vanished_boxes() == [], "a child of the supervisor still runs"
    child.close()
    assert os.path.exists(layout.box_file)


def test_a_state_directory_that_cannot_be_read_has_not_vanished(layout: BoxLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "known_boxes", lambda: [layout])
    (tmp_path / "failing").symlink_to("failing")  # ELOOP, as EIO of a failing disk
    Path(layout.box_file).write_text(json.dumps({"state_directory": str(tmp_path / "failing" / "state"), "pid": 2**22 + 1, "disks": []}))
    assert clear_vanished_boxes() == [] and os.path.exists(layout.box_file)


def test_a_process_is_living_as_long_as_it_owns_its_counters(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, "ingest@0", 1)
    assert living_processes(layout) == [os.getpid()]
    counters.close()
    assert living_processes(layout) == [], "the pid may have been reused"
