"""How a log-writer reacts to a disk that fails, is full or too slow, and how it comes back.

Every failed write to the disk ends in `DiskTrouble`. A disk that fails takes its directory offline
for the rest of this incarnation. A full disk refuses writes until there is free space. For want of
descriptors nothing stops.

`DiskReturn` then checks in a thread, with back-off (1 s, 2 s, 4 s, … up to 30 s, over all
incarnations), whether the directory is the same and a write and a sync succeed. If so, the
log-writer exits, and its next incarnation opens the directory as after a power cut: what failed to
sync is neither retried nor believed. Before a directory is opened at all, `check_answers` touches
it in a thread: a disk that hangs at the start is offline, and its log-writer can report that. Weak
spot: a disk that accepts writes and loses them comes and goes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from appliance.base.errors import DiskFull, OutOfDescriptors, OutOfThreads, StepsDown, StorageFailed
from appliance.base.layout import Disk
from appliance.runtime.agent import ServiceContext
from appliance.runtime.known_disks import read_known_disk
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_FULL, DISK_OFFLINE, DISK_ONLINE, PartitionTableWriter
from appliance.storage import file_io
from appliance.storage.directory_identity import META_PROPERTIES, PROBE_FILE
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.background.disk_probe import probe_once

DESCRIPTORS_TOLD_NS = 10_000_000_000
"""Time between two messages that descriptors are short."""


class DiskTrouble:
    """`on_full()` and `on_offline()` are called once each time; after `on_offline` nothing of the
    disk is touched.
    """

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
        self._recent_failures = context.counters.counter(FAILURES_LABEL)
        self._since_ns = self._clock.monotonic_ns()

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
        self._recent_failures.add()
        self.go_offline(failure)

    def go_offline(self, failure: StorageFailed) -> None:
        """Stop serving every partition of a disk that failed, and close every file.

        The next incarnation reads it again.
        """
        disk, context = self._disk, self._context
        self.offline = str(failure)
        context.log.error(f"disk {disk.name} ({disk.path}) goes offline: {failure}", disk=disk.name)
        self._on_offline()
        self._table.set_suspect()
        self._table.set_disk_state(DISK_OFFLINE)
        self.returning = DiskReturn(context, disk, self._clock.monotonic_ns())
        context.notifier.status(f"offline: {self.offline}")
        context.counters.set_state("offline")

    def maybe_forget(self, now_ns: int) -> None:
        """Reset the count of recent failures after ten minutes of service. Call it now and then."""
        if self._recent_failures.value and now_ns - self._since_ns > FORGOTTEN_NS:
            self._recent_failures.set(0)

    def on_space(self) -> None:
        """Accept writes again: a full disk has free space."""
        self.is_full = False
        self._table.set_disk_state(DISK_ONLINE)
        self._context.log.notice(f"disk {self._disk.name} has space again, it takes writes", disk=self._disk.name)


BACKOFF_NS_FIRST = 1_000_000_000
BACKOFF_NS_MAX = 30_000_000_000
FAILURES_LABEL = "disk.failures_of_late"
"""Errors of a disk; another log directory in its place has none."""
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


class DiskDoesNotAnswer(StorageFailed):
    """It hangs, or is too slow to be served: nothing has failed, and nothing that it holds is
    doubted.
    """


class DiskReturn:
    """One offline disk.

    It must take a write and a sync within the deadline of an operation, or it would be fenced again
    at once.
    """

    def __init__(self, context: ServiceContext, disk: Disk, now_ns: int, first_look_ns: int | None = None) -> None:
        """`first_look_ns`: after so long it is looked at for the first time, instead of the
        back-off of its attempts.
        """
        self._state = context.box.state_directory
        self._disk = disk.name
        self._path = disk.path
        self._clock = context.clock
        self._log = context.log
        self._deadline_ms = context.box.integer("log.disk.deadline.ms")
        self._attempts = context.counters.counter(ATTEMPTS_LABEL)
        self.wait_ns = min(BACKOFF_NS_MAX, BACKOFF_NS_FIRST << min(self._attempts.value, 16))
        self._next_ns = now_ns + (self.wait_ns if first_look_ns is None else first_look_ns)
        self.task = BackgroundTask("disk-return", f"look at {disk.path}")
        self.reason = ""
        """Why it is not back, as the last look found; empty before the first."""

    def turn(self, now_ns: int) -> None:
        """To be called once in a while. Raises StepsDown when the disk can be opened again."""
        if self.task.is_running:
            return
        if self.task.has_ended:
            try:
                self.task.finish()
            except OutOfThreads as failure:
                self._on_problem(str(failure))
        if now_ns >= self._next_ns:
            self.wait_ns = min(BACKOFF_NS_MAX, self.wait_ns * 2)
            self._next_ns = now_ns + self.wait_ns
            self.task.start(self._find_problem, self._on_problem)

    def _on_problem(self, problem: str) -> None:
        if not problem:
            self._attempts.add()
            raise StepsDown(f"{self._path} answers again")
        if problem != self.reason:
            self.reason = problem
            self._log.warning(f"disk {self._disk} ({self._path}) is still offline: {problem}", disk=self._disk)

    def _find_problem(self) -> str:
        """Return why the disk cannot be used; empty if it can."""
        try:
            check_not_swapped(self._state, self._path)
            file_io.make_directories(self._path)
            started_ms = self._clock.monotonic_ms()
            probe_once(self._path)
            took_ms = self._clock.monotonic_ms() - started_ms
            return f"too slow: 4 KiB took {took_ms / 1000:.1f} s" if took_ms > self._deadline_ms else ""
        except StorageFailed as failure:
            return str(failure)
        except OSError as error:
            return (error.strerror or str(error)).lower()


def check_answers(state: str, path: str, deadline_ms: int) -> None:
    """Raises DiskDoesNotAnswer when touching the log directory takes longer than that; what else
    may be wrong with it is for others to find.
    """
    task = BackgroundTask("disk-touch", f"look at {path}")
    task.start(partial(_touch, state, path))
    if not task.join(deadline_ms / 1000):
        raise DiskDoesNotAnswer(f"{path} does not answer within {deadline_ms / 1000:g} s")
    try:
        task.finish()
    except OutOfThreads as refusal:
        raise DiskDoesNotAnswer(str(refusal)) from refusal


def _touch(state: str, path: str) -> None:
    """Write where an earlier incarnation did. A directory that is not ours yet gets nothing that
    stays, and a disk that was swapped nothing at all."""
    with suppress(OSError, DiskSwapped):  # the disk has answered
        check_not_swapped(state, path)
        if file_io.exists(f"{path}/{PROBE_FILE}"):
            probe_once(path)
        else:
            attempt = f"{path}/.millrace-{file_io.process_id()}"
            file_io.mkdir(attempt)
            file_io.rmdir(attempt)


FENCES_LABEL = "disk.fences_of_late"
WAITED_LABEL = "disk.fences_waited_for"
WAIT_NS_FIRST = 2_000_000_000
WAIT_NS_MAX = 120_000_000_000
FORGOTTEN_NS = 600_000_000_000
"""So long must a disk be served without a fence before the count begins anew."""


class DiskFences:
    """How often a disk was fenced recently, and how long it waits before it is served again.

    A disk that is a little too slow opens its logs, is fenced under load, releases its log-writer,
    is opened again, and is fenced again; its clients go back and forth with it. So it is served
    again at once after the first fence, and after 2 s, 4 s, … up to 2 minutes after the next ones,
    if it then accepts a write in time. Ten minutes of service without a fence reset the count. It
    is kept in counters, which outlive their process. Weak spot: after a repair of the disk the
    back-off still runs, unless the operator calls `millrace disk replace`.
    """

    def __init__(self, counters: Counters, now_ns: int) -> None:
        self._fences = counters.counter(FENCES_LABEL)
        self._waited = counters.counter(WAITED_LABEL)
        self._since_ns = now_ns

    @property
    def count(self) -> int:
        return self._fences.value

    def words(self) -> str:
        """For people; empty when there was none of late."""
        return f"fenced {self.count} times of late: its disk is too slow" if self.count else ""

    def add(self) -> None:
        """Count a fence: this incarnation ends."""
        self._fences.add()

    def wait_ns(self) -> int:
        """How long the disk must wait before it is served, 0: not at all."""
        fences = self._fences.value
        if fences < 2 or self._waited.value >= fences:
            return 0
        return min(WAIT_NS_MAX, WAIT_NS_FIRST << min(fences - 2, 16))

    def on_waited(self) -> None:
        """The wait is over: the next incarnation serves."""
        self._waited.set(self._fences.value)

    def maybe_forget(self, now_ns: int) -> None:
        """Reset the count after ten minutes of service. Call it now and then."""
        if self._fences.value and now_ns - self._since_ns > FORGOTTEN_NS:
            self._fences.set(0)
            self._waited.set(0)
