"""Flush rounds: sync what was appended, beside the duty cycle, and advance recovery points.

A round goes through all logs in slices, so that it never holds more than a few descriptors: it
collects the logs of a slice that have unflushed bytes, syncs them in a thread (fdatasync releases
the interpreter lock) and advances their recovery points; after the last slice the checkpoint is
written. Rounds start by time or by unflushed bytes, so that a restart after a power cut scans
little. DiskFull and OutOfDescriptors are retried, a failed sync never. On a full disk no checkpoint
is written before there is free space. Weak spot: a hung disk keeps the thread; then the round does
not end and no recovery point moves, which is correct.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.errors import DiskFull, OutOfDescriptors, OutOfThreads, StorageFailed
from appliance.base.settings import Box
from appliance.shm.counters import Counters
from appliance.shm.partition_table import FLUSH_SINCE_WORD
from appliance.storage import file_io
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.log_durability import FlushRound
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

HIGH_WATERMARK_CHECKPOINT_NS = 5_000_000_000
SPACE_NS = 2_000_000_000
DELETE_SLICE_BYTES = 256 << 20
SLICE_LOGS = 64
RESERVE_BYTES_MAX = 64 << 20
"""So much, or a twentieth of a smaller disk, must be free before a full disk takes writes again: it
should not be full at once."""


_Part = tuple[Replica, FlushRound, int]
"""Of a round; with how often the log had been cut when it began: what stands where it was cut is
not what was synced."""


class FlushRounds:
    """The rounds of one disk; at most one is under way."""

    def __init__(self, partitions: Replicas, clock: Clock, counters: Counters, box: Box) -> None:
        directory = self._directory = partitions.directory
        self._partitions = partitions
        self._clock = clock
        self._interval_ns = box.integer("log.flush.offset.checkpoint.interval.ms") * 1_000_000
        self._bytes_max = box.integer("log.flush.unflushed.bytes")
        self._appended = counters.counter("log_writer.bytes")
        self._appended_at_last_round = self._appended.value
        self.synced_bytes = self._appended.value
        """`log_writer.bytes` as it was when the last finished round began: what was appended before
        is durable."""
        self._rounds = counters.counter("flush.rounds")
        self._round_time = counters.counter("flush.round_us")
        self._free_bytes = counters.counter("disk.free_bytes")
        self._total_bytes = counters.counter("disk.total_bytes")
        self._last_round_ns = clock.monotonic_ns()
        self._last_watermarks_ns = self._last_round_ns
        self._last_space_ns = 0
        table, self._words = partitions.table, partitions.table.shared.words
        self.task = BackgroundTask("flush-round", f"flush {directory.path}", self._on_end, table.set_suspect)
        self._under_way: list[_Part] = []
        self._to_flush: list[Replica] = []
        self._recovery_points_moved = False
        self._is_full = False
        self._found_space = False
        self._started_ns = 0

    @property
    def goes_on(self) -> bool:
        """Whether a slice of a round is done and the next one waits: `turn` then, not in a second."""
        return bool(self._to_flush) and not self.task.is_running

    @property
    def is_between_slices(self) -> bool:
        return bool(self._to_flush)

    def disk_is_full(self) -> None:
        """A write met ENOSPC: from now on look for space, until `take_found_space`."""
        self._is_full = True
        self._found_space = False

    def recovery_points_went_back(self) -> None:
        """A log was cut below what the checkpoint says: before it grows past that again, the
        checkpoint must say less.
        """
        self._recovery_points_moved = True

    def take_found_space(self) -> bool:
        """Return once whether a full disk has free space again: checkpoints could be written, and
        more than the reserve is free.
        """
        if not self._found_space:
            return False
        self._is_full = self._found_space = False
        return True

    def turn(self) -> None:
        """Once a second, and when `goes_on`: finish a slice, take the next, start a round if it is
        due, publish free space.

        Raises StorageFailed after a failed sync, DiskFull and OutOfDescriptors for what will be
        tried again.
        """
        now_ns = self._clock.monotonic_ns()
        if self.task.is_running:
            return
        if self.task.has_ended:
            under_way, self._under_way = self._under_way, []
            failure = self.task.take_failure()
            if failure is not None:
                self._give_up(under_way)
                if isinstance(failure, OutOfThreads):
                    self._recovery_points_moved = True  # they may have been what was not written
                raise failure
            self._advance(under_way)
        if self._to_flush and self._next_slice(now_ns):
            return
        unflushed = self._appended.value - self._appended_at_last_round
        if self._recovery_points_moved and not self._is_full:
            self._recovery_points_moved = False
            self._run(self._save_recovery_points)
        elif unflushed and (now_ns - self._last_round_ns > self._interval_ns or unflushed > self._bytes_max):
            self.start_round(now_ns)
        elif self._is_full:
            if now_ns - self._last_space_ns > SPACE_NS:
                self._last_space_ns = now_ns
                self._run(self._look_for_space)
        elif now_ns - self._last_watermarks_ns > HIGH_WATERMARK_CHECKPOINT_NS:
            self._last_watermarks_ns = now_ns
            self._run(self._save_high_watermarks)
        elif now_ns - self._last_space_ns > SPACE_NS:
            self._last_space_ns = now_ns
            self._run(self._tidy)

    def _tidy(self) -> None:
        """In the thread: free space, and files of deleted partitions."""
        self._publish_space()
        self._directory.delete_some(DELETE_SLICE_BYTES)

    def _look_for_space(self) -> None:
        """In the thread: free what was deleted.

        If there is free space, the checkpoints show whether files can be written; with a quota they
        may still fail.
        """
        self._tidy()
        space = self._publish_space()
        if space.free_bytes > min(RESERVE_BYTES_MAX, space.total_bytes // 20):
            self._save_recovery_points()
            self._save_high_watermarks()
            self._directory.checkpoints.save(LOG_START_OFFSETS, self._partitions.log_start_offsets)
            self._found_space = True

    def _save_recovery_points(self) -> None:
        try:
            saved = self._directory.checkpoints.save(RECOVERY_POINTS, self._partitions.recovery_points)
            if not saved.keys() <= self._directory.checkpoints.lines[LOG_START_OFFSETS].keys():
                # A log whose start is on record cannot lose its first segments unnoticed.
                self._directory.checkpoints.save(LOG_START_OFFSETS, self._partitions.log_start_offsets)
        except DiskFull:
            self._recovery_points_moved = True
            raise

    def _save_high_watermarks(self) -> None:
        self._directory.checkpoints.save(HIGH_WATERMARKS, self._partitions.high_watermarks)

    def _publish_space(self) -> file_io.Space:
        space = self._directory.space()
        self._free_bytes.set(space.free_bytes)
        self._total_bytes.set(space.total_bytes)
        return space

    def start_round(self, now_ns: int) -> None:
        self._last_round_ns = self._started_ns = now_ns
        self._appended_at_last_round = self._appended.value
        self._to_flush = list(self._partitions.by_row.values())
        self._next_slice(now_ns)

    def _next_slice(self, now_ns: int) -> bool:
        """Sync the next logs that have something to sync.

        False: there are none, the round is over.
        """
        files_left = self._partitions.descriptors.for_flush_round
        try:
            while self._to_flush and files_left > 0 and len(self._under_way) < SLICE_LOGS:
                replica = self._to_flush.pop()
                if self._partitions.by_row.get(replica.row) is not replica:
                    continue  # deleted since
                flush = replica.log.flush_files(files_left)
                if flush is None:
                    continue
                files_left -= len(flush.files) + (flush.pinned is not None)
                self._under_way.append((replica, flush, replica.log.truncations))
                if not flush.is_whole:
                    self._to_flush.append(replica)
                    break
        except StorageFailed:
            under_way, self._under_way = self._under_way, []
            self._give_up(under_way)
            raise
        if self._under_way:
            under_way = self._under_way

            def sync() -> None:
                for _, flush, _ in under_way:
                    flush.sync()

            self._run(sync)
            return True
        self._finish_round(now_ns)
        return False

    def _advance(self, under_way: list[_Part]) -> None:
        for replica, flush, truncations in under_way:
            if replica.log.truncations == truncations:
                replica.log.advance_recovery_point(flush.end_offset)
            self._recovery_points_moved = True
        if under_way and not self._to_flush:
            self._finish_round(self._clock.monotonic_ns())

    def _finish_round(self, now_ns: int) -> None:
        self._rounds.add()
        self._round_time.add((now_ns - self._started_ns) // 1000)
        self.synced_bytes = max(self.synced_bytes, self._appended_at_last_round)

    def _give_up(self, under_way: list[_Part]) -> None:
        """The round was not carried out: if that heals, the next one has everything to do again."""
        for replica, flush, _ in under_way:
            replica.log.take_back(flush)
        if self._to_flush or under_way:
            self._to_flush.clear()
            self._appended_at_last_round = -1

    def _run(self, work: Callable[[], object]) -> None:
        self._words[FLUSH_SINCE_WORD] = self._clock.monotonic_ns()
        self.task.start(work)

    def _on_end(self) -> None:
        self._words[FLUSH_SINCE_WORD] = 0

    def close_directory(self) -> None:
        """At a clean stop, after every log was closed (and thereby flushed): checkpoints and the
        clean marker.
        """
        self._partitions.save_checkpoints()
        self._directory.close_clean([replica.log for replica in self._partitions.by_row.values()])

    def close(self) -> None:
        """Wait for a round that is under way.

        Raises StorageFailed if it failed or does not end: what it was to sync may not be durable,
        and no later sync would report that.
        """
        if not self.task.join(10):
            raise StorageFailed(f"a flush of {self._directory.path} does not end")
        if not self.task.has_ended:
            return
        under_way, self._under_way = self._under_way, []
        failure = self.task.take_failure()
        if failure is not None:
            self._give_up(under_way)
            if not isinstance(failure, DiskFull | OutOfDescriptors):
                raise failure
