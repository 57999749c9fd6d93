"""Proportional memory (PSS) of a process, arenas and other shared memory told apart, from /proc/PID/smaps.

Pages that several processes map count in equal parts, so the sum over processes is what the box takes. Weak spot: a mapping is known by its
path, `/dev/shm/millrace.BOX.PURPOSE…` (appliance/base/layout.py); the page cache of segment files is nobody's memory and does not appear.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

SHARED_MEMORY = "/dev/shm/"
ARENA = ".arena."
MB = 1_000_000


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


def process_memory(pid: int) -> Memory:
    """Raises OSError if the process is gone or another user's."""
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


def is_python(pid: int) -> bool:
    """The embedded ZooKeeper is a JVM, which the promises about Python processes leave out."""
    return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
