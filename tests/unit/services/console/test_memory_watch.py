"""Memory of a box's processes, as the console watches it; and which release this is."""

from __future__ import annotations

import os
from pathlib import Path

from services.console.agent import MemoryMonitor, release_version


def ended_pid() -> int:
    """The pid of a process that is gone."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    return pid


def test_memory_is_looked_at_for_those_that_are_there() -> None:
    pids = [os.getpid(), ended_pid()]
    watch = MemoryMonitor(lambda: pids)
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
