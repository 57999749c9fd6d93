"""Looks whether a disk that failed can be used again: is it the one that was there, and does it take a write and a sync?

In a thread, with back-off: 1 s after the failure, then 2 s, 4 s, … up to 30 s, over the lives of the log-writer (a counter keeps the attempts, since a counter
outlives its process). When the disk answers, the log-writer steps down, and its next life opens the directory as after a power cut: nothing that
failed to sync is tried again or believed. Owned by one log-writer while its disk is offline. Weak spot: a disk that takes writes and loses them comes and goes.
"""

from __future__ import annotations

import threading

from appliance.agents.disk_probe import probe_once
from appliance.base.errors import StepsDown, StorageFailed
from appliance.base.layout import Disk
from appliance.runtime.agent import ServiceContext
from appliance.runtime.known_disks import read_known_disk
from appliance.storage import file_io
from appliance.storage.meta_properties import META_PROPERTIES

BACKOFF_NS_FIRST = 1_000_000_000
BACKOFF_NS_MAX = 30_000_000_000
WELL_NS = 60_000_000_000
"""A disk that was served for so long starts anew at the first back-off when it fails again."""
ATTEMPTS_LABEL = "disk.reopen_attempts"


class DiskSwapped(StorageFailed):
    """An empty directory lies where a log directory was."""


def check_not_swapped(state: str, path: str) -> None:
    """Raises DiskSwapped; OSError."""
    known = read_known_disk(state, path)
    if known.directory_id and not file_io.exists(f"{path}/{META_PROPERTIES}"):
        raise DiskSwapped(
            f"disk was swapped, or is not mounted: {path} is empty, the log directory with id {known.directory_id} was there;"
            " mount it again, or give up what it held: millrace disk replace"
        )


class DiskReturn:
    """One offline disk."""

    def __init__(self, context: ServiceContext, disk: Disk, now_ns: int) -> None:
        self._state = context.box.state_directory
        self._path = disk.path
        self._log = context.log
        self._attempts = context.counters.counter(ATTEMPTS_LABEL)
        self._wait_ns = min(BACKOFF_NS_MAX, BACKOFF_NS_FIRST << min(self._attempts.value, 16))
        self._next_ns = now_ns + self._wait_ns
        self._thread: threading.Thread | None = None
        self._problem = "not looked at yet"
        self.reason = ""
        """Why it is not back, as the last look found; empty before the first."""

    def turn(self, now_ns: int) -> None:
        """To be called once in a while. Raises StepsDown when the disk can be opened again."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            if not self._problem:
                self._attempts.add()
                raise StepsDown(f"{self._path} answers again")
            if self._problem != self.reason:
                self.reason = self._problem
                self._log.warning(f"{self._path} is still offline: {self._problem}")
        if now_ns >= self._next_ns:
            self._wait_ns = min(BACKOFF_NS_MAX, self._wait_ns * 2)
            self._next_ns = now_ns + self._wait_ns
            self._thread = threading.Thread(target=self._look, name="disk-return", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        try:
            check_not_swapped(self._state, self._path)
            file_io.make_directories(self._path)
            probe_once(self._path)
            self._problem = ""
        except StorageFailed as failure:
            self._problem = str(failure)
        except OSError as error:
            self._problem = (error.strerror or str(error)).lower()
