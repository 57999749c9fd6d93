"""What processes cost, by /proc; and which release this is."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.console.process_cost import MemoryWatch, read_cost, read_pss_bytes
from appliance.console.release import release_version


def nobody() -> int:
    """The pid of a process that is gone."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    return pid


def test_a_living_process_has_time_and_memory_and_a_dead_one_has_none() -> None:
    cost, pss_bytes = read_cost(os.getpid()), read_pss_bytes(os.getpid())
    assert cost is not None and pss_bytes is not None
    assert cost.cpu_seconds > 0 and 1 << 20 < pss_bytes <= cost.resident_bytes * 1.5
    assert read_cost(nobody()) is None and read_pss_bytes(nobody()) is None


def test_memory_is_looked_at_for_those_that_are_there() -> None:
    pids = [os.getpid(), nobody()]
    watch = MemoryWatch(lambda: pids)
    assert watch.pss_bytes == {}
    watch.look()
    assert list(watch.pss_bytes) == [os.getpid()]
    pids.clear()
    watch.look()
    assert watch.pss_bytes == {}


def test_the_release_is_that_of_the_installed_file_or_of_the_project(tmp_path: Path) -> None:
    assert release_version(tmp_path) == "unknown"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0.1.0"\n')
    assert release_version(tmp_path) == "0.1.0"
    (tmp_path / "VERSION").write_text("0.1.0+gabc\n")
    assert release_version(tmp_path) == "0.1.0+gabc"
    assert release_version()[0].isdigit()
