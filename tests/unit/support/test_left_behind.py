"""A run whose tests leave something behind fails and names it; what others have there beside it is theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.shm.counters import Counters, unlink_all
from lab.running_box import ROOT
from lab.scratch_layout import scratch_layout

pytestmark = pytest.mark.slow

TIDY = """
import tempfile
from appliance.shm.counters import Counters
from tests.support import left_behind
from lab.scratch_layout import make_layout, scratch_layout

left_behind.PATIENCE_SECONDS = 0

def test_tidy(tmp_path):
    with scratch_layout() as layout:
        Counters.create_or_adopt(layout, "tidy", 1)
    (tmp_path / "file").touch()
"""
FORGETFUL = """
def test_forgets_a_box():
    Counters.create_or_adopt(make_layout(), "forgotten", 1)

def test_forgets_a_file():
    tempfile.mkstemp(prefix="forgotten-")
"""


def run(tmp_path: Path, tests: str, *options: str) -> tuple[int, str]:
    """A run of its own: exit code, and what it said."""
    (tmp_path / "test_them.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.support.left_behind",
        "--basetemp",
        str(tmp_path / "base"),
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run([*command, "test_them.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert not ended.stderr, ended.stderr
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["in one process", "in a worker"])
def test_what_tests_forget_fails_their_run_and_is_removed(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, said = run(tmp_path, TIDY + FORGETFUL, *options)
    assert code == pytest.ExitCode.TESTS_FAILED and "3 passed" in said
    told = said[said.index("left behind by tests") :].splitlines()[1:4]
    segment, file, directory = sorted(told)
    assert segment.startswith("/dev/shm/millrace.mr-") and segment.endswith(".counters.forgotten, first seen after test_them.py::test_forgets_a_box")
    assert "/forgotten-" in file and file.endswith(", first seen after test_them.py::test_forgets_a_file")
    assert "/mr-" in directory and directory.endswith("::test_forgets_a_box")
    for line in told:
        assert not os.path.exists(line.partition(",")[0])


def test_a_tidy_run_passes_whatever_others_have_beside_it(tmp_path: Path) -> None:
    with scratch_layout() as layout:
        Counters.create_or_adopt(layout, "others", 1).close()
        code, said = run(tmp_path, TIDY)
        assert (code, "left behind" in said) == (0, False), said
        assert os.path.exists(f"/dev/shm{layout.shared_memory_name('counters', 'others')}")


def test_a_box_of_the_run_is_recognised_by_its_name(tmp_path: Path) -> None:
    """Its processes made its shared memory, not the run's."""
    box = "left-by-a-box"
    layout = BoxLayout(str(tmp_path / box))
    Counters.create_or_adopt(layout, "supervisor", 1).close()
    code, said = run(tmp_path, TIDY + f"\nleft_behind.BEGUN.add({box!r})\n")
    unlink_all(layout)
    assert code == pytest.ExitCode.TESTS_FAILED and f"/dev/shm{layout.shared_memory_name('counters', 'supervisor')}" in said
