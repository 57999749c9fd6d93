"""Check whether a disk that failed can be used again: same directory, and a write and sync succeed.

In a thread, with back-off: 1 s after the failure, then 2 s, 4 s, … up to 30 s, over the incarnations of
the log-writer (a counter keeps the attempts, since it outlives its process). If the disk answers, the
log-writer exits, and its next incarnation opens the directory as after a power cut: what failed to sync
is neither retried nor believed. Weak spot: a disk that accepts writes and loses them comes and goes.

Before a directory is opened at all, `check_answers` touches it in a thread: a disk that hangs at the
start is offline, and its log-writer can report that.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from appliance.base.errors import OutOfThreads, StepsDown, StorageFailed
from appliance.base.layout import Disk
from appliance.runtime.agent import ServiceContext
from appliance.runtime.known_disks import read_known_disk
from appliance.storage import file_io
from appliance.storage.directory_identity import META_PROPERTIES, PROBE_FILE
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.background.disk_probe import probe_once

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


class DiskDoesNotAnswer(StorageFailed):
    """It hangs, or is too slow to be served: nothing has failed, and nothing that it holds is doubted."""


class DiskReturn:
    """One offline disk. It must take a write and a sync within the deadline of an operation, or it would be fenced again at once."""

    def __init__(self, context: ServiceContext, disk: Disk, now_ns: int, first_look_ns: int | None = None) -> None:
        """`first_look_ns`: after so long it is looked at for the first time, instead of the back-off of its attempts."""
        self._state = context.box.state_directory
        self._disk = disk.name
        self._path = disk.path
        self._clock = context.clock
        self._log = context.log
        self._deadline_ms = context.box.integer("log.disk.deadline.ms")
        self._attempts = context.counters.counter(ATTEMPTS_LABEL)
        self._wait_ns = min(BACKOFF_NS_MAX, BACKOFF_NS_FIRST << min(self._attempts.value, 16))
        self._next_ns = now_ns + (self._wait_ns if first_look_ns is None else first_look_ns)
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
            self._wait_ns = min(BACKOFF_NS_MAX, self._wait_ns * 2)
            self._next_ns = now_ns + self._wait_ns
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
    """Raises DiskDoesNotAnswer when touching the log directory takes longer than that; what else may be wrong with it is for others to find."""
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
