"""The report of one incarnation of a log-writer on its disk, with what it has confirmed since.

Owned by the controller process, one for each connected log-writer. Roles belong to an incarnation
of a log-writer, not to a ZooKeeper session: after a reconnect only differences are sent. Weak: the
contents of a disk are known from the greeting and from confirmed commands; they are not read.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

from appliance.ipc.descriptors import DescriptorKind
from services.controller.zookeeper.topic_registry import TopicState

PartitionKey = tuple[str, int]
"""Topic and partition."""


class FutureReplica(NamedTuple):
    """A copy that will replace a partition's log.

    `complete_at` is the log end offset at which it is complete and durable, None while it is being
    copied.
    """

    topic_id: str
    complete_at: int | None = None


class ReplicaRole(NamedTuple):
    """What a log-writer is to be for a partition: leader or follower (`kind` is the command)."""

    kind: DescriptorKind
    topic_id: str
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...] = ()
    """For leaders only, as is `partition_epoch`: a follower needs neither."""
    partition_epoch: int = -1

    def differs_in_isr_only(self, other: ReplicaRole) -> bool:
        return self._replace(isr=other.isr, partition_epoch=other.partition_epoch) == other


EPOCH_COLUMN = 3
"""Of a partition in a greeting."""
BUMP_COLUMN = 5
"""Of a partition in a greeting; a log-writer without it means all of them."""


class DiskReport:
    """What one incarnation of a log-writer reported and confirmed."""

    __slots__ = (
        "confirmed",
        "directory_id",
        "disk",
        "frozen",
        "futures",
        "incarnation",
        "is_offline",
        "leader_epochs",
        "missing",
        "needs_epoch_bump",
        "partitions",
        "refused",
        "refused_isr_changes",
        "replaces",
        "sent",
        "unbumped",
    )

    def __init__(self, disk: str, directory_id: str, incarnation: int, needs_epoch_bump: bool, partitions: dict[PartitionKey, str]) -> None:
        self.disk = disk
        self.directory_id = directory_id
        self.incarnation = incarnation
        self.needs_epoch_bump = needs_epoch_bump
        self.partitions = partitions
        """(topic, partition) → topic id as text."""
        self.leader_epochs: dict[PartitionKey, int] = {}
        """The latest leader epoch of each log, as far as it is known; -1 if it never had a leader."""
        self.futures: dict[PartitionKey, FutureReplica] = {}
        """Copies of partitions that are being moved to this disk."""
        self.is_offline = False
        """The disk could not be read at the greeting: it may hold partitions that are not listed.
        """
        self.frozen: dict[PartitionKey, str] = {}
        """(topic, partition) → topic id of the partitions that were frozen for a hand-over at the
        greeting.
        """
        self.missing = 0
        """Count of partitions that ZooKeeper places here and that are missing here."""
        self.replaces: frozenset[str] = frozenset()
        """Ids of directories that were given up for this one: their partitions start empty here."""
        self.unbumped: set[PartitionKey] = set(partitions) if needs_epoch_bump else set()
        """Partitions from an unclean boot, or changed in a stop, that must not lead before their
        leader epoch has grown.
        """
        self.refused_isr_changes: dict[PartitionKey, int] = {}
        """Numbers of refused AlterPartition requests whose refusal was not sent yet."""
        self.refused = 0
        """Count of partitions whose role the log-writer refused at the last attempt."""
        self.confirmed: dict[PartitionKey, ReplicaRole] = {}
        """Roles that the log-writer has confirmed."""
        self.sent: dict[PartitionKey, ReplicaRole] = {}
        """Roles that were sent and are not answered yet."""

    @classmethod
    def from_writer_info(cls, disk: str, info: dict[str, Any]) -> DiskReport:
        """Read a log-writer's greeting; a disk without a directory id is known by its name."""
        partitions = {(row[0], int(row[1])): str(row[2]) for row in info.get("partitions", [])}
        report = cls(disk, str(info.get("directory_id") or disk), int(info.get("incarnation", 0)), bool(info.get("needs_epoch_bump", False)), partitions)
        if report.needs_epoch_bump:  # after a clean stop those alone that lack something
            report.unbumped = {(row[0], int(row[1])) for row in info.get("partitions", []) if len(row) <= BUMP_COLUMN or row[BUMP_COLUMN]}
        report.leader_epochs = {(row[0], int(row[1])): int(row[EPOCH_COLUMN]) for row in info.get("partitions", []) if len(row) > EPOCH_COLUMN}
        report.is_offline = bool(info.get("offline"))
        report.replaces = frozenset(info.get("replaces", ()))
        report.futures = {(row[0], int(row[1])): FutureReplica(str(row[2]), row[3]) for row in info.get("futures", [])}
        report.frozen = {(row[0], int(row[1])): str(row[2]) for row in info.get("frozen", [])}
        return report

    def distrust(self, settled: Set[PartitionKey] = frozenset()) -> None:
        """The disk was restored from a copy: its logs but the settled ones have lost records, as
        after an unclean boot."""
        unsettled = self.partitions.keys() - settled
        self.needs_epoch_bump = self.needs_epoch_bump or bool(unsettled)
        self.unbumped |= unsettled

    def holds(self, topic: TopicState, partition: int) -> bool:
        return self.partitions.get((topic.name, partition)) == str(topic.topic_id)

    def has_complete(self, topic: TopicState, partition: int) -> bool:
        """Whether a complete copy of the partition lies here and waits for its promotion."""
        future = self.futures.get((topic.name, partition))
        return future is not None and future.topic_id == str(topic.topic_id) and future.complete_at is not None

    def forget(self, key: PartitionKey) -> None:
        """Forget a partition that is no longer on this disk."""
        self.partitions.pop(key, None)
        self.leader_epochs.pop(key, None)
        self.forget_role(key)

    def forget_role(self, key: PartitionKey) -> None:
        """Forget a partition's role after another command, so that the role is sent again."""
        self.confirmed.pop(key, None)
        self.sent.pop(key, None)

    def on_answered(self, key: PartitionKey, role: ReplicaRole, is_taken: bool) -> None:
        """Record the answer to a role, unless another role was sent since."""
        if self.sent.get(key) is not role:
            return
        del self.sent[key]
        if is_taken:
            self.confirmed[key] = role
            self.leader_epochs[key] = max(role.leader_epoch, self.leader_epochs.get(key, -1))
        else:
            self.confirmed.pop(key, None)
