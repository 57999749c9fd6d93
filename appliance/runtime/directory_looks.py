"""Checks each directory of a box before the start, in a child process with a deadline, because a
disk that hangs blocks the process that touches it.

A child checks, writes the result into a pipe and ends. If it does not answer in time it is killed,
and its directory counts as unanswered. Owned by the preflight, the only one that waits. Weak: a
disk that takes longer than the deadline to spin up joins only when its log-writer gets an answer.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterable
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.runtime.directories import has_disk_trouble, in_use_problem, make_directory, read_meta_properties, writable_problem

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
