"""What the controller believes: brokers, topics, the disks of this box and what lies on them.

Owned by the controller process; filled by `appliance.replication.operations` from ZooKeeper and from the log-writers' reports, thrown away
and loaded anew after every reconnect to ZooKeeper (reports stay: they belong to the life of a log-writer, not to a session).
Weak spot: what a disk holds is known from its log-writer's greeting and from the commands that it confirmed since, not looked up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.base.invariants import check
from appliance.base.model import INTERNAL_TOPICS, TopicId
from appliance.metadata.metadata_image import BrokerImage, MetadataImage, TopicImage
from appliance.metadata.operation import Fence
from appliance.metadata.topic_configs import effective_config
from appliance.metadata.topic_registry import TopicState
from appliance.metadata.znodes import BoxRecord, BrokerRegistration


class Future(NamedTuple):
    """A copy that will take a partition's place. `complete_at`: the log end at which it is whole and durable, None while it is copied."""

    topic_id: str
    complete_at: int | None = None


class DiskReport:
    """What one life of a log-writer said of its disk, kept up to date with what it confirmed since."""

    __slots__ = ("directory_id", "disk", "frozen", "futures", "incarnation", "is_offline", "missing", "needs_epoch_bump", "partitions", "refused", "replaces")

    def __init__(self, disk: str, directory_id: str, incarnation: int, needs_epoch_bump: bool, partitions: dict[tuple[str, int], str]) -> None:
        self.disk = disk
        self.directory_id = directory_id
        self.incarnation = incarnation
        self.needs_epoch_bump = needs_epoch_bump
        self.partitions = partitions
        """(topic, partition) → topic id as text."""
        self.futures: dict[tuple[str, int], Future] = {}
        """Copies of partitions that are being moved here."""
        self.is_offline = False
        """The disk could not be read when its log-writer greeted us: what is not named here may lie there all the same."""
        self.frozen: dict[tuple[str, int], str] = {}
        """(topic, partition) → topic id, of what this life had withdrawn for a hand-over when it greeted us."""
        self.missing = 0
        """Partitions that ZooKeeper places here and that are not here."""
        self.replaces: frozenset[str] = frozenset()
        """Ids of directories that were given up for this one: what they held begins anew here, empty."""
        self.refused = 0
        """Partitions that the log-writer would not lead when it was last asked."""

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


class FreeSpace(NamedTuple):
    """Free bytes of a disk as its log-writer's counters say."""

    disk: str
    free_bytes: int


class Cluster:
    """The controller's state. `fence` is None while another broker is controller, or nobody knows who is."""

    def __init__(self, broker_id: int, broker_config: dict[str, str], disks: list[str]) -> None:
        self.broker_id = broker_id
        self.broker_config = broker_config
        self.disks = disks
        self.reports: dict[str, DiskReport] = {}
        """disk name → report of its log-writer, while that is connected."""
        self.directory_disks: dict[str, str] = {}
        """directory id → disk name of this box: as recorded in ZooKeeper, then as the log-writers say. The record keeps the image whole while a
        log-writer is away."""
        self.box = BoxRecord("", {})
        self.bumped: set[tuple[str, int]] = set()
        """(disk, incarnation of its log-writer) whose leader epochs were moved after an unclean boot."""
        self.cluster_id = ""
        self.controller_id = -1
        self.fence: Fence | None = None
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicState] = {}
        self.deleting: set[str] = set()
        self.handing_over: set[str] = set()
        """Topics of which a partition goes from one disk to another at this moment: they are not deleted meanwhile."""
        self.to_delete: set[str] = set()
        """Topics whose deletion waits for that."""
        self.config_changes: set[str] = set()
        """Notifications of changed configs that were seen; what they told is in `topics`."""

    def forget(self) -> None:
        """The session may be over: nothing that ZooKeeper said can be acted on. The image stays as it is."""
        self.fence = None

    def writes_fenced_by(self) -> Fence:
        check(self.fence is not None, "only a controller writes")
        assert self.fence is not None
        return self.fence

    def live_brokers(self) -> list[int]:
        return sorted(self.brokers)

    def disk_of(self, directory_id: str) -> str | None:
        """The disk of this box that is (or has the name of) this directory."""
        disk = self.directory_disks.get(directory_id)
        return disk if disk is not None else (directory_id if directory_id in self.disks else None)

    def disk_of_partition(self, topic: TopicState, partition: int) -> str | None:
        directory = topic.placement.get(partition)
        return self.disk_of(directory) if directory is not None else None

    def move_target(self, topic: TopicState, partition: int) -> str | None:
        """The disk to which a partition is being moved, if it is one of this box."""
        order = topic.moves.get(partition)
        return self.disk_of(order.directory_id) if order is not None else None

    def is_draining(self, directory_id: str) -> bool:
        return directory_id in self.box.draining

    def add_report(self, report: DiskReport) -> None:
        self.reports[report.disk] = report
        self._learn_directory(report.directory_id, report.disk)

    def use_record(self, box: BoxRecord) -> None:
        """Take what is recorded for disks whose log-writer has said nothing yet."""
        self.box = box
        for directory, disk in box.directories.items():
            if disk in self.disks and disk not in self.reports and directory not in self.directory_disks:
                self._learn_directory(directory, disk)

    def _learn_directory(self, directory_id: str, disk: str) -> None:
        self.directory_disks = {directory: name for directory, name in self.directory_disks.items() if name != disk}
        self.directory_disks[directory_id] = disk

    def remove_disk(self, disk: str) -> None:
        """The box has it no more; what ZooKeeper still places there is served by nobody."""
        self.disks.remove(disk)
        self.reports.pop(disk, None)
        self.directory_disks = {directory: name for directory, name in self.directory_disks.items() if name != disk}

    def partitions_on(self, disk: str) -> int:
        report = self.reports.get(disk)
        return len(report.partitions) if report is not None else 0

    def config_of(self, topic: TopicState) -> dict[str, str]:
        return effective_config(self.broker_config, topic.config)

    def image(self, generation: int) -> MetadataImage:
        """What everybody may know: topics that are not being deleted, with the partitions that have a state."""
        brokers = {}
        for broker_id, registration in sorted(self.brokers.items()):
            endpoint = registration.client_endpoint()
            if endpoint is not None:
                brokers[broker_id] = BrokerImage(broker_id, endpoint[0], endpoint[1], registration.rack)
        topics = {name: self._topic_image(topic) for name, topic in sorted(self.topics.items()) if topic.visible_count and name not in self.deleting}
        return MetadataImage(generation, self.cluster_id, self.controller_id, brokers, topics)

    def _topic_image(self, topic: TopicState) -> TopicImage:
        partitions = topic.partition_images(self.disk_of)
        return TopicImage(topic.name, topic.topic_id, partitions, self.config_of(topic), topic.name in INTERNAL_TOPICS, topic.config_version)


def topic_id_of(random_bytes: bytes) -> TopicId:
    """A topic id out of 16 random bytes: a version-4 UUID. Kafka gives out none whose text begins with '-', because shells take it for an option;
    the caller tries again on ValueError."""
    raw = bytearray(random_bytes)
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    topic_id = TopicId(bytes(raw))
    if str(topic_id).startswith("-"):
        raise ValueError("this id would begin with a dash")
    return topic_id
