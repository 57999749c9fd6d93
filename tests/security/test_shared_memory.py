"""Names in /dev/shm that another user took first: what that user made is neither read nor written, and it is said where it keeps a box from starting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout, box_name
from appliance.shm.counters import PURPOSE, SIZE_BYTES, Counters, list_counters, read_counters
from appliance.shm.mapping import SharedObject, SharedObjectAbsent, list_names
from lab.other_users import STRANGER, VICTIM, as_user, needs_root, new_directory, run_python, shared_memory_of
from lab.running_box import RunningBox, environment
from lab.scratch_layout import scratch_layout

PRE_MADE = """
import os, sys
from appliance.shm.counters import PURPOSE, SIZE_BYTES, USED_WORD
from appliance.shm.mapping import SharedObject

for name in sys.argv[1:]:
    shared = SharedObject.create(name, PURPOSE, SIZE_BYTES, 1)
    shared.words[USED_WORD] = 10**6
    os.chmod(f"/dev/shm{name}", 0o666)
"""
"""Valid counters whose count reaches beyond their end: a process that adopts them dies."""

TAKES_ANYWAY = """
import sys
from appliance.shm.mapping import SharedObject, SharedObjectTaken

try:
    SharedObject.create(sys.argv[1], b"MLRcount", 4096, 1)
except SharedObjectTaken as taken:
    print(taken)
"""


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as layout:
        yield layout
        for name in shared_memory_of(layout.box):
            os.unlink(f"/dev/shm/{name}")


@needs_root
@pytest.mark.system
@pytest.mark.slow
def test_a_box_adopts_no_counters_that_another_user_made(tmp_path: Path, start_shared: Callable[..., RunningBox]) -> None:
    box = box_name(str(tmp_path / "box" / "state"))
    names = [f"/millrace.{box}.counters.{process}" for process in ("supervisor", "controller", "acceptor@0", "log-writer@d0")]
    run_python(STRANGER, PRE_MADE, *names)
    assert set(shared_memory_of(box).values()) == {STRANGER}
    running = start_shared(tmp_path / "box")
    try:
        assert set(shared_memory_of(box).values()) == {os.geteuid()} and running.counters("acceptor@0").pid == running.pid("acceptor@0")
    finally:
        running.stop()
        left = shared_memory_of(box)
        for name in left:
            os.unlink(f"/dev/shm/{name}")
    assert left == {}


@needs_root
@pytest.mark.system
def test_the_error_names_the_object_of_another_user_and_what_to_do() -> None:
    home = new_directory(VICTIM, 0o755)
    box = box_name(f"{home}/state")
    name = f"/millrace.{box}.counters.acceptor@0"
    run_python(STRANGER, PRE_MADE, name)
    try:
        ports = [f"--{kind}-port=0" for kind in ("kafka", "http", "syslog", "ingest")]
        command = [sys.executable, "-m", "appliance.command.main", "run", "--data", f"{home}/d0", "--state", f"{home}/state", *ports]
        variables = environment() | {"HOME": str(home)}
        refused = subprocess.run([*as_user(VICTIM), *command], env=variables, cwd="/", capture_output=True, text=True, timeout=60, check=False)
        words = f"/dev/shm{name} belongs to user {STRANGER}, and this box needs the name; remove it as root: rm /dev/shm{name}"
        assert refused.returncode == 2 and words in refused.stderr
        assert run_python(VICTIM, TAKES_ANYWAY, name).strip() == words, "a process that comes later says the same"
        assert shared_memory_of(box) == {name[1:]: STRANGER}
    finally:
        os.unlink(f"/dev/shm{name}")
        shutil.rmtree(home)


@needs_root
def test_an_object_of_another_user_is_not_mapped_listed_or_cleared(layout: BoxLayout) -> None:
    name = layout.shared_memory_name("counters", "ingest@0")
    run_python(STRANGER, PRE_MADE, name)
    for writable in (False, True):
        with pytest.raises(SharedObjectAbsent, match=f"is of user {STRANGER}"):
            SharedObject.attach(name, PURPOSE, writable)
    assert list_names(layout.shared_memory_prefix) == [] and list_counters(layout) == [] and read_counters(layout, "ingest@0") is None
    counters = Counters.create_or_adopt(layout, "ingest@0", 1)
    assert shared_memory_of(layout.box) == {name[1:]: 0}, "root takes the name"
    counters.close()


def test_an_object_that_all_users_can_write_is_not_mapped(layout: BoxLayout) -> None:
    name = layout.shared_memory_name("counters", "ingest@0")
    SharedObject.create(name, PURPOSE, SIZE_BYTES, 1).close()
    SharedObject.attach(name, PURPOSE, True).close()
    os.chmod(f"/dev/shm{name}", 0o620)
    with pytest.raises(SharedObjectAbsent, match="mode 0620"):
        SharedObject.attach(name, PURPOSE, False)
