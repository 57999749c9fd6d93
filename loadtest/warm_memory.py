"""Keeps memory ready for the page cache of a run, because the first touch of a page in a virtual machine costs more than everything else.

Measured here: writing fresh pages costs 1.8 cpu-s/GB in the writer while the host still has to give them, 0.2 afterwards. Writing and
deleting a file as large as the run before it helps for two seconds only where the kernel reports free pages back to the host ("free page
reporting"). So the memory is held, touched, in huge pages, and given back in step with what the machine writes (`nr_dirtied`), a little ahead of it.
Giving back costs the harness next to nothing (0.006 cpu-s/GB). A box that has run for a day has all its memory already; this brings a new one there.

Weak spots: small pages do not do (the allocator prefers untouched blocks to them), so without transparent huge pages the effect is lost;
and a program on the same machine that allocates meanwhile gets the pages meant for the run.
"""

from __future__ import annotations

import mmap
import threading
import time
from pathlib import Path
from types import TracebackType

BLOCK_BYTES = 16 << 20
AHEAD_BYTES = 128 << 20
"""At 2 GB/s the feeder may sleep twelve times as long as it does before the box touches a cold page."""
LOOK_SECONDS = 0.005
AVAILABLE_SHARE_MAX = 0.5
MADV_POPULATE_WRITE = 23
"""Linux 5.14."""


class WarmMemory:
    """Holds touched memory from the start of the `with` block on; `feed` begins to release it to processes that write files."""

    def __init__(self, size_bytes: int) -> None:
        wanted = min(size_bytes, int(available_bytes() * AVAILABLE_SHARE_MAX))
        self.size_bytes = -(-wanted // BLOCK_BYTES) * BLOCK_BYTES
        self.seconds = 0.0
        self._released = 0
        self._memory: mmap.mmap | None = None
        self._ended = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="warm-memory", daemon=True)

    def __str__(self) -> str:
        return f"{self.size_bytes / 1e9:.1f} GB of memory touched in {self.seconds:.1f} s"

    def __enter__(self) -> WarmMemory:
        if self.size_bytes:
            started = time.monotonic()
            self._memory = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory.madvise(mmap.MADV_HUGEPAGE)
            touch(self._memory)
            self.seconds = time.monotonic() - started
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._ended.set()
        if self._feeder.is_alive():
            self._feeder.join()
        if self._memory is not None:
            self._memory.close()

    def feed(self) -> None:
        """From now on what is written is written to memory that was held here."""
        if self._memory is not None:
            self._feeder.start()

    def _feed(self) -> None:
        begun = dirtied_bytes()
        while self._released < self.size_bytes and not self._ended.is_set():
            self._release_until(dirtied_bytes() - begun + AHEAD_BYTES)
            self._ended.wait(LOOK_SECONDS)

    def _release_until(self, position: int) -> None:
        assert self._memory is not None
        while self._released < min(position, self.size_bytes):
            self._memory.madvise(mmap.MADV_DONTNEED, self._released, BLOCK_BYTES)
            self._released += BLOCK_BYTES


def touch(memory: mmap.mmap) -> None:
    try:
        memory.madvise(MADV_POPULATE_WRITE)
    except OSError:  # an older kernel
        for position in range(0, len(memory), mmap.PAGESIZE):
            memory[position] = 1


def available_bytes() -> int:
    """Memory that could be had without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def dirtied_bytes() -> int:
    """What was written to files since boot, by any process, in whole pages."""
    with open("/proc/vmstat") as file:
        return next(int(line.split()[1]) * mmap.PAGESIZE for line in file if line.startswith("nr_dirtied "))
