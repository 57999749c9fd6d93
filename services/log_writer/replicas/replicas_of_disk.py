"""All partitions of one disk in its log-writer: opened by recovery, created and deleted by command.

Configs arrive complete from the controller: the topic's own values before the box's. Rows of the
table and entries here are added and removed together.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, OutOfDescriptors, RequestRefused, StorageFailed
from appliance.base.model import FIRST_OFFSET, Offset, TopicId, TopicPartition
from appliance.ipc.disk_reports import LostOffsets
from appliance.shm.partition_table import ROLE_NONE, ROWS, PartitionTableWriter, TableFull
from appliance.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.log_directory import LogDirectory
from appliance.storage.producer_state import KEPT_SHARE, PRODUCER_EXPIRATION_MS
from appliance.storage.recovery import CLEAN, Recovery, Unclean
from services.log_writer.replicas.replica import Replica, ReplicationTerms


class ProducerSettings(NamedTuple):
    """The box's settings about producers."""

    expiration_ms: int = PRODUCER_EXPIRATION_MS
    verifies_transactions: bool = True


DISK_PRODUCERS_MAX = 200_000
"""Producers that all logs of a disk remember together, about 100 MB."""

KAFKAS = ProducerSettings()
"""Kafka's defaults."""


class Replicas:
    """By row index and by (topic id, partition)."""

    def __init__(
        self, directory: LogDirectory, table: PartitionTableWriter, clock: Clock, terms: ReplicationTerms, producers: ProducerSettings = KAFKAS
    ) -> None:
        self.directory = directory
        self.table = table
        self._terms = terms
        self._clock = clock
        self._producers = producers
        self.descriptors = DescriptorBudget()
        self.live_brokers: frozenset[int] | None = None
        """The boxes that live, as the controller says; None while it has not."""
        self.by_row: dict[int, Replica] = {}
        self._by_identity: dict[tuple[TopicId, int], Replica] = {}
        self.waiting: Collection[tuple[TopicPartition, TopicId]] = ()
        """Logs that are recovered one after the other, by a thread."""
        self.loading: TopicPartition | None = None
        """The one of them that is recovered now."""
        self.damaged: list[Replica] = []
        """Those that lacked offsets when they were opened, or later."""
        self._producers_opened = 0
        """Producers of logs that were opened since the last `shed_producers`."""

    def __len__(self) -> int:
        return len(self.by_row)

    def find(self, topic_id: TopicId, partition: int) -> Replica | None:
        return self._by_identity.get((topic_id, partition))

    def of_topic(self, topic_id: TopicId) -> list[Replica]:
        return [replica for (hosted_id, _), replica in self._by_identity.items() if hosted_id == topic_id]

    def open(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: Mapping[str, str],
        recovery: Recovery,
        log_start_offset: Offset,
        high_watermark: Offset,
        on_scanned: Callable[[int], None] = lambda _: None,
    ) -> Replica:
        """Open (and recover) the log of a partition whose directory exists, and give it a row.

        Raises StorageFailed; TableFull and OutOfDescriptors when this disk has as many open logs as
        it can.
        """
        return self.add(self.load(topic_partition, topic_id, config, recovery, log_start_offset, on_scanned), high_watermark)

    def load(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: Mapping[str, str],
        recovery: Recovery,
        log_start_offset: Offset,
        on_scanned: Callable[[int], None] = lambda _: None,
    ) -> Log:
        """The first half of `open`, which reads the disk: in any thread."""
        if not self.table.free_rows:
            raise TableFull(f"{self.directory.path} serves {ROWS} partitions already; add a disk or delete topics")
        path = f"{self.directory.path}/{topic_partition}"
        log_config = LogConfig.from_topic_config(config)
        expiration_ms = self._producers.expiration_ms
        log = Log.open(path, topic_partition, topic_id, log_config, self._clock, recovery, log_start_offset, on_scanned, expiration_ms)
        if log.highest_descriptor >= self.descriptors.for_logs:
            log.abandon()
            raise OutOfDescriptors(
                f"{self.directory.path} has {len(self)} open logs, and the limit of {self.descriptors.limit} open files allows no more; "
                "raise the hard limit (ulimit -Hn; LimitNOFILE= in a unit), add a disk or delete topics"
            )
        try:
            log.configure(log_config)
        except StorageFailed:
            log.abandon()
            raise
        return log

    def add(self, log: Log, high_watermark: Offset) -> Replica:
        """The second half of `open`: from here on, the log is one of this disk's. Raises TableFull."""
        try:
            replica = Replica(log.topic_partition, log.topic_id, log, self.table, high_watermark, self._terms, self._producers.verifies_transactions)
        except TableFull:
            log.abandon()
            raise
        self.by_row[replica.row] = replica
        self._by_identity[(log.topic_id, log.topic_partition.partition)] = replica
        self._producers_opened += len(log.producers)
        if self._producers_opened > DISK_PRODUCERS_MAX // 4:
            self.shed_producers()
        return replica

    def shed_producers(self) -> None:
        """Let the logs with the most producers forget some, while all logs together have more than `DISK_PRODUCERS_MAX`."""
        self._producers_opened = 0
        states = [replica.log.producers for replica in self.by_row.values()]
        total = sum(map(len, states))
        if total <= DISK_PRODUCERS_MAX:
            return
        states.sort(key=len)
        share = DISK_PRODUCERS_MAX
        for number, state in enumerate(states):  # the smallest first: what they leave is for the others
            fair = share // (len(states) - number)
            if len(state) > fair:
                state.keep_newest(int(fair * KEPT_SHARE))
            share -= min(len(state), fair)

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: Mapping[str, str]) -> Replica:
        """Make directory and log of a new partition; the same topic id again changes nothing.

        Raises RequestRefused for another id, and when there is no row or no descriptor for it; of
        what is refused nothing stays.
        """
        existing = self.find(topic_id, topic_partition.partition)
        if existing is not None:
            return existing
        if (topic_partition, topic_id) in self.waiting:
            raise _not_yet(topic_partition)
        if not self.table.free_rows:
            raise RequestRefused(
                ErrorCode.POLICY_VIOLATION, f"{self.directory.path} holds {ROWS} partitions, the most that a disk can; add a disk or delete topics"
            )
        is_new = not self.directory.holds(topic_partition)
        try:
            self.directory.create_partition(topic_partition.topic, topic_partition.partition, topic_id)
            if is_new:
                return self.open(topic_partition, topic_id, config, CLEAN, FIRST_OFFSET, FIRST_OFFSET)
            return self._open_found(topic_partition, topic_id, config)
        except StorageFailed as failure:
            if is_new:
                self.directory.undo_creation(topic_partition)
            if isinstance(failure, OutOfDescriptors):
                raise RequestRefused(ErrorCode.POLICY_VIOLATION, str(failure)) from failure
            raise

    def _open_found(self, topic_partition: TopicPartition, topic_id: TopicId, config: Mapping[str, str]) -> Replica:
        """Recover a log whose directory an earlier incarnation created, or that this one left
        unserved.
        """
        checkpoints = self.directory.checkpoints
        if topic_partition not in checkpoints.unserved:
            return self.open(topic_partition, topic_id, config, Unclean(FIRST_OFFSET), FIRST_OFFSET, FIRST_OFFSET)
        recovery_point, high_watermark, log_start_offset = (
            checkpoints.lines[file].get(topic_partition, FIRST_OFFSET) for file in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS)
        )
        replica = self.open(topic_partition, topic_id, config, Unclean(recovery_point), log_start_offset, high_watermark)
        replica.needs_epoch_bump = True
        checkpoints.unserved.discard(topic_partition)
        return replica

    def delete(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Remove a partition: first its row, so that no request is sent to it, then its directory
        is renamed and later removed. Idempotent.

        Raises RequestRefused while the log is being recovered.
        """
        if topic_partition == self.loading:
            raise _not_yet(topic_partition)
        replica = self._by_identity.pop((topic_id, topic_partition.partition), None)
        if replica is not None:
            replica.withdraw(ROLE_NONE)
            self.table.remove_row(replica.row)
            del self.by_row[replica.row]
            replica.log.abandon()  # it is never read again: no reason to wait for the disk
        elif self._names_another(topic_partition, topic_id):
            return
        self.directory.mark_deleted(topic_partition)

    def give_away(self, replica: Replica) -> None:
        """Take a partition out whose log lies on another disk from now on: its directory first.

        Raises `DiskFull`, and nothing has happened.
        """
        self.directory.mark_deleted(replica.topic_partition)
        del self._by_identity[replica.topic_id, replica.topic_partition.partition]
        replica.withdraw(ROLE_NONE)
        self.table.remove_row(replica.row)
        del self.by_row[replica.row]
        replica.log.abandon()

    def _names_another(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Whether the name belongs to a topic with another id: a late deletion must not remove it."""
        return any(replica.topic_partition == topic_partition and replica.topic_id != topic_id for replica in self.by_row.values())

    def settle_truncation(self, replica: Replica) -> None:
        """Before a log that was cut grows again: no checkpoint says more of it than it holds.

        Raises StorageFailed.
        """
        if replica.needs_checkpoints:
            self.directory.checkpoints.cap(replica.topic_partition, replica.log.log_end_offset, replica.log.log_start_offset)
            replica.needs_checkpoints = False

    def cut_to_damage(self, replica: Replica) -> None:
        """Before it follows a live leader: remove what lies behind the first offset that is missing,
        so that the log is fetched again from there. Raises StorageFailed.
        """
        if replica.log.damage.open:
            replica.needs_checkpoints = True
            if replica.log.cut_to_damage():
                replica.on_truncated()
            self.settle_truncation(replica)
            replica.log.damage.forget_open()

    def lost_offsets(self) -> tuple[LostOffsets, ...]:
        """Return what the logs lack, for the report."""
        here = [
            (replica.topic_partition, (*replica.log.damage.ranges, *replica.log.damage.noted))
            for replica in self.damaged
            if self.by_row.get(replica.row) is replica
        ]
        return tuple(LostOffsets(*name, first, until, is_settled) for name, ranges in here for first, until, is_settled in ranges)

    def recovery_points(self) -> dict[TopicPartition, Offset]:
        """Return the recovery point of each log, for the checkpoint. Like the next two: for any
        thread, because `list` copies the values in one step of the interpreter."""
        return {replica.topic_partition: replica.log.recovery_point for replica in list(self.by_row.values())}

    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        return {replica.topic_partition: replica.high_watermark for replica in list(self.by_row.values())}

    def log_start_offsets(self) -> dict[TopicPartition, Offset]:
        """Return those of all logs, also 0: a log whose start is on record cannot begin later
        unnoticed."""
        return {replica.topic_partition: replica.log.log_start_offset for replica in list(self.by_row.values())}

    def save_checkpoints(self) -> None:
        """Write recovery points, high watermarks and log start offsets. Raises StorageFailed."""
        for file, collect in (
            (RECOVERY_POINTS, self.recovery_points),
            (HIGH_WATERMARKS, self.high_watermarks),
            (LOG_START_OFFSETS, self.log_start_offsets),
        ):
            self.directory.checkpoints.save(file, collect)

    def configure(self, replica: Replica, config: Mapping[str, str]) -> None:
        replica.log.configure(LogConfig.from_topic_config(config))


def _not_yet(topic_partition: TopicPartition) -> RequestRefused:
    return RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, f"log {topic_partition} is being recovered; the order is repeated after that")


SWEEP_NS = 600_000_000_000
PARTITIONS_A_TURN = 200
SHED_NS = 1_000_000_000


class ProducerUpkeep:
    """Lets every log of a disk forget silent producers (`producer.id.expiration.ms`), and the oldest of too many.

    `turn` is called about every second. A sweep starts every ten minutes, as in Kafka, and handles
    a bounded number of partitions a turn. Weak spot: a partition with tens of thousands of
    producers is handled in one go (about 10 ms for each ten thousand).
    """

    def __init__(self, partitions: Replicas, clock: Clock) -> None:
        self._partitions = partitions
        self._clock = clock
        self._next_sweep_ns = clock.monotonic_ns() + SWEEP_NS
        self._next_shed_ns = 0
        self._waiting: list[Replica] = []

    def turn(self, now_ns: int) -> None:
        if now_ns >= self._next_shed_ns:
            self._next_shed_ns = now_ns + SHED_NS
            self._partitions.shed_producers()
        if not self._waiting and now_ns >= self._next_sweep_ns:
            self._next_sweep_ns = now_ns + SWEEP_NS
            self._waiting = list(self._partitions.by_row.values())
        if self._waiting:
            now_ms = self._clock.wall_ms()
            for replica in self._waiting[:PARTITIONS_A_TURN]:
                replica.log.expire_producers(now_ms)
            del self._waiting[:PARTITIONS_A_TURN]


DESCRIPTORS_OF_A_LOG = 3
_KEPT_BACK_MAX = 256
_UNLIMITED = 1 << 30


class DescriptorBudget:
    """How many descriptors of the process belong to logs, and how many are reserved.

    An open log has three. Flush rounds duplicate those of a slice of logs, checkpoints need one,
    each source two; so logs stop short of the process's limit. The kernel assigns the lowest free
    number, so a log whose descriptors are above the line is one too many. Weak spot: segments that
    roll faster than they are flushed stay open and use the reserve.
    """

    @property
    def limit(self) -> int:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return soft if soft >= 0 else _UNLIMITED

    @property
    def for_logs(self) -> int:
        """Numbers below this one may be a log's."""
        limit = self.limit
        return limit - min(_KEPT_BACK_MAX, limit // 4)

    @property
    def logs_max(self) -> int:
        """About how many logs can be open."""
        return self.for_logs // DESCRIPTORS_OF_A_LOG

    @property
    def for_flush_round(self) -> int:
        """How many a slice of a flush round may take: three quarters of what is kept back."""
        return (self.limit - self.for_logs) * 3 // 4
