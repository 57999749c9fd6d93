"""Repair damaged batches of one disk's logs in place, with the bytes of another replica (REPAIR).

The replica-fetcher sends the bytes. One repair at a time: a thread reads and compares; the duty
cycle writes, because it knows whether the segment is still the same; the thread syncs. Only whole
batches are written, which are damaged here and below the high watermark. A crash in the middle
leaves a damaged batch, which the scrubber finds again. Indexes are not touched: the scrubber checks
the segment again and has them rebuilt if they are wrong. Weak spot: a file that the disk refuses to
read is not written to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode, OutOfThreads, StorageFailed
from appliance.base.invariants import check
from appliance.base.logging import Logger
from appliance.base.model import NO_OFFSET, Offset
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import KIND, LENGTH, POSITION, ROW, ROW_GENERATION, TOKEN, repair_of
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER
from appliance.storage import file_io
from appliance.storage.batch_repair import RepairPlan, RepairVerdict, SegmentPlace, plan_repair
from appliance.storage.segment_check import DAMAGED_SUFFIX
from appliance.storage.segment_files import LOG_SUFFIX, segment_path
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.completions import Completions
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

Entry = tuple[Any, ...]


class BatchRepairs:
    """`turn` as long as `is_under_way`."""

    def __init__(self, partitions: Replicas, completions: Completions, counters: Counters, log: Logger, disk: str) -> None:
        self._partitions = partitions
        self._completions = completions
        self._log = log
        self._disk = disk
        self._repair: BatchRepair | None = None
        self._batches = counters.counter("log_writer.batches_repaired")

    @property
    def is_under_way(self) -> bool:
        return self._repair is not None

    def take(self, channel: SinkChannel, entry: Entry) -> None:
        """REPAIR.

        Refused with REQUEST_TIMED_OUT if it is to be tried later, with NOT_LEADER_OR_FOLLOWER if
        nothing is committed in such a segment.
        """
        replica = self._partitions.by_row.get(entry[ROW])
        content = channel.slice(entry[POSITION], entry[LENGTH])
        check(len(content) > 0, f"{channel.source} sends a repair without bytes")
        if self._repair is not None or (replica is not None and (replica.is_moving or replica.is_frozen)):
            self._completions.answer(channel, entry, ErrorCode.REQUEST_TIMED_OUT)
            return
        order = repair_of(entry)
        end = (
            None
            if replica is None or entry[ROW_GENERATION] != replica.row_generation or replica.log.failed
            else _committed_end(replica, order.segment_base_offset)
        )
        if replica is None or end is None or order.segment_position >= end[1]:
            self._completions.answer(channel, entry, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        place = SegmentPlace(order.segment_base_offset, order.segment_position, *end)
        self._repair = BatchRepair(channel, entry, replica, place, order.source_id, bytes(content))

    def turn(self) -> None:
        """Go on with what is under way.

        Raises `StorageFailed` for a disk that does not take it; what cannot be read stays as it is.
        """
        repair = self._repair
        if repair is None or not repair.has_finished_step():
            return
        if repair.problem:
            self._end(repair, ErrorCode.KAFKA_STORAGE_ERROR)
            if repair.failure is not None:
                raise repair.failure
        elif repair.plan.verdict != RepairVerdict.REPAIR or repair.is_written:
            self._end(repair, ErrorCode.NONE)
        elif self._partitions.by_row.get(repair.replica.row) is not repair.replica or repair.has_changed:
            self._end(repair, ErrorCode.REQUEST_TIMED_OUT)
        else:
            check(repair.plan.writes[-1].last_offset < repair.replica.high_watermark, f"a repair of {repair.replica.topic_partition} above its high watermark")
            repair.write()

    def _end(self, repair: BatchRepair, code: ErrorCode) -> None:
        self._repair = None
        repair.close()
        name = repair.replica.topic_partition
        where = f"{name} at offset {repair.first_offset}"
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            where = f"{name} in segment {repair.place.base_offset} at byte {repair.place.position}"
            if self._partitions.by_row.get(repair.replica.row) is repair.replica:
                self._log.warning(f"disk {self._disk}: damage in {where} could not be repaired: {repair.problem}", **name._asdict(), disk=self._disk)
        elif repair.is_written:
            count = len(repair.plan.writes)
            self._batches.add(count)
            words = f"disk {self._disk}: {count} damaged {'batch' if count == 1 else 'batches'} of {where} repaired with the copy of broker {repair.source_id}"
            words += repair.evidence
            self._log.notice(words, **name._asdict(), disk=self._disk, peer=f"broker {repair.source_id}")
        if repair.channel is not None:
            entry = repair.entry
            answer = (entry[KIND], 0, code, entry[ROW], entry[TOKEN], repair.first_offset, -1, -1, -1, -1, int(repair.plan.verdict), 0)
            self._completions.add(repair.channel, answer)

    def forget(self, channel: SinkChannel) -> None:
        """Drop the answer for a source that is gone; a repair that was started is finished."""
        if self._repair is not None and self._repair.channel is channel:
            self._repair.channel = None

    def fail(self) -> None:
        """The disk is let go of."""
        if self._repair is not None:
            self._repair.problem = "the disk has failed"
            self._end(self._repair, ErrorCode.KAFKA_STORAGE_ERROR)

    def close(self) -> None:
        """Wait for the thread."""
        repair, self._repair = self._repair, None
        if repair is not None:
            repair.close(10)


class BatchRepair:
    """What was asked, and how far it is."""

    def __init__(self, channel: SinkChannel, entry: Entry, replica: Replica, place: SegmentPlace, source_id: int, copy: bytes) -> None:
        self.channel: SinkChannel | None = channel
        self.entry = entry
        self.replica = replica
        self.place = place
        self.source_id = source_id
        self.plan = RepairPlan(RepairVerdict.SOUND)
        self.problem = ""
        self.failure: StorageFailed | None = None
        """The disk did not take what was written."""
        self.is_written = False
        self.evidence = ""
        """Where the damaged bytes were put, for the message."""
        self._copy = copy
        self._versions = self._log_versions()
        self._fd = -1
        self._is_over = False
        self._path = segment_path(replica.log.directory, place.base_offset, LOG_SUFFIX)
        self._task = self._start("read", self.compare)

    def _log_versions(self) -> tuple[int, int]:
        log = self.replica.log
        return log.truncations, log.replacements

    @property
    def has_changed(self) -> bool:
        """Whether its segment may be another one than was looked at."""
        return self._log_versions() != self._versions or self.place.base_offset not in self.replica.log.segment_base_offsets

    @property
    def first_offset(self) -> Offset:
        return self.plan.writes[0].base_offset if self.plan.writes else NO_OFFSET

    def compare(self) -> None:
        self._fd = file_io.open_path(self._path, file_io.READ_WRITE)
        place = self.place
        own = file_io.pread_wanted(self._fd, place.position, min(len(self._copy), place.end_position - place.position))
        plan = plan_repair(memoryview(self._copy), own, place)
        if plan.writes:
            self._keep_evidence(own[plan.writes[0].start : plan.writes[-1].end], place.position + plan.writes[0].start)
        self.plan = plan

    def _keep_evidence(self, damaged: bytes, position: int) -> None:
        """Copy what is about to be overwritten: it shows what changed it. A full or failing disk does not stop the repair."""
        path = f"{self._path}.{position}{DAMAGED_SUFFIX}"
        try:
            if not file_io.exists(path):
                file_io.replace_file(path, damaged)
            self.evidence = f"; what was there is in {path}"
        except OSError as error:
            self.evidence = f"; what was there could not be kept: {(error.strerror or str(error)).lower()}"

    def write(self) -> None:
        """Into the page cache, here; to the disk in the thread."""
        self.is_written = True
        try:
            for start, end, _, _ in self.plan.writes:
                file_io.write_all(self._fd, (self._copy[start:end],), self.place.position + start, end - start)
        except OSError as error:
            self._fail("write", error)
            return
        self._task = self._start("make durable", lambda: file_io.sync_data(self._fd))

    def has_finished_step(self) -> bool:
        """Whether the thread has ended its step. A step that no thread could be started for was not
        begun, and is started again."""
        if self._task.is_running:
            return False
        if self._task.has_ended:
            failure = self._task.take_failure()
            if isinstance(failure, OutOfThreads):
                self._task.start(self._step)
                return False
            if failure is not None:
                self._fail(self._action, failure)
        return True

    def _start(self, action: str, step: Callable[[], None]) -> BackgroundTask:
        def close_at_the_end() -> None:
            try:
                step()
            finally:
                if self._is_over:
                    file_io.close_all([self._fd])

        self._action, self._step = action, close_at_the_end
        task = BackgroundTask("batch-repair", f"{action} {self._path}")
        task.start(close_at_the_end)
        return task

    def _fail(self, action: str, error: Exception) -> None:
        failure = file_io.storage_failure(f"{action} {self._path}", error) if isinstance(error, OSError) else error
        if not isinstance(failure, StorageFailed):
            failure = StorageFailed(f"could not {action} {self._path}: {type(error).__name__}: {error}")
        self.failure = failure if self.is_written else None
        self.problem = str(failure)

    def close(self, timeout_seconds: float = 0) -> None:
        """While the disk keeps the thread waiting, the descriptor is the thread's to close."""
        if not self._task.join(timeout_seconds):
            self._is_over = True
        elif self._fd >= 0:
            file_io.close_all([self._fd])


def _committed_end(replica: Replica, base_offset: Offset) -> tuple[Offset, int] | None:
    """(offset, position) up to which a segment of its log is committed; None if nothing of it is,
    or there is none.
    """
    sizes = dict(replica.log.segment_sizes)
    if replica.role not in (ROLE_LEADER, ROLE_FOLLOWER) or base_offset not in sizes or replica.high_watermark <= base_offset:
        return None
    end_offset = min((base for base in sizes if base > base_offset), default=replica.log.log_end_offset)
    if replica.high_watermark >= end_offset:
        return end_offset, sizes[base_offset]
    return (replica.high_watermark, replica.watermark_position) if replica.watermark_base_offset == base_offset else None
