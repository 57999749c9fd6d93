"""What the controller process of a box believes: brokers, topics, the disks of this box and what lies on them.

Every box has one, whether or not it is controller of the cluster. Filled by `services.controller.decisions.arrival` from ZooKeeper, kept up by the change
log and by what the box itself writes, loaded anew after every reconnect to ZooKeeper (reports stay: they belong to the life of a log-writer, not to a
session). While ZooKeeper is away it stands as it was. Weak spot: states of all partitions of the cluster are held here, 1 KB each.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.invariants import check
from appliance.base.model import INTERNAL_TOPICS, TopicId
from appliance.cluster.dynamic_broker_configs import closed_brokers
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, TopicImage
from appliance.cluster.topic_configs import effective_config
from appliance.cluster.znodes import DEFAULT_BROKER, BoxRecord, BrokerRegistration, DirectoryAssignment, PartitionState, TopicAssignment
from services.controller.decisions.disk_report import DiskReport, Future, PartitionKey
from services.controller.zookeeper.broker_registry import BoxesSeen
from services.controller.zookeeper.operation import Fence, Guard, OwnWrites
from services.controller.zookeeper.topic_registry import TopicState

__all__ = ["Cluster", "DiskReport", "FreeSpace", "Future", "topic_id_of"]


class FreeSpace(NamedTuple):
    """Free bytes of a disk as its log-writer's counters say."""

    disk: str
    free_bytes: int


class Cluster:
    """One box's knowledge of the cluster. `fence` is None while another broker is controller, or nobody knows who is."""

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
        self.cluster_id = ""
        self.controller_id = -1
        self.fence: Fence | None = None
        self.has_arrived = False
        """Whether what ZooKeeper said can be acted on."""
        self.brokers: dict[int, BrokerRegistration] = {}
        """Those that are registered: they live."""
        self.broker_epochs: dict[int, int] = {}
        self.box_records: dict[int, BoxRecord] = {}
        self.box_versions: dict[int, int] = {}
        """Versions of `/millrace/brokers/N`: every registration, and every change of what is recorded, has one of its own."""
        self.awaited: set[int] = set()
        """Boxes that were not registered when we arrived: they may have lost their sessions at the same time as we did, and count as living for a moment."""
        self.last_change = -1
        """The number of the newest change that was applied."""
        self.to_tell: set[PartitionKey] = set()
        """Partitions of this broker whose state or replicas have changed: their log-writers are to hear of it."""
        self.is_image_due = False
        """States have changed in the middle of an operation: the image is to say so before its end."""
        self.stale_placements: dict[str, DirectoryAssignment] = {}
        """What lies on this broker of topics that are not there any more: to be deleted."""
        self.topics: dict[str, TopicState] = {}
        self.deleting: set[str] = set()
        self.handing_over: set[str] = set()
        """Topics of which a partition goes from one disk to another at this moment: they are not deleted meanwhile."""
        self.to_delete: set[str] = set()
        """Topics whose deletion waits for that."""
        self.dynamic_configs: dict[str, dict[str, str]] = {}
        """`<default>` and this broker's id → configs that are set while brokers run."""
        self.config_changes: set[str] = set()
        """Notifications of changed configs that were seen; what they told is in `topics`."""

    def forget(self) -> None:
        """The session may be over: nothing that ZooKeeper said can be acted on. The image stays as it is."""
        self.fence = None
        self.has_arrived = False

    def writes_fenced_by(self) -> Fence:
        check(self.fence is not None, "only a controller writes")
        assert self.fence is not None
        return self.fence

    def own_writes(self) -> Guard:
        """The guard of what this box writes for itself."""
        return OwnWrites()

    def live_brokers(self) -> list[int]:
        return sorted(self.brokers)

    def closed_brokers(self) -> frozenset[int]:
        """Brokers that get no replicas but by name: they are being emptied, or are to stay empty."""
        return closed_brokers(self.dynamic_configs.get(DEFAULT_BROKER, {}))

    def open_brokers(self) -> list[int]:
        """Those that live and may get new replicas."""
        closed = self.closed_brokers()
        return [broker_id for broker_id in self.live_brokers() if broker_id not in closed]

    def not_dead(self) -> set[int]:
        """Brokers that nobody is elected in place of."""
        return self.brokers.keys() | self.awaited

    @property
    def has_other_boxes(self) -> bool:
        """Whether there is, or was, another box in the cluster."""
        return bool(self.box_records.keys() - {self.broker_id})

    def is_fenced(self, broker_id: int) -> bool:
        record = self.box_records.get(broker_id)
        return record is not None and record.is_fenced

    def eligible_brokers(self) -> list[int]:
        """Who may be given leadership, or a place in an in-sync set: who lives, is not about to stop, and has told what its disks have lost."""
        return [broker_id for broker_id in sorted(self.brokers) if not self.is_fenced(broker_id)]

    def use_boxes(self, seen: BoxesSeen) -> None:
        """All boxes, as they were just read."""
        own, known_version = self.box_records.get(self.broker_id), self.box_versions.get(self.broker_id, -1)
        self.brokers, self.broker_epochs = seen.registrations, seen.broker_epochs
        self.box_records, self.box_versions = seen.records, seen.record_versions
        if own is not None and seen.record_versions.get(self.broker_id, -1) < known_version:  # read before we wrote it
            self.box_records[self.broker_id], self.box_versions[self.broker_id] = own, known_version
        self.awaited -= self.brokers.keys()

    # --- partitions

    def put_state(self, topic: TopicState, partition: int, state: PartitionState, version: int) -> None:
        """A state that ZooKeeper holds in this version."""
        topic.set_state(partition, state, version)
        if self.broker_id in topic.replicas.get(partition, ()) or partition in topic.placement:
            self.to_tell.add((topic.name, partition))

    def learn_state(self, topic: TopicState, partition: int, state: PartitionState, version: int) -> bool:
        """As `put_state`, unless a newer one is known; whether it was news."""
        if version <= topic.state_versions.get(partition, -1):
            return False
        self.put_state(topic, partition, state, version)
        return True

    def put_assignment(self, topic: TopicState, assignment: TopicAssignment, document_version: int) -> None:
        """A topic's document that ZooKeeper holds in this version. This box may be among those that come or go."""
        topic.assignment, topic.document_version = assignment, document_version
        self.to_tell.update((topic.name, partition) for partition in {*topic.local_partitions(self.broker_id), *topic.placement})

    def learn_topic(self, read: TopicState) -> bool:
        """A topic as it was just read, by steps between which it may have changed: what is newer than what is known counts. Whether there was news."""
        known = self.topics.get(read.name)
        if known is None or known.topic_id != read.topic_id:
            if known is not None and read.created_zxid < known.created_zxid:
                return False
            self.topics[read.name] = read
            self.to_tell.update((read.name, partition) for partition in read.local_partitions(self.broker_id))
            return True
        known.created_zxid = known.created_zxid or read.created_zxid
        is_news = read.document_version > known.document_version
        if is_news:
            self.put_assignment(known, read.assignment, read.document_version)
        for partition, state in read.states.items():
            is_news = self.learn_state(known, partition, state, read.state_versions[partition]) or is_news
        return is_news

    def racks(self) -> dict[int, str | None]:
        """The rack of each registered box, as far as it has one."""
        return {broker_id: registration.rack for broker_id, registration in self.brokers.items()}

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

    def use_own_record(self, box: BoxRecord, version: int) -> None:
        """What was just written of this box."""
        self.box = self.box_records[self.broker_id] = box
        self.box_versions[self.broker_id] = version

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

    def box_config(self) -> dict[str, str]:
        """What is set on this broker while it runs; its own before what is set on all."""
        return {**self.dynamic_configs.get(DEFAULT_BROKER, {}), **self.dynamic_configs.get(str(self.broker_id), {})}

    def config_of(self, topic: TopicState) -> dict[str, str]:
        return effective_config(self.broker_config, topic.config)

    def image(self, generation: int) -> MetadataImage:
        """What everybody may know: topics that are not being deleted, with the partitions that have a state."""
        brokers = {}
        for broker_id, registration in sorted(self.brokers.items()):
            endpoint = registration.client_endpoint()
            if endpoint is not None:
                brokers[broker_id] = BrokerImage(broker_id, endpoint[0], endpoint[1], registration.rack, self.broker_epochs.get(broker_id, -1))
        topics = {name: self._topic_image(topic) for name, topic in sorted(self.topics.items()) if topic.visible_count and name not in self.deleting}
        return MetadataImage(generation, self.cluster_id, self.controller_id, brokers, topics, self.box_config())

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
