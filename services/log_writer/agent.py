"""The log-writer: owns every file of a log directory, its partition table and high watermarks.

It opens the directory, recovers one log a turn, and only then listens. A turn takes a bounded
number of descriptors: produces, grouped by partition with one write each (`log_writer_appends`),
batches from the replica-fetcher (`replica_appends`) and positions of followers
(`replica_progress`); then rows, then one burst of completions for each source. Commands come after
that, for a few milliseconds a turn (`command_queue`). If its directory fails, the table says so and
every request is refused; if the disk is full, writes are refused until there is free space
(`disk_trouble`). No asyncio, no numpy, no client socket.
"""

from __future__ import annotations

import select
from collections import deque
from typing import Any

import orjson

from appliance.base.errors import DiskFull, ErrorCode, OutOfDescriptors, StepsDown, StorageFailed
from appliance.base.layout import boot_id
from appliance.ipc.channel import ISR_CHANGES, ChannelBroken, SinkChannel
from appliance.ipc.channel_acceptor import ChannelAcceptor
from appliance.ipc.descriptors import KIND, ROW, DescriptorKind
from appliance.ipc.disk_reports import LostOffsets, lost_file, report_file, write_lost
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.shm.doorbell import Doorbell
from appliance.shm.partition_table import (
    APPEND_SINCE_WORD,
    DISK_OFFLINE,
    DISK_ONLINE,
    FENCE_WORD,
    FLUSH_SINCE_WORD,
    PROBE_SINCE_WORD,
    ROLE_OFFLINE,
    SLEEPING_WORD,
    TURNS_WORD,
    PartitionTableWriter,
)
from appliance.shm.ring import RingBroken
from appliance.storage.log_directory import close_logs
from services.log_writer.background.batch_flushes import BatchFlushes
from services.log_writer.background.batch_repairs import BatchRepairs
from services.log_writer.background.cleaning_rounds import CleaningRounds
from services.log_writer.background.disk_probe import DiskProbe
from services.log_writer.background.disk_trouble import ATTEMPTS_LABEL, WELL_NS, DiskFences, DiskTrouble
from services.log_writer.background.flush_rounds import FlushRounds
from services.log_writer.background.index_repairs import IndexRepairs
from services.log_writer.background.retention_rounds import RetentionRounds
from services.log_writer.background.summary_rounds import SummaryRounds
from services.log_writer.command_queue import CommandQueue, LogWriterCommands
from services.log_writer.completions import Completions, HeldAcknowledgements
from services.log_writer.log_writer_appends import APPENDS, AppendParts, LogWriterAppends, Work
from services.log_writer.log_writer_startup import LogWriterStartup
from services.log_writer.moves.incoming_moves import IncomingMoves
from services.log_writer.moves.partition_moves import OutgoingMoves, PartitionMoves
from services.log_writer.replicas.awaited_deletions import AwaitedDeletions
from services.log_writer.replicas.replica_appends import ReplicaAppends
from services.log_writer.replicas.replica_progress import ReplicaProgress
from services.log_writer.replicas.replicas_of_disk import ProducerUpkeep

DESCRIPTOR_BURST = 256
"""Descriptors taken from one source in one turn."""
HOUSEKEEPING_NS = 1_000_000_000
SLICES_NS = 1_000_000
"""How often turns with appends look for background work that goes on; others always do."""
SLICE_PARK_MS = 5
"""The longest wait between the slices of a flush round, of a removal, and between the swaps of a
cleaning run."""
CLOSE_SECONDS = 5.0
"""How long a stop waits for a thread that the disk may have stopped."""
_CONTROLLER = "controller"
_PROGRESS = int(DescriptorKind.PROGRESS)
_REPLICA_APPEND = int(DescriptorKind.REPLICA_APPEND)
_TRUNCATE = int(DescriptorKind.TRUNCATE)
_REPAIR = int(DescriptorKind.REPAIR)


class LogWriterAgent:
    """One log-writer process."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self._clock = context.clock
        self._poller = context.poller
        counters = context.counters
        box = context.box
        self.disk = box.disk(context.instance)
        table_name = context.layout.shared_memory_name("table", self.disk.name, context.incarnation)
        self.table = PartitionTableWriter.create(table_name, context.incarnation)
        self._words = self.table.shared.words
        self.doorbell = Doorbell(self._words, SLEEPING_WORD)
        self._poller.register(self.doorbell.fileno(), select.EPOLLIN, self.doorbell.drain)
        try:
            self.startup: LogWriterStartup | None = LogWriterStartup(context, self.disk, self.table)
        except BaseException:
            self._poller.unregister(self.doorbell.fileno())
            self.doorbell.close()
            self.table.close()  # no process has seen it; the next incarnation needs the older tables
            raise
        self._late: LogWriterStartup | None = None
        """Opens logs that wait for free space; None if there are none."""
        self._has_opened_late = False
        """Since the controller was last invited."""
        self.directory = self.startup.directory
        self.partitions = self.startup.partitions
        self.boot = self.startup.boot
        self._replaces = self.startup.replaces
        self._generation = self.startup.generation
        self.flush_rounds = FlushRounds(self.partitions, self._clock, counters, box)
        self.batch_flushes = BatchFlushes(self.disk.path, self.partitions, self._clock, self._poller, counters, lambda: self.flush_rounds.synced_bytes)
        self._held = HeldAcknowledgements()
        self.completions = Completions(counters)
        self.trouble = DiskTrouble(context, self.disk, self.table, self.flush_rounds.disk_is_full, self.let_go_of_disk)
        self.cleaning = CleaningRounds(self.partitions, self._clock, counters, box, context.log, self.disk.name)
        self.summaries = SummaryRounds(self.partitions, self._clock, counters, box, context.layout, context.log)
        parts = AppendParts(self.partitions, self.completions, self._held, self.batch_flushes, self.trouble, self._clock, counters)
        self._appends = LogWriterAppends(parts, box.may_have_neighbours)
        incoming = IncomingMoves(
            self.partitions,
            self._clock,
            counters,
            box,
            context.layout,
            self.disk.name,
            self._poller,
            context.log,
            lambda work, code: self.completions.answer(work[0], work[1], code),
        )
        deadline_ms = box.integer("log.disk.deadline.ms")
        outgoing = OutgoingMoves(self.partitions, self._clock, counters, deadline_ms, context.log, self._appends.on_given_away)
        self.moves = PartitionMoves(incoming, outgoing)
        self._deletions = AwaitedDeletions(self.partitions, self.completions, self._clock, counters)
        self.retention = RetentionRounds(self.partitions, self._clock, counters, box, context.log, self._deletions.on_durable)
        self._postponed = CommandQueue(
            parts,
            LogWriterCommands(self.partitions, context.log),
            self.moves,
            self.retention,
            self._appends,
            self._carry_out,
        )
        self.door = ChannelAcceptor(self.doorbell.fileno(), self._poller, counters, self.describe, self._on_gone)
        self.replicas = ReplicaAppends(parts, self.retention, self.cleaning, context.log)
        self._progress = ReplicaProgress(
            parts,
            lambda: self.door.is_connected(_CONTROLLER),
            lambda changes: self.door.send(_CONTROLLER, ISR_CHANGES, orjson.dumps({"changes": changes})),
            box.integer("replica.lag.time.max.ms") * 1_000_000,
        )
        self._index_repairs = IndexRepairs(report_file(context.layout, self.disk.name), self.partitions, self._clock, counters, context.log)
        self._batch_repairs = BatchRepairs(self.partitions, self.completions, counters, context.log, self.disk.name)
        self._producer_upkeep = ProducerUpkeep(self.partitions, self._clock)
        self.probe = DiskProbe(
            self.disk.path, self._words, box.integer("log.disk.probe.interval.ms"), context.clock, context.counters.histogram("disk.probe_us")
        )
        self._reopen_attempts = counters.counter(ATTEMPTS_LABEL)
        self._well_from_ns = self._clock.monotonic_ns() + WELL_NS
        self._fences = DiskFences(counters, self._clock.monotonic_ns())
        self._dropped = counters.counter("log_writer.dropped_of_dead_sources")
        self._lost_file = lost_file(context.layout, self.disk.name)
        self._reported_lost: tuple[LostOffsets, ...] | None = None
        self._next_housekeeping_ns = self._next_slices_ns = 0
        self._bytes = counters.counter("log_writer.bytes")
        self._latency = counters.histogram("log_writer.append_round_us")
        counters.set_state("recovering")

    # -- duty cycle

    def do_work(self) -> int:
        self._words[TURNS_WORD] += 1
        if self.startup is not None:
            return self._recover(self.startup)
        if self._words[FENCE_WORD]:
            return self._end_fenced()
        work = 0
        started_ns = self._clock.monotonic_ns()
        postponed = self._postponed
        try:
            for channel in self.door.channels:
                if channel in postponed.by_source:
                    continue
                entries = channel.descriptors.poll(DESCRIPTOR_BURST)  # not `take`, which costs each idle channel a call
                if entries:
                    channel.require(entries)
                    work += len(entries)
                    self._take(channel, entries)
        except ChannelBroken as broken:
            self.door.refuse(broken)  # the list of channels has changed; the others have their turn next
        except RingBroken as broken:
            self.door.refuse(ChannelBroken(channel, str(broken)))
        if work:
            self.completions.publish(self.door)
        if postponed.by_source:
            try:
                work += postponed.carry_out()
            except ChannelBroken as broken:
                self.door.refuse(broken)
            self.completions.publish(self.door)
        if self.batch_flushes.is_active:
            work += self._appends.flush_batches()
            self.completions.publish(self.door)
        if self._late is not None and not self.trouble.is_full and not self.trouble.offline:
            work += self._open_late(self._late)
        now_ns = self._clock.monotonic_ns()
        if work:
            self._latency.record(now_ns - started_ns)
        if now_ns >= self._next_housekeeping_ns:
            self._next_housekeeping_ns = now_ns + HOUSEKEEPING_NS
            self._report_lost()
            if self._has_opened_late:
                self._invite_controller()
            self._keep_house()
        elif not work or now_ns >= self._next_slices_ns:
            self._next_slices_ns = now_ns + SLICES_NS
            if self.flush_rounds.goes_on or self.retention.goes_on or self.cleaning.goes_on or self.moves.goes_on or self._batch_repairs.is_under_way:
                self._keep_house()
        self._progress.turn(now_ns)
        if self._deletions.are_awaited:
            self._deletions.turn(now_ns)
        if self.completions.by_channel or self.completions.rows_moved or self.retention.rows_moved:
            self.completions.rows_moved = self.completions.rows_moved or self.retention.rows_moved
            self.retention.rows_moved = False
            self.completions.publish(self.door)
        self._progress.report_isr_proposals()
        return work

    def _end_fenced(self) -> int:
        """Exit after the disk was fenced because it blocked this process for too long.

        Other processes have answered for the disk, so nothing is published any more; the next
        incarnation finds what was written. While the disk blocks a thread, the process cannot end:
        it refuses requests, so that sources do not wait as for a disk that is starting.
        """
        for task in (self.probe.task, self.flush_rounds.task):
            if task.has_ended:
                task.take_failure()  # a thread that died before its work has left its word as it was
        if not (self._words[PROBE_SINCE_WORD] or self._words[FLUSH_SINCE_WORD] or self.batch_flushes.is_under_way):
            self._fences.add()
            raise StepsDown(f"disk {self.disk.name} kept it waiting for too long, and it was fenced")
        work = 0
        for channel in list(self.door.channels):
            try:
                entries = (*self._postponed.by_source.pop(channel, ()), *channel.take(DESCRIPTOR_BURST))
            except ChannelBroken as broken:
                self.door.refuse(broken)
                continue
            for entry in entries:
                self.completions.answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
                work += 1
        self.completions.publish(self.door)
        return work

    def _recover(self, startup: LogWriterStartup) -> int:
        """One log a turn, so that the heartbeat goes on; serve when all are open."""
        try:
            if startup.recover_next():
                return 1
            self.batch_flushes.open()
            if startup.recovery_points_went_back:
                self.flush_rounds.recovery_points_went_back()
            self.moves.incoming.open(startup.moved_here)
        except StorageFailed as failure:
            self.trouble.go_offline(failure)
        self.startup = None
        if self.trouble.offline:
            self.table.set_disk_state(DISK_OFFLINE)
        else:
            self.table.set_disk_state(DISK_ONLINE)
            self.context.notifier.status(self._fences.words())
            self.context.log.info(startup.summary(), disk=self.disk.name)
            if startup.waits_for_space:
                self._late = startup
                self.trouble.on_failure(DiskFull(startup.waits_for_space))
        self.door.open(self.context.layout.log_writer_socket(self.disk.name))
        self.context.notifier.ready()
        return 1

    def may_park(self) -> bool:
        if self.startup is not None:
            return False
        self.doorbell.prepare_to_sleep()
        if self._postponed.by_source or self.door.has_descriptors():
            self.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self.doorbell.wake()

    def park_ms(self) -> int:
        has_slices = self.flush_rounds.is_between_slices or self.retention.is_under_way or self.cleaning.has_swaps or self._batch_repairs.is_under_way
        return self.batch_flushes.park_ms(SLICE_PARK_MS if has_slices else PARK_MS_MAX)

    def begin_stop(self) -> None:
        self.door.shut()

    def stopped(self) -> bool:
        return not self._postponed.by_source and not self._held and not self.door.has_descriptors()

    def close(self) -> None:
        """The clean end: flush, checkpoints, the clean marker; a table that is unlinked says that
        nothing was left open.
        """
        self.door.close()
        if self.trouble.offline or self._words[FENCE_WORD]:
            if self._late is not None:
                self._late.let_go()
            return  # nothing of the disk is touched again, nor waited for
        if self._late is not None:
            self._late.close(CLOSE_SECONDS)
        self.retention.close()
        self.moves.incoming.close()
        self._index_repairs.close()
        self._batch_repairs.close()
        self.summaries.close()
        self.probe.task.join(CLOSE_SECONDS)
        try:
            self.cleaning.close()
            self.flush_rounds.close()
            self.batch_flushes.close()
            if self.startup is not None:
                return
            if self._late is not None:
                self.context.log.warning(f"disk {self.disk.name} is full: logs that were never opened wait for the next start", disk=self.disk.name)
            close_logs(self.directory, [replica.log for replica in self.partitions.by_row.values()])
            self._remember_ends()
            self.flush_rounds.close_directory()
        except StorageFailed as failure:
            words = f"disk {self.disk.name} ({self.disk.path}) could not be closed cleanly, the next start recovers it: {failure}"
            self.context.log.error(words, disk=self.disk.name)
            if not isinstance(failure, DiskFull | OutOfDescriptors):
                self.table.set_suspect()
            return
        self.table.close()

    def _remember_ends(self) -> None:
        try:
            self._generation.remember_ends(self.partitions)
        except OSError as error:
            self.context.log.warning(f"could not write down where the logs of {self.disk.path} end: {error}", disk=self.disk.name)

    def status_line(self) -> str:
        if self.startup is not None:
            return self.startup.progress()
        if self.trouble.offline:
            return f"offline: {self.trouble.offline}"
        if self.trouble.is_full:
            return f"full: {len(self.partitions)} partitions are read only"
        trouble = "; ".join(filter(None, (self.retention.trouble, self.cleaning.trouble)))
        return f"{len(self.partitions)} partitions, {self._bytes.value >> 20} MiB appended" + (f"; {trouble}" if trouble else "")

    # -- descriptors

    def _take(self, channel: SinkChannel, entries: list[tuple[Any, ...]]) -> None:
        """Produces are grouped by row and appended together; what follows a command waits behind
        it.
        """
        by_row: dict[int, list[Work]] = {}
        others = []
        for number, entry in enumerate(entries):
            if entry[KIND] in APPENDS:
                by_row.setdefault(entry[ROW], []).append((channel, entry))
            elif entry[KIND] == _PROGRESS or entry[KIND] == _REPLICA_APPEND:
                others.append(entry)
            else:
                self._postponed.by_source[channel] = deque(entries[number:])
                break
        self._appends.append_all(by_row)
        for entry in others:
            self._carry_out(channel, entry)

    def _carry_out(self, channel: SinkChannel, entry: tuple[Any, ...]) -> bool:
        """One entry, if it is none of a controller."""
        kind = entry[KIND]
        if kind in APPENDS:
            self._appends.append_all({entry[ROW]: [(channel, entry)]})
        elif kind == _PROGRESS:
            self._progress.take(channel, entry)
        elif kind == _REPLICA_APPEND:
            self.replicas.append(channel, entry)
        elif kind == _TRUNCATE:
            self.replicas.truncate(channel, entry)
        elif kind == _REPAIR:
            self._batch_repairs.take(channel, entry)
        else:
            return False
        return True

    # -- sources

    def describe(self) -> dict[str, Any]:
        """What WELCOME says: the table, and for the controller what this disk holds."""
        return {
            "table": self.table.shared.name,
            "incarnation": self.context.incarnation,
            "boot": self.boot,
            "boot_id": boot_id().hex(),
            "directory_id": self.directory.identity.directory_id,
            "replaces": self._replaces,
            "needs_epoch_bump": any(replica.needs_epoch_bump for replica in self.partitions.by_row.values()),
            "partitions": [replica.describe() for replica in self.partitions.by_row.values()],
            "futures": self.moves.incoming.describe(),
            "frozen": self.moves.outgoing.describe(),
            "offline": self.trouble.offline,
            "free_bytes": self.context.counters.counter("disk.free_bytes").value,
            "free_rows": self.table.free_rows,
        }

    def _on_gone(self, channel: SinkChannel, reason: str) -> None:
        self._dropped.add(len(self._postponed.by_source.pop(channel, ())))
        self.completions.forget(channel)
        self._held.drop_source(channel)
        self.retention.forget(lambda deletion: deletion.channel is channel)
        self._deletions.forget(channel)
        self.moves.incoming.forget(lambda context: context[0] is channel)
        self._batch_repairs.forget(channel)
        self.context.log.info(f"{channel.source} is gone ({reason})", disk=self.disk.name, peer=channel.source)

    # -- the disk

    def let_go_of_disk(self) -> None:
        for replica in self.partitions.by_row.values():
            replica.withdraw(ROLE_OFFLINE)
            replica.log.abandon()  # an open file would keep the file system from being unmounted
        self.retention.fail()
        self._deletions.fail()
        self.moves.incoming.fail()
        self._batch_repairs.fail()
        self.summaries.close()
        self.completions.refused.add(self._held.fail_all(ErrorCode.KAFKA_STORAGE_ERROR, self.completions.by_channel))
        self.batch_flushes.give_up()
        if self._late is not None:
            self._late.let_go()
        self.directory.abandon()

    def _keep_house(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self.trouble.returning is not None:
            self.trouble.returning.turn(now_ns)
            return
        try:
            if self._reopen_attempts.value and now_ns > self._well_from_ns:
                self._reopen_attempts.set(0)
            self._fences.maybe_forget(now_ns)
            self.trouble.maybe_forget(now_ns)
            self.probe.turn(now_ns, self._bytes.value)
            self._words[APPEND_SINCE_WORD] = now_ns
            self.flush_rounds.turn()
            self.retention.turn()
            self.cleaning.turn()
            self.summaries.turn(self.disk.name)
            self.moves.turn(now_ns)
            self._batch_repairs.turn()
            self._words[APPEND_SINCE_WORD] = 0
            if self.flush_rounds.take_found_space():
                self._on_space()
            self._index_repairs.turn()
            self._producer_upkeep.turn(now_ns)
        except StorageFailed as failure:
            self._words[APPEND_SINCE_WORD] = 0
            self.trouble.on_failure(failure)

    def _report_lost(self) -> None:
        lost = self.partitions.lost_offsets()
        if lost != self._reported_lost:
            self._reported_lost = lost
            try:
                write_lost(self._lost_file, lost)
            except OSError as error:
                self.context.log.warning(f"could not write {self._lost_file}: {error}", disk=self.disk.name)

    def _on_space(self) -> None:
        """Accept writes again after the disk was full, and open the logs that waited for space."""
        self.trouble.on_space()
        if self._postponed.needs_resync and self._late is None:
            self._invite_controller()

    def _invite_controller(self) -> None:
        """Make the controller connect again: it repeats the commands that were refused, and learns
        of logs that were opened.
        """
        self._postponed.needs_resync = self._has_opened_late = False
        self.door.disconnect(_CONTROLLER)

    def _open_late(self, late: LogWriterStartup) -> int:
        """Go on with the logs that recovery found no space for.

        A log of an unclean boot has no role before the controller knows it, and a scan of the
        others may take long: the next housekeeping, within a second, invites it.
        """
        opened = len(self.partitions)
        try:
            is_progress = late.open_late()
        except StorageFailed as failure:
            self.trouble.on_failure(failure)
            return 1
        self._has_opened_late = self._has_opened_late or len(self.partitions) > opened
        if late.waits_for_space:
            return int(is_progress)
        self._late = None
        self.context.log.info(late.summary(), disk=self.disk.name)
        self._invite_controller()
        return 1
