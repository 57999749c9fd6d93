"""Reads the memory (PSS) of all processes in a separate thread.

For PSS the kernel walks the page tables under a lock that a thread of the process may hold while it
waits for a hung disk, so the console's loop never reads it. The thread reads each process once in
`EVERY_SECONDS`; while one blocks it, the last figures stay. Weak: if a process has capabilities
that the console lacks, the kernel refuses PSS, and resident memory is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.runtime.process_cost import read_pss_bytes

EVERY_SECONDS = 10.0


class MemoryMonitor:
    """`pss_bytes` by pid, as last read."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        """The thread calls `pids`."""
        self._pids = pids
        self._ended = threading.Event()
        self._thread: BackgroundThread | None = None
        self.pss_bytes: dict[int, int] = {}

    def maybe_start(self) -> None:
        """Start the thread if it does not run; call it regularly, because a start may fail."""
        if self._thread is not None:
            return
        thread = BackgroundThread(self._run, "memory-watch")
        with suppress(ThreadRefused):
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            self.look()
            if self._ended.wait(EVERY_SECONDS):
                return

    def look(self) -> None:
        """Read all processes, one after the other."""
        seen = {}
        for pid in self._pids():
            pss_bytes = read_pss_bytes(pid)
            if pss_bytes is not None:
                seen[pid] = pss_bytes
        self.pss_bytes = seen

    def close(self) -> None:
        """Ask the thread to end; the console does not wait for it."""
        self._ended.set()
