"""Partitions that are being moved to this disk: their copies, the mover, and the promotion.

The target's part of a move. The log-writer of the target never touches the source's disk and waits
for nothing: the mover copies (`services/log_writer/mover/agent.py`), and a killed mover is left to
the kernel. A partition without records needs none: its row in shared memory says so. A copy that
fails goes to the end of the queue and is tried again later; what was copied is kept. FINISH is
answered when the mover has recorded that the copy is complete, or at its deadline. Weak spot: a copy
that is caught up occupies the only mover until it is handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import DiskFull, ErrorCode, OutOfDescriptors, StorageFailed
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.model import FIRST_OFFSET, NO_OFFSET, TopicId, TopicPartition
from appliance.base.settings import Box
from appliance.ipc import disk_reports
from appliance.ipc.disk_reports import MoveProgress, moves_file, write_moves
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from appliance.storage import future_directories
from appliance.storage.checkpoints import CLEANED
from appliance.storage.future_directories import FutureDirectories, FutureLog
from appliance.storage.move_record import COMPLETE, FAILED, FINISH, PROGRESS, THROTTLE, Complete, MoveCommand, MoveJob, MoveRecord, MoveSaid
from appliance.storage.recovery import CLEAN
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.helper_processes import MoverProcess
from services.log_writer.mover.agent import MovingSource
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

REPORT_NS = 500_000_000
RETRY_NS_FIRST = 1_000_000_000
RETRY_NS_MAX = 60_000_000_000
SETTLE_RETRY_NS = 5_000_000_000
THROTTLE_SETTING = "replica.alter.log.dirs.io.max.bytes.per.second"
LOOK_AGAIN_NS = 1_000_000_000
_UNKNOWN = NO_OFFSET
_NO_RECORDS = Complete(FIRST_OFFSET, FIRST_OFFSET, FIRST_OFFSET)
Key = tuple[TopicId, int]


class _Finish(NamedTuple):
    """A FINISH that waits for a copy to be complete at `wanted`."""

    context: Any
    wanted: Complete
    deadline_ns: int


class Incoming:
    """One copy that was ordered."""

    __slots__ = ("bytes_per_second", "config", "failures", "finish", "furthest", "future", "not_before_ns", "reason", "said", "source_path", "state")

    def __init__(self, future: FutureLog, source_path: str, bytes_per_second: int, config: dict[str, str]) -> None:
        self.future = future
        self.source_path = source_path
        self.bytes_per_second = bytes_per_second
        self.config = config
        self.finish: _Finish | None = None
        self.state = disk_reports.COMPLETE if future.complete else disk_reports.WAITING
        self.reason = ""
        self.said = MoveSaid(PROGRESS, log_end_offset=future.complete.log_end_offset if future.complete else _UNKNOWN)
        self.failures = 0
        """In a row, without coming any further."""
        self.furthest = _UNKNOWN
        self.not_before_ns = 0

    @property
    def is_untouched(self) -> bool:
        """True while no mover has written to the copy."""
        return self.future.complete is None and self.furthest == _UNKNOWN and not self.failures

    @property
    def key(self) -> Key:
        return self.future.topic_id, self.future.topic_partition.partition

    def progress(self, disk: str) -> MoveProgress:
        name, said, record = self.future.topic_partition, self.said, self.future.record
        return MoveProgress(
            name.topic,
            name.partition,
            str(self.future.topic_id),
            record.source_disk,
            disk,
            self.state,
            said.log_end_offset,
            said.size_bytes,
            said.source_log_end_offset,
            said.lag_bytes,
            said.bytes_per_second,
            self.reason or said.reason,
        )


class IncomingMoves:
    """`on_finished(context, error code)` answers a FINISH."""

    def __init__(
        self,
        partitions: Replicas,
        clock: Clock,
        counters: Counters,
        box: Box,
        layout: BoxLayout,
        disk: str,
        poller: Poller,
        log: Logger,
        on_finished: Callable[[Any, int], None],
    ) -> None:
        directory = self._directory = partitions.directory
        self._partitions = partitions
        self._clock = clock
        self._layout = layout
        self._disk = disk
        self._poller = poller
        self._log = log
        self._on_finished = on_finished
        self.futures = FutureDirectories(directory)
        self._deadline_ms = box.integer("log.disk.deadline.ms")
        self._bytes_per_second = box.integer(THROTTLE_SETTING)
        self._reserve = box.integer("log.disk.reserve.bytes"), box.integer("log.disk.reserve.percent")
        self._queue: list[Incoming] = []
        """In the order of their turns; the one that has its turn is among them."""
        self.run: tuple[Incoming, MoverProcess] | None = None
        self._dying: list[MoverProcess] = []
        self._has_news = False
        self._report_path = moves_file(layout, disk)
        self._report_due = False
        self._next_report_ns = 0
        self.unsettled: list[Replica] = []
        self._settle_ns = 0
        self.task = BackgroundTask("settle-moves", f"settle moved logs in {directory.path}")
        self._settled: list[Replica] = []
        self._missing: list[Replica] = []
        """Of those, whose directory the thread did not find."""
        self._begun = counters.counter("moves.begun")
        self._failures = counters.counter("moves.failures")
        self._promoted = counters.counter("moves.promoted")
        self._copying = counters.gauge("moves.copying")

    def open(self, promoted: list[Replica]) -> None:
        """At the end of the start: describe the copies that are here.

        `promoted` still have the record of their move in them. Raises StorageFailed.
        """
        self.futures.load()
        self.unsettled += promoted
        self._report_due = True

    # -- commands

    def begin(self, topic_partition: TopicPartition, topic_id: TopicId, command: dict[str, Any]) -> int:
        """Make or find the copy, and queue it.

        Again: the throttle may be another one. Raises StorageFailed, but want of space is an
        answer.
        """
        throttle = command.get("throttle")
        bytes_per_second = self._bytes_per_second if throttle is None or throttle <= 0 else min(self._bytes_per_second, int(throttle))
        if self._partitions.find(topic_id, topic_partition.partition) is not None or self._directory.holds(topic_partition):
            return ErrorCode.INCONSISTENT_TOPIC_ID  # nothing can be promoted to a name that is taken
        if not self._partitions.table.free_rows:
            return ErrorCode.POLICY_VIOLATION
        incoming = self._find((topic_id, topic_partition.partition))
        if incoming is None:
            record = MoveRecord(topic_partition.topic, topic_partition.partition, command["source_disk"], command.get("source_directory_id", ""), _UNKNOWN)
            former = self.futures.find(topic_id, topic_partition.partition)
            if former is not None and former.complete is None and former.record.source_directory_id != record.source_directory_id:
                self.futures.remove(former)  # of another directory, where it has not lain for some time
            try:
                future = self.futures.make(topic_id, record)
            except DiskFull as failure:
                self._log.warning(f"{topic_partition} cannot begin to move to disk {self._disk}: {failure}", **topic_partition._asdict(), disk=self._disk)
                return ErrorCode.KAFKA_STORAGE_ERROR
            self._queue.append(Incoming(future, command["source_path"], bytes_per_second, command.get("config", {})))
            self._begun.add()
        else:
            incoming.not_before_ns = 0
            incoming.source_path = command["source_path"]
            if incoming.bytes_per_second != bytes_per_second:
                incoming.bytes_per_second = bytes_per_second
                if self.run is not None and self.run[0] is incoming:
                    self.run[1].order(MoveCommand(THROTTLE, bytes_per_second=bytes_per_second))
        self._report_due = self._has_news = True
        return ErrorCode.NONE

    def finish(self, topic_partition: TopicPartition, topic_id: TopicId, wanted: Complete, deadline_ms: int | None, context: Any) -> int | None:
        """Complete the copy at `wanted`. None: `on_finished` answers later."""
        incoming = self._find((topic_id, topic_partition.partition))
        if incoming is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if incoming.future.complete == wanted and incoming.state == disk_reports.COMPLETE:
            return ErrorCode.NONE
        self._answer(incoming, ErrorCode.REQUEST_TIMED_OUT)
        if wanted == _NO_RECORDS and incoming.is_untouched and (self.run is None or self.run[0] is not incoming):
            incoming.future = self.futures.complete_empty(incoming.future, wanted)
            incoming.state, self._report_due = disk_reports.COMPLETE, True
            return ErrorCode.NONE
        incoming.finish = _Finish(context, wanted, self._clock.monotonic_ns() + (deadline_ms or self._deadline_ms) * 1_000_000)
        incoming.not_before_ns = 0
        if self.run is not None and self.run[0] is incoming:
            if not self.run[1].order(MoveCommand(FINISH, wanted)):
                self._stop_run()
        elif self.run is not None and self.run[0].finish is None:
            self._stop_run()  # that one can wait, here a partition is frozen
        self._has_news = True
        return None

    def promote(self, topic_partition: TopicPartition, topic_id: TopicId, config: dict[str, str]) -> int:
        """Let the complete copy be the partition, with a row and without a role.

        Durable when this returns; again is success. Raises StorageFailed.
        """
        if self._partitions.find(topic_id, topic_partition.partition) is not None:
            return ErrorCode.NONE
        future = self.futures.find(topic_id, topic_partition.partition)
        # One that has its name already, and could not be opened then: there was no descriptor for it.
        renamed = self.futures.find_promoted(topic_partition, topic_id) if future is None else None
        found = future or renamed
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found.complete is None:
            return ErrorCode.INVALID_REQUEST
        if future is not None and self._directory.holds(topic_partition):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if not self._partitions.table.free_rows:
            return ErrorCode.POLICY_VIOLATION
        self._drop((topic_id, topic_partition.partition))
        if future is not None:
            self.futures.promote(future)
        self._host(found, found.complete, config)
        return ErrorCode.NONE

    def _host(self, future: FutureLog, complete: Complete, config: dict[str, str]) -> None:
        name = future.topic_partition
        if future.record.source_cleaned_offset > 0:
            self._directory.checkpoints.raise_to(name, {CLEANED: future.record.source_cleaned_offset})
        replica = self._partitions.open(name, future.topic_id, config, CLEAN, complete.log_start_offset, complete.high_watermark)
        if replica.log.log_end_offset != complete.log_end_offset:
            replica.needs_epoch_bump = True
            words = f"the copy of {name} ends at offset {replica.log.log_end_offset}, it was complete at {complete.log_end_offset}"
            self._log.critical(words, **name._asdict(), disk=self._disk)
        replica.log.producers.remember_earlier(future.record.recent_batches)
        self.unsettled.append(replica)
        self._settle_ns = 0
        self._promoted.add()
        self._log.info(
            f"{name} has come from disk {future.record.source_disk}, it ends at offset {replica.log.log_end_offset}", **name._asdict(), disk=self._disk
        )

    def cancel(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Stop the mover, give up the copy; its files go in slices. Raises StorageFailed."""
        key = topic_id, topic_partition.partition
        self._drop(key)
        future = self.futures.find(*key)
        if future is not None:
            self.futures.remove(future)
            self._log.info(f"the copy of {topic_partition} on disk {self._disk} is given up", **topic_partition._asdict(), disk=self._disk)

    def describe(self) -> list[list[Any]]:
        """What WELCOME says: copies, and where those end that are complete."""
        return [
            [future.topic_partition.topic, future.topic_partition.partition, str(future.topic_id), future.complete and future.complete.log_end_offset]
            for future in self.futures.futures.values()
        ]

    def forget(self, is_context: Callable[[Any], bool]) -> None:
        """Drop the answers for a source that is gone. Its FINISH stays in force until another order
        replaces it, or until the partition leads again on its old disk."""
        for incoming in self._queue:
            if incoming.finish is not None and is_context(incoming.finish.context):
                incoming.finish = None

    # -- turns

    @property
    def goes_on(self) -> bool:
        """Whether there is something to do now: `turn` then, not in a second."""
        if self.task.is_started and self.task.has_ended:
            return True
        return self._has_news or (self._report_due and self._clock.monotonic_ns() >= self._next_report_ns)

    def turn(self) -> None:
        """Once a second, and when `goes_on`. Raises StorageFailed."""
        now_ns = self._clock.monotonic_ns()
        self._has_news = False
        self._dying = [process for process in self._dying if not process.is_gone()]
        if self.run is not None:
            self._hear(*self.run)
        for incoming in self._queue:
            if incoming.finish is not None and now_ns >= incoming.finish.deadline_ns:
                self._give_up_finish(incoming)
        if self.run is None and not self._dying:
            self._start_next(now_ns)
        if self._report_due and now_ns >= self._next_report_ns:
            self._report(now_ns)
        self.settle(now_ns)

    def _hear(self, incoming: Incoming, process: MoverProcess) -> None:
        for said in process.poll():
            self._report_due = True
            if said.kind == FAILED:
                self._on_failed(incoming, said.reason)
                return
            if said.kind == COMPLETE or incoming.state == disk_reports.COMPLETE:
                incoming.future = self.futures.look_again(incoming.future)
            incoming.said, incoming.reason = said, ""
            if said.log_end_offset > incoming.furthest:
                incoming.furthest, incoming.failures = said.log_end_offset, 0
            before = incoming.state
            if incoming.future.complete is not None:
                incoming.state = disk_reports.COMPLETE
                if incoming.finish is not None and incoming.finish.wanted == incoming.future.complete:
                    self._answer(incoming, ErrorCode.NONE)
            else:
                incoming.state = disk_reports.CAUGHT_UP if said.is_caught_up else disk_reports.COPYING
            if incoming.state != before:
                self._next_report_ns = 0
        if process.has_ended:
            self._on_failed(incoming, "its mover died")

    def _on_failed(self, incoming: Incoming, reason: str) -> None:
        self._stop_run()
        self._failures.add()
        name = incoming.future.topic_partition
        self._log.warning(f"{name} could not be copied to disk {self._disk}: {reason}; it is tried again", **name._asdict(), disk=self._disk)
        incoming.future = self.futures.look_again(incoming.future)
        incoming.state, incoming.reason = disk_reports.FAILED, reason
        incoming.not_before_ns = self._clock.monotonic_ns() + min(RETRY_NS_MAX, RETRY_NS_FIRST << min(incoming.failures, 16))
        incoming.failures += 1
        self._queue.remove(incoming)
        self._queue.append(incoming)
        self._next_report_ns = 0
        self._answer(incoming, ErrorCode.KAFKA_STORAGE_ERROR)

    def _give_up_finish(self, incoming: Incoming) -> None:
        """The mover goes on as before; should it be complete already, it takes that back when the
        source leads again.
        """
        self._answer(incoming, ErrorCode.REQUEST_TIMED_OUT)
        if self.run is not None and self.run[0] is incoming:
            self.run[1].order(MoveCommand(FINISH))

    def _start_next(self, now_ns: int) -> None:
        ready = [incoming for incoming in self._queue if now_ns >= incoming.not_before_ns]
        if not ready:
            return
        incoming = next((each for each in ready if each.finish is not None), ready[0])
        future = incoming.future
        if incoming.finish is None and incoming.is_untouched and self._is_source_empty(future):
            incoming.state, incoming.reason, incoming.not_before_ns = disk_reports.CAUGHT_UP, "", now_ns + LOOK_AGAIN_NS
            incoming.said = MoveSaid(PROGRESS, True, FIRST_OFFSET, 0, FIRST_OFFSET, 0)
            self._report_due = self._has_news = True
            self._next_report_ns = 0
            return
        job = MoveJob(
            self._disk,
            self._layout.runtime_directory,
            future.path,
            future.record.source_disk,
            incoming.source_path,
            str(future.topic_id),
            future.topic_partition.partition,
            incoming.config,
            incoming.bytes_per_second,
            *self._reserve,
            incoming.finish and incoming.finish.wanted,
        )
        try:
            process = MoverProcess(job, self._poller, self._on_news)
        except OSError as error:
            incoming.not_before_ns = now_ns + RETRY_NS_MAX
            incoming.state, incoming.reason = disk_reports.FAILED, f"its mover could not be started: {(error.strerror or str(error)).lower()}"
            self._failures.add()
            name = future.topic_partition
            self._log.error(f"{name} could not be copied to disk {self._disk}: {incoming.reason}; it is tried again", **name._asdict(), disk=self._disk)
        else:
            self.run = incoming, process
            self._copying.set(1)
            if incoming.state != disk_reports.COMPLETE:
                incoming.state, incoming.reason = disk_reports.COPYING, ""
        self._report_due = True

    def _is_source_empty(self, future: FutureLog) -> bool:
        """Return whether the partition has had no record yet, as its log-writer's row says."""
        source = MovingSource(self._layout, future.record.source_disk, future.topic_id, future.topic_partition.partition, self._clock)
        try:
            state = source.look()
        finally:
            source.close()
        return state is not None and state.is_led and state.log_end_offset == FIRST_OFFSET

    def _on_news(self) -> None:
        self._has_news = True

    def _find(self, key: Key) -> Incoming | None:
        return next((incoming for incoming in self._queue if incoming.key == key), None)

    def _drop(self, key: Key) -> None:
        incoming = self._find(key)
        if incoming is None:
            return
        if self.run is not None and self.run[0] is incoming:
            self._stop_run()
        self._queue.remove(incoming)
        self._answer(incoming, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._report_due = self._has_news = True
        self._next_report_ns = 0

    def _stop_run(self) -> None:
        if self.run is None:
            return
        incoming, process = self.run
        self.run = None
        self._copying.set(0)
        process.kill()
        if not process.is_gone():
            self._dying.append(process)
        if incoming.state in (disk_reports.COPYING, disk_reports.CAUGHT_UP):
            incoming.state = disk_reports.WAITING
        self._report_due = self._has_news = True

    def _answer(self, incoming: Incoming, code: int) -> None:
        finish, incoming.finish = incoming.finish, None
        if finish is not None:
            self._on_finished(finish.context, code)

    def _report(self, now_ns: int) -> None:
        self._report_due = False
        self._next_report_ns = now_ns + REPORT_NS
        try:
            write_moves(self._report_path, (incoming.progress(self._disk) for incoming in self._queue))
        except OSError as error:  # tmpfs is full, or gone; no log depends on it
            self._log.warning(f"could not write {self._report_path}: {(error.strerror or str(error)).lower()}", disk=self._disk)

    # -- after a promotion

    def settle(self, now_ns: int) -> None:
        """Checkpoints, then the records of promoted logs go, in a thread."""
        if self.task.is_running:
            return
        if self.task.has_ended:
            failure = self.task.take_failure()
            settled, self._settled = self._settled, []
            missing, self._missing = self._missing, []
            if isinstance(failure, DiskFull | OutOfDescriptors):
                self._settle_ns = now_ns + SETTLE_RETRY_NS
                self.unsettled += settled
            if failure is not None and not isinstance(failure, DiskFull):
                raise failure
            lost = next((replica for replica in missing if self._is_here(replica)), None)
            if lost is not None:
                raise StorageFailed(f"could not settle moved log {lost.topic_partition}: {lost.log.directory} is not there")
        if not self.unsettled or now_ns < self._settle_ns:
            return
        settling = self._settled = [replica for replica in self.unsettled if self._is_here(replica)]
        self.unsettled = []

        def settle() -> None:
            self._partitions.save_checkpoints()
            for replica in settling:
                try:
                    future_directories.settle(replica.log.directory, partial(self._is_here, replica))
                except FileNotFoundError:
                    self._missing.append(replica)  # the duty cycle knows whether it was deleted

        self.task.start(settle)

    def _is_here(self, replica: Replica) -> bool:
        return self._partitions.by_row.get(replica.row) is replica

    # -- ends

    def fail(self) -> None:
        """Answer all waiting FINISH orders with an error: the disk is offline, and not touched any
        more.
        """
        self._stop_run()
        for incoming in self._queue:
            incoming.state, incoming.reason = disk_reports.FAILED, f"disk {self._disk} is offline"
            self._answer(incoming, ErrorCode.KAFKA_STORAGE_ERROR)
        self._report(self._clock.monotonic_ns())

    def close(self) -> None:
        """End the mover; the next incarnation continues its copy."""
        self._stop_run()
        self.task.join(10)
