"""What must be synced so that a log's batches survive a power cut: bytes and names of segments.

Less than a `FlushRound`: indexes, leader epochs and producer snapshots are left out, because a scan
from the recovery point rebuilds them. So only `Log.durable_offset` follows, not the recovery point.
The log plans it in the log-writer's duty cycle; a thread syncs. Many logs are synced by one `syncfs`,
which costs a few device flushes where a sync of each file costs two (measured on ext4: 10 files
32 ms, 0.4-4 ms with `syncfs`). Weak spot: `syncfs` syncs the whole file system. With two log
directories on one, or with other programs' data, a round also waits for those, and a failed write of
one log directory is reported to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from appliance.storage import file_io

FILE_SYSTEM_FILES_MIN = 2
"""From so many files on one `syncfs` is cheaper than a sync for each."""
FILE_SYSTEM_OTHER_BYTES_MAX = 16 << 20
"""`syncfs` writes out what others appended, too: with more than this it would make acknowledgements wait for them."""


class BatchFlush(NamedTuple):
    """Batches below `end_offset` are durable once its files are synced; then `Log.on_batches_flushed`."""

    end_offset: int
    base_offset: int
    """Base offset of the segment that is active now; `position` is its valid end, where `end_offset` begins."""
    position: int
    files: tuple[int, ...]
    """The log's own descriptors, which it may close: to be duplicated before they go to a thread."""
    directory: str
    """The partition directory, if a segment's name in it is not durable yet; else empty."""


def is_for_file_system(files: int, other_bytes: int) -> bool:
    """Whether a round of so many files is done by one `syncfs`; `other_bytes` are what the disk has unflushed besides."""
    return files >= FILE_SYSTEM_FILES_MIN and other_bytes <= FILE_SYSTEM_OTHER_BYTES_MAX and file_io.syncfs_tells_errors()


class DuplicatedFiles:
    """Descriptors of a round's own, so that the logs may roll, truncate or close meanwhile. Used once."""

    def __init__(self, flushes: Sequence[BatchFlush]) -> None:
        """Raises OSError when there are no descriptors left, and keeps none."""
        self._files: list[int] = []
        self._directories: list[int] = []
        try:
            for flush in flushes:
                for fd in flush.files:
                    self._files.append(file_io.duplicate(fd))
                if flush.directory:
                    self._directories.append(file_io.open_directory(flush.directory))
        except OSError:
            self._close()
            raise

    def sync(self) -> None:
        """Sync all and let go of them. `SyncFailed` means: never try again."""
        try:
            for fd in self._files:
                file_io.sync_data(fd)
            for fd in self._directories:
                file_io.sync_all(fd)
        finally:
            self._close()

    def _close(self) -> None:
        file_io.close_all((*self._files, *self._directories))
