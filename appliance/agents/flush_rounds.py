"""Flush rounds: what was appended reaches the platter beside the append loop, and recovery points follow.

A round collects every log with unflushed bytes, syncs them in one thread (the GIL is released in fdatasync), then advances their recovery
points and writes the checkpoints. Started by time or by unflushed bytes, so that a restart after a power cut scans little. Owned by the
log-writer: collecting and advancing happen in its loop, syncing and checkpoint files in the thread.
Weak spot: a hung disk keeps the thread; the round is then never finished and no recovery point moves, which is the truth.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from appliance.agents.hosted_partition import HostedPartition
from appliance.agents.hosted_partitions import HostedPartitions
from appliance.base.clock import Clock
from appliance.base.errors import StorageFailed
from appliance.base.model import TopicPartition
from appliance.base.settings import Box
from appliance.shm.counters import Counters
from appliance.storage.flush_round import FlushRound
from appliance.storage.log_directory import LogDirectory

HIGH_WATERMARK_CHECKPOINT_NS = 5_000_000_000
SPACE_NS = 2_000_000_000
DELETE_SLICE_BYTES = 256 << 20


class FlushRounds:
    """The rounds of one disk; at most one is under way."""

    def __init__(self, directory: LogDirectory, partitions: HostedPartitions, clock: Clock, counters: Counters, box: Box) -> None:
        self._directory = directory
        self._partitions = partitions
        self._clock = clock
        self._interval_ns = box.integer("log.flush.offset.checkpoint.interval.ms") * 1_000_000
        self._bytes_max = box.integer("log.flush.unflushed.bytes")
        self._appended = counters.counter("log_writer.bytes")
        self._appended_at_last_round = self._appended.value
        self._rounds = counters.counter("flush.rounds")
        self._round_time = counters.counter("flush.round_us")
        self._free_bytes = counters.counter("disk.free_bytes")
        self._total_bytes = counters.counter("disk.total_bytes")
        self._last_round_ns = clock.monotonic_ns()
        self._last_watermarks_ns = self._last_round_ns
        self._last_space_ns = 0
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._under_way: list[tuple[HostedPartition, FlushRound]] = []
        self._started_ns = 0

    def turn(self) -> None:
        """Once a second: finish a round, start one if it is due, publish free space. Raises StorageFailed after a failed sync."""
        now_ns = self._clock.monotonic_ns()
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            if self._failure is not None:
                raise StorageFailed(f"could not flush {self._directory.path}: {self._failure}") from self._failure
            if self._finish_round(now_ns):
                return
        unflushed = self._appended.value - self._appended_at_last_round
        if unflushed and (now_ns - self._last_round_ns > self._interval_ns or unflushed > self._bytes_max):
            self._start_round(now_ns)
        elif now_ns - self._last_watermarks_ns > HIGH_WATERMARK_CHECKPOINT_NS:
            self._last_watermarks_ns = now_ns
            watermarks = self._high_watermarks()
            self._run(lambda: self._directory.save_high_watermarks(watermarks))
        elif now_ns - self._last_space_ns > SPACE_NS:
            self._last_space_ns = now_ns
            self._run(self._tidy)

    def _tidy(self) -> None:
        """In the thread: free space, and files of deleted partitions."""
        self._publish_space()
        self._directory.delete_some(DELETE_SLICE_BYTES)

    def _publish_space(self) -> None:
        space = self._directory.space()
        self._free_bytes.set(space.free_bytes)
        self._total_bytes.set(space.total_bytes)

    def _start_round(self, now_ns: int) -> None:
        self._last_round_ns = self._started_ns = now_ns
        self._appended_at_last_round = self._appended.value
        self._under_way = []
        for hosted in self._partitions.by_row.values():
            flush = hosted.log.flush_files()
            if flush is not None:
                self._under_way.append((hosted, flush))
        under_way = self._under_way

        def sync() -> None:
            for _, flush in under_way:
                flush.sync()

        self._run(sync)

    def _finish_round(self, now_ns: int) -> bool:
        """Advance recovery points after a sync; their checkpoint file is the next thing the thread does. False: it was no sync."""
        under_way, self._under_way = self._under_way, []
        if not under_way:
            return False
        for hosted, flush in under_way:
            hosted.log.advance_recovery_point(flush.end_offset)
        self._rounds.add()
        self._round_time.add((now_ns - self._started_ns) // 1000)
        recovery_points = self._recovery_points()
        self._run(lambda: self._directory.save_recovery_points(recovery_points))
        return True

    def _run(self, work: Callable[[], None]) -> None:
        def body() -> None:
            try:
                work()
            except Exception as failure:  # handed to the loop, which takes the directory offline
                self._failure = failure

        self._thread = threading.Thread(target=body, name="flush-round", daemon=True)
        self._thread.start()

    def _recovery_points(self) -> dict[TopicPartition, int]:
        return {hosted.topic_partition: hosted.log.recovery_point for hosted in self._partitions.by_row.values()}

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {hosted.topic_partition: hosted.high_watermark for hosted in self._partitions.by_row.values()}

    def close_directory(self) -> None:
        """At a clean stop, after every log was closed (and thereby flushed): checkpoints and the clean marker."""
        starts = {hosted.topic_partition: hosted.log.log_start_offset for hosted in self._partitions.by_row.values() if hosted.log.log_start_offset}
        self._directory.close_clean(self._recovery_points(), self._high_watermarks(), starts)

    def close(self) -> None:
        """Wait for a round that is under way."""
        if self._thread is not None:
            self._thread.join(timeout=10)
