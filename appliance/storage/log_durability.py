"""How far a log survives a power cut, and which of its files must be synced to advance that.

Owned by its log. There are two ends. Below `durable_offset` every batch survives, which takes bytes
and names of segments alone (`batch_flush`). Below `recovery_point` everything that is derived from
batches is durable too: indexes, leader epochs, producer snapshots, transaction indexes
(`flush_round`); a restart scans from there. The recovery point never passes anything unsynced. Each
part knows its own unsynced files; a round takes all of them, and returns them if it could not begin
to sync. The two ends move forward after a sync, and back when the log is truncated. Weak spot: one
round at a time; the later one of two would miss the files that the earlier one took.
"""

from __future__ import annotations

from appliance.storage import file_io
from appliance.storage.batch_boundary import BatchBoundary
from appliance.storage.batch_flush import BatchFlush
from appliance.storage.flush_round import FlushRound
from appliance.storage.leader_epoch_cache import LeaderEpochCache
from appliance.storage.log_segments import LogSegments
from appliance.storage.pinned_directory import PinnedDirectory
from appliance.storage.producer_snapshots import ProducerSnapshots
from appliance.storage.segment_files import TRANSACTION_INDEX_SUFFIX, segment_path
from appliance.storage.transaction_index import TransactionIndexes


class LogDurability:
    """`recovery_point` ≤ `durable_offset` ≤ log end, all exclusive. Callers pass the log end offset."""

    __slots__ = ("_durable_name", "_leader_epochs", "_segments", "_snapshots", "_transactions", "durable_offset", "recovery_point")

    def __init__(
        self, recovery_point: int, segments: LogSegments, leader_epochs: LeaderEpochCache, snapshots: ProducerSnapshots, transactions: TransactionIndexes
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

    def distrust_small_files(self, log_end_offset: int) -> None:
        """Let the first flush round sync small files that an earlier incarnation may not have synced."""
        self._leader_epochs.is_synced = False
        self._snapshots.distrust_from(self.recovery_point)
        above = [segment.base_offset for _, segment in self._segments.opened(log_end_offset)]
        self._transactions.put_back_unsynced(segment_path(self._segments.directory, base, TRANSACTION_INDEX_SUFFIX) for base in above)

    def begin_round(self, log_end_offset: int, files_max: int) -> FlushRound | None:
        """As `Log.flush_files`. Raises OSError (no descriptors left, or the directory is gone), and nothing has changed."""
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
        """As `Log.take_back`."""
        flush.release()
        self._put_back(flush.paths)
        self._leader_epochs.is_synced = self._segments.names_are_synced = False

    def _put_back(self, paths: list[str]) -> None:
        self._snapshots.put_back_unsynced(paths)
        self._transactions.put_back_unsynced(paths)

    def advance_recovery_point(self, offset: int, log_end_offset: int) -> None:
        """Everything below `offset` is durable. Descriptors of sealed segments below it are closed."""
        self.recovery_point = max(self.recovery_point, min(offset, log_end_offset))
        self.durable_offset = max(self.durable_offset, self.recovery_point)
        self._segments.close_flushed(self.recovery_point)

    def on_file_system_synced(self, log_end_offset: int) -> None:
        """The whole file system was synced after the last write of this log."""
        self._snapshots.take_unsynced()
        self._transactions.take_unsynced()
        self._leader_epochs.is_synced = self._segments.names_are_synced = True
        self.advance_recovery_point(log_end_offset, log_end_offset)

    # -- batches alone

    def plan_batch_flush(self, end: BatchBoundary) -> BatchFlush | None:
        """As `Log.plan_batch_flush`; `end` is the log's."""
        if self.durable_offset >= end.offset:
            return None
        files = tuple(segment.log_fd for segment_end, segment in self._segments.opened(end.offset) if segment_end > self.durable_offset)
        directory = self._segments.directory if self._durable_name != end.base_offset else ""
        return BatchFlush(end.offset, end.base_offset, end.position, files, directory)

    def on_batches_flushed(self, flush: BatchFlush, log_end_offset: int) -> None:
        self.durable_offset = max(self.durable_offset, min(flush.end_offset, log_end_offset))
        self._durable_name = flush.base_offset

    # -- back

    def cut_to(self, log_end_offset: int) -> None:
        """The log ends there now."""
        self.durable_offset, self._durable_name = min(self.durable_offset, log_end_offset), -1
        self.recovery_point = min(self.recovery_point, log_end_offset)

    def use_snapshots(self, snapshots: ProducerSnapshots) -> None:
        """Use the snapshots that a truncation found. Which of them are synced is not known."""
        self._snapshots = snapshots
        snapshots.distrust_from(self.recovery_point)
