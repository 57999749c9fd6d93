"""Memory of a box's processes as PSS: own memory, arenas, other shared memory; from /proc/PID/smaps. Owns nothing.

PSS counts a page that several processes map in equal parts, so sums over processes are what the box uses. The page cache of
segment files belongs to no process. Weak spots: the kernel answers under a lock that a process holds while it waits for a
hung disk, so a thread asks, and processes without an answer in time are left out; only root and the processes' user may ask.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from appliance.runtime.background_thread import BackgroundThread, ThreadRefused

SHARED_MEMORY = ("/dev/shm/", "/memfd:millrace.")
"""Objects with a name, and the memory files of arenas and rings (`shm/mapping.py`)."""
ARENA = ".arena."
"""In the names of arenas (`base/layout.py`)."""
WAIT_SECONDS = 2.0
JVM = "zookeeper"
"""The one process that is not Python's."""


class Memory(NamedTuple):
    """Bytes of PSS."""

    own: int
    arenas: int
    other_shared: int
    """Rings, tables, counters."""

    @property
    def without_arenas(self) -> int:
        return self.own + self.other_shared

    @property
    def total(self) -> int:
        return self.own + self.arenas + self.other_shared

    def plus(self, other: Memory) -> Memory:
        return Memory(self.own + other.own, self.arenas + other.arenas, self.other_shared + other.other_shared)

    def document(self) -> dict[str, int]:
        """For `--json`; bytes of PSS."""
        return {"own": self.own, "arenas": self.arenas, "other_shared": self.other_shared, "without_arenas": self.without_arenas, "total": self.total}


NO_MEMORY = Memory(0, 0, 0)


def process_memory(pid: int) -> Memory:
    """Raises OSError if the process is gone or another user's. May wait as long as the process is held by its disk."""
    own = arenas = other_shared = 0
    path = ""
    for line in Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            size_bytes = int(value.split()[0]) * 1024
            if not path.startswith(SHARED_MEMORY):
                own += size_bytes
            elif ARENA in path:
                arenas += size_bytes
            else:
                other_shared += size_bytes
        elif "-" in name.split(" ", 1)[0]:
            # ADDRESS-ADDRESS rights offset device inode path, all in one line with one colon in the device.
            path = (line.split(None, 5) + [""])[5]
    return Memory(own, arenas, other_shared)


def memory_of(pids: Mapping[str, int], wait_seconds: float = WAIT_SECONDS) -> dict[str, Memory]:
    """By process name; without processes that have ended, belong to another user, or do not answer in time."""
    found: dict[str, Memory] = {}

    def ask(name: str, pid: int) -> None:
        try:
            found[name] = process_memory(pid)
        except OSError:
            pass

    threads = [BackgroundThread(ask, "process-memory", asked) for asked in pids.items()]
    for thread in threads:
        with suppress(ThreadRefused):
            thread.start()
    deadline = time.monotonic() + wait_seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return dict(found)


def sum_of(memories: Iterable[Memory]) -> Memory:
    total = NO_MEMORY
    for memory in memories:
        total = total.plus(memory)
    return total


class BoxMemory(NamedTuple):
    """`python`: all processes but the JVM, of which `missing` could not be asked."""

    python: Memory
    jvm: Memory | None
    missing: tuple[str, ...]

    def document(self) -> dict[str, object]:
        return {
            "python": self.python.document(),
            "jvm": None if self.jvm is None else self.jvm.document(),
            "missing": list(self.missing),
        }


def box_memory(asked: Iterable[str], memories: Mapping[str, Memory]) -> BoxMemory:
    """Sum up what `memory_of` found, with the processes that were requested."""
    python = sum_of(memory for name, memory in memories.items() if name != JVM)
    return BoxMemory(python, memories.get(JVM), tuple(name for name in asked if name not in memories))
