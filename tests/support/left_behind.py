"""A run of tests leaves nothing behind: what they forgot in the temporary directory or in shared memory fails the run, by name.

Each process of a run (pytest, and every worker of `-n`) has a temporary directory of its own, which its
children inherit (TMPDIR): what is in it at the end is theirs, whatever runs beside. Names in shared memory
contain their creator: this process, or a box that `running_box` started. conftest.py has these hooks.
pytest's own directories (`tmp_path`) stay where they were, for inspection. The next run removes what a
killed run left. Weak spot: files outside of TMPDIR are not seen (Java's temporary directory is /tmp).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appliance.base.layout import BoxLayout, runtime_roots
from appliance.pipeline.spark_session import YOUNG_SECONDS, sweep_scratch
from appliance.shm.mapping import PID_WORD, WORD_BYTES, list_names, unlink
from lab.running_box import BEGUN

PREFIX = "millrace-tests-"
KEPT_DIRECTORIES = "PYTEST_DEBUG_TEMPROOT"
"""pytest's variable: where `tmp_path` is. Set here, for it would follow TMPDIR."""
_RUNTIME = "runtime"
PATIENCE_SECONDS = 30.0
"""A killed process may take a moment to end."""


class OwnPlace:
    """The temporary directory of one process, and what it has seen come."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._began = time.time()
        self._first_seen: dict[str, str] = {}
        os.chmod(directory, 0o755)  # a server that runs as another user has its directory in it
        os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
        if os.geteuid() and not os.environ.get("XDG_RUNTIME_DIR"):  # in a state directory below `tmp_path` the names of sockets would be too long
            (directory / _RUNTIME).mkdir(mode=0o700)
            os.environ["XDG_RUNTIME_DIR"] = str(directory / _RUNTIME)

    def look(self, test: str) -> None:
        """After a test: what is there now and was not before came with it (or with a fixture that several tests share)."""
        for name in (*os.listdir(self.directory), *list_names("/millrace.")):
            self._first_seen.setdefault(name, test)

    def left(self) -> dict[str, Callable[[], object]]:
        """What is still there → how to remove it."""
        sweep_scratch(self.directory, time.time() + 2 * YOUNG_SECONDS)  # a Spark that was killed leaves this to the next
        found: dict[str, Callable[[], object]] = {}
        for path in self.directory.iterdir():
            if path.name == _RUNTIME:
                continue
            found[self._described(path.name, str(path))] = partial(_remove, path)
        for box in BEGUN:
            for layout in (BoxLayout(f"{root}/{box}") for root in runtime_roots()):
                if os.path.exists(layout.runtime_directory):
                    found[layout.runtime_directory] = partial(_remove, Path(layout.runtime_directory))
        for name in list_names("/millrace."):
            if name.split(".")[1] in BEGUN or self._made(name):
                found[self._described(name, f"/dev/shm{name}")] = partial(unlink, name)
        return found

    def _described(self, name: str, path: str) -> str:
        return f"{path}, first seen after {test}" if (test := self._first_seen.get(name)) else path

    def _made(self, name: str) -> bool:
        """Whether this process made that object (and not one that had its number before it)."""
        try:
            with open(f"/dev/shm{name}", "rb") as file:
                header = file.read((PID_WORD + 1) * WORD_BYTES)
                is_ours = os.fstat(file.fileno()).st_ctime >= self._began
        except OSError:  # gone meanwhile, or another user's
            return False
        return is_ours and len(header) == (PID_WORD + 1) * WORD_BYTES and struct.unpack_from("=Q", header, PID_WORD * WORD_BYTES) == (os.getpid(),)


_place: OwnPlace | None = None
_left: list[str] = []


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    global _place
    outer = Path(tempfile.gettempdir())
    if worker := getattr(config, "workerinput", None):
        (own := outer / worker["workerid"]).mkdir()
    else:
        os.environ.setdefault(KEPT_DIRECTORIES, str(outer))
        sweep_scratch(outer, time.time(), PREFIX)
        own = Path(tempfile.mkdtemp(prefix=PREFIX))
        fcntl.flock(os.open(own, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)  # the kernel lets go of it, whatever ends us
    _place = OwnPlace(own)


def pytest_runtest_logfinish(nodeid: str) -> None:
    if _place is not None:
        _place.look(nodeid)


@pytest.hookimpl(trylast=True)  # after the last fixtures are gone
def pytest_sessionfinish(session: pytest.Session) -> None:
    assert _place is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := _place.left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for remove in left.values():
        remove()
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["left_behind"] = sorted(left)
        return
    _left.extend(sorted(left))
    if _left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of ours has ended, and reported; what it did not remove is left over."""
    assert _place is not None
    _left.extend(getattr(node, "workeroutput", {}).get("left_behind", ()))
    _remove(_place.directory / node.gateway.id)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left:
        terminalreporter.section("left behind by tests, which fails the run", red=True, bold=True)
        for each in _left:
            terminalreporter.write_line(each)


def pytest_unconfigure() -> None:
    if _place is not None:
        shutil.rmtree(_place.directory, ignore_errors=True)
