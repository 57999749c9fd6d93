"""What one life of a log-writer said of its disk, what it confirmed since, and what it was told last.

Owned by the controller process, one for each connected log-writer. Roles belong to a life of a log-writer, not to a session with ZooKeeper: only
differences are told. Weak spot: what a disk holds is known from the greeting and from confirmed commands, not looked up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.ipc.descriptors import DescriptorKind
from services.controller.zookeeper.topic_registry import TopicState

PartitionKey = tuple[str, int]
"""Topic and partition."""


class Future(NamedTuple):
    """A copy that will take a partition's place. `complete_at`: the log end at which it is whole and durable, None while it is copied."""

    topic_id: str
    complete_at: int | None = None


class Role(NamedTuple):
    """What a log-writer is to be for a partition: leader or follower (`kind` is the command), and of what."""

    kind: DescriptorKind
    topic_id: str
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...] = ()
    """Leaders only, as `partition_epoch`: a follower needs neither."""
    partition_epoch: int = -1

    def differs_in_isr_only(self, other: Role) -> bool:
        return self._replace(isr=other.isr, partition_epoch=other.partition_epoch) == other


class DiskReport:
    """What one life of a log-writer said of its disk, kept up to date with what it confirmed since."""

    __slots__ = (
        "directory_id",
        "disk",
        "frozen",
        "futures",
        "incarnation",
        "is_offline",
        "missing",
        "needs_epoch_bump",
        "partitions",
        "refused",
        "replaces",
        "telling",
        "told",
        "unbumped",
        "wishes_refused",
    )

    def __init__(self, disk: str, directory_id: str, incarnation: int, needs_epoch_bump: bool, partitions: dict[PartitionKey, str]) -> None:
        self.disk = disk
        self.directory_id = directory_id
        self.incarnation = incarnation
        self.needs_epoch_bump = needs_epoch_bump
        self.partitions = partitions
        """(topic, partition) → topic id as text."""
        self.futures: dict[PartitionKey, Future] = {}
        """Copies of partitions that are being moved here."""
        self.is_offline = False
        """The disk could not be read when its log-writer greeted us: what is not named here may lie there all the same."""
        self.frozen: dict[PartitionKey, str] = {}
        """(topic, partition) → topic id, of what this life had withdrawn for a hand-over when it greeted us."""
        self.missing = 0
        """Partitions that ZooKeeper places here and that are not here."""
        self.replaces: frozenset[str] = frozenset()
        """Ids of directories that were given up for this one: what they held begins anew here, empty."""
        self.unbumped: set[PartitionKey] = set(partitions) if needs_epoch_bump else set()
        """What came out of an unclean boot and may not lead before its leader epoch has moved."""
        self.wishes_refused: dict[PartitionKey, int] = {}
        """Numbers of wishes for in-sync sets whose refusal it has not been told."""
        self.refused = 0
        """Partitions whose role the log-writer would not take when it was last asked."""
        self.told: dict[PartitionKey, Role] = {}
        """Roles that it has confirmed."""
        self.telling: dict[PartitionKey, Role] = {}
        """Roles that it was sent and has not answered yet."""

    @classmethod
    def from_writer_info(cls, disk: str, info: dict[str, Any]) -> DiskReport:
        """Read a log-writer's greeting; a disk without a directory id is known by its name."""
        partitions = {(row[0], int(row[1])): str(row[2]) for row in info.get("partitions", [])}
        report = cls(disk, str(info.get("directory_id") or disk), int(info.get("incarnation", 0)), bool(info.get("needs_epoch_bump", False)), partitions)
        report.is_offline = bool(info.get("offline"))
        report.replaces = frozenset(info.get("replaces", ()))
        report.futures = {(row[0], int(row[1])): Future(str(row[2]), row[3]) for row in info.get("futures", [])}
        report.frozen = {(row[0], int(row[1])): str(row[2]) for row in info.get("frozen", [])}
        return report

    def holds(self, topic: TopicState, partition: int) -> bool:
        return self.partitions.get((topic.name, partition)) == str(topic.topic_id)

    def has_complete(self, topic: TopicState, partition: int) -> bool:
        """Whether a whole copy of the partition lies here, waiting for its promotion."""
        future = self.futures.get((topic.name, partition))
        return future is not None and future.topic_id == str(topic.topic_id) and future.complete_at is not None

    def forget(self, key: PartitionKey) -> None:
        """The partition is not here any more."""
        self.partitions.pop(key, None)
        self.forget_role(key)

    def forget_role(self, key: PartitionKey) -> None:
        """Something else than a role was done to the partition: whatever it is to be is told again."""
        self.told.pop(key, None)
        self.telling.pop(key, None)

    def on_told(self, key: PartitionKey, role: Role, is_taken: bool) -> None:
        """The answer to a role. What was sent after it counts more."""
        if self.telling.get(key) is not role:
            return
        del self.telling[key]
        if is_taken:
            self.told[key] = role
        else:
            self.told.pop(key, None)
