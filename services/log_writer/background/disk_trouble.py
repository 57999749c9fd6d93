"""How a log-writer reacts to a disk that fails, is full, or to a want of descriptors.

Every failed write to the disk ends here. A disk that fails takes its directory offline for the rest of
this incarnation. A full disk refuses writes until there is free space. For want of descriptors nothing
stops.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import DiskFull, OutOfDescriptors, OutOfThreads, StorageFailed
from appliance.base.layout import Disk
from appliance.runtime.agent import ServiceContext
from appliance.shm.partition_table import DISK_FULL, DISK_OFFLINE, DISK_ONLINE, PartitionTableWriter
from services.log_writer.background.disk_return import DiskReturn

DESCRIPTORS_TOLD_NS = 10_000_000_000
"""Time between two messages that descriptors are short."""


class DiskTrouble:
    """`on_full()` and `on_offline()` are called once each time; after `on_offline` nothing of the disk
    is touched."""

    def __init__(self, context: ServiceContext, disk: Disk, table: PartitionTableWriter, on_full: Callable[[], None], on_offline: Callable[[], None]) -> None:
        self.offline = ""
        """Why the directory is offline; empty while it is not."""
        self.is_full = False
        self.returning: DiskReturn | None = None
        """Checks an offline disk; None while the directory is online."""
        self._context = context
        self._clock = context.clock
        self._disk = disk
        self._table = table
        self._on_full = on_full
        self._on_offline = on_offline
        self._descriptors_told_ns = 0
        self._failures = context.counters.counter("log_writer.storage_failures")

    def on_failure(self, failure: StorageFailed) -> None:
        disk, log = self._disk, self._context.log
        if isinstance(failure, OutOfDescriptors):
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._descriptors_told_ns > DESCRIPTORS_TOLD_NS:
                self._descriptors_told_ns = now_ns
                limit = "limits of memory and tasks" if isinstance(failure, OutOfThreads) else "limit of open files"
                log.error(f"{failure}; disk {disk.name} is served on, raise the {limit}", disk=disk.name)
            return
        if isinstance(failure, DiskFull):
            if not self.is_full:
                self.is_full = True
                self._on_full()
                log.error(f"disk {disk.name} is full, writes are refused until there is space: {failure}", disk=disk.name)
                self._table.set_disk_state(DISK_FULL)
            return
        self._failures.add()  # a full disk is no failure: it has an alarm of its own, with another thing to do
        self.go_offline(failure)

    def go_offline(self, failure: StorageFailed) -> None:
        """Stop serving every partition of a disk that failed, and close every file. The next incarnation
        reads it again."""
        disk, context = self._disk, self._context
        self.offline = str(failure)
        context.log.error(f"disk {disk.name} ({disk.path}) goes offline: {failure}", disk=disk.name)
        self._on_offline()
        self._table.set_suspect()
        self._table.set_disk_state(DISK_OFFLINE)
        self.returning = DiskReturn(context, disk, self._clock.monotonic_ns())
        context.notifier.status(f"offline: {self.offline}")
        context.counters.set_state("offline")

    def on_space(self) -> None:
        """Accept writes again: a full disk has free space."""
        self.is_full = False
        self._table.set_disk_state(DISK_ONLINE)
        self._context.log.notice(f"disk {self._disk.name} has space again, it takes writes", disk=self._disk.name)
