"""Checks of the directories of a box that change nothing: paths, permissions, locks, ownership.

Weak: another program may use a directory between check and use. The locks of the owners
(supervisor, log-writer) protect it; these checks explain the problem.

Checks each directory of a box before the start, in a child process with a deadline, because a
disk that hangs blocks the process that touches it.

A child checks, writes the result into a pipe and ends. If it does not answer in time it is killed,
and its directory counts as unanswered. Owned by the preflight, the only one that waits. Weak: a
disk that takes longer than the deadline to spin up joins only when its log-writer gets an answer.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.layout import SYSTEM_ROOT, BoxLayout, box_name, runtime_roots
from appliance.base.trusted_files import directory_problem, own_directories

META_PROPERTIES = "meta.properties"
LOCK_FILE = ".lock"
_DISK_TROUBLE = frozenset({errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EUCLEAN})


def shape_problems(data: list[str], state: str, real_path: Callable[[str], str] = os.path.realpath) -> list[str]:
    """Return duplicates and nested directories, with links resolved by `real_path`."""
    problems = []
    real_state = real_path(state)
    seen: dict[str, str] = {}
    for path in data:
        real = real_path(path)
        if real in seen:
            problems.append(f"--data {path} is given twice ({seen[real]} is the same directory); give each disk's directory once")
            continue  # its other problems were reported with the first one
        for other_real, other in seen.items():
            if real != other_real and (_is_inside(real, other_real) or _is_inside(other_real, real)):
                problems.append(f"--data {path} and --data {other} lie inside one another; give separate directories")
        seen.setdefault(real, path)
        if real == real_state:
            problems.append(f"--data {path} is also the state directory; choose another with --state")
        elif _is_inside(real_state, real):
            problems.append(f"the state directory {state} lies inside --data {path}; ZooKeeper's data must not share a log disk, choose another with --state")
        elif _is_inside(real, real_state):
            problems.append(f"--data {path} lies inside the state directory {state}; choose another with --data or --state")
    return problems


def _is_inside(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def writable_problem(path: str, option: str) -> str | None:
    """Return why `path` cannot be created and written to, or None. The attempt leaves no file."""
    place = path
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return f"{option} {path}: {place} is not a directory; choose another with {option}"
    attempt = f"{place}/.millrace-{os.getpid()}"
    try:
        os.mkdir(attempt)
        os.rmdir(attempt)
    except OSError as error:
        return f"{option} {path}: cannot write in {place}: {error.strerror}; give this user the right (chown), or choose another with {option}"
    return None


def has_disk_trouble(path: str) -> bool:
    """Return whether the disk itself failed (I/O error, read-only, full). Its log-writer retries;
    the other disks are served."""
    place = path
    while not os.path.lexists(place) and place != "/":
        place = os.path.dirname(place)
    attempt = f"{place}/.millrace-{os.getpid()}"
    try:
        os.mkdir(attempt)
        os.rmdir(attempt)
    except OSError as error:
        return error.errno in _DISK_TROUBLE
    return False


def make_directory(path: str, option: str) -> str | None:
    """Create `path` with its parents; returns the problem if that fails."""
    try:
        os.makedirs(path, mode=0o750, exist_ok=True)
    except OSError as error:
        return f"{option} {path}: cannot create it: {error.strerror}; choose another with {option}"
    return None


def make_runtime_directory(path: str, option: str) -> str | None:
    """Create a runtime directory and its parent with mode 0700; returns the problem if that fails."""
    root = os.path.dirname(path)
    try:
        os.makedirs(os.path.dirname(root), mode=0o700, exist_ok=True)
        for place, mode in ((root, 0o755 if root == SYSTEM_ROOT else 0o700), (path, 0o700)):
            if not os.path.lexists(place):
                os.mkdir(place, mode)
    except OSError as error:
        return f"{option} {path}: cannot create it: {error.strerror}"
    problem = directory_problem(path)
    return None if problem is None else f"{option} {problem}"


def lock_holder(directory: str) -> int | None:
    """Return the pid that locks the directory (0 if unknown), or None. Sees flock and POSIX locks
    (Kafka uses POSIX locks)."""
    try:
        descriptor = os.open(f"{directory}/{LOCK_FILE}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pid = _holder_in_proc(descriptor)
        if pid is not None:
            return pid
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def _holder_in_proc(descriptor: int) -> int | None:
    status = os.fstat(descriptor)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if wanted in fields and "->" not in fields:  # "->" marks a process that waits for the lock
            return max(0, int(fields[fields.index(wanted) - 1]))
    return None


def in_use_problem(directory: str, option: str) -> str | None:
    """Return which process uses this directory, as a problem, or None."""
    supervisor = running_supervisor(directory)
    holder = lock_holder(directory)
    if supervisor is not None:
        return f"{option} {directory} is in use by the millrace run with pid {supervisor}; stop that one (kill {supervisor}), or choose another with {option}"
    if holder is not None:
        who = f"process {holder}" if holder else "another process"
        return f"{option} {directory} is locked by {who}; stop it, or choose another with {option}"
    return None


def running_supervisor(directory: str, state: str = "") -> int | None:
    """Return the pid of the running supervisor of this directory, or None. Reads runtime
    directories, not disks.

    `state` is passed on to `known_boxes`.
    """
    for layout in known_boxes(state):
        try:
            box = layout.read_box()
            directories = [box["state_directory"], *(disk["path"] for disk in box["disks"])]
            pid = int(box["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if directory in directories and pid != os.getpid() and is_supervisor(pid, layout):
            return pid
    return None


def known_boxes(state: str = "") -> list[BoxLayout]:
    """Return each box of this machine that has a runtime directory this user trusts. `state`: a
    state directory that may contain one."""
    return [BoxLayout(f"{root}/{name}") for root in runtime_roots(state) for name in own_directories(root)]


def boxes_of_state(state: str) -> list[BoxLayout]:
    """Return the boxes of this state directory: several if it was started in different
    environments."""
    return [layout for layout in known_boxes(state) if layout.box == box_name(state) and os.path.exists(layout.box_file)]


def is_supervisor(pid: int, layout: BoxLayout) -> bool:
    """Return whether `pid` runs and holds the state lock of the box. The pid alone may have been
    reused, also by another user."""
    try:
        state_directory = layout.read_box()["state_directory"]
        os.kill(pid, 0)
    except PermissionError:
        if not _may_look_at_lock(state_directory):
            return True  # probably a box of another user
    except (OSError, ValueError, KeyError):
        return False
    return lock_holder(state_directory) in (pid, 0)


def _may_look_at_lock(directory: str) -> bool:
    try:
        os.close(os.open(f"{directory}/{LOCK_FILE}", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        pass  # without a lock file no process holds the lock
    return True


def read_meta_properties(directory: str) -> dict[str, str] | None:
    """Return Kafka's `meta.properties` of a log directory; None if it has none."""
    try:
        with open(f"{directory}/{META_PROPERTIES}", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    pairs = [line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}


_ANSWER_BYTES_MAX = 1 << 20


class DirectoryCheck(NamedTuple):
    """The result of a check.

    `is_troubled`: the disk itself fails. `problem`: why the directory cannot be created and written
    to. `user`: which process uses it. `owner`: its meta.properties.
    """

    real_path: str
    is_troubled: bool = False
    problem: str | None = None
    user: str | None = None
    owner: dict[str, str] | None = None


class DirectoryChecks(NamedTuple):
    """Results by path. For an unanswered directory, the pid of the child that still waits for its
    disk."""

    answers: dict[str, DirectoryCheck]
    unanswered: dict[str, int]

    def real_path(self, path: str) -> str:
        """Return the path with links resolved, as far as that was possible."""
        look = self.answers.get(path)
        return look.real_path if look is not None else os.path.abspath(path)


def look_at(path: str, option: str) -> DirectoryCheck:
    """Check a directory without changing it; blocks as long as its disk hangs."""
    return DirectoryCheck(
        os.path.realpath(path), has_disk_trouble(path), writable_problem(path, option), in_use_problem(path, option), read_meta_properties(path)
    )


def make_and_look(path: str, option: str) -> DirectoryCheck:
    """Create the directory unless its disk fails; `problem` is why that failed. Blocks as long as
    its disk hangs."""
    if has_disk_trouble(path):
        return DirectoryCheck(path, True)
    return DirectoryCheck(path, False, make_directory(path, option))


def ask_each(wanted: Iterable[tuple[str, str]], makes: bool, deadline_ms: int, clock: Clock) -> DirectoryChecks:
    """Check the directories, given as (path, option), in parallel; create them if `makes`."""
    asked = {path: _ask(path, option, makes) for path, option in wanted}
    until_ms = clock.monotonic_ms() + deadline_ms
    looks = DirectoryChecks({}, {})
    for path, (pid, pipe) in asked.items():
        answer = _answer(pipe, until_ms, clock)
        os.close(pipe)
        if answer is None:
            os.kill(pid, signal.SIGKILL)
            looks.unanswered[path] = pid
            continue
        os.waitpid(pid, 0)
        looks.answers[path] = DirectoryCheck(**json.loads(answer)) if answer else DirectoryCheck(os.path.abspath(path), problem=f"the check of {path} failed")
    return looks


def _ask(path: str, option: str, makes: bool) -> tuple[int, int]:
    """Fork a child; returns its pid and the pipe with its answer."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.closerange(0, writing)  # a child that outlives its parent must keep no socket, lock or pipe of it
    os.closerange(writing + 1, 1 << 16)
    try:
        looked = make_and_look(path, option) if makes else look_at(path, option)
        content = json.dumps(looked._asdict()).encode()
        while content:
            content = content[os.write(writing, content) :]
    finally:
        os._exit(0)


def _answer(pipe: int, until_ms: int, clock: Clock) -> bytes | None:
    """Return all that the child wrote; None if it has not ended by `until_ms`."""
    received = b""
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    while len(received) < _ANSWER_BYTES_MAX:
        if not ready.poll(max(0, until_ms - clock.monotonic_ms())):
            return None
        data = os.read(pipe, 65536)
        if not data:
            return received
        received += data
    return received
