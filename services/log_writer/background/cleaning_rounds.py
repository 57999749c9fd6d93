"""Compaction in the log-writer: choose a log, run a cleaning process, swap in what it has finished.

The duty cycle collects the facts of compacted logs, starts a run, reads its reports, and swaps in
one finished segment a turn (some ten renames). A thread does what waits for the disk: timestamps of
segments, syncs, the checkpoint and the removal of old files.

For each segment: the run has written and synced `.cleaned` files → renames
(`storage/segment_swap.py`) → row. Why renames in the duty cycle: no append or truncation may come
between them. After the last one: directory synced → `cleaner-offset-checkpoint` → old files are
removed in slices after file.delete.delay.ms. The sync comes before the checkpoint, because a power
cut that undid a swap would bring back records that the checkpoint calls clean.

A log whose run fails is left alone until this process starts again, and is counted; a run that
found no space, or was killed, is repeated. Weak spot: one run for a disk, however many logs are
dirty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import DiskFull, OutOfDescriptors, StorageFailed
from appliance.base.logging import Logger
from appliance.base.model import FIRST_OFFSET, Offset, TopicId, TopicPartition
from appliance.base.settings import Box
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.checkpoints import CLEANED, RECOVERY_POINTS
from appliance.storage.cleaned_segment import remove_cleaned
from appliance.storage.cleaning_plan import (
    DONE,
    FAILED,
    NEVER_MS,
    CleanableSegment,
    CleanedGroup,
    CleaningCandidate,
    CleaningJob,
    CleaningPlan,
    RunReport,
    filthiest,
    plan_cleaning,
)
from appliance.storage.partition_directory import PinnedDirectory
from appliance.storage.removed_segments import DepartingFiles
from appliance.storage.retention import lag_times
from appliance.storage.segment_files import CLEANED_SUFFIX
from services.log_writer.background.background_task import BackgroundTask, Result
from services.log_writer.helper_processes import CleaningProcess
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

POLL_NS = 100_000_000
"""Between two polls of a run."""
RETRIES_MAX = 3
"""Runs of one log in a row that may be killed before it is left alone."""
DELETE_SLICE_BYTES = 32 << 20
LogKey = tuple[TopicId, int]


class _Run(NamedTuple):
    """What is under way."""

    replica: Replica
    process: CleaningProcess
    groups: deque[CleanedGroup]
    first_base: Offset
    """Base offset of the oldest segment that it was given."""
    end_offset: Offset
    """Behind the newest."""

    @property
    def was_overtaken(self) -> bool:
        """Whether retention has taken some of the segments that it was given."""
        return self.first_base < self.replica.log.segment_base_offsets[0]


class CleaningRounds:
    """The runs of one disk."""

    def __init__(self, partitions: Replicas, clock: Clock, counters: Counters, box: Box, log: Logger, disk: str) -> None:
        directory = self._directory = partitions.directory
        self._partitions = partitions
        self._clock = clock
        self._log = log
        self._disk = disk
        self._is_enabled = box.flag("log.cleaner.enable")
        self._backoff_ns = box.integer("log.cleaner.backoff.ms") * 1_000_000
        self._buffer_bytes = box.integer("log.cleaner.dedupe.buffer.size")
        self._next_look_ns = clock.monotonic_ns() + self._backoff_ns
        self._next_poll_ns = 0
        self._first_dirty: dict[LogKey, Offset] = {}
        self._uncleanable: dict[LogKey, str] = {}
        self._kills: dict[LogKey, int] = {}
        self._chosen: tuple[Replica, CleaningPlan] | None = None
        self.run: _Run | None = None
        self._is_cut = False
        """Whether the log of the run has lost some of the segments that it was given."""
        self._ending: RunReport | None = None
        self._leaves_some = False
        """Whether the run has segments behind it that are as they were: what is clean ends before
        them, or a key that was deleted could come back there."""
        self._replaced: list[str] = []
        self._departing = DepartingFiles()
        self.task = BackgroundTask("cleaning", f"compact logs in {directory.path}")
        self._runs = counters.counter("cleaner.runs")
        self._failures = counters.counter("cleaner.failures")
        self._uncleanable_logs = counters.gauge("cleaner.uncleanable_logs")
        self._read_bytes = counters.counter("cleaner.read_bytes")
        self._written_bytes = counters.counter("cleaner.written_bytes")
        self._dropped = counters.counter("cleaner.dropped_records")
        self._swaps = counters.counter("cleaner.swapped_segments")
        self._swap_time = counters.histogram("cleaner.swap_us")
        self._running = counters.gauge("cleaner.running")

    @property
    def goes_on(self) -> bool:
        """Whether the next step can be taken now: `turn` then, not in a second."""
        if self.task.is_started:
            return self.task.has_ended
        if self.run is not None:
            return bool(self.run.groups) or self._ending is not None or self._clock.monotonic_ns() >= self._next_poll_ns
        return self._chosen is not None or (self._is_enabled and self._clock.monotonic_ns() >= self._next_look_ns)

    @property
    def has_swaps(self) -> bool:
        """Whether compacted segments wait to be swapped in, one a turn."""
        return self.run is not None and bool(self.run.groups)

    @property
    def trouble(self) -> str:
        """For the status line; empty when all is well."""
        return f"{len(self._uncleanable)} logs cannot be compacted" if self._uncleanable else ""

    def on_truncated(self, replica: Replica) -> None:
        """A log was cut: what lies behind its end will be other records, under the same names
        perhaps.
        """
        key = _key(replica)
        self._first_dirty[key] = min(self._first_dirty_of(replica), replica.log.log_end_offset)
        if self._chosen is not None and self._chosen[0] is replica:
            self._chosen = None
        if self.run is not None and self.run.replica is replica and replica.log.log_end_offset < self.run.end_offset:
            self._is_cut = True

    def turn(self) -> None:
        """Once a second, and when `goes_on`.

        Raises StorageFailed when the disk fails, DiskFull for what is tried again.
        """
        if self.task.is_running:
            return
        if self.task.has_ended:
            self.task.finish()
            return
        now_ns = self._clock.monotonic_ns()
        if self.run is not None:
            self._go_on(self.run, now_ns)
        elif self._chosen is not None:
            chosen, self._chosen = self._chosen, None
            self._start(*chosen)
        elif self._departing and self._departing.is_due(now_ns):
            self._run_in_thread(lambda: self._departing.remove_some(now_ns, DELETE_SLICE_BYTES))
        elif self._is_enabled and now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + self._backoff_ns
            self.look()

    # -- which log

    def look(self) -> None:
        candidates = [
            (replica, self._candidate(replica))
            for replica in self._partitions.by_row.values()
            if replica.log.config.is_compacted
            and not replica.is_moving
            and replica.log.failed is None
            and _key(replica) not in self._uncleanable
            and len(replica.log.segment_sizes) > 1
        ]
        if not candidates:
            return
        now_ms = self._clock.wall_ms()

        def choose() -> tuple[Replica, CleaningPlan] | None:
            plans = []
            for number, (replica, candidate) in enumerate(candidates):
                try:
                    plan = plan_cleaning(_with_times(replica.log.directory, candidate), now_ms)
                except FileNotFoundError:
                    continue  # its topic was deleted, or retention was faster
                if plan is not None:
                    plans.append((number, plan))
            best = filthiest(plans)
            return None if best is None else (candidates[best[0]][0], best[1])

        def take(chosen: tuple[Replica, CleaningPlan] | None) -> None:
            self._chosen = chosen

        self._run_in_thread(choose, take)

    def _candidate(self, replica: Replica) -> CleaningCandidate:
        log = replica.log
        sizes = log.segment_sizes
        segments = tuple(CleanableSegment(base, sizes[number + 1][0], size_bytes) for number, (base, size_bytes) in enumerate(sizes[:-1]))
        saved = self._directory.checkpoints.lines[RECOVERY_POINTS].get(replica.topic_partition, FIRST_OFFSET)
        stable = log.producers.last_stable_offset(replica.high_watermark)
        uncleanable = min(log.active_base_offset, stable, log.recovery_point, saved)
        return CleaningCandidate(segments, self._first_dirty_of(replica), uncleanable, log.config)

    def _first_dirty_of(self, replica: Replica) -> Offset:
        """Of this log, not of one that had its name before; an offset that the log does not reach
        was some other log's.
        """
        key = _key(replica)
        if key not in self._first_dirty:
            self._first_dirty[key] = self._directory.checkpoints.lines[CLEANED].get(replica.topic_partition, FIRST_OFFSET)
        if self._first_dirty[key] > replica.log.log_end_offset:
            self._first_dirty[key] = FIRST_OFFSET
        return self._first_dirty[key]

    # -- a run

    def _start(self, replica: Replica, plan: CleaningPlan) -> None:
        log = replica.log
        bases = [segment.base_offset for segment in plan.segments if segment.end_offset > log.log_start_offset]
        if not self._is_here(replica) or replica.is_moving or not bases or not log.can_replace(bases):
            return
        config = log.config
        job = CleaningJob(
            log.directory,
            [(segment.base_offset, segment.end_offset) for segment in plan.segments if segment.base_offset >= bases[0]],
            max(plan.first_dirty_offset, bases[0]),
            self._clock.wall_ms(),
            config.delete_retention_ms,
            config.segment_bytes,
            config.segment_index_bytes,
            config.index_interval_bytes,
            self._buffer_bytes,
            log.producers.last_batches(),
        )
        try:
            process = CleaningProcess(job, self._disk)
        except OSError as error:
            self._failures.add()
            words = f"a cleaning run for {replica.topic_partition} could not be started: {(error.strerror or str(error)).lower()}; it is tried again"
            self._log.error(words, **replica.topic_partition._asdict(), disk=self._disk)
            return
        self._runs.add()
        self._running.set(1)
        self._leaves_some = False
        self.run = _Run(replica, process, deque(), bases[0], plan.segments[-1].end_offset)

    def _go_on(self, run: _Run, now_ns: int) -> None:
        if not self._is_here(run.replica) or run.replica.is_moving or run.replica.log.failed is not None or self._is_cut:
            self._end(run)
            return
        if run.groups:
            self._swap(run, run.groups.popleft())
            return
        if self._ending is not None:
            self._finish(run, self._ending)
            return
        self._next_poll_ns = now_ns + POLL_NS
        for report in run.process.poll():
            if report.group is not None and report.group.is_changed:
                run.groups.append(report.group)
            elif report.kind in (DONE, FAILED):
                self._ending = report
        if run.process.status is not None and self._ending is None:
            self._on_killed(run)

    def _swap(self, run: _Run, group: CleanedGroup) -> None:
        log = run.replica.log
        started_ns = self._clock.monotonic_ns()
        if not log.can_replace(group.bases):  # retention was faster
            self._leaves_some = self._leaves_some or any(base in group.bases for base in log.segment_base_offsets)
            directory, base = log.directory, group.bases[0]
            self._run_in_thread(lambda: remove_cleaned(directory, base))
            return
        try:
            self._replaced += log.replace_segments(group.bases, group.size_bytes)
        except StorageFailed:
            self._end(run)
            raise
        run.replica.publish()
        self._swaps.add()
        self._swap_time.record(self._clock.monotonic_ns() - started_ns)

    def _on_killed(self, run: _Run) -> None:
        """Handle a run that ended without its last report: it was killed, perhaps for want of
        memory.
        """
        self._failures.add()
        key = _key(run.replica)
        self._kills[key] = self._kills.get(key, 0) + 1
        why = f"the cleaning run of {run.replica.topic_partition} ended with {run.process.status}"
        if self._kills[key] >= RETRIES_MAX:
            self._give_up(run.replica, why)
        else:
            self._log.warning(f"{why}; it is tried again", **run.replica.topic_partition._asdict(), disk=self._disk)
        self._end(run)

    def _finish(self, run: _Run, report: RunReport) -> None:
        key = _key(run.replica)
        self._kills.pop(key, None)
        if report.kind == FAILED and not report.is_full and run.was_overtaken:
            self._log.info(f"retention was faster than the cleaning run of {run.replica.topic_partition}; it is tried again", disk=self._disk)
        elif report.kind == FAILED:
            self._failures.add()
            if report.is_full:
                self._log.warning(f"{report.reason}; it is tried again", **run.replica.topic_partition._asdict(), disk=self._disk)
            else:
                self._give_up(run.replica, report.reason)
        else:
            figures = report.figures
            if not self._leaves_some:
                self._first_dirty[key] = report.end_offset
            self._read_bytes.add(figures.read_bytes)
            self._written_bytes.add(figures.written_bytes)
            self._dropped.add(figures.records_read - figures.records_kept)
        self._end(run)

    def _give_up(self, replica: Replica, reason: str) -> None:
        self._uncleanable[_key(replica)] = reason
        self._uncleanable_logs.set(len(self._uncleanable))
        words = f"log {replica.topic_partition} is not compacted any more until this process starts again: {reason}"
        self._log.error(words, **replica.topic_partition._asdict(), disk=self._disk)

    def _end(self, run: _Run) -> None:
        """The process is gone; what was swapped in becomes durable, what was not is removed, and
        the old files go when their delay is over.
        """
        run.process.close()
        self.run = self._ending = None
        self._is_cut = False
        self._running.set(0)
        if not self._is_here(run.replica):
            self._replaced.clear()
            return
        replaced, self._replaced = self._replaced, []
        log = run.replica.log
        due_ns = self._clock.monotonic_ns() + log.config.file_delete_delay_ms * 1_000_000
        is_here = partial(self._is_here, run.replica)

        def settle() -> bool:
            is_found = True
            try:
                directory = PinnedDirectory(log.directory)
            except FileNotFoundError:
                is_found = False
            else:
                try:
                    if is_here():  # what has that name now is this log's
                        _settle(directory, bool(replaced))
                finally:
                    directory.close()
            self._directory.checkpoints.save(CLEANED, self._offsets)
            return is_found

        def take(is_found: bool | None) -> None:
            if not is_here():
                return
            if is_found is False:
                raise StorageFailed(f"could not compact log {log.topic_partition}: {log.directory} is not there")
            self._departing.add(replaced, due_ns, is_here)

        self._run_in_thread(settle, take)

    def _offsets(self) -> dict[TopicPartition, Offset]:
        """Return the first dirty offset of each log that has one, for the checkpoint; for any
        thread.
        """
        saved, offsets = self._directory.checkpoints.lines[CLEANED], {}
        for replica in list(self._partitions.by_row.values()):
            offset = self._first_dirty.get(_key(replica), saved.get(replica.topic_partition, FIRST_OFFSET))
            if offset:
                offsets[replica.topic_partition] = offset
        return offsets

    def _is_here(self, replica: Replica) -> bool:
        return self._partitions.by_row.get(replica.row) is replica

    def _run_in_thread(self, work: Callable[[], Result], then: Callable[[Result | None], object] | None = None) -> None:
        def unless_deleted() -> Result | None:
            try:
                return work()
            except FileNotFoundError:  # the partition was deleted, or retention was faster; the next round reads what is there
                return None

        self.task.start(unless_deleted, then)

    def close(self) -> None:
        """End a run that is under way, wait for the thread.

        What was swapped in stays; the rest is swept at the next start. Raises StorageFailed.
        """
        if self.run is not None:
            self.run.process.close()
            self.run = None
        failure = self.task.take_failure() if self.task.join(10) and self.task.has_ended else None
        if failure is not None and not isinstance(failure, DiskFull | OutOfDescriptors):
            raise failure


def _settle(directory: PinnedDirectory, has_swapped: bool) -> None:
    """Remove what was not swapped in, make durable what was. Raises OSError."""
    for name in file_io.listdir(directory.path):
        if name.endswith(CLEANED_SUFFIX):
            file_io.unlink_in(directory.fd, name)
    if has_swapped:
        directory.sync()


def _key(replica: Replica) -> LogKey:
    return replica.topic_id, replica.topic_partition.partition


def _with_times(directory: str, candidate: CleaningCandidate) -> CleaningCandidate:
    """Timestamps are read only where a lag asks for them, and only of what is dirty."""
    config = candidate.config
    if not config.min_compaction_lag_ms and config.max_compaction_lag_ms == NEVER_MS:
        return candidate
    segments = []
    for segment in candidate.segments:
        if candidate.first_dirty_offset < segment.end_offset <= candidate.first_uncleanable_offset:
            first, largest = lag_times(directory, segment.base_offset)
            segment = segment._replace(first_timestamp=first, largest_timestamp=largest)
        segments.append(segment)
    return candidate._replace(segments=tuple(segments))
