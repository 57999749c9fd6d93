"""A partition of a log-writer: its log, its role, and its row in the table.

The high watermark of a sole replica is its log end; if acknowledgements wait for flushes, it is
what is durable. With several replicas `ReplicationState` decides the leader's, and a follower takes
its leader's up to its own log end. Below the log end its position in the files is kept with it,
always a boundary between two batches. The log computes the last stable offset from its
transactions. Changes are published by `publish` (the whole row) or `publish_append` (the hot path).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.invariants import InvariantViolation, check
from appliance.base.model import FILE_START, NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset, Position, TopicId, TopicPartition
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE, PartitionTableWriter, Row
from appliance.storage.batch_boundary import BatchEnds
from appliance.storage.log import Log
from appliance.storage.removed_segments import RemovedSegments
from appliance.storage.verification import Verifications
from services.log_writer.replicas.replication_state import NO_PROPOSAL, ReplicationState

NO_FLUSH_POLICY, FLUSH_BY_INTERVAL, FLUSH_BEFORE_ACKNOWLEDGEMENT = range(3)


class ReplicationTerms(NamedTuple):
    """Under which the replicas of a box's partitions are in sync.

    `lag_ns`: replica.lag.time.max.ms.
    """

    broker_id: int
    lag_ns: int
    clock: Clock


class Replica:
    """One row's worth of state."""

    __slots__ = (
        "_ends",
        "_frozen_role",
        "_knows_watermark",
        "_published_aborted_end",
        "_published_segments",
        "config_generation",
        "flush_policy",
        "high_watermark",
        "is_frozen",
        "is_moving",
        "isr",
        "leader_epoch",
        "led_since",
        "log",
        "min_insync_replicas",
        "needs_checkpoints",
        "needs_epoch_bump",
        "progress",
        "replicas",
        "role",
        "row",
        "row_generation",
        "table",
        "terms",
        "topic_id",
        "topic_partition",
        "watermark_base_offset",
        "watermark_position",
    )  # fmt: skip

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log: Log,
        table: PartitionTableWriter,
        high_watermark: Offset,
        terms: ReplicationTerms,
        verifies_transactions: bool = True,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.table = table
        self.terms = terms
        self.role = ROLE_NONE
        self.leader_epoch = NO_LEADER_EPOCH
        self.led_since = NO_LEADER_EPOCH
        """The leader epoch under which it began to lead; while it leads on, a larger one changes
        nothing that is in the log or on its way there."""
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.progress: ReplicationState | None = None
        """Of the followers, while this box leads and there are some."""
        self.needs_checkpoints = False
        """It was cut, and checkpoints may say more of it than it holds: nothing is appended before
        they do not."""
        self.min_insync_replicas = 1
        self.config_generation = 0
        self.needs_epoch_bump = False
        self.is_moving = False
        """Its log is being copied to another disk: compaction would change what was copied."""
        self.is_frozen = False
        """It led, or followed, and is being handed over: nothing is appended, and it may do so
        again."""
        self._frozen_role = ROLE_NONE
        self.flush_policy = NO_FLUSH_POLICY
        self.watermark_base_offset = log.active_base_offset
        self.watermark_position = log.active_position
        """Where the high watermark is, while it is below the log's end."""
        self._ends = BatchEnds()
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self._knows_watermark = self.high_watermark == log.log_end_offset
        self._published_segments = log.segment_list_generation
        self._published_aborted_end = NO_OFFSET
        log.verifications = Verifications(verifies_transactions, table.shared.incarnation)
        self.row_generation = 0
        self.row, self.row_generation = table.add_row(self._row())
        table.store_sealed_bytes(self.row, log.size_bytes - log.active_position)
        self.publish()

    # -- roles

    def lead(self, leader_epoch: LeaderEpoch, isr: tuple[int, ...], replicas: tuple[int, ...], config_generation: int, partition_epoch: int = -1) -> None:
        """Lead under `leader_epoch` from the log end on; publishes.

        Under the same one again: the replicas may be others. Raises StorageFailed.
        """
        self._apply_epoch(leader_epoch)
        if self.role != ROLE_LEADER:
            self.led_since = leader_epoch
            self.table.store_led_since(self.row, leader_epoch)
        self.role = ROLE_LEADER
        self.isr = isr
        self.replicas = replicas
        log, (broker_id, lag_ns, clock) = self.log, self.terms
        if {*replicas, *isr} <= {broker_id}:
            self.progress = None
            self.flush_policy = NO_FLUSH_POLICY  # what it holds is durable, if that is asked for
            self._advance_high_watermark()
        else:
            progress = self.progress = self.progress or ReplicationState(broker_id, lag_ns, log.config.min_insync_replicas)
            self._ends.add(log.end)
            ends = log.log_start_offset, log.log_end_offset
            progress.on_become_leader(leader_epoch, isr, replicas, partition_epoch, *ends, self.high_watermark, clock.monotonic_ns())
            self.isr = progress.isr
            self._reach(progress.high_watermark)
        self.apply_config(config_generation)
        self.table.announce()

    def follow(self, leader_epoch: LeaderEpoch, isr: tuple[int, ...], replicas: tuple[int, ...], config_generation: int) -> None:
        """Follow the leader of `leader_epoch`; publishes. What was visible stays visible. Raises
        StorageFailed."""
        self._apply_epoch(leader_epoch)
        self.role = ROLE_FOLLOWER
        self.isr = isr
        self.replicas = replicas
        self.progress = None
        self.apply_config(config_generation)
        self.table.announce()

    def _apply_epoch(self, leader_epoch: LeaderEpoch) -> None:
        check(leader_epoch >= self.leader_epoch, f"leader epoch of {self.topic_partition} would go from {self.leader_epoch} back to {leader_epoch}")
        if self.high_watermark == self.log.log_end_offset:
            _, self.watermark_base_offset, self.watermark_position = self.log.end
        elif not self._knows_watermark:
            self.high_watermark, self.watermark_base_offset, self.watermark_position = self.log.boundary_at(self.high_watermark)
        self._knows_watermark = True
        self.is_frozen = False
        self.leader_epoch = leader_epoch

    def apply_config(self, config_generation: int) -> None:
        """The log has new configs: produces that were checked under the old ones are refused from
        now on; publishes.
        """
        self.config_generation = config_generation
        self.min_insync_replicas = min(self.log.config.min_insync_replicas, max(1, len(self.replicas)))
        self._apply_flush_policy()
        self.publish()

    def _apply_flush_policy(self) -> None:
        """What consumers saw stays visible; from now on the high watermark waits for flushes, or
        does so no more.
        """
        config = self.log.config
        self.flush_policy = (
            FLUSH_BEFORE_ACKNOWLEDGEMENT if config.acknowledges_after_flush else FLUSH_BY_INTERVAL if config.flushes_by_interval else NO_FLUSH_POLICY
        )
        progress, waits = self.progress, self.flush_policy == FLUSH_BEFORE_ACKNOWLEDGEMENT
        if progress is not None:
            progress.min_insync_replicas = config.min_insync_replicas
            progress.on_durable(self.log.durable_offset if waits else None, self.terms.clock.monotonic_ns())
            self._reach(progress.high_watermark)
        elif not waits:
            self._advance_high_watermark()
        elif self.high_watermark == self.log.log_end_offset:
            _, self.watermark_base_offset, self.watermark_position = self.log.end

    # -- what is appended, and by whom it is held

    def publish_append(self, now_ns: int) -> None:
        """After an append as leader: advance the high watermark and publish what moved."""
        log = self.log
        if self.progress is None:
            self._advance_high_watermark()
        else:
            self._ends.add(log.end)
            if self.progress.on_append(log.log_end_offset, now_ns):
                self._reach(self.progress.high_watermark)
        if log.segment_list_generation != self._published_segments or self.high_watermark != log.log_end_offset or log.producers.is_undecided:
            self.publish()
        else:
            self.table.store_progress(self.row, log.log_end_offset, self.high_watermark, log.active_position)

    def on_durable(self, offset: Offset, base_offset: Offset, position: Position) -> None:
        """Batches below `offset`, which is at `position` of segment `base_offset`, survive a power
        cut: consumers may see them if the ISR has them too. Publishes.
        """
        if self.flush_policy != FLUSH_BEFORE_ACKNOWLEDGEMENT or self.role == ROLE_FOLLOWER:
            return
        check(offset <= self.log.log_end_offset, f"{self.topic_partition} is durable beyond its log")
        if self.progress is not None:
            if self.progress.on_durable(offset, self.terms.clock.monotonic_ns()):
                self.apply_progress()
        elif offset > self.high_watermark:
            self.high_watermark, self.watermark_base_offset, self.watermark_position = offset, base_offset, position
            self.publish()

    def apply_progress(self) -> bool:
        """The followers have got further, or time has: whether the high watermark has moved;
        publishes then. Raises StorageFailed.
        """
        if self.progress is None or not self._reach(self.progress.high_watermark):
            return False
        self.publish()
        return True

    def apply_isr(self, isr: tuple[int, ...], partition_epoch: int, number: int = NO_PROPOSAL) -> None:
        """Apply the ISR that is committed under this leader epoch.

        `number`: of the proposal that it answers. Publishes. Raises StorageFailed.
        """
        if self.progress is not None:
            self.progress.on_isr(isr, partition_epoch, self.terms.clock.monotonic_ns(), number)
            self.isr = self.progress.isr
            self._reach(self.progress.high_watermark)
            self.publish()

    def update_high_watermark(self, leaders_high_watermark: Offset, has_appended: bool) -> bool:
        """As a follower, after what the leader sent was appended.

        Whether anything has moved; publishes then. Raises StorageFailed.
        """
        if has_appended:
            self._ends.add(self.log.end)
        has_moved = self._reach(min(leaders_high_watermark, self.log.log_end_offset)) or has_appended
        if has_moved:
            self.publish()
        return has_moved

    def on_truncated(self) -> bool:
        """As a follower, after its log was cut; publishes.

        Whether what consumers may have seen is gone.
        """
        log, before = self.log, self.high_watermark
        self._ends.clear()
        self.high_watermark = max(log.log_start_offset, min(before, log.log_end_offset))
        if self.high_watermark == log.log_end_offset:
            _, self.watermark_base_offset, self.watermark_position = log.end
        self.publish()
        return self.high_watermark < before

    def _reach(self, offset: Offset) -> bool:
        """Let the high watermark be at `offset`, or at the beginning of the batch that it is in;
        never back.
        """
        if offset <= self.high_watermark:
            return False
        log = self.log
        check(offset <= log.log_end_offset, f"the high watermark of {self.topic_partition} is beyond its log")
        found = self._ends.take(offset)
        if offset == log.log_end_offset:
            found = log.end
        elif found is None or found.offset != offset:
            found = log.boundary_at(offset, found)
            if found.offset <= self.high_watermark:
                return False
        self.high_watermark, self.watermark_base_offset, self.watermark_position = found
        return True

    def advance_log_start_offset(self, offset: Offset) -> RemovedSegments | None:
        """Raise the log start offset; publishes.

        Returns what `Log.advance_log_start_offset` does.
        """
        check(offset <= self.high_watermark, f"the log start offset of {self.topic_partition} would go over its high watermark")
        removed = self.log.advance_log_start_offset(offset)
        self.publish()
        return removed

    def publish(self) -> None:
        if self._published_segments != self.log.segment_list_generation:
            self.table.store_sealed_bytes(self.row, self.log.size_bytes - self.log.active_position)
            if self.log.begins_segment(self.high_watermark):  # the end of the one before it may be gone, or elsewhere
                self.watermark_base_offset, self.watermark_position = self.high_watermark, FILE_START
        self._published_segments = self.log.segment_list_generation
        if self._published_aborted_end != self.log.aborted_end_offset:
            self._published_aborted_end = self.log.aborted_end_offset
            self.table.store_aborted_end(self.row, self._published_aborted_end)
        self.table.store(self.row, self._row()._replace(row_generation=self.row_generation))

    def withdraw(self, role: int) -> None:
        """Stop serving (the disk went offline, the partition is being deleted); publishes."""
        self.role = role
        self.publish()
        self.table.announce()

    def freeze(self) -> None:
        """Lead, or follow, no more for as long as the log is handed over; publishes."""
        self.is_frozen, self._frozen_role = True, self.role
        self.withdraw(ROLE_NONE)

    def thaw(self) -> None:
        """The hand-over is over: lead or follow again as before, unless something else has come
        between; publishes.
        """
        if self.is_frozen:
            self.is_frozen = False
            if self.role == ROLE_NONE:
                self.withdraw(self._frozen_role)

    def is_led_under(self, row_generation: int, leader_epoch: LeaderEpoch, config_generation: int) -> bool:
        """Whether a descriptor means this partition as it is now.

        An older epoch of the same, unbroken leadership is as good: were a batch refused for it, the
        next one would overtake it and be refused for its sequence, and librdkafka sends both again
        as if they were new, under another producer epoch.
        """
        return row_generation == self.row_generation and self.led_since <= leader_epoch <= self.leader_epoch and config_generation == self.config_generation

    def describe(self) -> list[Any]:
        """What WELCOME says of it, at the end whether it must not lead before its epoch has grown."""
        name, log = self.topic_partition, self.log
        return [name.topic, name.partition, str(self.topic_id), log.leader_epochs.latest, log.log_end_offset, self.needs_epoch_bump]

    def _advance_high_watermark(self) -> None:
        """Of a leader that is the sole replica."""
        if self.flush_policy != FLUSH_BEFORE_ACKNOWLEDGEMENT and self.role == ROLE_LEADER:
            log_end_offset = self.log.log_end_offset
            if log_end_offset < self.high_watermark:  # not `check`, which would format its message on each append
                raise InvariantViolation(f"the high watermark of {self.topic_partition} is beyond its log")
            self.high_watermark = log_end_offset

    def _row(self) -> Row:
        """Return the row.

        The segment-list generation includes incarnation and row generation, so that a log-reader
        never uses another log's list for this one.
        """
        log = self.log
        watermark_base_offset, watermark_position = log.active_base_offset, log.active_position
        if self._knows_watermark and self.high_watermark != log.log_end_offset:
            watermark_base_offset, watermark_position = self.watermark_base_offset, self.watermark_position
        return Row(
            topic_id=self.topic_id,
            partition=self.topic_partition.partition,
            row_generation=0,
            role=self.role,
            leader_epoch=self.leader_epoch,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=self.high_watermark,
            last_stable_offset=log.last_stable_offset(self.high_watermark),
            isr_size=len(self.isr),
            min_insync_replicas=self.min_insync_replicas,
            config_generation=self.config_generation,
            active_base_offset=log.active_base_offset,
            active_position=log.active_position,
            watermark_base_offset=watermark_base_offset,
            watermark_position=watermark_position,
            segment_list_generation=self.table.shared.incarnation + (self.row_generation << 24) + log.segment_list_generation,
        )
