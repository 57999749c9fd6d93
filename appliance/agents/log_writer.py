"""The log-writer: alone owns every file of one log directory, its partition table, and the high watermarks of the partitions on it.

Starting, it opens the directory, recovers one log a turn, and only then listens. One turn of serving: take all descriptors that are there
(bounded), group produces by partition, one write a partition, rows, then one burst of completions a source. Commands come after that, for a few
milliseconds a turn: creating a thousand partitions must not make producers wait. When its directory fails it says so in the table and refuses
everything; when it is full it refuses what writes until there is room; nobody else notices. No asyncio, no numpy, no client socket.
Weak spot: a turn waits for its own disk whenever the kernel makes a write to the page cache wait.
"""

from __future__ import annotations

import select
from collections import deque
from typing import Any

from appliance.agents.batch_flushes import BatchFlushes
from appliance.agents.cleaning_rounds import CleaningRounds
from appliance.agents.disk_fences import DiskFences
from appliance.agents.disk_probe import DiskProbe
from appliance.agents.disk_return import ATTEMPTS_LABEL, WELL_NS, DiskReturn
from appliance.agents.end_markers import marker_batch
from appliance.agents.flush_rounds import FlushRounds
from appliance.agents.held_acknowledgements import HeldAcknowledgements
from appliance.agents.hosted_partition import FLUSH_BEFORE_ACKNOWLEDGEMENT, HostedPartition
from appliance.agents.incoming_moves import IncomingMoves
from appliance.agents.index_repairs import IndexRepairs
from appliance.agents.log_writer_commands import LogWriterCommands
from appliance.agents.log_writer_startup import LogWriterStartup
from appliance.agents.outgoing_moves import MoveAnswer, OutgoingMoves
from appliance.agents.partition_moves import MOVE_KINDS, PartitionMoves
from appliance.agents.producer_upkeep import ProducerUpkeep
from appliance.agents.retention_rounds import RetentionRounds
from appliance.base.errors import DiskFull, ErrorCode, OutOfDescriptors, StepsDown, StorageFailed
from appliance.base.invariants import InvariantViolation
from appliance.base.layout import boot_id
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import ACKS_ALL_FLAG, ADDS_PARTITION_FLAG, COMMITTED_FLAG, COORDINATOR_FLAG, NEEDS_VERIFICATION, DescriptorKind
from appliance.ipc.log_writer_door import LogWriterDoor
from appliance.ipc.producer_entries import pack_producers
from appliance.ipc.scrub_report import report_file
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.shm.doorbell import Doorbell
from appliance.shm.partition_table import (
    APPEND_SINCE_WORD,
    DISK_FULL,
    DISK_OFFLINE,
    DISK_ONLINE,
    FENCE_WORD,
    FLUSH_SINCE_WORD,
    PROBE_SINCE_WORD,
    ROLE_LEADER,
    ROLE_OFFLINE,
    SLEEPING_WORD,
    PartitionTableWriter,
)
from appliance.storage.append_plan import RefusedBatch
from appliance.storage.orderly_close import close_logs
from appliance.storage.verification import NeedsVerification, Offer

DESCRIPTOR_BURST = 256
"""Descriptors taken from one source in one turn."""
COMMANDS_NS = 10_000_000
"""Time for commands in one turn; the one that is under way then is finished."""
HOUSEKEEPING_NS = 1_000_000_000
SLICE_PARK_MS = 5
"""The longest wait between the slices of a flush round, of a removal, and between the swaps of a cleaning run."""
DESCRIPTORS_TOLD_NS = 10_000_000_000
"""Not more often is it said that descriptors are short."""
_CONTROLLER = "controller"
_PRODUCE = int(DescriptorKind.PRODUCE)
_DELETE_RECORDS = int(DescriptorKind.DELETE_RECORDS)
_MARKER = int(DescriptorKind.TRANSACTION_MARKER)
_DESCRIBE_PRODUCERS = int(DescriptorKind.DESCRIBE_PRODUCERS)
_APPENDS = (_PRODUCE, _MARKER)
_OFFER_FLAGS = ADDS_PARTITION_FLAG | COORDINATOR_FLAG

Work = tuple[SinkChannel, tuple[Any, ...]]
"""A descriptor and the source it came from."""


class LogWriterAgent:
    """One log-writer process."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self._poller = context.poller
        counters = context.counters
        box = context.box
        self._disk = box.disk(context.instance)
        table_name = context.layout.shared_memory_name("table", self._disk.name, context.incarnation)
        self._table = PartitionTableWriter.create(table_name, context.incarnation)
        self._words = self._table.shared.words
        self._doorbell = Doorbell(self._words, SLEEPING_WORD)
        self._poller.register(self._doorbell.fileno(), select.EPOLLIN, self._doorbell.drain)
        try:
            self._startup: LogWriterStartup | None = LogWriterStartup(context, self._disk, self._table)
        except BaseException:
            self._poller.unregister(self._doorbell.fileno())
            self._doorbell.close()
            self._table.close()  # nobody saw it: the next life needs what older ones left, not this
            raise
        self._late: LogWriterStartup | None = None
        """While logs wait for space: who opens them when there is some."""
        self._directory = self._startup.directory
        self._partitions = self._startup.partitions
        self._boot = self._startup.boot
        self._replaces = self._startup.replaces
        self._commands = LogWriterCommands(self._partitions, context.log)
        self._flush_rounds = FlushRounds(self._directory, self._partitions, self._clock, counters, box)
        self._batch_flushes = BatchFlushes(self._disk.path, self._partitions, self._clock, self._poller, counters, lambda: self._flush_rounds.synced_bytes)
        self._held = HeldAcknowledgements()
        self._retention = RetentionRounds(self._directory, self._partitions, self._clock, counters, box, context.log, self._on_records_deleted)
        self._cleaning = CleaningRounds(self._directory, self._partitions, self._clock, counters, box, context.log, self._disk.name)
        incoming = IncomingMoves(
            self._directory,
            self._partitions,
            self._clock,
            counters,
            box,
            context.layout,
            self._disk.name,
            self._poller,
            context.log,
            lambda work, code: self._complete(work[0], work[1], code),
        )
        outgoing = OutgoingMoves(self._partitions, self._clock, counters, box.integer("log.disk.deadline.ms"), context.log, self._on_given_away)
        self._moves = PartitionMoves(incoming, outgoing)
        self._index_repairs = IndexRepairs(report_file(context.layout, self._disk.name), self._partitions, self._clock, counters, context.log)
        self._producer_upkeep = ProducerUpkeep(self._partitions, self._clock)
        self._door = LogWriterDoor(context.incarnation, self._doorbell.fileno(), self._poller, counters, self._describe, self._on_gone)
        self._completions: dict[SinkChannel, list[tuple[Any, ...]]] = {}
        self._rows_moved = False
        self._offline = ""
        self._return: DiskReturn | None = None
        """While the directory is offline: who looks for its disk."""
        self._probe = DiskProbe(
            self._disk.path, self._words, box.integer("log.disk.probe.interval.ms"), context.clock, context.counters.histogram("disk.probe_us")
        )
        self._reopen_attempts = counters.counter(ATTEMPTS_LABEL)
        self._well_from_ns = self._clock.monotonic_ns() + WELL_NS
        self._fences = DiskFences(counters, self._clock.monotonic_ns())
        self._is_full = False
        self._owes_commands = False
        """The controller was refused something for want of space: it asks again when it is let in anew."""
        self._postponed: dict[SinkChannel, deque[tuple[Any, ...]]] = {}
        """What a source offered from its first command on, in order; it is not polled before that is done."""
        self._descriptors_told_ns = 0
        self._dropped = counters.counter("log_writer.dropped_of_dead_sources")
        self._next_housekeeping_ns = 0
        self._appends = counters.counter("log_writer.append_calls")
        self._batches = counters.counter("log_writer.batches")
        self._records = counters.counter("log_writer.records")
        self._bytes = counters.counter("log_writer.bytes")
        self._refused = counters.counter("log_writer.refused")
        self._storage_failures = counters.counter("log_writer.storage_failures")
        self._latency = counters.histogram("log_writer.append_round_us")
        counters.set_state("recovering")

    # -- duty cycle

    def do_work(self) -> int:
        if self._startup is not None:
            return self._recover(self._startup)
        if self._words[FENCE_WORD]:
            return self._end_fenced()
        work = 0
        started_ns = self._clock.monotonic_ns()
        for channel in self._door.channels:
            if channel in self._postponed:
                continue
            entries = channel.descriptors.poll(DESCRIPTOR_BURST)
            if entries:
                work += len(entries)
                self._take(channel, entries)
        if work:
            self._publish_completions()
        if self._postponed:
            work += self._carry_out_postponed()
            self._publish_completions()
        if self._batch_flushes.is_active:
            work += self._flush_batches()
        if self._late is not None and not self._is_full and not self._offline:
            work += self._open_late(self._late)
        now_ns = self._clock.monotonic_ns()
        if work:
            self._latency.record(now_ns - started_ns)
        if now_ns >= self._next_housekeeping_ns:
            self._next_housekeeping_ns = now_ns + HOUSEKEEPING_NS
            self._keep_house()
        elif self._flush_rounds.goes_on or self._retention.goes_on or self._cleaning.goes_on or self._moves.goes_on:
            self._keep_house()
        if self._completions or self._retention.rows_moved:
            self._retention.rows_moved = False
            self._rows_moved = True
            self._publish_completions()
        return work

    def _end_fenced(self) -> int:
        """The disk held us for too long, and others were told so: what we did meanwhile is for the next life to find. While a thread of ours is still
        held by the disk this process cannot end; until then it refuses, so that nobody takes the disk for one that is just being started."""
        if not (self._words[PROBE_SINCE_WORD] or self._words[FLUSH_SINCE_WORD] or self._batch_flushes.is_under_way):
            self._fences.add()
            raise StepsDown(f"disk {self._disk.name} kept it waiting for too long, and it was fenced")
        work = 0
        for channel in self._door.channels:
            for entry in (*self._postponed.pop(channel, ()), *channel.descriptors.poll(DESCRIPTOR_BURST)):
                self._complete(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
                work += 1
        self._publish_completions()
        return work

    def _recover(self, startup: LogWriterStartup) -> int:
        """One log a turn, so that the heartbeat goes on; serve when all are open."""
        try:
            if startup.recover_next():
                return 1
            self._batch_flushes.open()
            if startup.recovery_points_went_back:
                self._flush_rounds.recovery_points_went_back()
            self._moves.incoming.open(startup.moved_here)
        except StorageFailed as failure:
            self._go_offline(failure)
        self._startup = None
        if self._offline:
            self._table.set_disk_state(DISK_OFFLINE)
        else:
            self._table.set_disk_state(DISK_ONLINE)
            self._context.notifier.status(self._fences.words())
            self._context.log.info(startup.summary(), disk=self._disk.name)
            if startup.waits_for_space:
                self._late = startup
                self._storage_failed(DiskFull(startup.waits_for_space))
        self._door.open(self._context.layout.log_writer_socket(self._disk.name))
        self._context.notifier.ready()
        return 1

    def may_park(self) -> bool:
        if self._startup is not None:
            return False
        self._doorbell.prepare_to_sleep()
        if self._postponed or self._door.has_descriptors():
            self._doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self._doorbell.wake()

    def park_ms(self) -> int:
        has_slices = self._flush_rounds.is_between_slices or self._retention.is_under_way or self._cleaning.has_swaps
        return self._batch_flushes.park_ms(SLICE_PARK_MS if has_slices else PARK_MS_MAX)

    def begin_stop(self) -> None:
        self._door.shut()

    def stopped(self) -> bool:
        return not self._postponed and not self._held and not self._door.has_descriptors()

    def close(self) -> None:
        """The clean end: flush, checkpoints, the clean marker; a table that is unlinked says that nothing was left open."""
        self._door.close()
        if self._offline or self._words[FENCE_WORD]:
            return  # nothing of the disk is touched again, nor waited for
        self._retention.close()
        self._moves.incoming.close()
        self._index_repairs.close()
        self._probe.close()
        try:
            self._cleaning.close()
            self._flush_rounds.close()
            self._batch_flushes.close()
            if self._startup is not None:
                return
            if self._late is not None:
                self._context.log.warning(f"disk {self._disk.name} is full: logs that were never opened wait for the next start", disk=self._disk.name)
            close_logs(self._directory, [hosted.log for hosted in self._partitions.by_row.values()])
            self._flush_rounds.close_directory()
        except StorageFailed as failure:
            words = f"disk {self._disk.name} ({self._disk.path}) could not be closed cleanly, the next start recovers it: {failure}"
            self._context.log.error(words, disk=self._disk.name)
            if not isinstance(failure, DiskFull | OutOfDescriptors):
                self._table.set_suspect()
            return
        self._table.close()

    def status_line(self) -> str:
        if self._startup is not None:
            return self._startup.progress()
        if self._offline:
            return f"offline: {self._offline}"
        if self._is_full:
            return f"full: {len(self._partitions)} partitions are read only"
        trouble = "; ".join(filter(None, (self._retention.trouble, self._cleaning.trouble)))
        return f"{len(self._partitions)} partitions, {self._bytes.value >> 20} MiB appended" + (f"; {trouble}" if trouble else "")

    # -- descriptors

    def _take(self, channel: SinkChannel, entries: list[tuple[Any, ...]]) -> None:
        """Produces are grouped by row and appended together; what follows a command waits behind it."""
        by_row: dict[int, list[Work]] = {}
        for number, entry in enumerate(entries):
            if entry[0] in _APPENDS:
                by_row.setdefault(entry[3], []).append((channel, entry))
            else:
                self._postponed[channel] = deque(entries[number:])
                break
        self._append_all(by_row)

    def _carry_out_postponed(self) -> int:
        """Commands (and what stands behind them) of every source in turn, until all are done or the time is over."""
        done = 0
        deadline_ns = self._clock.monotonic_ns() + COMMANDS_NS
        while self._postponed:
            for channel, entries in list(self._postponed.items()):
                entry = entries.popleft()
                if entry[0] in _APPENDS:
                    self._append_all({entry[3]: [(channel, entry)]})
                elif entry[0] == _DELETE_RECORDS:
                    self._delete_records(channel, entry)
                elif entry[0] in MOVE_KINDS:
                    self._move(channel, entry)
                elif entry[0] == _DESCRIBE_PRODUCERS:
                    self._describe_producers(channel, entry)
                else:
                    self._command(channel, entry)
                if not entries:
                    del self._postponed[channel]
                done += 1
                if self._clock.monotonic_ns() >= deadline_ns:
                    return done
        return done

    def _append_all(self, by_row: dict[int, list[Work]]) -> None:
        for row, group in by_row.items():
            self._append(self._partitions.by_row.get(row), group)

    def _append(self, hosted: HostedPartition | None, group: list[Work]) -> None:
        """Append the batches and markers of one partition: one plan, one write, one row update."""
        admitted: list[Work] = []
        batches: list[memoryview] = []
        offers: dict[int, Offer] = {}
        for work in group:
            channel, entry = work
            code = self._refusal(hosted, entry)
            if code:
                self._complete(channel, entry, code)
                continue
            if entry[0] == _MARKER:
                admitted.append(work)
                batches.append(marker_batch(entry, self._clock.wall_ms()))
                continue
            if entry[13] or entry[1] & _OFFER_FLAGS:
                offers[len(batches)] = Offer(entry[13], bool(entry[1] & ADDS_PARTITION_FLAG), bool(entry[1] & COORDINATOR_FLAG))
            position, length = entry[8], entry[7]
            if not (length > 0 and position + length <= channel.size_bytes):
                raise InvariantViolation(f"{channel.source} names {length} bytes at {position} of its arena")
            admitted.append(work)
            batches.append(channel.memory[position : position + length])
        if hosted is None or not admitted:
            return
        words = self._words
        words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            results = hosted.log.append_as_leader(batches, hosted.leader_epoch, self._clock.wall_ms(), offers)
            words[APPEND_SINCE_WORD] = 0
        except StorageFailed as failure:
            words[APPEND_SINCE_WORD] = 0
            self._storage_failed(failure)
            for channel, entry in admitted:
                self._complete(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if words[FENCE_WORD]:  # appended, and not published
            for channel, entry in admitted:
                self._complete(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        hosted.publish_append()
        self._rows_moved = True
        self._appends.add()
        log_start_offset = hosted.log.log_start_offset
        completions = self._completions if hosted.flush_policy != FLUSH_BEFORE_ACKNOWLEDGEMENT else self._held.of(hosted)
        flags = COMMITTED_FLAG if hosted.high_watermark == hosted.log.log_end_offset else 0
        for (channel, entry), result in zip(admitted, results, strict=True):
            if isinstance(result, RefusedBatch):
                self._complete(channel, entry, result.error_code, result.base_offset)
                continue
            if isinstance(result, NeedsVerification):
                self._complete(channel, entry, NEEDS_VERIFICATION, guard=result.guard)
                continue
            base_offset, last_offset, append_time_ms = result
            records = entry[10] if entry[0] == _PRODUCE else 1
            completion = (
                entry[0], flags, 0, entry[3], entry[9], base_offset, append_time_ms, log_start_offset, last_offset + 1, hosted.leader_epoch, records, 0,
            )  # fmt: skip
            completions.setdefault(channel, []).append(completion)
            self._records.add(records)
            self._bytes.add(entry[7])
        self._batches.add(len(admitted))
        if hosted.flush_policy:
            self._batch_flushes.want(hosted, sum(map(len, batches)))

    def _refusal(self, hosted: HostedPartition | None, entry: tuple[Any, ...]) -> int:
        """Role, row generation, leader epoch and config generation (which markers are not checked against) as the source saw them must still hold."""
        if hosted is not None and entry[0] == _MARKER:
            entry = (*entry[:6], hosted.config_generation)
        if hosted is None or not hosted.is_led_under(entry[4], entry[5], entry[6]) or hosted.role != ROLE_LEADER:
            if self._offline or (hosted is not None and hosted.role == ROLE_OFFLINE):
                return ErrorCode.KAFKA_STORAGE_ERROR
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._is_full:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if entry[1] & ACKS_ALL_FLAG and len(hosted.isr) < hosted.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def _delete_records(self, channel: SinkChannel, entry: tuple[Any, ...]) -> None:
        """Let a log begin at the offset in `value_a`; answered when that is durable. A full disk does it too, as soon as it can write that down."""
        hosted = self._partitions.by_row.get(entry[3])
        code = 0 if self._is_full and hosted is not None and not self._offline else self._refusal(hosted, entry)
        try:
            if not code and hosted is not None and hosted.is_frozen:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if not code and hosted is not None:
                code = self._retention.delete_records(hosted, entry[10], (channel, entry))
                self._rows_moved = True
        except StorageFailed as failure:
            self._storage_failed(failure)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if code:
            self._complete(channel, entry, code)

    def _describe_producers(self, channel: SinkChannel, entry: tuple[Any, ...]) -> None:
        """Write who produces into a partition to where the source wants it, as many as there is room for; the completion says how many there are."""
        hosted = self._partitions.by_row.get(entry[3])
        if hosted is None or entry[4] != hosted.row_generation or hosted.role != ROLE_LEADER:
            code = ErrorCode.KAFKA_STORAGE_ERROR if self._offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._complete(channel, entry, code)
            return
        position, length = entry[8], entry[7]
        if not (length >= 0 and position + length <= channel.size_bytes):
            raise InvariantViolation(f"{channel.source} names {length} bytes at {position} of its arena")
        producers = hosted.log.producers.snapshot()
        channel.memory[position : position + length] = pack_producers(producers, length)
        completion = (entry[0], 0, 0, entry[3], entry[9], -1, -1, -1, hosted.log.log_end_offset, hosted.leader_epoch, len(producers), 0)
        self._completions.setdefault(channel, []).append(completion)

    def _on_records_deleted(self, context: tuple[SinkChannel, tuple[Any, ...]], hosted: HostedPartition, code: int) -> None:
        """What a DeleteRecords asked for is durable (or will not be)."""
        channel, entry = context
        if code:
            self._complete(channel, entry, code)
            return
        low_watermark = hosted.log.log_start_offset
        completion = (entry[0], 0, 0, entry[3], entry[9], -1, -1, low_watermark, hosted.log.log_end_offset, hosted.leader_epoch, 0, 0)
        self._completions.setdefault(channel, []).append(completion)

    def _flush_batches(self) -> int:
        """Rounds for topics with a flush policy: what one has made durable becomes visible and is acknowledged, and the next one starts."""
        flushes = self._batch_flushes
        work = 0
        try:
            finished = flushes.take_finished()
            work = len(finished)
            if self._words[FENCE_WORD]:
                return work  # durable, and not published
            for hosted, flush in finished:
                if self._partitions.by_row.get(hosted.row) is hosted:
                    hosted.log.on_batches_flushed(flush)
                    self._acknowledge(hosted, flush.end_offset, flush.base_offset, flush.position)
                else:
                    self._held.fail(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER, self._completions)
            for hosted in flushes.start_round():
                if self._partitions.by_row.get(hosted.row) is hosted:
                    log = hosted.log
                    self._acknowledge(hosted, log.log_end_offset, log.active_base_offset, log.active_position)
                else:
                    self._held.fail(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER, self._completions)
        except StorageFailed as failure:
            self._storage_failed(failure)
        self._publish_completions()
        return work

    def _acknowledge(self, hosted: HostedPartition, durable_offset: int, base_offset: int, position: int) -> None:
        """The row first, then the completions: who gets one may look at the row."""
        hosted.on_durable(durable_offset, base_offset, position)
        self._rows_moved = True
        self._held.release(hosted, durable_offset, self._completions)

    def _on_given_away(self, hosted: HostedPartition) -> None:
        """The log lies on another disk now, where all of it is durable."""
        self._held.release(hosted, hosted.log.log_end_offset, self._completions)

    def _command(self, channel: SinkChannel, entry: tuple[Any, ...]) -> None:
        if self._offline:
            self._complete(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        document = bytes(channel.memory[entry[8] : entry[8] + entry[7]])
        self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            code = self._commands.carry_out(entry[0], document)
        except StorageFailed as failure:
            self._storage_failed(failure)
            self._owes_commands = self._owes_commands or isinstance(failure, DiskFull)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self._words[APPEND_SINCE_WORD] = 0
        self._rows_moved = True
        self._complete(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR if self._words[FENCE_WORD] else code)

    def _move(self, channel: SinkChannel, entry: tuple[Any, ...]) -> None:
        """A command about a move between disks. What freezes a log tells its end, its high watermark as base offset, and its start."""
        if self._offline:
            self._complete(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        document = bytes(channel.memory[entry[8] : entry[8] + entry[7]])
        self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            answer = self._moves.carry_out(entry[0], document, (channel, entry))
        except StorageFailed as failure:
            self._storage_failed(failure)
            answer = MoveAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
        self._words[APPEND_SINCE_WORD] = 0
        self._rows_moved = True
        if self._words[FENCE_WORD]:
            answer = MoveAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
        if answer is None:
            return
        if answer.code or answer.log_end_offset < 0:
            self._complete(channel, entry, answer.code)
            return
        completion = (entry[0], 0, 0, entry[3], entry[9], answer.high_watermark, -1, answer.log_start_offset, answer.log_end_offset, -1, 0, 0)
        self._completions.setdefault(channel, []).append(completion)

    def _complete(self, channel: SinkChannel, entry: tuple[Any, ...], code: int, base_offset: int = -1, guard: int = 0) -> None:
        if code and not guard:
            self._refused.add()
        completion = (entry[0], 0, code, entry[3], entry[9], base_offset, -1, -1, -1, -1, entry[10] & 0xFFFFFFFF, guard)
        self._completions.setdefault(channel, []).append(completion)

    def _publish_completions(self) -> None:
        """Rows were stored before; now the completions, then the doorbells of those who got one or who watch rows."""
        completions, self._completions = self._completions, {}
        for channel, entries in completions.items():
            channel.completions.offer_all(entries)
            channel.ring()
        if self._rows_moved:
            self._rows_moved = False
            for channel in self._door.channels:
                if channel not in completions and channel.watches_rows():
                    channel.ring()

    # -- sources

    def _describe(self) -> dict[str, Any]:
        """What WELCOME says: the table, and for the controller what this disk holds."""
        return {
            "table": self._table.shared.name,
            "incarnation": self._context.incarnation,
            "boot": self._boot,
            "boot_id": boot_id().hex(),
            "directory_id": self._directory.identity.directory_id,
            "replaces": self._replaces,
            "needs_epoch_bump": any(hosted.needs_epoch_bump for hosted in self._partitions.by_row.values()),
            "partitions": [hosted.describe() for hosted in self._partitions.by_row.values()],
            "futures": self._moves.incoming.describe(),
            "frozen": self._moves.outgoing.describe(),
            "offline": self._offline,
            "free_bytes": self._context.counters.counter("disk.free_bytes").value,
            "free_rows": self._table.free_rows,
        }

    def _on_gone(self, channel: SinkChannel, reason: str) -> None:
        self._dropped.add(len(self._postponed.pop(channel, ())))
        self._completions.pop(channel, None)
        self._held.drop_source(channel)
        self._retention.forget(lambda context: context[0] is channel)
        self._moves.incoming.forget(lambda context: context[0] is channel)
        self._context.log.info(f"{channel.source} is gone ({reason})", disk=self._disk.name, peer=channel.source)

    # -- the disk

    def _storage_failed(self, failure: StorageFailed) -> None:
        if isinstance(failure, OutOfDescriptors):
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._descriptors_told_ns > DESCRIPTORS_TOLD_NS:
                self._descriptors_told_ns = now_ns
                self._context.log.error(f"{failure}; disk {self._disk.name} is served on, raise the limit of open files", disk=self._disk.name)
            return
        if isinstance(failure, DiskFull):
            if not self._is_full:
                self._is_full = True
                self._flush_rounds.disk_is_full()
                self._context.log.error(f"disk {self._disk.name} is full, writes are refused until there is space: {failure}", disk=self._disk.name)
                self._table.set_disk_state(DISK_FULL)
            return
        self._storage_failures.add()  # a full disk is no failure: it has an alarm of its own, with another thing to do
        self._go_offline(failure)

    def _go_offline(self, failure: StorageFailed) -> None:
        """The disk failed: every partition on it stops being served, every file is let go. What it holds is read again by the next life."""
        self._offline = str(failure)
        self._context.log.error(f"disk {self._disk.name} ({self._disk.path}) goes offline: {failure}", disk=self._disk.name)
        for hosted in self._partitions.by_row.values():
            hosted.withdraw(ROLE_OFFLINE)
            hosted.log.abandon()  # an open file would keep the file system from being unmounted
        self._retention.fail()
        self._moves.incoming.fail()
        self._refused.add(self._held.fail_all(ErrorCode.KAFKA_STORAGE_ERROR, self._completions))
        self._batch_flushes.give_up()
        self._directory.abandon()
        self._table.set_suspect()
        self._table.set_disk_state(DISK_OFFLINE)
        self._return = DiskReturn(self._context, self._disk, self._clock.monotonic_ns())
        self._context.notifier.status(self.status_line())
        self._context.counters.set_state("offline")

    def _keep_house(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._return is not None:
            self._return.turn(now_ns)
            return
        try:
            if self._reopen_attempts.value and now_ns > self._well_from_ns:
                self._reopen_attempts.set(0)
            self._fences.maybe_forget(now_ns)
            self._probe.turn(now_ns, self._bytes.value)
            self._words[APPEND_SINCE_WORD] = now_ns
            self._flush_rounds.turn()
            self._retention.turn()
            self._cleaning.turn()
            self._moves.turn(now_ns)
            self._words[APPEND_SINCE_WORD] = 0
            if self._flush_rounds.take_found_space():
                self._on_space()
            self._index_repairs.turn()
            self._producer_upkeep.turn(now_ns)
        except StorageFailed as failure:
            self._words[APPEND_SINCE_WORD] = 0
            self._storage_failed(failure)

    def _on_space(self) -> None:
        """A full disk has room again: take writes, and open what waited for it."""
        self._is_full = False
        self._table.set_disk_state(DISK_ONLINE)
        self._context.log.notice(f"disk {self._disk.name} has space again, it takes writes", disk=self._disk.name)
        if self._owes_commands and self._late is None:
            self._invite_controller()

    def _invite_controller(self) -> None:
        """Whatever it was told at its last WELCOME, and was refused since, is different now."""
        self._owes_commands = False
        self._door.dismiss(_CONTROLLER)

    def _open_late(self, late: LogWriterStartup) -> int:
        """One log a turn of those that recovery found no space for."""
        try:
            if late.open_late():
                return 1
        except StorageFailed as failure:
            self._storage_failed(failure)
            return 1
        self._late = None
        self._context.log.info(late.summary(), disk=self._disk.name)
        self._invite_controller()
        return 1
