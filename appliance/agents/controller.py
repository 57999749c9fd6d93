"""The controller: the box's ZooKeeper session, its registration, topics, the metadata image, and orders to the log-writers.

One process per box; on one box of the cluster it is also the controller of the cluster. It owns nothing on a log disk: killed at any moment, its
next life resumes the session (id and password are kept in the runtime directory), loads the tree and finishes what was begun. While it or
ZooKeeper is away, produce and fetch go on.

Weak spots: kazoo's threads share this process's interpreter lock with the duty cycle. A box that is not controller of its cluster only
keeps its registration and image here; taking orders from another box's controller comes with replication.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

from appliance.agents.config_administration import ConfigAdministration
from appliance.agents.controller_requests import ControllerRequests
from appliance.agents.coordinator_services import KINDS as COORDINATOR_KINDS
from appliance.agents.coordinator_services import CoordinatorServices
from appliance.agents.disk_commands import DiskCommands
from appliance.agents.disk_draining import DiskDraining
from appliance.agents.image_publisher import ImagePublisher
from appliance.agents.move_administration import MoveAdministration
from appliance.agents.move_progress import MoveProgressFiles
from appliance.agents.move_requests import MoveRequests
from appliance.agents.partition_administration import PartitionAdministration
from appliance.agents.request_server import RequestClient, RequestServer
from appliance.agents.topic_administration import TopicAdministration
from appliance.base.model import TopicId
from appliance.ipc.box_disks import BoxDisks
from appliance.ipc.controller_frames import GENERATION, IMAGE_CHANGED
from appliance.ipc.frames import Frame
from appliance.metadata import broker_registry, config_notifications, topic_registry
from appliance.metadata.broker_configs import broker_configs
from appliance.metadata.broker_registry import BrokerIdTaken
from appliance.metadata.metadata_image import MetadataImage
from appliance.metadata.operation import ControllerMoved, Operation, OperationRunner, Outcome, Publish
from appliance.metadata.requests import ConnectionLost, GetChildren
from appliance.metadata.session import SavedSession, SessionState, ZooKeeperSession
from appliance.metadata.topic_configs import broker_config
from appliance.metadata.znodes import BROKER_IDS, BROKER_TOPICS, CONFIG_CHANGES, CONTROLLER, DELETE_TOPICS, BoxRecord, BrokerRegistration
from appliance.replication.cluster import Cluster, DiskReport, topic_id_of
from appliance.replication.controller import CreationDefaults, DiskSpace
from appliance.replication.internal_topics import internal_topic
from appliance.replication.operations import Arrival, ForeignCluster, arrive, bring_up_disk, missing_partitions, reload_topic_config
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.runtime.poller import READABLE
from appliance.shm.counters import read_counters

SESSION_FILE = "zookeeper.session"
BOX_ID_FILE = "box.id"
FREE_BYTES_LABEL = "disk.free_bytes"
ARRIVE_AGAIN_MS = 1000
RECONSIDER_MS = 500
WITHOUT_DISKS_MS = 2000
STOP_MS = 1000
MOVES_PARK_MS = 20


def new_topic_id() -> TopicId:
    while True:
        try:
            return topic_id_of(os.urandom(16))
        except ValueError:
            continue


def box_id(state_directory: str) -> str:
    """The identity of the box, made at its first start and kept in its state directory."""
    path = Path(state_directory) / BOX_ID_FILE
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        identity = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        os.makedirs(state_directory, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(identity + "\n")
        os.replace(temporary, path)
        return identity


class ControllerAgent:
    """The duty cycle."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._box = box = context.box
        self._log = context.log
        self._clock = context.clock
        self._session_path = f"{context.layout.runtime_directory}/{SESSION_FILE}"
        self._identity = box_id(box.state_directory)
        self._arrived = False
        self._arrive_at_ms: int | None = None
        self._arrived_ms = 0
        self._reconsider_at_ms = 0
        self._disks_to_bring_up: set[str] = set()
        self._ready_told = False
        self._stop_deadline_ms: int | None = None
        self._last_trouble = ""
        self._looks = {
            BROKER_TOPICS: self._look_at_topics,
            DELETE_TOPICS: self._look_at_deletions,
            BROKER_IDS: self._look_at_brokers,
            CONFIG_CHANGES: self._look_at_config_changes,
        }
        self._changed_again: set[str] = set()
        disks = [disk.name for disk in box.disks]
        self.cluster = Cluster(box.broker_id, broker_config(box.settings), disks)
        self._publisher = ImagePublisher(context.layout.image_file, self._make_image, self._on_published)
        self._box_disks = BoxDisks(context.layout, box)
        self._disks = DiskCommands(
            context.layout,
            context.incarnation,
            disks,
            context.poller,
            context.clock,
            context.counters,
            self._on_disk_connected,
            self._on_disk_gone,
            context.log,
            box.integer("log.disk.deadline.ms"),
        )
        self.session = self._open_session()
        self._runner = OperationRunner(self.session.submit, self._disks.command, self._publisher.publish)
        self._administration = TopicAdministration(
            self.cluster,
            self._runner,
            self._spaces,
            new_topic_id,
            self._defaults(),
            box.flag("delete.topic.enable"),
            lambda name: internal_topic(name, box, len(self.cluster.live_brokers())),
            context.counters,
            context.log,
            self._on_failure,
        )
        self._partitions = PartitionAdministration(self.cluster, self._runner, self._spaces, self._defaults(), context.counters, context.log, self._on_failure)
        self._alterations = ConfigAdministration(self.cluster, self._runner, context.counters, context.log, self._on_failure)
        self._draining = DiskDraining(self.cluster, self._runner, context.counters, context.log, self._on_failure)
        self._moves = MoveAdministration(
            self.cluster,
            self._runner,
            OperationRunner(self.session.submit, self._disks.command, self._publisher.publish),
            lambda disk: self._disks.connected(disk) and not self._disks.is_offline(disk),
            self._publisher.publish,
            box.disks,
            MoveProgressFiles(context.layout),
            box.integer("log.disk.deadline.ms"),
            context.clock.monotonic_ns,
            context.counters,
            context.log,
            self._on_failure,
        )
        self._server = RequestServer(context.layout.controller_socket, context.poller, self._on_frame, self._news)
        self._requests = ControllerRequests(
            self.cluster,
            self._administration,
            self._partitions,
            self._alterations,
            lambda wait, answer: MoveRequests(self.cluster, self._moves.orders, self._draining, box.disks, wait, answer, context.clock.monotonic_ms),
            broker_configs(box),
            lambda: self._arrived,
            self._server.send,
            context.counters,
            context.clock.monotonic_ms,
        )
        self._coordinator_services = CoordinatorServices(
            box.broker_id,
            box.integer("producer.id.block.size"),
            self._runner,
            lambda: self._arrived,
            self._server.send,
            context.counters,
            context.clock.monotonic_ms,
        )
        self._make_counters()
        self.session.start()

    def _make_counters(self) -> None:
        counter = self._context.counters.counter
        self._connected_gauge = counter("controller.zookeeper_connected")
        self._sessions_lost = counter("controller.zookeeper_sessions_lost")
        self._suspensions = counter("controller.zookeeper_suspensions")
        self._leads_gauge = counter("controller.is_controller")
        self._topics_gauge = counter("controller.topics")
        self._generation_gauge = counter("controller.image_generation")
        self._missing_gauges = {disk.name: counter(f'controller.partitions_missing{{disk="{disk.name}"}}') for disk in self._box.disks}

    def _defaults(self) -> CreationDefaults:
        return CreationDefaults(self._box.integer("num.partitions"), self._box.integer("default.replication.factor"))

    def _open_session(self) -> ZooKeeperSession:
        saved = SavedSession.load(self._session_path, self._box.zookeeper)
        session = ZooKeeperSession(self._box.zookeeper, self._box.integer("zookeeper.session.timeout.ms"), saved, self._on_state, self._on_change)
        self._context.poller.register(session.fileno(), READABLE, lambda _events: None)  # it wakes us; `do_work` drains
        return session

    # --- the duty cycle -----------------------------------------------------------------------------------------------------

    def do_work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        now_ns = self._clock.monotonic_ns()
        self._look_at_disks(now_ns)
        work = self.session.drain()
        work += self._disks.do_work(now_ns)
        if self._arrive_at_ms is not None and now_ms >= self._arrive_at_ms:
            self._start_arrival()
            work += 1
        if self._arrived and now_ms >= self._reconsider_at_ms:
            self._reconsider_at_ms = now_ms + RECONSIDER_MS
            self._bring_up_disks()
            self._administration.reconsider()
            self._partitions.reconsider()
            self._alterations.reconsider()
            self._draining.reconsider()
        work += self._moves.do_work(now_ns, self._arrived)
        work += self._publisher.do_work(now_ns)
        work += self._requests.do_work()
        work += self._coordinator_services.do_work()
        self._disks.flush()
        if not self._ready_told:
            self._maybe_ready(now_ms)
        return work

    def may_park(self) -> bool:
        return self._disks.may_park()

    def unpark(self) -> None:
        self._disks.unpark()

    def park_ms(self) -> int:
        return 10 if self._publisher.is_pending else MOVES_PARK_MS if self._moves.is_busy() else PARK_MS_MAX

    def begin_stop(self) -> None:
        self._stop_deadline_ms = self._clock.monotonic_ms() + STOP_MS

    def stopped(self) -> bool:
        """Operations may be cut off at every step, so the stop waits for them only for a moment."""
        return not len(self._runner) or self._stop_deadline_ms is None or self._clock.monotonic_ms() >= self._stop_deadline_ms

    def close(self) -> None:
        """End the session: other boxes learn at once that this one is gone."""
        self._server.close()
        self._runner.drop_all()
        self._context.poller.unregister(self.session.fileno())
        self.session.close()
        self._disks.close()
        Path(self._session_path).unlink(missing_ok=True)

    def status_line(self) -> str:
        role = "controller" if self.cluster.fence is not None else "not controller"
        return f"ZooKeeper {self.session.state.value}, {role}, {len(self.cluster.topics)} topics, {len(self._runner)} operations under way"

    def _maybe_ready(self, now_ms: int) -> None:
        """Ready once the tree is loaded and the disks lead what is theirs, or have not come within two seconds."""
        if not self._arrived:
            return
        brought_up = len(self.cluster.reports) == len(self._box.disks) and not self._disks_to_bring_up
        busy = any(self._runner.is_running(f"disk:{disk.name}") for disk in self._box.disks)
        if (brought_up and not busy) or now_ms - self._arrived_ms >= WITHOUT_DISKS_MS:
            self._ready_told = True
            self._context.notifier.ready()

    def _on_frame(self, client: RequestClient, frame: Frame) -> None:
        if frame.kind in COORDINATOR_KINDS:
            self._coordinator_services.on_frame(client, frame)
        else:
            self._requests.on_frame(client, frame)

    # --- the image ----------------------------------------------------------------------------------------------------------

    def _make_image(self, generation: int) -> MetadataImage:
        return self.cluster.image(generation)

    def _news(self) -> tuple[int, bytes]:
        """What whoever listens is told: which image there is."""
        return IMAGE_CHANGED, GENERATION.pack(self._publisher.generation)

    def _on_published(self, generation: int) -> None:
        self._generation_gauge.set(generation)
        self._topics_gauge.set(len(self._publisher.image.topics))
        self._server.tell(*self._news())

    # --- the session --------------------------------------------------------------------------------------------------------

    def _on_state(self, state: SessionState) -> None:
        self._connected_gauge.set(int(state is SessionState.CONNECTED))
        if state is SessionState.CONNECTED:
            SavedSession(self.session.session_id, self.session.password).save(self._session_path, self._box.zookeeper)
            self._log.info(f"connected to ZooKeeper, session {self.session.session_id:#x}")
            self._arrive_at_ms = self._clock.monotonic_ms()
            return
        if state is SessionState.EXPIRED:
            self._sessions_lost.add()
            self._log.warning("the ZooKeeper session has expired; a new one is opened")
        else:
            self._suspensions.add()
            self._log.warning("the connection to ZooKeeper is lost; admin requests wait, produce and fetch go on")
        self._leave()

    def _leave(self) -> None:
        """Nothing that ZooKeeper said can be acted on any more."""
        self._arrived = False
        self._arrive_at_ms = None
        self._changed_again.clear()
        self._runner.drop_all()
        self._publisher.forget_waiting()
        self.cluster.forget()
        self._leads_gauge.set(0)

    def _on_failure(self, failure: Exception) -> None:
        """An operation failed in a way that only a fresh look can mend."""
        if isinstance(failure, ConnectionLost):
            return  # the session tells of it too, and what was begun begins again then
        trouble = f"{type(failure).__name__}: {failure}"
        if trouble != self._last_trouble:
            self._last_trouble = trouble
            self._log.warning(f"looks at ZooKeeper and all disks anew, because of {trouble}")
        self._leave()
        self._arrive_at_ms = self._clock.monotonic_ms() + (0 if isinstance(failure, ControllerMoved) else ARRIVE_AGAIN_MS)

    def _start_arrival(self) -> None:
        self._leave()
        if self.session.state is not SessionState.CONNECTED:
            return
        self._runner.start("arrive", arrive(self.cluster, self._arrival()), self._on_arrived)

    def _arrival(self) -> Arrival:
        box = self._box
        now_ms = self._clock.wall_ms()
        registration = BrokerRegistration(box.broker_id, (("PLAINTEXT", box.advertise, box.kafka_port),), {"PLAINTEXT": "PLAINTEXT"}, None, now_ms)
        directories = {report.directory_id: report.disk for report in self.cluster.reports.values()}
        cluster_id = box.cluster_id or str(new_topic_id())
        return Arrival(self.session.session_id, registration, BoxRecord(self._identity, directories), cluster_id, bool(box.cluster_id), now_ms, new_topic_id)

    def _on_arrived(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            if isinstance(outcome.failure, BrokerIdTaken | ForeignCluster):
                self._context.notifier.status(str(outcome.failure))
            self._on_failure(outcome.failure)
            return
        self._arrived = True
        self._last_trouble = ""
        self._arrived_ms = self._clock.monotonic_ms()
        self._leads_gauge.set(int(self.cluster.fence is not None))
        self._moves.on_arrived()
        self._disks_to_bring_up = set(self.cluster.reports)
        self._reconsider_at_ms = 0

    def _on_change(self, path: str) -> None:
        """Somebody changed something that we watch: look at it again. Our own writes come along here too, and find nothing new."""
        if not self._arrived:
            return
        if path == CONTROLLER:
            self._arrive_at_ms = self._clock.monotonic_ms()
        elif path in self._looks and not self._runner.start(f"look:{path}", self._looks[path](), lambda outcome: self._on_looked(path, outcome)):
            self._changed_again.add(path)  # a watch fires once: what changed during a look is looked at after it

    def _on_looked(self, path: str, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        if outcome.value:
            self._reconsider_at_ms = 0
        if path in self._changed_again:
            self._changed_again.discard(path)
            self._on_change(path)

    def _look_at_topics(self) -> Operation[bool]:
        cluster = self.cluster
        names = set((yield GetChildren(BROKER_TOPICS, True)))
        strange = names - cluster.topics.keys() - self._administration.creating.keys()
        if strange:
            found = yield from topic_registry.load_some_topics(cluster.broker_id, sorted(strange), new_topic_id)
            cluster.topics.update(found)
        gone = {name for name in cluster.topics.keys() - names - cluster.deleting if not self._runner.is_running(f"topic:{name}")}
        for name in gone:
            self._log.warning(f"topic {name} was taken out of ZooKeeper by somebody else; its directories stay", topic=name)
            del cluster.topics[name]
        if strange or gone:
            yield Publish()
        return bool(strange)

    def _look_at_deletions(self) -> Operation[bool]:
        names = yield from topic_registry.load_deletions()
        strange = {name for name in names - self.cluster.deleting if not self._runner.is_running(f"topic:{name}")}
        self.cluster.deleting |= strange
        return bool(strange)

    def _look_at_brokers(self) -> Operation[bool]:
        self.cluster.brokers = yield from broker_registry.read_brokers(watch=True)
        yield Publish()
        return False

    def _look_at_config_changes(self) -> Operation[bool]:
        """Configs that somebody else changed. Our own changes come along here too, and are known already."""
        names = yield from config_notifications.list_config_changes()
        for name in sorted(names - self.cluster.config_changes):
            topic = yield from config_notifications.topic_named_by(name)
            if topic is not None:
                yield from reload_topic_config(self.cluster, topic)
        self.cluster.config_changes = names
        yield from config_notifications.remove_old_config_changes(names, self._clock.wall_ms())
        return False

    # --- the disks ----------------------------------------------------------------------------------------------------------

    def _on_disk_connected(self, disk: str) -> None:
        report = DiskReport.from_writer_info(disk, self._disks.writer_info(disk))
        self.cluster.add_report(report)
        bump = ", leader epochs must be raised first" if report.needs_epoch_bump else ""
        self._log.info(f"log-writer@{disk} is there with {len(report.partitions)} partitions{bump}", disk=disk, peer=f"log-writer@{disk}")
        self._moves.on_disk_connected(report)
        self._disks_to_bring_up.add(disk)
        self._reconsider_replacements()

    def _reconsider_replacements(self) -> None:
        """What a disk was given up with may have waited for another disk, which had perhaps a copy of it (`operations._begin_anew`)."""
        self._disks_to_bring_up.update(disk for disk, report in self.cluster.reports.items() if report.replaces)
        self._reconsider_at_ms = 0

    def _look_at_disks(self, now_ns: int) -> None:
        """Disks that were added, removed or replaced while we run."""
        came, went, replaced = self._box_disks.look(now_ns)
        for disk in came:
            self._missing_gauges[disk.name] = self._context.counters.counter(f'controller.partitions_missing{{disk="{disk.name}"}}')
            self.cluster.disks.append(disk.name)
            self._disks.add_disk(disk.name)
        for disk in went:
            self._disks.remove_disk(disk.name)
            self.cluster.remove_disk(disk.name)
            self._reconsider_replacements()
        for disk in replaced:
            self._disks.replace_disk(disk.name)

    def _on_disk_gone(self, disk: str) -> None:
        self.cluster.reports.pop(disk, None)
        self._disks_to_bring_up.discard(disk)
        self._missing_gauges[disk].set(0)
        self._log.info(f"log-writer@{disk} is gone; its partitions have no leader until it is back", disk=disk, peer=f"log-writer@{disk}")

    def _bring_up_disks(self) -> None:
        if self.cluster.fence is None:
            return
        for disk in sorted(self._disks_to_bring_up):
            if self._disks.is_offline(disk):
                continue  # it can do nothing for us; it is asked when it has come back
            report = self.cluster.reports[disk]
            started = self._runner.start(
                f"disk:{disk}",
                bring_up_disk(self.cluster, report),
                lambda outcome, report=report: self._on_brought_up(report, outcome),  # type: ignore[misc]
            )
            if started:
                self._disks_to_bring_up.discard(disk)

    def _on_brought_up(self, report: DiskReport, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._missing_gauges[report.disk].set(report.missing)
        if report.missing:
            names = missing_partitions(self.cluster, report)
            shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            self._log.critical(
                f"{report.missing} partitions that ZooKeeper places on disk {report.disk} are not there; clients get KAFKA_STORAGE_ERROR for them: {shown}."
                " Put their directories back, or delete the topics",
                disk=report.disk,
            )
        if outcome.value and self.cluster.reports.get(report.disk) is report:
            if outcome.value != report.refused:
                words = f"log-writer@{report.disk} refused to lead {outcome.value} partitions; it is asked again"
                self._log.warning(words, disk=report.disk, peer=f"log-writer@{report.disk}")
            self._disks_to_bring_up.add(report.disk)
        report.refused = outcome.value

    def _spaces(self) -> list[DiskSpace]:
        """The disks that can take a partition now (none that is being drained), with the free space that their log-writers count. None for a moment after an
        arrival, while log-writers are still to come: the first topics of a box shall not crowd the disk that was quickest."""
        if len(self.cluster.reports) < len(self._box.disks) and self._clock.monotonic_ms() - self._arrived_ms < WITHOUT_DISKS_MS:
            return []
        spaces = []
        for disk, report in self.cluster.reports.items():
            if self._disks.connected(disk) and not self._disks.is_offline(disk) and not self.cluster.is_draining(report.directory_id):
                spaces.append(DiskSpace(report.directory_id, self._free_bytes(disk), len(report.partitions)))
        return spaces

    def _free_bytes(self, disk: str) -> int:
        """0 before the log-writer has counted: then the disks with the fewest partitions come first."""
        snapshot = read_counters(self._context.layout, f"log-writer@{disk}")
        return snapshot.values.get(FREE_BYTES_LABEL, 0) if snapshot is not None else 0
