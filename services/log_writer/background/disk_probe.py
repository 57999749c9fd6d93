"""Probe the disk: write 4 KiB in place and fdatasync; the table says since when that waits.

The cost: one write of 4 KiB and one flush of the drive's cache a second while the disk is written
to (about 10 ms of a SATA disk's time), every ten seconds otherwise; a thread of 60 µs each. The
file is created once, so a probe changes no metadata and works on a full disk. A probe that fails
takes the directory offline: a failed sync is never retried. Weak spots: a disk that loses only some
sectors, or answers from a cache that lies, passes; an idle disk never sleeps.
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.base.errors import DiskFull, OutOfDescriptors
from appliance.shm.histogram import Histogram
from appliance.shm.partition_table import PROBE_SINCE_WORD, PROBED_WORD
from appliance.storage import file_io
from appliance.storage.directory_identity import PROBE_FILE
from services.log_writer.background.background_task import BackgroundTask

PROBE_BYTES = 4096
IDLE_FACTOR = 10
"""Intervals between two probes of a disk without writes."""
_TEXT = b"Millrace writes this file to see whether the disk answers. It may be deleted while the box is stopped.\n".ljust(PROBE_BYTES, b"\0")


def probe_once(path: str) -> None:
    """Write and sync the probe file of a log directory. Raises OSError."""
    fd = file_io.open_path(f"{path}/{PROBE_FILE}", file_io.READ_WRITE_CREATE)
    try:
        file_io.write_all(fd, (_TEXT,), 0, PROBE_BYTES)
        file_io.sync_data(fd)
    finally:
        file_io.close(fd)


class DiskProbe:
    """Probes of one log directory; at most one is under way."""

    def __init__(self, path: str, words: memoryview, interval_ms: int, clock: Clock, took: Histogram) -> None:
        """`took`: how long the disk needs for a probe; the thread of one alone writes to it."""
        self._path = path
        self._clock = clock
        self._took = took
        self._words = words
        self._interval_ns = interval_ms * 1_000_000
        self.task = BackgroundTask("disk-probe", f"write {path}/{PROBE_FILE}", self._on_end)
        self._next_ns = 0
        self._idle_ns = 0
        self._appended = -1

    def turn(self, now_ns: int, appended: int) -> None:
        """Once a second or more often; `appended` counts up while the disk is written to.

        Raises StorageFailed when the disk refused the last probe.
        """
        if self.task.is_running:
            return
        if self.task.has_ended:
            try:
                self.task.finish()
                self._words[PROBED_WORD] = now_ns
            except (DiskFull, OutOfDescriptors):
                pass  # neither says anything about the disk; the next probe is due as always
        if now_ns < self._next_ns or (appended == self._appended and now_ns < self._idle_ns):
            return
        self._appended = appended
        self._next_ns = now_ns + self._interval_ns
        self._idle_ns = now_ns + self._interval_ns * IDLE_FACTOR
        self._words[PROBE_SINCE_WORD] = now_ns
        self.task.start(self._probe)

    def _probe(self) -> None:
        since_ns = self._clock.monotonic_ns()
        probe_once(self._path)
        self._took.record(self._clock.monotonic_ns() - since_ns)

    def _on_end(self) -> None:
        self._words[PROBE_SINCE_WORD] = 0
