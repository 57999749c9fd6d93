"""What the controller process of a box knows: brokers, topics, and the disks of this box with what
they hold.

Each box has one, controller of the cluster or not. `arrival.py` loads it from ZooKeeper after each
reconnect; the change log and the box's own writes keep it up to date. Disk reports survive a
reconnect: they belong to an incarnation of a log-writer, not to a session. Without ZooKeeper it
stays as it is. Weak: the states of all partitions of the cluster are in memory, 1 KB each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.invariants import check
from appliance.base.logging import Logger
from appliance.base.model import INTERNAL_TOPICS, TopicId
from appliance.base.setting_row import SettingValue
from appliance.cluster.broker_configs import closed_brokers, dynamic_settings
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, TopicImage
from appliance.cluster.placement import BrokerPool
from appliance.cluster.topic_configs import broker_config, effective_config
from appliance.cluster.znodes import DEFAULT_BROKER, BoxRecord, BrokerRegistration, DirectoryAssignment, PartitionState, TopicAssignment
from appliance.shm.counters import Counters
from services.controller.decisions.disk_report import DiskReport, FutureReplica, PartitionKey
from services.controller.zookeeper.broker_registry import BoxesSeen
from services.controller.zookeeper.operation import Fence, Guard, OperationRunner, OwnWrites
from services.controller.zookeeper.topic_registry import TopicState

__all__ = ["Cluster", "ControllerContext", "DiskReport", "FutureReplica", "topic_id_of"]


class Cluster:
    """One box's knowledge of the cluster. `fence` is None unless this box is the controller."""

    def __init__(self, broker_id: int, settings: Mapping[str, SettingValue], disks: list[str]) -> None:
        self.broker_id = broker_id
        self.settings = settings
        self.broker_config = broker_config(settings)
        """What topics inherit from this broker: from its settings, and from its dynamic configs."""
        self.disks = disks
        self.reports: dict[str, DiskReport] = {}
        """disk name → report of its log-writer, while that is connected"""
        self.directory_disks: dict[str, str] = {}
        """directory id → disk of this box, from the record in ZooKeeper, later from the
        log-writers.

        With the record, the image names the disk also while its log-writer is away.
        """
        self.box = BoxRecord("", {})
        self.is_restored = False
        """Whether this box was restored from a copy, as the last arrival found; until its disks are settled."""
        self.settled: set[PartitionKey] | None = None
        """Partitions of which it is known since a restore from a copy what they lost: others, of logs
        that waited for space or of a disk that was added later, are distrusted. None without one."""
        self.cluster_id = ""
        self.controller_id = -1
        self.fence: Fence | None = None
        self.has_arrived = False
        """Whether the loaded tree may be acted on."""
        self.inter_broker_listener, self.inter_broker_protocol = "", "PLAINTEXT"
        """Name and protocol of the listener through which this box connects to others."""
        self.brokers: dict[int, BrokerRegistration] = {}
        """The registered brokers, which count as alive."""
        self.broker_epochs: dict[int, int] = {}
        self.box_records: dict[int, BoxRecord] = {}
        self.box_versions: dict[int, int] = {}
        """Versions of `/millrace/brokers/N`; each registration and each change of the record has
        its own.
        """
        self.awaited: set[int] = set()
        """Boxes that were not registered when this one arrived. They count as alive for a moment,
        because they may have lost their sessions when this box lost its own.
        """
        self.last_change = -1
        """The number of the newest change that was applied."""
        self.roles_to_send: set[PartitionKey] = set()
        """Partitions of this broker whose state or replicas have changed since they were sent to
        their log-writer.
        """
        self.is_image_due = False
        """States changed within an operation: publish an image before its end."""
        self.stale_placements: dict[str, DirectoryAssignment] = {}
        """Placements on this broker of topics that no longer exist: their directories are to be
        deleted.
        """
        self.topics: dict[str, TopicState] = {}
        self.deleting: set[str] = set()
        self.handing_over: set[str] = set()
        """Topics of which a partition is being handed over between two disks: not deleted
        meanwhile.
        """
        self.to_delete: set[str] = set()
        """Topics whose deletion waits for the end of a hand-over."""
        self.dynamic_configs: dict[str, dict[str, str]] = {}
        """`<default>` and this broker's id → configs that are set while brokers run."""
        self._dynamic_versions: dict[str, int] = {}
        self.reloads = 0
        """How often the settings of this box were reloaded (`Box.reloads`)."""
        self.group_configs: dict[str, dict[str, str]] = {}
        """Group → its configs, as they could last be read."""
        self.group_configs_problem: str | None = None
        """Why they cannot be read now."""
        self.configs_to_send: dict[str, int] = {}
        """Topics whose log-writers may not know their configs yet → the generation of these."""
        self.config_changes: set[str] = set()
        """Notifications of changed configs that were applied."""

    def forget(self) -> None:
        """The session may be over: nothing that was loaded may be acted on. The image stays as it
        is.
        """
        self.fence = None
        self.has_arrived = False

    def writes_fenced_by(self) -> Fence:
        check(self.fence is not None, "only a controller writes")
        assert self.fence is not None
        return self.fence

    def own_writes(self) -> Guard:
        """Return the guard of what this box writes for itself."""
        return OwnWrites()

    def live_brokers(self) -> list[int]:
        return sorted(self.brokers)

    def closed_brokers(self) -> frozenset[int]:
        """Return the brokers that get replicas only by name, because they are being drained or kept
        empty.
        """
        return closed_brokers(self.dynamic_configs.get(DEFAULT_BROKER, {}))

    def broker_pool(self) -> BrokerPool:
        return BrokerPool(self.live_brokers(), self.racks(), self.closed_brokers())

    def open_brokers(self) -> list[int]:
        """Return the live brokers that may get new replicas."""
        closed = self.closed_brokers()
        return [broker_id for broker_id in self.live_brokers() if broker_id not in closed]

    def not_dead(self) -> set[int]:
        """Return the brokers for which no election takes place: registered ones, and those still
        awaited.
        """
        return self.brokers.keys() | self.awaited

    @property
    def has_other_boxes(self) -> bool:
        """Whether the cluster has, or had, another box."""
        return bool(self.box_records.keys() - {self.broker_id})

    def is_fenced(self, broker_id: int) -> bool:
        record = self.box_records.get(broker_id)
        return record is not None and record.is_fenced

    def eligible_brokers(self) -> list[int]:
        """Return the brokers that may lead or join an in-sync set: registered and not fenced.

        A box is fenced during its controlled shutdown, and after an unclean start until its disks
        have reported what they lost.
        """
        return [broker_id for broker_id in sorted(self.brokers) if not self.is_fenced(broker_id)]

    def use_boxes(self, seen: BoxesSeen) -> None:
        """Apply all boxes as they were just read."""
        own, known_version = self.box_records.get(self.broker_id), self.box_versions.get(self.broker_id, -1)
        self.brokers, self.broker_epochs = seen.registrations, seen.broker_epochs
        self.box_records, self.box_versions = seen.records, seen.record_versions
        if own is not None and seen.record_versions.get(self.broker_id, -1) < known_version:  # read before we wrote it
            self.box_records[self.broker_id], self.box_versions[self.broker_id] = own, known_version
        self.awaited -= self.brokers.keys()

    # --- partitions

    def put_state(self, topic: TopicState, partition: int, state: PartitionState, version: int) -> None:
        """Set a state that ZooKeeper holds in this version."""
        topic.set_state(partition, state, version)
        if self.broker_id in topic.replicas.get(partition, ()) or partition in topic.placement:
            self.roles_to_send.add((topic.name, partition))

    def learn_state(self, topic: TopicState, partition: int, state: PartitionState, version: int) -> bool:
        """Do as `put_state`, unless a newer state is known; return whether it was newer."""
        if version <= topic.state_versions.get(partition, -1):
            return False
        self.put_state(topic, partition, state, version)
        return True

    def put_assignment(self, topic: TopicState, assignment: TopicAssignment, document_version: int) -> None:
        """Set a topic's document that ZooKeeper holds in this version. This box may gain or lose
        replicas.
        """
        topic.assignment, topic.document_version = assignment, document_version
        self.roles_to_send.update((topic.name, partition) for partition in {*topic.local_partitions(self.broker_id), *topic.placement})

    def learn_topic(self, read: TopicState) -> bool:
        """Merge a topic that was just read; return whether anything was newer.

        The read took several steps, and the topic may have changed in between, so each part counts
        by its version.
        """
        known = self.topics.get(read.name)
        if known is None or known.topic_id != read.topic_id:
            if known is not None and read.created_zxid < known.created_zxid:
                return False
            self.topics[read.name] = read
            self.roles_to_send.update((read.name, partition) for partition in read.local_partitions(self.broker_id))
            return True
        known.created_zxid = known.created_zxid or read.created_zxid
        is_news = read.document_version > known.document_version
        if is_news:
            self.put_assignment(known, read.assignment, read.document_version)
        for partition, state in read.states.items():
            is_news = self.learn_state(known, partition, state, read.state_versions[partition]) or is_news
        return is_news

    def racks(self) -> dict[int, str | None]:
        """Return the rack of each registered box that has one."""
        return {broker_id: registration.rack for broker_id, registration in self.brokers.items()}

    def disk_of(self, directory_id: str) -> str | None:
        """Return the disk of this box that has this directory id, or this name."""
        disk = self.directory_disks.get(directory_id)
        return disk if disk is not None else (directory_id if directory_id in self.disks else None)

    def disk_of_partition(self, topic: TopicState, partition: int) -> str | None:
        directory = topic.placement.get(partition)
        return self.disk_of(directory) if directory is not None else None

    def move_target(self, topic: TopicState, partition: int) -> str | None:
        """Return the disk of this box to which a partition is being moved."""
        order = topic.moves.get(partition)
        return self.disk_of(order.directory_id) if order is not None else None

    def is_draining(self, directory_id: str) -> bool:
        return directory_id in self.box.draining

    def add_report(self, report: DiskReport) -> None:
        self.reports[report.disk] = report
        self._learn_directory(report.directory_id, report.disk)

    def use_own_record(self, box: BoxRecord, version: int) -> None:
        """Set the record of this box that was just written."""
        self.box = self.box_records[self.broker_id] = box
        self.box_versions[self.broker_id] = version

    def use_record(self, box: BoxRecord) -> None:
        """Learn the directories of disks whose log-writers have not reported yet."""
        self.box = box
        for directory, disk in box.directories.items():
            if disk in self.disks and disk not in self.reports and directory not in self.directory_disks:
                self._learn_directory(directory, disk)

    def _learn_directory(self, directory_id: str, disk: str) -> None:
        self.directory_disks = {directory: name for directory, name in self.directory_disks.items() if name != disk}
        self.directory_disks[directory_id] = disk

    def remove_disk(self, disk: str) -> None:
        """Forget a disk that was removed; no process serves what ZooKeeper still places there."""
        self.disks.remove(disk)
        self.reports.pop(disk, None)
        self.directory_disks = {directory: name for directory, name in self.directory_disks.items() if name != disk}

    def box_config(self) -> dict[str, str]:
        """Return the configs of this broker that are set while it runs; its own before those of all
        brokers.
        """
        return {**self.dynamic_configs.get(DEFAULT_BROKER, {}), **self.dynamic_configs.get(str(self.broker_id), {})}

    def use_box_configs(self, name: str, config: dict[str, str], version: int) -> None:
        """Apply the configs of `/config/brokers/NAME` in this version (-1: there is no such node)."""
        self.dynamic_configs[name] = config
        self._dynamic_versions[name] = version
        self.use_settings()

    def use_settings(self) -> None:
        """Compute anew what topics inherit from this broker."""
        self.broker_config = broker_config({**self.settings, **dynamic_settings(self.box_config())})

    def config_of(self, topic: TopicState) -> dict[str, str]:
        return effective_config(self.broker_config, topic.config)

    def config_generation_of(self, topic: TopicState) -> int:
        """Return a number that grows with each change of what `config_of` returns."""
        return topic.config_version + sum(version + 1 for version in self._dynamic_versions.values()) + self.reloads

    def image(self, generation: int) -> MetadataImage:
        """Build the metadata image: topics that are not being deleted, with the partitions that
        have a state.
        """
        brokers = {}
        for broker_id, registration in sorted(self.brokers.items()):
            endpoint = registration.peer_endpoint(self.inter_broker_listener, self.inter_broker_protocol)
            if endpoint is None and registration.endpoints and self.inter_broker_protocol != "PLAINTEXT":
                endpoint = registration.endpoints[0][1:]  # never in clear text where TLS is wanted: connecting there fails
            if endpoint is not None:
                epoch = self.broker_epochs.get(broker_id, -1)
                brokers[broker_id] = BrokerImage(broker_id, *endpoint, registration.rack, epoch, registration.endpoints)
        topics = {name: self._topic_image(topic) for name, topic in sorted(self.topics.items()) if topic.visible_count and name not in self.deleting}
        return MetadataImage(generation, self.cluster_id, self.controller_id, brokers, topics, self.box_config(), self.group_configs)

    def _topic_image(self, topic: TopicState) -> TopicImage:
        partitions = topic.partition_images(self.disk_of)
        return TopicImage(topic.name, topic.topic_id, partitions, self.config_of(topic), topic.name in INTERNAL_TOPICS, self.config_generation_of(topic))


def topic_id_of(random_bytes: bytes) -> TopicId:
    """Return a version-4 UUID from 16 random bytes.

    Raises ValueError if its text would begin with '-': Kafka issues no such id, because shells take
    it for an option.
    """
    raw = bytearray(random_bytes)
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    topic_id = TopicId(bytes(raw))
    if str(topic_id).startswith("-"):
        raise ValueError("this id would begin with a dash")
    return topic_id


class ControllerContext(NamedTuple):
    """What the components of the controller process share.

    `runner` is dropped when the box leaves the cluster; `on_failure` gets what ZooKeeper refused or
    lost; `can_begin()` returns whether the tree is loaded.
    """

    cluster: Cluster
    runner: OperationRunner
    clock: Clock
    counters: Counters
    log: Logger
    on_failure: Callable[[Exception], None]
    can_begin: Callable[[], bool]
