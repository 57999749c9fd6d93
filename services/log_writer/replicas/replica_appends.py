"""Appends and truncations of followed partitions: the leader's batches, from the replica-fetcher.

A batch is accepted only if it is whole, its checksum is right and it continues the log; a call that
is refused leaves nothing. The high watermark is the leader's, up to the own log end; the log start
offset is raised to the leader's, never above the high watermark. A log is truncated where the
leader epochs of the two diverge, which is below the high watermark only if a replica was elected
that did not have everything. A log that lacks only its beginning is reported as empty, and kept if
the leader's log starts where the own one does, or later (`Log.lost_beginning`). Before a truncated log grows again, no checkpoint exceeds it. With
acknowledgement after the flush an append is answered when it is durable, because the leader counts
on it. Weak spot: checksums are computed in the duty cycle, 0.1 ms a MiB, although the
replica-fetcher has checked them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from appliance.base.errors import DiskFull, ErrorCode, StorageFailed
from appliance.base.logging import Logger
from appliance.base.model import FIRST_OFFSET, NO_LEADER_EPOCH, NO_OFFSET, Offset
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import LEADER_EPOCH, LENGTH, POSITION, ROW, ROW_GENERATION, TruncateOrder, Truncation, replica_append_of, truncate_of
from appliance.records.batch import read_batch_header, stored_batch_problem
from appliance.shm.partition_table import APPEND_SINCE_WORD, FENCE_WORD, ROLE_FOLLOWER, ROLE_OFFLINE
from appliance.storage.leader_epoch_cache import truncation_offset
from services.log_writer.background.cleaning_rounds import CleaningRounds
from services.log_writer.background.retention_rounds import RetentionRounds
from services.log_writer.completions import told_of_log
from services.log_writer.log_writer_appends import AppendParts
from services.log_writer.replicas.replica import FLUSH_BEFORE_ACKNOWLEDGEMENT, Replica

Entry = tuple[Any, ...]


class ReplicaAppends:
    """What followers append and cut."""

    def __init__(self, parts: AppendParts, retention: RetentionRounds, cleaning: CleaningRounds, log: Logger) -> None:
        partitions, self._completions, self._held, self._batch_flushes, self._trouble, self._clock, counters = parts
        self._partitions = partitions
        self._retention = retention
        self._cleaning = cleaning
        self._log = log
        self._words = partitions.table.shared.words
        self._appends = counters.counter("log_writer.replica_appends")
        self._replica_bytes = counters.counter("log_writer.replica_bytes")
        self._bytes = counters.counter("log_writer.bytes")
        self._corrupt = counters.counter("log_writer.replica_appends_corrupt")
        self._truncations = counters.counter("log_writer.truncations")
        self._below = counters.counter("log_writer.truncated_below_high_watermark")

    def append(self, channel: SinkChannel, entry: Entry) -> None:
        """REPLICA_APPEND."""
        replica = self._partitions.by_row.get(entry[ROW])
        length = entry[LENGTH]
        content = channel.slice(entry[POSITION], length)
        code = self._refusal(replica, entry, bool(length))
        if code or replica is None:
            self._tell(channel, entry, replica, code)
            return
        told = replica_append_of(entry)
        first_offset = NO_OFFSET
        self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            self._cut_to_damage(replica)  # what was fetched is what the log lacks
            if length:
                code, batches = self.read_batches(replica, content)
                if not code:
                    self._partitions.settle_truncation(replica)
                    first_offset, _ = replica.log.append_as_follower(batches)
                    self._appends.add()
                    self._replica_bytes.add(length)
                    self._bytes.add(length)
            if not code and not self._words[FENCE_WORD]:
                self._update_high_watermark(replica, told.high_watermark, told.log_start_offset, bool(length))
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self._words[APPEND_SINCE_WORD] = 0
        if self._words[FENCE_WORD]:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if replica.flush_policy and not code and length:
            self._batch_flushes.want(replica, length)
            if replica.flush_policy == FLUSH_BEFORE_ACKNOWLEDGEMENT:
                self._held.of(replica).setdefault(channel, []).append(_completion(entry, replica, code, first_offset))
                return
        self._tell(channel, entry, replica, code, first_offset)

    def read_batches(self, replica: Replica, memory: memoryview) -> tuple[ErrorCode, list[memoryview]]:
        """The batches in `memory`, if they continue the log."""
        batches: list[memoryview] = []
        position, next_offset, leader_epoch = 0, replica.log.log_end_offset, replica.log.leader_epochs.latest
        while position < len(memory):
            problem = stored_batch_problem(memory, position, len(memory))
            if problem is None:
                header = read_batch_header(memory, position)
                if header.base_offset < next_offset:
                    return ErrorCode.OFFSET_OUT_OF_RANGE, []
                if not leader_epoch <= header.partition_leader_epoch <= replica.leader_epoch:
                    problem = f"a batch is of leader epoch {header.partition_leader_epoch}, behind one of {leader_epoch} and under {replica.leader_epoch}"
            if problem is not None:
                self._corrupt.add()
                name = replica.topic_partition
                self._log.error(f"what the leader of {name} sent for offset {next_offset} is refused: {problem}", **name._asdict())
                return ErrorCode.CORRUPT_MESSAGE, []
            batches.append(memory[position : position + header.size_bytes])
            position += header.size_bytes
            next_offset, leader_epoch = header.last_offset + 1, header.partition_leader_epoch
        return ErrorCode.NONE, batches

    def _update_high_watermark(self, replica: Replica, high_watermark: Offset, log_start_offset: Offset, has_appended: bool) -> None:
        if replica.update_high_watermark(high_watermark, has_appended):
            self._completions.rows_moved = True
        if log_start_offset > replica.log.log_start_offset:
            self._retention.follow_start(replica, min(log_start_offset, replica.high_watermark))

    def truncate(self, channel: SinkChannel, entry: Entry) -> None:
        """TRUNCATE."""
        replica = self._partitions.by_row.get(entry[ROW])
        order = truncate_of(entry)
        code = self._refusal(replica, entry, order.kind != Truncation.TELL)
        if replica is not None and not code and order.kind != Truncation.TELL:
            self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
            try:
                self._apply(replica, order)
            except StorageFailed as failure:
                self._trouble.on_failure(failure)
                code = ErrorCode.KAFKA_STORAGE_ERROR
            self._words[APPEND_SINCE_WORD] = 0
            if self._words[FENCE_WORD]:
                code = ErrorCode.KAFKA_STORAGE_ERROR
        self._tell(channel, entry, replica, code)

    def _apply(self, replica: Replica, order: TruncateOrder) -> None:
        log = replica.log
        lost = log.lost_beginning
        if lost is None or order.kind != Truncation.START_AT or not lost.until <= order.offset <= log.log_end_offset:
            self._cut_to_damage(replica)
            self._cut(replica, order)
            return
        log.damage.forget_open()
        name = replica.topic_partition
        words = f"{name} lacks nothing that its leader has, whose log starts at offset {order.offset}: offsets {log.log_start_offset} on are kept"
        self._log.info(words, **name._asdict())

    def _cut_to_damage(self, replica: Replica) -> None:
        """The leader has the beginning that the log lacks: remove the rest, which is fetched again behind it."""
        if replica.log.lost_beginning is not None:
            self._partitions.cut_to_damage(replica)
            self._cleaning.on_truncated(replica)
            self._completions.rows_moved = True

    def _cut(self, replica: Replica, order: TruncateOrder) -> None:
        log, name = replica.log, replica.topic_partition
        before, before_high_watermark = log.log_end_offset, replica.high_watermark
        offset = order.offset
        if order.kind == Truncation.DIVERGED:
            offset = truncation_offset(order.leader_epoch, offset, log.leader_epochs.end_offset_for, before)
        offset = max(FIRST_OFFSET, offset)
        # Before the log: after a power cut in between, a log that ends below its recovery point would count as damaged.
        end = offset
        if order.kind != Truncation.START_AT and offset >= log.segment_base_offsets[0]:
            end = min(offset, log.boundary_at(offset).offset)  # the batch that holds the offset goes whole
        with suppress(DiskFull):  # the truncation frees space, and nothing is appended before they are written
            self._partitions.directory.checkpoints.cap(name, end)
        replica.needs_checkpoints = True
        if order.kind == Truncation.START_AT:
            log.truncate_fully_and_start_at(offset)
        else:
            log.truncate_to(offset)
        self._cleaning.on_truncated(replica)
        is_below = replica.on_truncated()
        self._completions.rows_moved = True
        self._partitions.settle_truncation(replica)
        if log.log_end_offset == before and order.kind != Truncation.START_AT:
            return
        self._truncations.add()
        self._held.fail(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER, self._completions.by_channel)
        words = f"{name} ends at offset {log.log_end_offset} now, not at {before}: its leader of epoch {replica.leader_epoch} went on differently"
        if order.kind == Truncation.START_AT:
            words = f"{name} begins anew at offset {order.offset} (it ended at {before}): its leader of epoch {replica.leader_epoch} has nothing older"
        if is_below:
            self._below.add()
            words += f"; that is below its high watermark {before_high_watermark}: a replica was elected that did not have what was committed"
            self._log.critical(words, **name._asdict())
        else:
            self._log.info(words, **name._asdict())

    def _refusal(self, replica: Replica | None, entry: Entry, writes: bool) -> ErrorCode:
        if replica is None or replica.role != ROLE_FOLLOWER or entry[ROW_GENERATION] != replica.row_generation or entry[LEADER_EPOCH] != replica.leader_epoch:
            if self._trouble.offline or (replica is not None and replica.role == ROLE_OFFLINE):
                return ErrorCode.KAFKA_STORAGE_ERROR
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.KAFKA_STORAGE_ERROR if writes and self._trouble.is_full else ErrorCode.NONE

    def _tell(self, channel: SinkChannel, entry: Entry, replica: Replica | None, code: ErrorCode, first_offset: Offset = NO_OFFSET) -> None:
        if code:
            self._completions.refused.add()
        self._completions.add(channel, _completion(entry, replica, code, first_offset))


def _completion(entry: Entry, replica: Replica | None, code: ErrorCode, first_offset: Offset) -> Entry:
    if replica is None or code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return told_of_log(entry, code, NO_OFFSET, NO_OFFSET, NO_OFFSET, NO_LEADER_EPOCH)
    log = replica.log
    lost = log.lost_beginning
    if lost is not None:
        return told_of_log(entry, code, first_offset, lost.first, lost.first, NO_LEADER_EPOCH)
    return told_of_log(entry, code, first_offset, log.log_start_offset, log.log_end_offset, log.leader_epochs.latest)
