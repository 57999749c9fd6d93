"""How far a log survives a power cut, and which of its files must be synced to advance that.

Owned by its log. There are two ends. Below `durable_offset` every batch survives, which takes bytes
and names of segments alone (`BatchFlush`). Below `recovery_point` everything that is derived from
batches is durable too: indexes, leader epochs, producer snapshots, transaction indexes
(`FlushRound`); a restart scans from there. The recovery point never passes anything unsynced. Each
part knows its own unsynced files; a round takes all of them, and returns them if it could not begin
to sync. The two ends move forward after a sync, and back when the log is truncated. Weak spot: one
round at a time; the later one of two would miss the files that the earlier one took.

Flush rounds:

* Steps: descriptors duplicated, directory opened if a name in it changed → fdatasync of logs and
  indexes → fsync of epoch checkpoint and snapshots → fsync of the directory → recovery point in
  memory → checkpoint file. A crash leaves an older recovery point, so more to scan.
* For topics that acknowledge after a flush only `.log` files are synced
  (`services/log_writer/background/batch_flushes.py`). A crash leaves indexes, epochs and snapshots
  older than the batches; open scans from the recovery point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from appliance.base.model import Offset, Position
from appliance.storage import file_io
from appliance.storage.batch_boundary import BatchBoundary
from appliance.storage.leader_epoch_cache import LeaderEpochCache
from appliance.storage.log_segments import LogSegments
from appliance.storage.partition_directory import PinnedDirectory
from appliance.storage.producer_snapshots import ProducerSnapshots
from appliance.storage.segment_files import TRANSACTION_INDEX_SUFFIX, segment_path
from appliance.storage.transaction_index import TransactionIndexes


class LogDurability:
    """`recovery_point` ≤ `durable_offset` ≤ log end, all exclusive.

    Callers pass the log end offset.
    """

    __slots__ = ("_durable_name", "_leader_epochs", "_segments", "_snapshots", "_transactions", "durable_offset", "recovery_point")

    def __init__(
        self, recovery_point: Offset, segments: LogSegments, leader_epochs: LeaderEpochCache, snapshots: ProducerSnapshots, transactions: TransactionIndexes
    ) -> None:
        self.recovery_point = recovery_point
        self.durable_offset = recovery_point
        self._durable_name = -1
        """Base offset of the newest segment whose name is known to survive a power cut, too."""
        self._segments = segments
        self._leader_epochs = leader_epochs
        self._snapshots = snapshots
        self._transactions = transactions

    # -- everything

    def distrust_small_files(self, log_end_offset: Offset) -> None:
        """Let the first flush round sync small files that an earlier incarnation may not have
        synced.
        """
        self._leader_epochs.is_synced = False
        self._snapshots.distrust_from(self.recovery_point)
        above = [segment.base_offset for _, segment in self._segments.opened(log_end_offset)]
        self._transactions.put_back_unsynced(segment_path(self._segments.directory, base, TRANSACTION_INDEX_SUFFIX) for base in above)

    def begin_round(self, log_end_offset: Offset, files_max: int) -> FlushRound | None:
        """Plan a flush round, as `Log.flush_files`.

        Raises OSError (no descriptors left, or the directory is gone), and nothing has changed.
        """
        segments, snapshots, transactions = self._segments, self._snapshots, self._transactions
        paths = snapshots.take_unsynced() + transactions.take_unsynced()
        if not self._leader_epochs.is_synced:
            paths.append(self._leader_epochs.path)
        if self.recovery_point == log_end_offset and segments.names_are_synced and not paths:
            return None
        # files that were replaced are durable only with their names
        pinned = None
        files: list[int] = []
        opened = segments.opened(log_end_offset)
        taken = opened[: max(1, files_max // len(segments.active.files))]
        try:
            if paths or not segments.names_are_synced:
                pinned = PinnedDirectory(segments.directory)
            for _, segment in taken:
                for fd in segment.files:
                    files.append(file_io.duplicate(fd))
        except OSError:
            file_io.close_all(files)
            if pinned is not None:
                pinned.close()
            self._put_back(paths)
            raise
        flush = FlushRound(taken[-1][0], files, paths, pinned, len(taken) == len(opened))
        self._leader_epochs.is_synced = segments.names_are_synced = True
        return flush

    def take_back(self, flush: FlushRound) -> None:
        """Return a round whose syncs were not tried, as `Log.take_back`."""
        flush.release()
        self._put_back(flush.paths)
        self._leader_epochs.is_synced = self._segments.names_are_synced = False

    def _put_back(self, paths: list[str]) -> None:
        self._snapshots.put_back_unsynced(paths)
        self._transactions.put_back_unsynced(paths)

    def advance_recovery_point(self, offset: Offset, log_end_offset: Offset) -> None:
        """Everything below `offset` is durable.

        Descriptors of sealed segments below it are closed.
        """
        self.recovery_point = max(self.recovery_point, min(offset, log_end_offset))
        self.durable_offset = max(self.durable_offset, self.recovery_point)
        self._segments.close_flushed(self.recovery_point)

    def on_file_system_synced(self, log_end_offset: Offset) -> None:
        """Set both offsets to the log end: the whole file system was synced after the last write of
        this log.
        """
        self._snapshots.take_unsynced()
        self._transactions.take_unsynced()
        self._leader_epochs.is_synced = self._segments.names_are_synced = True
        self.advance_recovery_point(log_end_offset, log_end_offset)

    # -- batches alone

    def plan_batch_flush(self, end: BatchBoundary) -> BatchFlush | None:
        """Plan a sync of batches alone, as `Log.plan_batch_flush`; `end` is the log's."""
        if self.durable_offset >= end.offset:
            return None
        files = tuple(segment.log_fd for segment_end, segment in self._segments.opened(end.offset) if segment_end > self.durable_offset)
        directory = self._segments.directory if self._durable_name != end.base_offset else ""
        return BatchFlush(end.offset, end.base_offset, end.position, files, directory)

    def on_batches_flushed(self, flush: BatchFlush, log_end_offset: Offset) -> None:
        """Advance `durable_offset` to the end of a completed flush, at most to the log end."""
        self.durable_offset = max(self.durable_offset, min(flush.end_offset, log_end_offset))
        self._durable_name = flush.base_offset

    # -- back

    def cut_to(self, log_end_offset: Offset) -> None:
        """Lower both offsets to the log end after a truncation."""
        self.durable_offset, self._durable_name = min(self.durable_offset, log_end_offset), -1
        self.recovery_point = min(self.recovery_point, log_end_offset)

    def use_snapshots(self, snapshots: ProducerSnapshots) -> None:
        """Use the snapshots that a truncation found. Which of them are synced is not known."""
        self._snapshots = snapshots
        snapshots.distrust_from(self.recovery_point)


class FlushRound(NamedTuple):
    """What must be synced before a log's recovery point may advance, handed to a flush thread.

    Everything below `end_offset` is durable once `sync` has returned; then call
    `Log.advance_recovery_point(end_offset)`. The descriptors are duplicates, so the log may roll,
    truncate or close meanwhile; the directory is pinned, so the partition may be deleted. A round
    that could not even begin to sync (no descriptor for a small file) goes back to its log with
    `Log.take_back`. Weak spot: many logs are synced one by one; for one `syncfs` instead, call
    `release` and use `end_offset`."""

    end_offset: Offset
    files: list[int]
    """Duplicated descriptors: logs and indexes."""
    paths: list[str]
    """Small files that were replaced: leader epochs, producer snapshots."""
    pinned: PinnedDirectory | None
    """The partition directory, if names in it changed; there is one if there are `paths`."""
    is_whole: bool = True
    """False: there was more than one round may take; ask the log again when this one is done."""

    def sync(self) -> None:
        """Sync all files and release the descriptors.

        After `SyncFailed` never retry: the log directory goes offline.
        """
        try:
            for fd in self.files:
                file_io.sync_data(fd)
            if self.pinned is not None:
                for path in self.paths:
                    self.pinned.sync_file(path)
                self.pinned.sync()
        finally:
            self.release()

    def release(self) -> None:
        """Close the descriptors; a second call does nothing."""
        files = list(self.files)
        self.files.clear()
        file_io.close_all(files)
        if self.pinned is not None:
            self.pinned.close()


FILE_SYSTEM_FILES_MIN = 2
"""From so many files on one `syncfs` is cheaper than a sync for each."""
FILE_SYSTEM_OTHER_BYTES_MAX = 16 << 20
"""`syncfs` writes out what others appended, too: with more than this it would make acknowledgements
wait for them."""


class BatchFlush(NamedTuple):
    """What must be synced so that a log's batches survive a power cut: bytes and names of segments.

    Batches below `end_offset` are durable once its files are synced; then call
    `Log.on_batches_flushed`. Indexes, leader epochs and producer snapshots are left out, because a
    scan from the recovery point rebuilds them; so the recovery point does not follow. Many logs are
    synced by one `syncfs`, which costs a few device flushes where a sync of each file costs two
    (measured on ext4: 10 files 32 ms, 0.4-4 ms with `syncfs`). Weak spot: `syncfs` syncs the whole
    file system. With two log directories on one, or with other programs' data, a round also waits
    for those, and a failed write of one log directory is reported to both."""

    end_offset: Offset
    base_offset: Offset
    """Base offset of the segment that is active now; `position` is its valid end, where
    `end_offset` begins."""
    position: Position
    files: tuple[int, ...]
    """The log's own descriptors, which it may close: to be duplicated before they go to a thread.
    """
    directory: str
    """The partition directory, if a segment's name in it is not durable yet; else empty."""


def is_for_file_system(files: int, other_bytes: int) -> bool:
    """Return whether one `syncfs` serves a round of so many files better; `other_bytes`: other
    unflushed bytes of the disk.
    """
    return files >= FILE_SYSTEM_FILES_MIN and other_bytes <= FILE_SYSTEM_OTHER_BYTES_MAX and file_io.syncfs_tells_errors()


class DuplicatedFiles:
    """Duplicated descriptors of a round, so that the logs may roll, truncate or close meanwhile.

    Used once.
    """

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
        """Sync all files and close the descriptors. After `SyncFailed` never retry."""
        try:
            for fd in self._files:
                file_io.sync_data(fd)
            for fd in self._directories:
                file_io.sync_all(fd)
        finally:
            self._close()

    def _close(self) -> None:
        file_io.close_all((*self._files, *self._directories))
