"""Moves of partitions between the disks of a box: the controller's commands, and the source's part.

A command is JSON in the controller's arena, like others. All are idempotent, and answered at once
except MOVE_FINISH. A disk is the source of some moves and the target of others (`incoming_moves`);
the two sides share nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from appliance.base.clock import Clock
from appliance.base.errors import DiskFull, ErrorCode
from appliance.base.logging import Logger
from appliance.base.model import NO_OFFSET, Offset, TopicId, TopicPartition
from appliance.ipc.descriptors import DescriptorKind
from appliance.shm.counters import Counters
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER
from appliance.storage.move_record import Complete
from services.log_writer.moves.incoming_moves import IncomingMoves
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

MOVE_KINDS = frozenset(
    {
        DescriptorKind.MOVE_BEGIN,
        DescriptorKind.MOVE_MARK,
        DescriptorKind.MOVE_FREEZE,
        DescriptorKind.MOVE_FINISH,
        DescriptorKind.MOVE_COMMIT,
        DescriptorKind.MOVE_PROMOTE,
        DescriptorKind.MOVE_CANCEL,
    }
)


class PartitionMoves:
    """Both sides of one disk."""

    def __init__(self, incoming: IncomingMoves, outgoing: OutgoingMoves) -> None:
        self.incoming = incoming
        self.outgoing = outgoing

    def carry_out(self, kind: int, document: bytes, context: Any) -> MoveAnswer | None:
        """None: it is answered later. Raises StorageFailed."""
        command: dict[str, Any] = orjson.loads(document)
        identity = TopicPartition(command["topic"], int(command["partition"])), TopicId.from_text(command["topic_id"])
        if kind == DescriptorKind.MOVE_MARK:
            return self.outgoing.mark(*identity)
        if kind == DescriptorKind.MOVE_FREEZE:
            return self.outgoing.freeze(*identity)
        if kind == DescriptorKind.MOVE_COMMIT:
            return self.outgoing.commit(*identity, Offset(int(command["log_end_offset"])))
        if kind == DescriptorKind.MOVE_BEGIN:
            return MoveAnswer(self.incoming.begin(*identity, command))
        if kind == DescriptorKind.MOVE_PROMOTE:
            return MoveAnswer(self.incoming.promote(*identity, command.get("config", {})))
        if kind == DescriptorKind.MOVE_FINISH:
            wanted = Complete(Offset(int(command["log_end_offset"])), Offset(int(command["high_watermark"])), Offset(int(command["log_start_offset"])))
            code = self.incoming.finish(*identity, wanted, command.get("deadline_ms"), context)
            return None if code is None else MoveAnswer(code)
        self.outgoing.cancel(*identity, bool(command.get("keeps_mark")))
        self.incoming.cancel(*identity)
        return MoveAnswer()

    @property
    def goes_on(self) -> bool:
        return self.incoming.goes_on

    def turn(self, now_ns: int) -> None:
        self.outgoing.turn(now_ns)
        self.incoming.turn()


FREEZES = 3
"""A frozen partition leads again after so many deadlines of a disk without an order."""


class MoveAnswer(NamedTuple):
    """An answer to a command; the offsets are those of a frozen log."""

    code: int = ErrorCode.NONE
    log_end_offset: Offset = NO_OFFSET
    high_watermark: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET


class OutgoingMoves:
    """Partitions that are being moved away from this disk: marked, frozen, removed.

    A mark keeps the log from being compacted while it is copied. A freeze is in memory only, and
    for a limited time (`deadline_ms`): an incarnation that is not frozen, or was frozen at another
    end, does not commit, so batches that were appended behind the copy stay here. The commit is a
    rename: the one commit point of a move. `on_given_away` is called after it, for acknowledgements
    that waited for this disk.
    """

    def __init__(
        self,
        partitions: Replicas,
        clock: Clock,
        counters: Counters,
        deadline_ms: int,
        log: Logger,
        on_given_away: Callable[[Replica], None] = lambda _: None,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._freeze_ns = FREEZES * deadline_ms * 1_000_000
        self._log = log
        self._on_given_away = on_given_away
        self._frozen: dict[Replica, int] = {}
        self._given_away = counters.counter("moves.given_away")

    def mark(self, topic_partition: TopicPartition, topic_id: TopicId) -> MoveAnswer:
        replica = self._partitions.find(topic_id, topic_partition.partition)
        if replica is None:
            return self._absent(topic_partition, topic_id)
        replica.is_moving = True
        return MoveAnswer()

    def freeze(self, topic_partition: TopicPartition, topic_id: TopicId) -> MoveAnswer:
        """Stop leading or following: the log end stays until a commit or a cancel.

        Repeating it returns the same answer.
        """
        replica = self._partitions.find(topic_id, topic_partition.partition)
        if replica is None:
            return self._absent(topic_partition, topic_id)
        if not replica.is_frozen:
            if replica.role not in (ROLE_LEADER, ROLE_FOLLOWER):
                return MoveAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            try:
                replica.log.snapshot_producers()
            except DiskFull:
                pass  # then the copy keeps what the batches say
            replica.freeze()
        self._frozen[replica] = self._clock.monotonic_ns() + self._freeze_ns
        return MoveAnswer(ErrorCode.NONE, replica.log.log_end_offset, replica.high_watermark, replica.log.log_start_offset)

    def commit(self, topic_partition: TopicPartition, topic_id: TopicId, log_end_offset: Offset) -> MoveAnswer:
        """Give the log away, if it is frozen and ends there.

        Durable when this returns. Raises `StorageFailed`; `DiskFull`: nothing has happened.
        """
        replica = self._partitions.find(topic_id, topic_partition.partition)
        if replica is None:
            return self._absent(topic_partition, topic_id)
        if not replica.is_frozen or replica.log.log_end_offset != log_end_offset:
            return MoveAnswer(ErrorCode.FENCED_LEADER_EPOCH)
        self._partitions.give_away(replica)
        self._on_given_away(replica)
        self._frozen.pop(replica, None)
        self._given_away.add()
        self._log.info(f"{topic_partition} was given to another disk, it ends at offset {log_end_offset}", **topic_partition._asdict())
        return MoveAnswer()

    def cancel(self, topic_partition: TopicPartition, topic_id: TopicId, keeps_mark: bool) -> None:
        """Lead again.

        `keeps_mark`: only the hand-over is over; a copy may hold some of the log, and goes on.
        """
        replica = self._partitions.find(topic_id, topic_partition.partition)
        if replica is not None:
            replica.is_moving = replica.is_moving and keeps_mark
            self._frozen.pop(replica, None)
            replica.thaw()

    def turn(self, now_ns: int) -> None:
        """Once a second."""
        for replica, until_ns in list(self._frozen.items()):
            if not replica.is_frozen or self._partitions.by_row.get(replica.row) is not replica:
                del self._frozen[replica]
            elif now_ns >= until_ns:
                del self._frozen[replica]
                self._log.warning(
                    f"{replica.topic_partition} was frozen for a move that did not continue: it is served again", **replica.topic_partition._asdict()
                )
                replica.thaw()

    def describe(self) -> list[list[Any]]:
        """What WELCOME says: which partitions are frozen."""
        replica = [each for each in self._partitions.by_row.values() if each.is_frozen]
        return [[each.topic_partition.topic, each.topic_partition.partition, str(each.topic_id)] for each in replica]

    def _absent(self, topic_partition: TopicPartition, topic_id: TopicId) -> MoveAnswer:
        """UNKNOWN_TOPIC_OR_PARTITION is said only of what is not on the disk, served or not."""
        is_there = self._partitions.directory.may_hold(topic_partition, topic_id)
        return MoveAnswer(ErrorCode.KAFKA_STORAGE_ERROR if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
