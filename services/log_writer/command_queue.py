"""What a log-writer does after the appends of a turn: commands, moves, truncations, DeleteRecords.

From the first such entry on, everything that a source offered waits here in order, and the source
is not polled before it is done: an append behind a command must see its effect. A few milliseconds
a turn are spent on it, because creating a thousand partitions must not make producers wait.

The controller's commands (create, lead, follow, ISR, delete, configure, live brokers) are
idempotent. A command is JSON in the controller's arena; the answer is an error code. Weak spots: an
entry that was started is finished, even beyond that time; CREATE and DELETE change directories and
fsync them (some ms on a healthy disk).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import orjson

from appliance.base.errors import DiskFull, ErrorCode, RequestRefused, StorageFailed
from appliance.base.logging import Logger
from appliance.base.model import INTERNAL_TOPICS, LeaderEpoch, TopicId, TopicPartition
from appliance.ipc.channel import SinkChannel
from appliance.ipc.descriptors import KIND, LENGTH, POSITION, ROW, ROW_GENERATION, TOKEN, VALUE_A, DescriptorKind, pack_producers
from appliance.shm.partition_table import APPEND_SINCE_WORD, FENCE_WORD, ROLE_LEADER
from services.log_writer.background.retention_rounds import RetentionRounds
from services.log_writer.log_writer_appends import AppendParts, LogWriterAppends
from services.log_writer.moves.partition_moves import MOVE_KINDS, MoveAnswer, PartitionMoves
from services.log_writer.replicas.awaited_deletions import Deletion
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas
from services.log_writer.replicas.replication_state import NO_PROPOSAL

WORK_NS = 10_000_000
"""Time for it in one turn."""
_DELETE_RECORDS = int(DescriptorKind.DELETE_RECORDS)
_DESCRIBE_PRODUCERS = int(DescriptorKind.DESCRIBE_PRODUCERS)
_BEGIN_VERIFICATION = int(DescriptorKind.BEGIN_VERIFICATION)
Entry = tuple[Any, ...]


class CommandQueue:
    """`carry_out_other(channel, entry)` does what waits here only for its order: appends and the
    like, True if it was one of them.
    """

    def __init__(
        self,
        parts: AppendParts,
        commands: LogWriterCommands,
        moves: PartitionMoves,
        retention: RetentionRounds,
        appends: LogWriterAppends,
        carry_out_other: Callable[[SinkChannel, Entry], bool],
    ) -> None:
        self.by_source: dict[SinkChannel, deque[Entry]] = {}
        self.needs_resync = False
        """The controller was refused something for want of space: it asks again when it is let in
        anew."""
        self._partitions, self._completions, _, _, self._trouble, self._clock, _ = parts
        self._words = parts.partitions.table.shared.words
        self._commands = commands
        self._moves = moves
        self._retention = retention
        self._appends = appends
        self._carry_out_other = carry_out_other

    def carry_out(self) -> int:
        """Of every source in turn, until all is done or the time is over."""
        done = 0
        deadline_ns = self._clock.monotonic_ns() + WORK_NS
        while self.by_source:
            for channel, entries in list(self.by_source.items()):
                self._one(channel, entries.popleft())
                if not entries:
                    del self.by_source[channel]
                done += 1
                if self._clock.monotonic_ns() >= deadline_ns:
                    return done
        return done

    def _one(self, channel: SinkChannel, entry: Entry) -> None:
        if self._carry_out_other(channel, entry):
            return
        if entry[KIND] == _DELETE_RECORDS:
            self._delete_records(channel, entry)
        elif entry[KIND] in MOVE_KINDS:
            self._move(channel, entry)
        elif entry[KIND] == _DESCRIBE_PRODUCERS:
            self._describe_producers(channel, entry)
        elif entry[KIND] == _BEGIN_VERIFICATION:
            self._appends.begin_verification(channel, entry)
        else:
            self._command(channel, entry)

    def _command(self, channel: SinkChannel, entry: Entry) -> None:
        if self._trouble.offline:
            self._completions.answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        document = bytes(channel.slice(entry[POSITION], entry[LENGTH]))
        self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            code = self._commands.carry_out(entry[KIND], document)
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
            self.needs_resync = self.needs_resync or isinstance(failure, DiskFull)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self._words[APPEND_SINCE_WORD] = 0
        self._completions.rows_moved = True
        self._completions.answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR if self._words[FENCE_WORD] else code)

    def _move(self, channel: SinkChannel, entry: Entry) -> None:
        """Carry out a command about a move between disks.

        The answer to a freeze has the log's end, its high watermark as base offset, and its start.
        """
        if self._trouble.offline:
            self._completions.answer(channel, entry, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        document = bytes(channel.slice(entry[POSITION], entry[LENGTH]))
        self._words[APPEND_SINCE_WORD] = self._clock.monotonic_ns()
        try:
            answer = self._moves.carry_out(entry[KIND], document, (channel, entry))
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
            answer = MoveAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
        self._words[APPEND_SINCE_WORD] = 0
        self._completions.rows_moved = True
        if self._words[FENCE_WORD]:
            answer = MoveAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
        if answer is None:
            return
        if answer.code or answer.log_end_offset < 0:
            self._completions.answer(channel, entry, answer.code)
            return
        completion = (entry[KIND], 0, 0, entry[ROW], entry[TOKEN], answer.high_watermark, -1, answer.log_start_offset, answer.log_end_offset, -1, 0, 0)
        self._completions.add(channel, completion)

    def _delete_records(self, channel: SinkChannel, entry: Entry) -> None:
        """Let a log begin at the offset in `value_a`; `AwaitedDeletions` answers.

        A full disk does it too, as soon as it can write that down.
        """
        replica = self._partitions.by_row.get(entry[ROW])
        offline, is_full = self._trouble.offline, self._trouble.is_full
        code = 0 if is_full and replica is not None and not offline else self._appends.refusal(replica, entry)
        try:
            if not code and replica is not None and channel.is_restricted and replica.topic_partition.topic in INTERNAL_TOPICS:
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if not code and replica is not None and (replica.is_frozen or replica.role != ROLE_LEADER):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if not code and replica is not None:
                wanted = Deletion(channel, entry, replica.high_watermark if entry[VALUE_A] == -1 else entry[VALUE_A])
                code = self._retention.delete_records(replica, entry[VALUE_A], wanted)
                self._completions.rows_moved = True
        except StorageFailed as failure:
            self._trouble.on_failure(failure)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if code:
            self._completions.answer(channel, entry, code)

    def _describe_producers(self, channel: SinkChannel, entry: Entry) -> None:
        """Write the producers of a partition into the source's slot, as many as fit; the completion
        has their number.
        """
        replica = self._partitions.by_row.get(entry[ROW])
        if replica is None or entry[ROW_GENERATION] != replica.row_generation or replica.role != ROLE_LEADER:
            code = ErrorCode.KAFKA_STORAGE_ERROR if self._trouble.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._completions.answer(channel, entry, code)
            return
        memory = channel.slice(entry[POSITION], entry[LENGTH])
        producers = replica.log.producers.snapshot()
        memory[:] = pack_producers(producers, len(memory))
        completion = (entry[KIND], 0, 0, entry[ROW], entry[TOKEN], -1, -1, -1, replica.log.log_end_offset, replica.leader_epoch, len(producers), 0)
        self._completions.add(channel, completion)


class LogWriterCommands:
    """Carries commands out on the replica partitions."""

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
            DescriptorKind.LIVE_BROKERS: self._apply_live_brokers,
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
        replica = self._partitions.find(topic_id, topic_partition.partition)
        if replica is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader_epoch: LeaderEpoch = command["leader_epoch"]
        latest = max(replica.leader_epoch, replica.log.leader_epochs.latest)
        if leader_epoch < latest or (replica.needs_epoch_bump and leader_epoch == latest):
            # Offsets that consumers saw under `latest` may return with other records; only a larger epoch shows that.
            return ErrorCode.FENCED_LEADER_EPOCH
        self._partitions.settle_truncation(replica)
        self._configure_hosted(replica, command)
        terms = int(command.get("config_generation", 0)), int(command.get("partition_epoch", -1))
        lead(replica, leader_epoch, tuple(command["isr"]), tuple(command["replicas"]), *terms)
        return ErrorCode.NONE

    def _become_follower(self, command: dict[str, Any]) -> int:
        """The replica-fetcher sees the row and finds out by leader epochs what of the log the
        leader has, too; so a log after an unclean boot may follow.
        """
        topic_partition, topic_id = _identity(command)
        replica = self._partitions.find(topic_id, topic_partition.partition)
        if replica is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader_epoch: LeaderEpoch = command["leader_epoch"]
        if leader_epoch < max(replica.leader_epoch, replica.log.leader_epochs.latest):
            return ErrorCode.FENCED_LEADER_EPOCH
        if replica.role == ROLE_LEADER and leader_epoch == replica.leader_epoch and command.get("leader", -1) >= 0:
            return ErrorCode.FENCED_LEADER_EPOCH  # an epoch has one leader
        self._configure_hosted(replica, command)
        replica.needs_epoch_bump = False
        if command.get("leader", -1) >= 0 and replica.log.lost_beginning is None:  # what the leader has of that, its first answer shows
            self._partitions.cut_to_damage(replica)  # the leader has what it lacks
        replica.follow(leader_epoch, tuple(command["isr"]), tuple(command["replicas"]), int(command.get("config_generation", 0)))
        return ErrorCode.NONE

    def _configure_hosted(self, replica: Replica, command: dict[str, Any]) -> None:
        self._partitions.configure(replica, command.get("config", {}))
        if "moving_to" in command:
            replica.is_moving = command["moving_to"] is not None

    def _apply_isr(self, command: dict[str, Any]) -> int:
        topic_partition, topic_id = _identity(command)
        replica = self._partitions.find(topic_id, topic_partition.partition)
        if replica is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if command["leader_epoch"] != replica.leader_epoch or replica.role != ROLE_LEADER:
            return ErrorCode.FENCED_LEADER_EPOCH
        replica.apply_isr(tuple(command["isr"]), int(command["partition_epoch"]), int(command.get("change", NO_PROPOSAL)))
        return ErrorCode.NONE

    def _delete(self, command: dict[str, Any]) -> int:
        topic_partition, topic_id = _identity(command)
        self._partitions.delete(topic_partition, topic_id)
        return ErrorCode.NONE

    def _configure(self, command: dict[str, Any]) -> int:
        topic_id = TopicId.from_text(command["topic_id"])
        for replica in self._partitions.of_topic(topic_id):
            self._partitions.configure(replica, command.get("config", {}))
            replica.apply_config(int(command.get("config_generation", 0)))
        return ErrorCode.NONE

    def _apply_live_brokers(self, command: dict[str, Any]) -> int:
        self._partitions.live_brokers = frozenset(command["brokers"])
        return ErrorCode.NONE


def lead(
    replica: Replica, leader_epoch: LeaderEpoch, isr: tuple[int, ...], replicas: tuple[int, ...], config_generation: int, partition_epoch: int = -1
) -> None:
    """Lead under `leader_epoch` from the log end on; the epoch is in the log's own cache before
    anyone can produce under it.

    Where acknowledgements wait for flushes, what the log holds is flushed before anyone sees it.
    """
    if replica.log.config.acknowledges_after_flush:
        replica.log.flush_batches()
    if leader_epoch > replica.log.leader_epochs.latest:
        replica.log.assign_leader_epoch(leader_epoch)
    if replica.log.damage.open:
        replica.log.fill_gaps(leader_epoch, replica.terms.clock.wall_ms())
    replica.needs_epoch_bump = False
    replica.lead(leader_epoch, isr, replicas, config_generation, partition_epoch)


def _identity(command: dict[str, Any]) -> tuple[TopicPartition, TopicId]:
    return TopicPartition(command["topic"], int(command["partition"])), TopicId.from_text(command["topic_id"])
