"""Memory (PSS) of every process, looked at by a thread of its own.

For PSS the kernel walks a process's page tables under a lock that a thread of that process may hold while it waits for a hung disk; so the console's loop never
asks for it. The thread asks for every process once in `EVERY_SECONDS`; one that is kept waiting leaves the last figures as they are, older and older.
Weak spot: where a process has capabilities that the console has not, the kernel refuses PSS, and resident memory stands for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.runtime.process_cost import read_pss_bytes

EVERY_SECONDS = 10.0


class MemoryWatch:
    """`pss_bytes` by pid, as it was seen last."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        """`pids` is called by the thread."""
        self._pids = pids
        self._ended = threading.Event()
        self._thread: BackgroundThread | None = None
        self.pss_bytes: dict[int, int] = {}

    def maybe_start(self) -> None:
        """To be called once in a while: a thread that could not be started is tried again."""
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
        """Ask for every process, one after the other."""
        seen = {}
        for pid in self._pids():
            pss_bytes = read_pss_bytes(pid)
            if pss_bytes is not None:
                seen[pid] = pss_bytes
        self.pss_bytes = seen

    def close(self) -> None:
        """The thread ends by itself; nobody waits for it."""
        self._ended.set()
