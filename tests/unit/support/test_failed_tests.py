"""A test that fails and leaves a socket open is the only one that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

TESTS = """
import gc, socket

class Owner:
    def __init__(self):
        self.me = self
        self.socket = socket.socket()

def test_that_fails():
    owner = Owner()
    assert owner.socket is None

def test_beside_it():
    gc.collect()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("plugins", "outcome"), [(["-p", "tests.support.failed_tests"], "1 failed, 1 passed"), ([], "2 failed")])
def test_what_a_failed_test_left_open_is_no_error_of_another(tmp_path: Path, plugins: list[str], outcome: str) -> None:
    """Without the hooks it is: this is what they are for."""
    (tmp_path / "test_two.py").write_text(TESTS)
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:locust", "-c", "/dev/null", "--rootdir", str(tmp_path), *plugins]
    ended = subprocess.run([sys.executable, "-m", "pytest", *options, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert f"\n{outcome} in" in ended.stdout, ended.stdout
