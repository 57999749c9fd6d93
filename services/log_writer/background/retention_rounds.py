"""Retention: delete old segments, by each topic's configs and for the disk's reserve of free space.

The duty cycle collects facts, applies plans and publishes rows, in small portions. A thread does what
waits for the disk: timestamps, free space, checkpoint, renames and the removal of files, so that appends
do not wait. The order for every segment, and why:

1. The log start offset goes up in memory and in the row: no reader opens the segment any more.
2. `log-start-offset-checkpoint` is durable: after a power cut the log does not start lower again.
3. Files are renamed to `.deleted`: a start removes them, however far this got.
4. Leader epochs below the start are forgotten: a power cut before step 2 brings the segments back.
5. After a delay, in which readers finish, the files are removed in slices: freeing gigabytes at once
   stalls a disk.

DeleteRecords takes the same way and is answered after step 2. On a full disk, where no checkpoint can be
written, whole segments are removed all the same; in place of step 2 a file `N.start` in the log's directory
shows where it starts. Weak spots: two log directories on one disk each delete for the same reserve; a hung disk keeps
the thread, and nothing is deleted then.

* If all segments are removed, roll first. The producer snapshot at the base of the first remaining segment is durable
  before anything else. Until the checkpoint is written, the removed segments are still flushed with
  the log, because a torn one would end it.
* Crash before the checkpoint: killed: the row has the new start; power cut: the old start and every
  record. After it: segments below the start, indexes without a log, `.deleted` files.
* Repair: open removes segments wholly below the log start offset before it scans anything, but not
  before the snapshot at the new first base is durable. A log that ends below its log start offset
  restarts there, with a snapshot of its producers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from appliance.base.clock import Clock, ClockAgreement
from appliance.base.errors import DiskFull, ErrorCode
from appliance.base.logging import Logger
from appliance.base.model import FIRST_OFFSET, INTERNAL_TOPICS, Offset, TopicPartition
from appliance.base.settings import Box
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.checkpoints import LOG_START_OFFSETS
from appliance.storage.log_damage import LostRange
from appliance.storage.removed_segments import DepartingFiles, RemovedSegments
from appliance.storage.retention import TIMELESS_POLICIES, TOPIC_POLICIES, FreeSpaceReserve, LogFacts, RetentionPlan, SegmentFacts, SegmentTimes, plan_retention
from appliance.storage.segment_files import LOG_SUFFIX, segment_name, segment_path
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

SLICE_LOGS = 64
"""Logs whose facts are collected in one turn."""
APPLY_NS = 1_000_000
"""Time for applying plans in one turn; the one under way is finished."""
DELETE_SLICE_BYTES = 32 << 20
SPACE_NS = 1_000_000_000
SHORT_SPACE_NS = 200_000_000
"""Time between two checks of the free space; and while the reserve is short."""
DAY_MS = 86_400_000
HURRY_MS = 1000
"""When space is short, a file waits no longer than this for its readers."""
TOLD_NS = 600_000_000_000
"""Not more often is the same trouble said again."""


class _Planned(NamedTuple):
    """A plan and what it was made for; it is dropped if the log has other configs by the time it is
    applied.
    """

    replica: Replica
    facts: LogFacts
    plan: RetentionPlan
    delay_ms: int


class _Removal(NamedTuple):
    """Segments that are out of their log and still have their names."""

    replica: Replica
    segments: RemovedSegments
    delay_ms: int


class _Writing:
    """A checkpoint and renames that a thread is busy with.

    The thread takes from `removals` and adds to `renamed`; `waiting` is the loop's.
    """

    def __init__(self, removals: list[_Removal], waiting: list[tuple[Any, Replica]]) -> None:
        self.removals = removals
        self.waiting = waiting
        self.renamed: list[tuple[_Removal, list[str]]] = []
        self.starts: Mapping[TopicPartition, Offset] | None = None
        """The log start offsets that were written."""


class RetentionRounds:
    """What one disk deletes. `on_durable(context, replica, error code)` answers a DeleteRecords."""

    def __init__(
        self,
        partitions: Replicas,
        clock: Clock,
        counters: Counters,
        box: Box,
        log: Logger,
        on_durable: Callable[[Any, Replica, int], None],
    ) -> None:
        self.rows_moved = False
        """Set here and reset by the caller, which wakes the sources that watch rows."""
        directory = self._directory = partitions.directory
        self._partitions = partitions
        self._clock = clock
        self._log = log
        self._on_durable = on_durable
        self._agreement = ClockAgreement(clock)
        self._interval_ns = box.integer("log.retention.check.interval.ms") * 1_000_000
        self._reserve = FreeSpaceReserve(box.integer("log.disk.reserve.bytes"), box.integer("log.disk.reserve.percent"))
        self._next_round_ns = clock.monotonic_ns() + self._interval_ns
        self._next_space_ns = 0
        self._to_examine: list[Replica] = []
        self._reserve_logs: list[tuple[Replica, LogFacts]] = []
        self._reserve_waits: list[Replica] | None = None
        self._planned: deque[_Planned] = deque()
        self.removals: list[_Removal] = []
        self.waiting: list[tuple[Any, Replica]] = []
        self._writing: _Writing | None = None
        """What the thread has of these two lists; the lists themselves are the loop's alone."""
        self._departing = DepartingFiles()
        self._missing_bytes = 0
        self.task = BackgroundTask("retention", f"delete old segments in {directory.path}")
        self._retry_ns = 0
        self._waiting_from_ns = 0
        """When DeleteRecords that wait for a checkpoint are tried again on a full disk; what frees
        space comes first."""
        self._clock_told_ns = self._reserve_told_ns = self._missing_told_ns = -TOLD_NS
        self._without_directory: set[Replica] = set()
        """Logs whose directory was removed beside this process, each reported once."""
        self._rounds = counters.counter("retention.rounds")
        self._held_by_clock = counters.counter("retention.rounds_without_time")
        self._disagreement = counters.gauge("retention.clock_disagreement_ms")
        self._lost_offsets = counters.gauge("log_writer.lost_offsets")
        self._departing_files = counters.gauge("retention.departing_files")
        self._missing = counters.gauge("retention.reserve_missing_bytes")
        self._shortened: dict[TopicPartition, int] = {}
        """Logs of which the reserve took records before their time, and until when (wall ms) they
        are shorter than they should be. Forgotten with the process."""
        self._shortened_partitions = counters.gauge("retention.shortened_partitions")
        self._without_checkpoint = counters.counter("retention.removals_without_checkpoint")
        self._delete_records = counters.counter("retention.delete_records")
        names = [*(policy.name for policy in TOPIC_POLICIES), self._reserve.name]
        self._segments = {name: counters.counter(f'retention.segments{{policy="{name}"}}') for name in names}
        self._bytes = {name: counters.counter(f'retention.bytes{{policy="{name}"}}') for name in names}

    @property
    def goes_on(self) -> bool:
        """Whether something is under way whose next step can be taken now: `turn` then, not in a
        second.
        """
        if self.task.is_started:
            return self.task.has_ended
        is_busy = self._planned or self.removals or self._to_examine or self._reserve_waits is not None
        if not is_busy and not self._departing and not self.waiting and not self._missing_bytes:
            return False
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._retry_ns:
            return False
        if is_busy or self._departing.is_due(now_ns) or (self._missing_bytes and now_ns >= self._next_space_ns):
            return True
        return bool(self.waiting) and now_ns >= self._waiting_from_ns

    @property
    def is_under_way(self) -> bool:
        """Whether the next step comes soon: do not park for long."""
        return self.task.is_started or self.goes_on

    @property
    def trouble(self) -> str:
        """For the status line; empty when all is well."""
        if not self._agreement.holds():
            return "nothing is deleted by time: the clock jumped"
        return f"{self._missing_bytes >> 20} MiB of the free-space reserve are missing" if self._missing_bytes else ""

    def delete_records(self, replica: Replica, offset: Offset, context: Any) -> int:
        """Let the log begin at `offset` (-1: at the high watermark).

        NONE: `on_durable` answers later; any other code is the answer now.
        """
        if not replica.log.config.deletes:
            return ErrorCode.POLICY_VIOLATION
        offset = replica.high_watermark if offset == -1 else offset
        if not 0 <= offset <= replica.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        self._delete_records.add()
        self.advance_start(replica, max(offset, replica.log.log_start_offset), ("log_start_offset",), replica.log.config.file_delete_delay_ms)
        self.waiting.append((context, replica))
        return ErrorCode.NONE

    def follow_start(self, replica: Replica, offset: Offset) -> None:
        """A follower's log begins where its leader's does, as far as its high watermark lets it.

        Raises StorageFailed.
        """
        if offset > replica.log.log_start_offset:
            self.advance_start(replica, offset, ("log_start_offset",), replica.log.config.file_delete_delay_ms)

    def turn(self) -> None:
        """Once a second, and when `goes_on`.

        Raises StorageFailed when the disk fails; DiskFull and OutOfDescriptors for what is tried
        again.
        """
        if self.task.is_running:
            return
        if self.task.has_ended:
            self._take_back_unwritten()
            failure = self.task.take_failure()
            if failure is not None:
                self._retry_ns = self._clock.monotonic_ns() + SPACE_NS
                raise failure
            self.task.finish()
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._retry_ns:
            return
        if self._planned:
            self._apply_some(now_ns)
        elif self.removals or (self.waiting and now_ns >= self._waiting_from_ns):
            self._write_down()
        elif self._reserve_waits is not None:
            self._collect_for_reserve(self._reserve_waits)
        elif self._to_examine:
            self._examine_some()
        elif now_ns >= self._next_space_ns:
            self._next_space_ns = now_ns + (SHORT_SPACE_NS if self._missing_bytes else SPACE_NS)
            self._look_for_space()
        elif self._departing.is_due(now_ns):
            self.task.start(lambda: self._remove_some(now_ns))
        elif now_ns >= self._next_round_ns:
            self._next_round_ns = now_ns + self._interval_ns
            self._begin_round(now_ns)

    # -- by each topic's configs

    def _begin_round(self, now_ns: int) -> None:
        self._rounds.add()
        self._disagreement.set(abs(self._agreement.disagreement_ms()))
        if not self._agreement.holds():
            self._held_by_clock.add()
            if now_ns - self._clock_told_ns >= TOLD_NS:
                self._clock_told_ns = now_ns
                self._log.error(
                    f"nothing is deleted by time: since this process started the wall clock moved {self._agreement.disagreement_ms() // 1000} s "
                    "more than time went by; when the clock is right, restart the log-writer"
                )
        self._to_examine = list(self._partitions.by_row.values())
        self._without_directory.intersection_update(self._to_examine)

    def _examine_some(self) -> None:
        """The next logs: facts here, timestamps and plans in the thread."""
        some, self._to_examine = self._to_examine[:SLICE_LOGS], self._to_examine[SLICE_LOGS:]
        examined = []
        for replica in filter(self._is_here, some):
            log = replica.log
            examined.append((replica, _facts(replica), SegmentTimes(log.directory, log.active_max_timestamp)))
        policies = TOPIC_POLICIES if self._agreement.holds() else TIMELESS_POLICIES
        wall_ms = self._clock.wall_ms()
        generations = {replica: (replica.log.segment_list_generation, replica.log.replacements) for replica, _, _ in examined}

        def examine() -> tuple[list[_Planned], list[tuple[Replica, str]], list[tuple[Replica, list[LostRange] | None]]]:
            planned: list[_Planned] = []
            missing: list[tuple[Replica, str]] = []
            gone: list[tuple[Replica, list[LostRange] | None]] = []
            for replica, facts, times in examined:
                lost = _gone_segments(replica.log.directory, facts)
                gone.append((replica, lost))
                if lost is None:
                    continue
                try:
                    plan = plan_retention(facts, policies, times.largest, wall_ms)
                except FileNotFoundError as error:
                    missing.append((replica, str(error.filename)))  # the loop knows whether it was deleted, or compacted
                    continue
                if plan is not None:
                    planned.append(_Planned(replica, facts, plan, facts.config.file_delete_delay_ms))
            return planned, missing, gone

        def is_unchanged(replica: Replica) -> bool:
            """Whether no segment was deleted or compacted since."""
            return self._is_here(replica) and generations[replica] == (replica.log.segment_list_generation, replica.log.replacements)

        def take(examined: tuple[list[_Planned], list[tuple[Replica, str]], list[tuple[Replica, list[LostRange] | None]]]) -> None:
            planned, missing, gone = examined
            self._planned.extend(planned)
            for replica, lost in gone:
                if lost is None:
                    if is_unchanged(replica):
                        self._tell_without_directory(replica)
                elif (lost or replica.log.damage.noted) and is_unchanged(replica):
                    self._note_gone(replica, lost)
            for replica, path in missing:
                if is_unchanged(replica):
                    self._tell_missing(replica, path)

        self.task.start(examine, take)

    def _note_gone(self, replica: Replica, lost: list[LostRange]) -> None:
        """Report segments whose files were removed beside this process, and write them down: a start
        in the same boot does not look at closed segments. Raises StorageFailed.
        """
        name = replica.topic_partition
        new = replica.log.damage.note(lost)
        if new and replica not in self._partitions.damaged:
            self._partitions.damaged.append(replica)
        for each in new:
            self._lost_offsets.set(self._lost_offsets.value + each.until - each.first)
            path = segment_path(replica.log.directory, each.first, LOG_SUFFIX)
            words = f"log {name} lacks {each.until - each.first} offsets, {each.first} to {each.until - 1}: {path} was removed while the log-writer runs"
            words += "; restart the log-writer: the log is fetched from a replica on another box, or consumers go on behind the offsets"
            self._log.critical(words, **name._asdict())

    def _tell_without_directory(self, replica: Replica) -> None:
        """Its directory was removed, so nothing can be written down."""
        if replica in self._without_directory:
            return
        self._without_directory.add(replica)
        log, name = replica.log, replica.topic_partition
        count = log.log_end_offset - log.log_start_offset
        self._lost_offsets.set(self._lost_offsets.value + count)
        what = f" and all {count} offsets, {log.log_start_offset} to {log.log_end_offset - 1}" if count else ""
        words = f"log {name} lacks its directory{what}: {log.directory} was removed while the log-writer runs; restart the log-writer: the log is fetched"
        words += " from a replica on another box, or begins anew, empty"
        self._log.critical(words, **name._asdict())

    def _tell_missing(self, replica: Replica, path: str) -> None:
        """A file of a log that was neither deleted nor compacted meanwhile: retention cannot tell
        how old its segments are.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._missing_told_ns >= TOLD_NS:
            self._missing_told_ns = now_ns
            name = replica.topic_partition
            words = f"{path} is missing, so nothing of log {name} is deleted by its retention; a restart of the log-writer makes an index anew"
            self._log.error(words, **name._asdict())

    # -- for the disk

    def _look_for_space(self) -> None:
        def compare(space: file_io.Space) -> None:
            self._missing_bytes = self._reserve.missing_bytes(space.total_bytes, space.free_bytes)
            self._missing.set(self._missing_bytes)
            if self._shortened or self._shortened_partitions.value:
                self._count_shortened()
            if self._missing_bytes:
                if self._departing:
                    self._departing.hurry(self._clock.monotonic_ns() + HURRY_MS * 1_000_000)  # that space comes first
                else:
                    self._reserve_logs = []
                    self._reserve_waits = list(self._partitions.by_row.values())

        self.task.start(self._directory.space, compare)

    def _collect_for_reserve(self, waits: list[Replica]) -> None:
        """The facts of some more logs; with all of them, a plan in the thread."""
        for replica in waits[:SLICE_LOGS]:
            if self._is_here(replica) and replica.topic_partition.topic not in INTERNAL_TOPICS:
                self._reserve_logs.append((replica, _facts(replica)))
        del waits[:SLICE_LOGS]
        if waits:
            return
        self._reserve_waits = None
        logs, self._reserve_logs = self._reserve_logs, []
        missing_bytes = self._missing_bytes

        now_ms = self._clock.wall_ms() if self._agreement.holds() else 0

        def plan() -> tuple[dict[int, RetentionPlan], dict[int, int]]:
            times = [SegmentTimes(replica.log.directory, -1) for replica, _ in logs]
            return self._reserve.plan(
                [facts for _, facts in logs],
                missing_bytes,
                lambda place, segment: times[place].largest_if_there(segment),
                lambda place, segment: times[place].appended(segment),
                now_ms,
            )

        def take(planned: tuple[dict[int, RetentionPlan], dict[int, int]]) -> None:
            plans, youngest = planned
            for place, each in plans.items():
                self._note_shortened(*logs[place], youngest[place])
                self._planned.append(_Planned(*logs[place], each, min(HURRY_MS, logs[place][1].config.file_delete_delay_ms)))
            self._tell_reserve(plans, missing_bytes)

        self.task.start(plan, take)

    def _note_shortened(self, replica: Replica, facts: LogFacts, timestamp: int) -> None:
        """The log is shorter than its `retention.ms` asks until that time has passed since the
        youngest record that goes. A log that keeps its records for ever is reported for a day.
        """
        retention_ms = facts.config.retention_ms
        until_ms = timestamp + retention_ms if retention_ms >= 0 else self._clock.wall_ms() + DAY_MS
        self._shortened[replica.topic_partition] = max(until_ms, self._shortened.get(replica.topic_partition, 0))

    def _count_shortened(self) -> None:
        wall_ms = self._clock.wall_ms()
        for name in [name for name, until_ms in self._shortened.items() if until_ms <= wall_ms]:
            del self._shortened[name]
        self._shortened_partitions.set(len(self._shortened))

    def _tell_reserve(self, plans: dict[int, RetentionPlan], missing_bytes: int) -> None:
        now_ns = self._clock.monotonic_ns()
        path = self._directory.path
        if plans:
            segments = sum(plan.reasons[0][1] for plan in plans.values())
            size_bytes = sum(plan.reasons[0][2] for plan in plans.values())
            self._log.warning(
                f"{path} has {missing_bytes >> 20} MiB less free than its reserve (log.disk.reserve.bytes, log.disk.reserve.percent): "
                f"{segments} of the oldest segments of {len(plans)} partitions, {size_bytes >> 20} MiB, are deleted before their time",
                reason=self._reserve.name,
            )
        elif now_ns - self._reserve_told_ns >= TOLD_NS:
            self._reserve_told_ns = now_ns
            words = f"{path} has {missing_bytes >> 20} MiB less free than its reserve, and no closed segment is left that may be deleted"
            self._log.error(f"{words}; others are active or protected (millrace.retention.protected.ms)", reason=self._reserve.name)

    # -- carrying out

    def _apply_some(self, started_ns: int) -> None:
        while self._planned and self._clock.monotonic_ns() - started_ns < APPLY_NS:
            replica, facts, plan, delay_ms = self._planned.popleft()
            log = replica.log
            if not self._is_here(replica) or log.config is not facts.config:
                continue
            end_offset = plan.end_offset
            if plan.rolls:
                if log.log_end_offset == end_offset:
                    log.roll()
                else:  # batches were appended since the plan
                    end_offset = log.active_base_offset
            self.advance_start(
                replica, max(log.log_start_offset, min(end_offset, replica.high_watermark)), tuple(name for name, _, _ in plan.reasons), delay_ms
            )
            for name, segments, size_bytes in plan.reasons:
                self._segments[name].add(segments)
                self._bytes[name].add(size_bytes)

    def advance_start(self, replica: Replica, offset: Offset, reasons: tuple[str, ...], delay_ms: int) -> None:
        before = replica.log.log_start_offset
        if offset == before:
            return
        removed = replica.advance_log_start_offset(offset)
        self.rows_moved = True
        if removed is not None:
            self.removals.append(_Removal(replica, removed, delay_ms))
            self._log.info(
                f"{replica.topic_partition} begins at offset {offset} (was {before}): {len(removed.base_offsets)} segments, {removed.size_bytes} bytes, "
                f"go by {', '.join(reasons)}",
                **replica.topic_partition._asdict(),
                reason=reasons[0],
            )

    def _write_down(self) -> None:
        """Checkpoint, then renames, in the thread; afterwards answers, leader epochs, and the wait
        for the files' end.
        """
        removals, self.removals = self.removals, []
        waiting, self.waiting = self.waiting, []
        begun = list(removals)
        writing = self._writing = _Writing(removals, waiting)

        def write() -> DiskFull | None:
            no_space = None
            try:
                writing.starts = self._directory.checkpoints.save(LOG_START_OFFSETS, self._partitions.log_start_offsets)
            except DiskFull as failure:
                no_space = failure
                self._without_checkpoint.add(len(removals))
            while removals:
                if no_space is not None:
                    removals[0].segments.mark_start()
                writing.renamed.append((removals[0], removals[0].segments.rename()))
                removals.pop(0).segments.close()
            return no_space

        def after(no_space: DiskFull | None) -> None:
            if writing.starts is not None:
                for context, replica in writing.waiting:
                    self._on_durable(context, replica, ErrorCode.NONE)
                for replica, _, _ in begun:
                    if self._is_here(replica):
                        replica.log.forget_removed(writing.starts.get(replica.topic_partition, FIRST_OFFSET))
                        replica.log.truncate_epochs_from_start()
            if no_space is not None:
                self._waiting_from_ns = self._clock.monotonic_ns() + SPACE_NS
                raise no_space

        self.task.start(write, after)

    def _take_back_unwritten(self) -> None:
        """The thread has ended, however: what it did not get to waits for the next one, before what
        came meanwhile.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        now_ns = self._clock.monotonic_ns()
        for removal, paths in writing.renamed:
            self._departing.add(paths, now_ns + removal.delay_ms * 1_000_000, partial(self._is_here, removal.replica))
        self._departing_files.set(len(self._departing))
        self.removals = writing.removals + self.removals
        if writing.starts is None:
            self.waiting = writing.waiting + self.waiting

    def _remove_some(self, now_ns: int) -> None:
        self._departing.remove_some(now_ns, DELETE_SLICE_BYTES)
        self._departing_files.set(len(self._departing))

    def forget(self, is_context: Callable[[Any], bool]) -> None:
        """Drop the answers for a source that is gone."""
        for waiting in (self.waiting, self._writing.waiting if self._writing is not None else []):
            waiting[:] = [(context, replica) for context, replica in waiting if not is_context(context)]

    def fail(self) -> None:
        """Answer all waiting DeleteRecords with an error: the disk is offline."""
        waiting, self.waiting = self.waiting, []
        if self._writing is not None:
            waiting, self._writing.waiting = self._writing.waiting + waiting, []
        for context, replica in waiting:
            self._on_durable(context, replica, ErrorCode.KAFKA_STORAGE_ERROR)

    def close(self) -> None:
        """Wait for what is under way. What is not removed yet is removed at the next start."""
        if not self.task.join(10):
            return
        self._take_back_unwritten()
        for removal in self.removals:
            removal.segments.close()

    def _is_here(self, replica: Replica) -> bool:
        return self._partitions.by_row.get(replica.row) is replica


def _gone_segments(directory: str, facts: LogFacts) -> list[LostRange] | None:
    """Return the offsets of segments whose log file is missing; None if the directory is. Raises
    OSError.
    """
    try:
        names = set(file_io.listdir(directory))
    except FileNotFoundError:
        return None
    gone = [LostRange(each.base_offset, each.end_offset) for each in facts.segments if segment_name(each.base_offset, LOG_SUFFIX) not in names]
    return [each for each in gone if each.until > each.first]  # the active segment may be empty


def _facts(replica: Replica) -> LogFacts:
    log = replica.log
    sizes = log.segment_sizes
    ends = [*(base for base, _ in sizes[1:]), log.log_end_offset]
    last = len(sizes) - 1
    segments = tuple(SegmentFacts(base, end, size_bytes, number == last) for number, ((base, size_bytes), end) in enumerate(zip(sizes, ends, strict=True)))
    return LogFacts(segments, log.log_start_offset, replica.high_watermark, log.config)
