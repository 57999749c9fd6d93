"""What may be wrong with directories."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.runtime.directories import in_use_problem, is_supervisor, lock_holder, make_directory, read_meta_properties, shape_problems, writable_problem


def test_separate_directories_are_fine() -> None:
    assert shape_problems(["/srv/d0", "/srv/d1", "/srv/d10"], "/srv/state") == []


@pytest.mark.parametrize(
    ("data", "state", "part"),
    [
        (["/srv/a", "/srv/a"], "/srv/s", "given twice"),
        (["/srv/a", "/srv/a/"], "/srv/s", "given twice"),
        (["/srv/a", "/srv/a/b"], "/srv/s", "inside one another"),
        (["/srv/a/b", "/srv/a"], "/srv/s", "inside one another"),
        (["/srv/a"], "/srv/a", "also the state directory"),
        (["/srv/a"], "/srv/a/s", "must not share a log disk"),
        (["/srv/s/a"], "/srv/s", "lies inside the state directory"),
    ],
)
def test_directories_that_overlap_are_refused(data: list[str], state: str, part: str) -> None:
    problems = shape_problems(data, state)
    assert len(problems) == 1 and part in problems[0]


def test_a_directory_that_is_given_twice_has_its_other_problems_reported_once() -> None:
    problems = shape_problems(["/srv/a", "/srv/a"], "/srv/a/s")
    assert sorted("twice" in problem for problem in problems) == [False, True]


def test_a_link_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert "given twice" in shape_problems([str(tmp_path / "real"), str(tmp_path / "link")], "/srv/s")[0]


def test_looking_whether_a_directory_can_be_made_leaves_nothing(tmp_path: Path) -> None:
    assert writable_problem(str(tmp_path / "a" / "b"), "--data") is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_and_a_place_where_nothing_can_be_made_are_problems(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a directory" in (writable_problem(str(tmp_path / "file" / "d"), "--data") or "")
    assert "cannot write in /proc" in (writable_problem("/proc/d", "--data") or "")
    assert "cannot create it" in (make_directory(str(tmp_path / "file" / "d"), "--data") or "")


LOCK_AND_WAIT = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
getattr(fcntl, sys.argv[2])(descriptor, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_the_holder_of_a_lock_is_found(tmp_path: Path, kind: str) -> None:
    """By flock as we do, or by a POSIX lock as Kafka does."""
    assert lock_holder(str(tmp_path)) is None
    (tmp_path / ".lock").write_text("")
    assert lock_holder(str(tmp_path)) is None
    command = [sys.executable, "-c", LOCK_AND_WAIT, str(tmp_path / ".lock"), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        assert lock_holder(str(tmp_path)) == holder.pid
        assert in_use_problem(str(tmp_path), "--data") == f"--data {tmp_path} is locked by process {holder.pid}; stop it, or choose another with --data"
    assert in_use_problem(str(tmp_path), "--data") is None


def test_meta_properties_are_read_as_java_writes_them(tmp_path: Path) -> None:
    assert read_meta_properties(str(tmp_path)) is None
    (tmp_path / "meta.properties").write_text("#\n#Mon Jan 01\ncluster.id=abc=\nbroker.id = 1\nversion=0\n")
    assert read_meta_properties(str(tmp_path)) == {"cluster.id": "abc=", "broker.id": "1", "version": "0"}


def _as_unprivileged_user(layout: BoxLayout, pid: int) -> bool:
    """`is_supervisor` as a user who may not signal that process sees it."""
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        os._exit(1 if is_supervisor(pid, layout) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_the_pid_of_another_users_process_is_no_supervisor_without_the_lock() -> None:
    root = tempfile.mkdtemp(prefix="millrace-")  # not tmp_path: another user may look into this one
    os.chmod(root, 0o755)
    layout = BoxLayout(root)
    try:
        state = Path(root, "state")
        state.mkdir(mode=0o755)
        Path(layout.box_file).write_text(json.dumps({"state_directory": str(state), "pid": 1, "disks": []}))
        assert not _as_unprivileged_user(layout, 1), "no lock file at all"
        lock = state / ".lock"
        lock.touch(0o644)
        assert not _as_unprivileged_user(layout, 1), "a lock file without a holder"
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert not _as_unprivileged_user(layout, 1), "held by another process than that pid"
            if os.getuid() == 0:
                assert _as_unprivileged_user(layout, os.getpid()), "held by that pid"
                state.chmod(0o700)
                assert _as_unprivileged_user(layout, os.getpid()), "what cannot be looked at is believed"
    finally:
        shutil.rmtree(root)
