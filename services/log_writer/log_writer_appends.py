"""Produces and transaction markers of one log-writer: one plan and one write for each partition.

Role, row generation, leader epoch and config generation must be those that the source saw. If
acknowledgements wait for flushes, an answer is held until the round that covers it is over. With
several replicas the acceptor answers acks=all when the high watermark in the row has passed the
batch. Weak spot: a turn waits for its own disk whenever the kernel makes a write to the page cache
wait.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, StorageFailed
from appliance.base.model import AUDIT_TOPIC, INTERNAL_TOPICS, Offset, Position
from appliance.ipc.channel import ChannelBroken, SinkChannel
from appliance.ipc.descriptors import (
    ACKS_ALL_FLAG,
    ADDS_PARTITION_FLAG,
    BEHIND_REFUSED_FLAG,
    COMMIT_FLAG,
    COMMITTED_FLAG,
    CONFIG_GENERATION,
    COORDINATOR_FLAG,
    FLAGS,
    GUARD,
    KIND,
    LEADER_EPOCH,
    LENGTH,
    NEEDS_VERIFICATION,
    POSITION,
    RAISED_EPOCH_FLAG,
    ROW,
    ROW_GENERATION,
    TOKEN,
    VALUE_A,
    VALUE_B,
    VALUE_C,
    VERIFIED_FLAG,
    DescriptorKind,
)
from appliance.records.batch import ATTRIBUTES_AT, CONTROL_FLAG, PRODUCER_ID_AT, RECORDS_AT, stored_batch_problem
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from appliance.shm.counters import Counters
from appliance.shm.partition_table import APPEND_SINCE_WORD, FENCE_WORD, ROLE_LEADER, ROLE_OFFLINE
from appliance.storage.append_plan import RefusedBatch
from appliance.storage.verification import RAISED_EPOCH, NeedsVerification, Offer
from services.log_writer.background.batch_flushes import BatchFlushes
from services.log_writer.background.disk_trouble import DiskTrouble
from services.log_writer.completions import Completions, HeldAcknowledgements
from services.log_writer.replicas.replica import FLUSH_BEFORE_ACKNOWLEDGEMENT, Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

_SEQUENCE = Struct(">qhi")
"""producer id, producer epoch, base sequence"""
_PRODUCE = int(DescriptorKind.PRODUCE)
_MARKER = int(DescriptorKind.TRANSACTION_MARKER)
APPENDS = (_PRODUCE, _MARKER)
_OFFER_FLAGS = ADDS_PARTITION_FLAG | COORDINATOR_FLAG
_RECORDS_MAX = (1 << 31) - 1
_COORDINATORS_FLAGS = COORDINATOR_FLAG | VERIFIED_FLAG
"""No Kafka client causes them, so processes that face the network may not set them."""

Work = tuple[SinkChannel, tuple[Any, ...]]
"""A descriptor and the source it came from."""


class AppendParts(NamedTuple):
    """What the appends of leaders and of followers share with the commands and the followers'
    progress.
    """

    partitions: Replicas
    completions: Completions
    held: HeldAcknowledgements
    batch_flushes: BatchFlushes
    trouble: DiskTrouble
    clock: Clock
    counters: Counters


class LogWriterAppends:
    """What leaders append."""

    def __init__(self, parts: AppendParts, has_neighbours: bool) -> None:
        self._has_neighbours = has_neighbours
        partitions, self._completions, self._held, self._batch_flushes, self._trouble, self._clock, counters = parts
        self._partitions = partitions
        self._words = partitions.table.shared.words
        self._appends = counters.counter("log_writer.append_calls")
        self._batches = counters.counter("log_writer.batches")
        self._records = counters.counter("log_writer.records")
        self._bytes = counters.counter("log_writer.bytes")

    def append_all(self, by_row: dict[int, list[Work]]) -> None:
        for row, group in by_row.items():
            replica = self._partitions.by_row.get(row)
            if replica is not None and any(work[1][1] & BEHIND_REFUSED_FLAG for work in group):
                for work in group:  # what is before it counts
                    self._append(replica, [work] if self._follows_on(replica, *work) else [])
            else:
                self._append(replica, group)

    def _follows_on(self, replica: Replica, channel: SinkChannel, entry: tuple[Any, ...]) -> bool:
        """Whether a batch behind one that its connection was refused may be taken: that one has
        reached the log by another leader. Else it is answered.
        """
        if not entry[FLAGS] & BEHIND_REFUSED_FLAG:
            return True
        sequence = channel.slice(entry[POSITION] + PRODUCER_ID_AT, _SEQUENCE.size)
        if replica.log.producers.follows_on(*_SEQUENCE.unpack(sequence)):
            return True
        self._completions.answer(channel, entry, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return False

    def _append(self, replica: Replica | None, group: list[Work]) -> None:
        """Append the batches and markers of one partition: one plan, one write, one row update."""
        answer = self._completions.answer
        admitted: list[Work] = []
        batches: list[memoryview] = []
        offers: dict[int, Offer] = {}
        is_internal = replica is not None and replica.topic_partition.topic in INTERNAL_TOPICS
        is_audit = is_internal and replica is not None and replica.topic_partition.topic == AUDIT_TOPIC  # acceptors write it
        for work in group:
            channel, entry = work
            code = self.refusal(replica, entry)
            if code:
                answer(channel, entry, code)
                continue
            if is_internal and not is_audit and not (channel.is_coordinator or (self._has_neighbours and entry[KIND] == _MARKER)):
                answer(channel, entry, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)  # markers of other boxes' coordinators come by an acceptor
                continue
            if entry[KIND] == _MARKER:
                admitted.append(work)
                if entry[FLAGS] & RAISED_EPOCH_FLAG:
                    offers[len(batches)] = RAISED_EPOCH
                batches.append(marker_batch(entry, self._clock.wall_ms()))
                continue
            if entry[GUARD] or entry[FLAGS] & _OFFER_FLAGS:
                if channel.is_restricted and entry[FLAGS] & _COORDINATORS_FLAGS:
                    answer(channel, entry, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                    continue
                offers[len(batches)] = Offer(
                    entry[GUARD], bool(entry[FLAGS] & ADDS_PARTITION_FLAG), bool(entry[FLAGS] & COORDINATOR_FLAG), bool(entry[FLAGS] & VERIFIED_FLAG)
                )
            position, length = entry[POSITION], entry[LENGTH]
            if not (RECORDS_AT <= length <= channel.size_bytes - position and 0 <= entry[VALUE_A] <= _RECORDS_MAX):
                raise ChannelBroken(channel, f"{channel.source} names {entry[VALUE_A]} records in {length} bytes at {position} of its arena")
            if channel.is_restricted and channel.memory[position + ATTRIBUTES_AT + 1] & CONTROL_FLAG:
                answer(channel, entry, ErrorCode.INVALID_RECORD)
                continue
            batch = channel.memory[position : position + length]
            if is_audit and channel.is_restricted:
                batch = memoryview(bytearray(batch))  # behind a damaged batch, recovery would cut off what others have written
                if stored_batch_problem(batch, 0, length) is not None:
                    answer(channel, entry, ErrorCode.CORRUPT_MESSAGE)
                    continue
            admitted.append(work)
            batches.append(batch)
        if replica is None or not admitted:
            return
        words = self._words
        next_offset = replica.log.log_end_offset
        words[APPEND_SINCE_WORD] = now_ns = self._clock.monotonic_ns()
        try:
            results = replica.log.append_as_leader(batches, replica.leader_epoch, self._clock.wall_ms(), offers)
            words[APPEND_SINCE_WORD] = 0
            if not words[FENCE_WORD]:
                replica.publish_append(now_ns)
        except StorageFailed as failure:
            words[APPEND_SINCE_WORD] = 0
            self._trouble.on_failure(failure)
            for channel, entry in admitted:
                answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if words[FENCE_WORD]:  # appended, and perhaps not published
            for channel, entry in admitted:
                answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        self._completions.rows_moved = True
        self._appends.add()
        log_start_offset = replica.log.log_start_offset
        completions = self._completions.by_channel if replica.flush_policy != FLUSH_BEFORE_ACKNOWLEDGEMENT else self._held.of(replica)
        flags = COMMITTED_FLAG if replica.high_watermark == replica.log.log_end_offset else 0
        appended_batches = appended_records = appended_bytes = 0
        for (channel, entry), batch, result in zip(admitted, batches, results, strict=True):
            if isinstance(result, RefusedBatch):
                answer(channel, entry, result.error_code, result.base_offset)
                continue
            if isinstance(result, NeedsVerification):
                answer(channel, entry, NEEDS_VERIFICATION, guard=result.guard)
                continue
            base_offset, last_offset, append_time_ms = result
            records = entry[VALUE_A] if entry[KIND] == _PRODUCE else 1
            completion = (
                entry[KIND], flags, 0, entry[ROW], entry[TOKEN],
                base_offset, append_time_ms, log_start_offset, last_offset + 1, replica.leader_epoch, records, 0,
            )  # fmt: skip
            completions.setdefault(channel, []).append(completion)
            if base_offset >= next_offset:  # below it: a duplicate, answered with the offsets of its first append
                next_offset = last_offset + 1
                appended_batches += 1
                appended_records += records
                appended_bytes += len(batch)
        self._batches.add(appended_batches)
        self._records.add(appended_records)
        self._bytes.add(appended_bytes)
        if replica.flush_policy:
            self._batch_flushes.want(replica, appended_bytes)

    def begin_verification(self, channel: SinkChannel, entry: tuple[Any, ...]) -> None:
        """A guard for what a coordinator will append when another one has agreed."""
        replica = self._partitions.by_row.get(entry[ROW])
        code = self.refusal(replica, (*entry[:CONFIG_GENERATION], replica.config_generation if replica is not None else 0))
        if code or replica is None:
            self._completions.answer(channel, entry, code)
            return
        producer_epoch = (entry[VALUE_C] & 0xFFFF ^ 0x8000) - 0x8000
        self._completions.answer(channel, entry, 0, guard=replica.log.begin_verification(entry[VALUE_A], producer_epoch, self._clock.wall_ms()))

    def refusal(self, replica: Replica | None, entry: tuple[Any, ...]) -> int:
        """Role, row generation, leader epoch and config generation (which markers are not checked
        against) as the source saw them must still hold.
        """
        if replica is not None and entry[KIND] == _MARKER:
            entry = (*entry[:CONFIG_GENERATION], replica.config_generation)
        if replica is None or not replica.is_led_under(entry[ROW_GENERATION], entry[LEADER_EPOCH], entry[CONFIG_GENERATION]) or replica.role != ROLE_LEADER:
            if self._trouble.offline or (replica is not None and replica.role == ROLE_OFFLINE):
                return ErrorCode.KAFKA_STORAGE_ERROR
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._trouble.is_full:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if entry[FLAGS] & ACKS_ALL_FLAG and len(replica.isr) < replica.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    # -- where acknowledgements wait for flushes

    def flush_batches(self) -> int:
        """Rounds for topics with a flush policy: what one has made durable becomes visible and is
        acknowledged, and the next one starts.
        """
        flushes = self._batch_flushes
        work = 0
        try:
            finished = flushes.take_finished()
            work = len(finished)
            if self._words[FENCE_WORD]:
                return work  # durable, and not published
            for replica, flush, truncations in finished:
                if self._partitions.by_row.get(replica.row) is not replica:
                    self._held.fail(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER, self._completions.by_channel)
                elif replica.log.truncations == truncations:
                    replica.log.on_batches_flushed(flush)
                    self._acknowledge(replica, flush.end_offset, flush.base_offset, flush.position)
                else:  # it was cut meanwhile: what stands there now may be something else
                    flushes.want(replica, 0)
            for replica in flushes.start_round():
                if self._partitions.by_row.get(replica.row) is replica:
                    log = replica.log
                    self._acknowledge(replica, log.log_end_offset, log.active_base_offset, log.active_position)
                else:
                    self._held.fail(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER, self._completions.by_channel)
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
        return work

    def _acknowledge(self, replica: Replica, durable_offset: Offset, base_offset: Offset, position: Position) -> None:
        """Publish the row before the completions: a source that receives one may read the row."""
        replica.on_durable(durable_offset, base_offset, position)
        self._completions.rows_moved = True
        self._held.release(replica, durable_offset, self._completions.by_channel)

    def on_given_away(self, replica: Replica) -> None:
        """The log lies on another disk now, where all of it is durable."""
        self._held.release(replica, replica.log.log_end_offset, self._completions.by_channel)


def marker_batch(entry: tuple[Any, ...], now_ms: int) -> memoryview:
    """Of a descriptor (`ipc.descriptors.Descriptor`), stamped with no offset yet."""
    coordinator_epoch, producer_epoch = _signed(entry[VALUE_B], 32), _signed(entry[VALUE_C] & 0xFFFF, 16)
    marker = EndTransactionMarker(bool(entry[FLAGS] & COMMIT_FLAG), coordinator_epoch)
    return memoryview(build_end_transaction_batch(entry[VALUE_A], producer_epoch, marker, now_ms))


def _signed(word: int, bits: int) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word
