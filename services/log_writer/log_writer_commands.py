"""Commands of the controller to a log-writer: create, lead, follow, ISR, delete, configure.

All of them are idempotent. A command is JSON in the controller's arena; the answer is an error code. Weak
spot: CREATE and DELETE change directories and fsync them within a turn of the duty cycle (some ms on a
healthy disk).
"""

from __future__ import annotations

from typing import Any

import orjson

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.logging import Logger
from appliance.base.model import TopicId, TopicPartition
from appliance.ipc.descriptors import DescriptorKind
from appliance.shm.partition_table import ROLE_LEADER
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas
from services.log_writer.replicas.replication_state import NO_WISH


class LogWriterCommands:
    """Carries commands out on the hosted partitions."""

    def __init__(self, partitions: Replicas, log: Logger) -> None:
        self._partitions = partitions
        self._log = log
        self._by_kind = {
            DescriptorKind.CREATE: self._create,
            DescriptorKind.BECOME_LEADER: self._become_leader,
            DescriptorKind.BECOME_FOLLOWER: self._become_follower,
            DescriptorKind.ISR: self._apply_isr,
            DescriptorKind.DELETE: self._delete,
            DescriptorKind.CONFIG: self._configure,
            DescriptorKind.LIVE_BROKERS: self._take_live_brokers,
        }

    def carry_out(self, kind: int, document: bytes) -> int:
        """The error code of a command. Raises StorageFailed: the directory goes offline."""
        action = self._by_kind.get(DescriptorKind(kind))
        if action is None:
            return ErrorCode.INVALID_REQUEST
        try:
            return action(orjson.loads(document))
        except RequestRefused as refusal:
            self._log.warning(f"refused the order {DescriptorKind(kind).name}: {refusal.message}", peer="controller")
            return refusal.code

    def _create(self, command: dict[str, Any]) -> int:
        topic_partition, topic_id = _identity(command)
        self._partitions.create(topic_partition, topic_id, command.get("config", {}))
        return ErrorCode.NONE

    def _become_leader(self, command: dict[str, Any]) -> int:
        topic_partition, topic_id = _identity(command)
        hosted = self._partitions.find(topic_id, topic_partition.partition)
        if hosted is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader_epoch: int = command["leader_epoch"]
        latest = max(hosted.leader_epoch, hosted.log.leader_epochs.latest)
        if leader_epoch < latest or (hosted.needs_epoch_bump and leader_epoch == latest):
            # Offsets that consumers saw under `latest` may return with other records; only a larger epoch shows that.
            return ErrorCode.FENCED_LEADER_EPOCH
        self._partitions.settle_truncation(hosted)
        self._configure_hosted(hosted, command)
        terms = int(command.get("config_generation", 0)), int(command.get("partition_epoch", -1))
        lead(hosted, leader_epoch, tuple(command["isr"]), tuple(command["replicas"]), *terms)
        return ErrorCode.NONE

    def _become_follower(self, command: dict[str, Any]) -> int:
        """The replica-fetcher sees the row and finds out by leader epochs what of the log the leader has, too; so a log after an unclean boot may follow."""
        topic_partition, topic_id = _identity(command)
        hosted = self._partitions.find(topic_id, topic_partition.partition)
        if hosted is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader_epoch: int = command["leader_epoch"]
        if leader_epoch < max(hosted.leader_epoch, hosted.log.leader_epochs.latest):
            return ErrorCode.FENCED_LEADER_EPOCH
        if hosted.role == ROLE_LEADER and leader_epoch == hosted.leader_epoch and command.get("leader", -1) >= 0:
            return ErrorCode.FENCED_LEADER_EPOCH  # an epoch has one leader
        self._configure_hosted(hosted, command)
        hosted.needs_epoch_bump = False
        hosted.follow(leader_epoch, tuple(command["isr"]), tuple(command["replicas"]), int(command.get("config_generation", 0)))
        return ErrorCode.NONE

    def _configure_hosted(self, hosted: Replica, command: dict[str, Any]) -> None:
        self._partitions.configure(hosted, command.get("config", {}))
        if "moving_to" in command:
            hosted.is_moving = command["moving_to"] is not None

    def _apply_isr(self, command: dict[str, Any]) -> int:
        topic_partition, topic_id = _identity(command)
        hosted = self._partitions.find(topic_id, topic_partition.partition)
        if hosted is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if command["leader_epoch"] != hosted.leader_epoch or hosted.role != ROLE_LEADER:
            return ErrorCode.FENCED_LEADER_EPOCH
        hosted.apply_isr(tuple(command["isr"]), int(command["partition_epoch"]), int(command.get("change", NO_WISH)))
        return ErrorCode.NONE

    def _delete(self, command: dict[str, Any]) -> int:
        topic_partition, topic_id = _identity(command)
        self._partitions.delete(topic_partition, topic_id)
        return ErrorCode.NONE

    def _configure(self, command: dict[str, Any]) -> int:
        topic_id = TopicId.from_text(command["topic_id"])
        for hosted in self._partitions.of_topic(topic_id):
            self._partitions.configure(hosted, command.get("config", {}))
            hosted.take_config(int(command.get("config_generation", 0)))
        return ErrorCode.NONE

    def _take_live_brokers(self, command: dict[str, Any]) -> int:
        self._partitions.live_brokers = frozenset(command["brokers"])
        return ErrorCode.NONE


def lead(hosted: Replica, leader_epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...], config_generation: int, partition_epoch: int = -1) -> None:
    """Lead under `leader_epoch` from the log end on; the epoch is in the log's own cache before anyone can produce under it.

    Where acknowledgements wait for flushes, what the log holds is flushed before anyone sees it."""
    if hosted.log.config.acknowledges_after_flush:
        hosted.log.flush_batches()
    if leader_epoch > hosted.log.leader_epochs.latest:
        hosted.log.assign_leader_epoch(leader_epoch)
    hosted.needs_epoch_bump = False
    hosted.lead(leader_epoch, isr, replicas, config_generation, partition_epoch)


def _identity(command: dict[str, Any]) -> tuple[TopicPartition, TopicId]:
    return TopicPartition(command["topic"], int(command["partition"])), TopicId.from_text(command["topic_id"])
