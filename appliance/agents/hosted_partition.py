"""A partition that a log-writer holds: its log, its role, and its row in the table. The log-writer alone changes it.

The high watermark of a sole replica is its log end, or where acknowledgements wait for flushes, what is durable; with followers it waits for
them (their progress arrives as descriptors, a door that is built with replication). The last stable offset is what the log says of the transactions
in it. Whatever changes here is published by `publish` (the whole row) or `publish_append` (the hot path).
"""

from __future__ import annotations

from typing import Any

from appliance.base.invariants import check
from appliance.base.model import TopicId, TopicPartition
from appliance.shm.partition_table import ROLE_LEADER, ROLE_NONE, PartitionTableWriter, Row
from appliance.storage.log import Log
from appliance.storage.removed_segments import RemovedSegments
from appliance.storage.verification import Verifications

NO_FLUSH_POLICY, FLUSH_BY_INTERVAL, FLUSH_BEFORE_ACKNOWLEDGEMENT = range(3)


class HostedPartition:
    """One row's worth of state."""

    __slots__ = (
        "_published_aborted_end",
        "_published_segments",
        "config_generation",
        "flush_policy",
        "high_watermark",
        "is_frozen",
        "is_moving",
        "isr",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "needs_epoch_bump",
        "replicas",
        "role",
        "row",
        "row_generation",
        "table",
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
        high_watermark: int,
        verifies_transactions: bool = True,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.table = table
        self.role = ROLE_NONE
        self.leader_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.min_insync_replicas = 1
        self.config_generation = 0
        self.needs_epoch_bump = False
        self.is_moving = False
        """Its log is being copied to another disk: compaction would change what was copied."""
        self.is_frozen = False
        """It led, and is being handed over: nothing is appended, and it may lead again."""
        self.flush_policy = NO_FLUSH_POLICY
        self.watermark_base_offset = log.active_base_offset
        self.watermark_position = log.active_position
        """Where the high watermark is, while it waits for flushes; else it is at the log's end."""
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self._published_segments = log.segment_list_generation
        self._published_aborted_end = -1
        log.verifications = Verifications(verifies_transactions, table.shared.incarnation)
        self.row_generation = 0
        self.row, self.row_generation = table.add_row(self._row())
        table.store_sealed_bytes(self.row, log.size_bytes - log.active_position)
        self.publish()

    def take_role(self, role: int, leader_epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...], config_generation: int) -> None:
        """Become leader or follower under `leader_epoch`; publishes."""
        check(leader_epoch >= self.leader_epoch, f"leader epoch of {self.topic_partition} would go from {self.leader_epoch} back to {leader_epoch}")
        self.role = role
        self.is_frozen = False
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.replicas = replicas
        self.flush_policy = NO_FLUSH_POLICY
        self._advance_high_watermark()
        self.take_config(config_generation)
        self.table.announce()

    def take_config(self, config_generation: int) -> None:
        """The log has new configs: produces that were checked under the old ones are refused from now on; publishes."""
        self.config_generation = config_generation
        self.min_insync_replicas = min(self.log.config.min_insync_replicas, max(1, len(self.replicas)))
        self._take_flush_policy()
        self.publish()

    def _take_flush_policy(self) -> None:
        """What consumers saw stays visible; from now on the high watermark waits for flushes, or does so no more."""
        config, before = self.log.config, self.flush_policy
        self.flush_policy = (
            FLUSH_BEFORE_ACKNOWLEDGEMENT if config.acknowledges_after_flush else FLUSH_BY_INTERVAL if config.flushes_by_interval else NO_FLUSH_POLICY
        )
        if self.flush_policy != FLUSH_BEFORE_ACKNOWLEDGEMENT:
            self._advance_high_watermark()
        elif before != FLUSH_BEFORE_ACKNOWLEDGEMENT:
            self.watermark_base_offset, self.watermark_position = self.log.active_base_offset, self.log.active_position

    def publish_append(self) -> None:
        """After an append: advance the high watermark and publish what moved."""
        self._advance_high_watermark()
        log = self.log
        if log.segment_list_generation != self._published_segments or self.high_watermark != log.log_end_offset or log.producers.is_undecided:
            self.publish()
        else:
            self.table.store_progress(self.row, log.log_end_offset, self.high_watermark, log.active_position)

    def advance_log_start_offset(self, offset: int) -> RemovedSegments | None:
        """Let the log begin at `offset` for everybody; publishes. What `Log.advance_log_start_offset` returns."""
        check(offset <= self.high_watermark, f"the log start offset of {self.topic_partition} would go over its high watermark")
        removed = self.log.advance_log_start_offset(offset)
        self.publish()
        return removed

    def on_durable(self, offset: int, base_offset: int, position: int) -> None:
        """Batches below `offset`, which is at `position` of segment `base_offset`, survive a power cut: consumers may see them; publishes."""
        if self.flush_policy == FLUSH_BEFORE_ACKNOWLEDGEMENT and len(self.isr) == 1 and offset > self.high_watermark:
            check(offset <= self.log.log_end_offset, f"{self.topic_partition} is durable beyond its log")
            self.high_watermark, self.watermark_base_offset, self.watermark_position = offset, base_offset, position
            self.publish()

    def publish(self) -> None:
        if self._published_segments != self.log.segment_list_generation:
            self.table.store_sealed_bytes(self.row, self.log.size_bytes - self.log.active_position)
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
        """Lead no more, for as long as the log is handed over; publishes."""
        self.is_frozen = True
        self.withdraw(ROLE_NONE)

    def thaw(self) -> None:
        """The hand-over is over: lead again as before, unless something else has come between; publishes."""
        if self.is_frozen:
            self.is_frozen = False
            if self.role == ROLE_NONE:
                self.withdraw(ROLE_LEADER)

    def is_led_under(self, row_generation: int, leader_epoch: int, config_generation: int) -> bool:
        """Whether a descriptor means this partition as it is now."""
        return row_generation == self.row_generation and leader_epoch == self.leader_epoch and config_generation == self.config_generation

    def describe(self) -> list[Any]:
        """What WELCOME says of it."""
        return [self.topic_partition.topic, self.topic_partition.partition, str(self.topic_id), self.log.leader_epochs.latest, self.log.log_end_offset]

    def _advance_high_watermark(self) -> None:
        if len(self.isr) == 1 and self.flush_policy != FLUSH_BEFORE_ACKNOWLEDGEMENT:
            check(self.log.log_end_offset >= self.high_watermark, f"the high watermark of {self.topic_partition} is beyond its log")
            self.high_watermark = self.log.log_end_offset

    def _row(self) -> Row:
        """The segment-list generation names our life and row as well: a log-reader must not take another log's list for this one."""
        log = self.log
        watermark_base_offset, watermark_position = log.active_base_offset, log.active_position
        if self.flush_policy == FLUSH_BEFORE_ACKNOWLEDGEMENT and self.high_watermark != log.log_end_offset:
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
