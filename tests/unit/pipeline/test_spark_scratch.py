"""Files of Spark sessions: held while a process of the session runs, swept by a later session."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from appliance.pipeline.spark_session import PREFIX, YOUNG_SECONDS, SparkScratch, sweep_scratch


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_files_of_a_running_session_stay_and_files_of_ended_ones_are_swept(root: Path) -> None:
    held, other = SparkScratch(), root / "another"
    other.mkdir()
    left = Path(tempfile.mkdtemp(prefix=PREFIX))
    (left / "blocks").mkdir()
    later = time.time() + 2 * YOUNG_SECONDS
    assert sweep_scratch(root, time.time()) == [], "it may not be locked yet"
    assert sweep_scratch(root, later) == [left]
    assert sorted(root.iterdir()) == sorted([held.path, other])
    held.remove()
    assert list(root.iterdir()) == [other]


def test_a_child_that_outlives_its_session_keeps_the_files(root: Path) -> None:
    scratch = SparkScratch()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(scratch.lock,))
    os.close(scratch.lock)
    later = time.time() + 2 * YOUNG_SECONDS
    assert sweep_scratch(root, later) == []
    child.communicate(b"\n")
    assert sweep_scratch(root, later) == [scratch.path]
