"""A look at each directory of a box before it starts, by a child for each, with a deadline: whoever touches a disk that hangs hangs with it.

A child looks, writes what it saw into a pipe and ends. One that does not answer in time is killed and left to its disk; its directory
counts as one that does not answer. Owned by the preflight, which alone waits. Weak spot: a disk that takes longer than the deadline to spin
up is started without, and joins when its log-writer gets an answer.
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
    """`is_troubled`: the disk itself says no. `problem`: why it cannot be made and written to; `user`: who else has it; `owner`: its meta.properties."""

    real_path: str
    is_troubled: bool = False
    problem: str | None = None
    user: str | None = None
    owner: dict[str, str] | None = None


class DirectoryChecks(NamedTuple):
    """By path. Of what does not answer there is the pid of the child that waits for it."""

    answers: dict[str, DirectoryCheck]
    unanswered: dict[str, int]

    def real_path(self, path: str) -> str:
        """With links resolved, where that could be done."""
        look = self.answers.get(path)
        return look.real_path if look is not None else os.path.abspath(path)


def look_at(path: str, option: str) -> DirectoryCheck:
    """Changes nothing; may never return."""
    return DirectoryCheck(
        os.path.realpath(path), has_disk_trouble(path), writable_problem(path, option), in_use_problem(path, option), read_meta_properties(path)
    )


def make_and_look(path: str, option: str) -> DirectoryCheck:
    """Create the directory, unless its disk says no; `problem` is why that failed. May never return."""
    if has_disk_trouble(path):
        return DirectoryCheck(path, True)
    return DirectoryCheck(path, False, make_directory(path, option))


def ask_each(wanted: Iterable[tuple[str, str]], makes: bool, deadline_ms: int, clock: Clock) -> DirectoryChecks:
    """Look at directories, given as (path, option), all at once; `makes`: create them, too."""
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
        looks.answers[path] = DirectoryCheck(**json.loads(answer)) if answer else DirectoryCheck(os.path.abspath(path), problem=f"the look at {path} failed")
    return looks


def _ask(path: str, option: str, makes: bool) -> tuple[int, int]:
    """Pid of the child, and where its answer comes from."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.closerange(0, writing)  # a child that is left behind keeps nobody's socket, lock or pipe
    os.closerange(writing + 1, 1 << 16)
    try:
        looked = make_and_look(path, option) if makes else look_at(path, option)
        content = json.dumps(looked._asdict()).encode()
        while content:
            content = content[os.write(writing, content) :]
    finally:
        os._exit(0)


def _answer(pipe: int, until_ms: int, clock: Clock) -> bytes | None:
    """All that the child wrote; None when it has not ended by then."""
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
