"""Every target for two seconds, a minute with `--deep`; `MILLRACE_FUZZ_INPUTS=10000000` gives each so many inputs instead."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import DEEP
from tests.fuzz.targets import TARGETS, golden_frames

ROOT = Path(__file__).parent.parent.parent
INPUTS = os.environ.get("MILLRACE_FUZZ_INPUTS", "")
SECONDS = 60 if DEEP else 2
"""On top of its seeds, which are all run first."""
INPUTS_MIN = 1_000
"""Fewer in that time, and something hangs in every input."""

needs_atheris = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed (it has no wheel for this Python)")


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_taken(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds():
        target.run(seed)
        for end in range(0, len(seed), 7):
            target.run(seed[:end])


def test_the_corpus_begins_with_frames_of_real_clients() -> None:
    assert len(golden_frames()) >= 30


@needs_atheris
@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_gives_anything_but_a_value_or_a_violation(name: str, tmp_path: Path) -> None:
    how_long = ["--runs", INPUTS] if INPUTS else ["--seconds", str(SECONDS)]
    found = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, *how_long, "--corpus", str(tmp_path / "corpus")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    inputs = {path.name: path.read_bytes().hex() for path in tmp_path.iterdir() if path.is_file()}
    assert found.returncode == 0, f"{inputs}\n{found.stdout[-2000:]}\n{found.stderr[-3000:]}"
    executed = re.search(r"number_of_executed_units: (\d+)", found.stderr)
    assert executed is not None and int(executed[1]) >= min(INPUTS_MIN, int(INPUTS or INPUTS_MIN)), found.stderr[-2000:]
