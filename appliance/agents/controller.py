"""The controller: the box's ZooKeeper session, its registration, topics, the metadata image, and orders to the log-writers.

One process per box; on one box of the cluster it is also the controller of the cluster. It owns nothing on a log disk: killed at any moment, its
next life resumes the session (id and password are kept in the runtime directory), loads the tree and finishes what was begun. While it or
ZooKeeper is away, produce and fetch go on.

No box gives another one orders: each follows the tree, tells its own log-writers what they are, and writes for its own replicas; one of them, the
controller of the cluster, writes for boxes that are gone and about topics. Weak spot: kazoo's threads share this process's interpreter lock
with the duty cycle.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.agents.admission import Admission, Refusal
from appliance.agents.box_requests import BoxRequests
from appliance.agents.cluster_administration import ClusterAdministration
from appliance.agents.controller_requests import ControllerRequests
from appliance.agents.coordinator_services import KINDS as COORDINATOR_KINDS
from appliance.agents.coordinator_services import CoordinatorServices
from appliance.agents.creation_elsewhere import CreationElsewhere
from appliance.agents.disk_bring_up import DiskBringUp
from appliance.agents.disk_commands import DiskCommands
from appliance.agents.failover import Failover
from appliance.agents.hosting import Hosting
from appliance.agents.image_publisher import ImagePublisher
from appliance.agents.isr_keeper import IsrKeeper
from appliance.agents.lease_keeper import LeaseKeeper
from appliance.agents.live_brokers import LiveBrokers
from appliance.agents.move_administration import MoveAdministration
from appliance.agents.move_progress import MoveProgressFiles
from appliance.agents.move_requests import MoveRequests
from appliance.agents.request_server import RequestClient, RequestServer
from appliance.agents.role_keeper import RoleKeeper
from appliance.agents.tree_looks import TreeLooks
from appliance.base.model import TopicId
from appliance.client.peers import Peers
from appliance.ipc.box_disks import BoxDisks
from appliance.ipc.controller_frames import GENERATION, IMAGE_CHANGED
from appliance.ipc.frames import Frame
from appliance.metadata.broker_configs import broker_configs
from appliance.metadata.broker_registry import RegistrationLost
from appliance.metadata.metadata_image import MetadataImage
from appliance.metadata.operation import ControllerMoved, OperationRunner, Outcome
from appliance.metadata.requests import ConnectionLost
from appliance.metadata.session import SavedSession, SessionState, ZooKeeperSession
from appliance.metadata.topic_configs import broker_config
from appliance.metadata.znodes import BoxRecord, BrokerRegistration, broker_path
from appliance.replication.arrival import Arrival, arrive
from appliance.replication.cluster import Cluster, DiskReport, topic_id_of
from appliance.replication.controller import DiskSpace
from appliance.replication.internal_topics import internal_topic
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.runtime.identity import read_joined_cluster, write_joined_cluster
from appliance.runtime.poller import READABLE
from appliance.runtime.systemd import notify_refused
from appliance.shm.counters import read_counters

SESSION_FILE = "zookeeper.session"
BOX_ID_FILE = "box.id"
FREE_BYTES_LABEL = "disk.free_bytes"
ARRIVE_AGAIN_MS = 1000
RECONSIDER_MS = 500
WITHOUT_DISKS_MS = 2000
STOP_MS = 1000
AWAY = (SessionState.SUSPENDED, SessionState.EXPIRED)
STOP_LOOK_MS = 20
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

    def __init__(self, context: ServiceContext, make_session: Callable[..., ZooKeeperSession] = ZooKeeperSession) -> None:
        self._context = context
        self._make_session = make_session
        self._box = box = context.box
        self._log = context.log
        self._clock = context.clock
        self._session_path = f"{context.layout.runtime_directory}/{SESSION_FILE}"
        self._identity = box_id(box.state_directory)
        self._joined_cluster = read_joined_cluster(box.state_directory)
        self._arrived = False
        self._arrive_at_ms: int | None = None
        self._arrived_ms = 0
        self._reconsider_at_ms = 0
        self._stop_look_at_ms = 0
        self._ready_told = False
        self._stop_deadline_ms: int | None = None
        self._last_trouble = ""
        disks = [disk.name for disk in box.disks]
        self.cluster = Cluster(box.broker_id, broker_config(box.settings), disks)
        self._publisher = ImagePublisher(context.layout.image_file, self._make_image, self._on_published)
        self._box_disks = BoxDisks(context.layout, box)
        self._disks = DiskCommands(
            context.layout,
            context.incarnation,
            disks,
            context.poller,
            context.counters,
            self._on_disk_connected,
            self._on_disk_gone,
            context.log,
            box.integer("log.disk.deadline.ms"),
            self._on_isr_wishes,
        )
        self.session = self._open_session()
        self._runner = OperationRunner(self.session.submit, self._disks.command, self._publisher.publish)
        session_ms = box.integer("zookeeper.session.timeout.ms")
        self._lease = LeaseKeeper(
            context.layout, context.incarnation, box.broker_id, session_ms, self.session.submit, lambda: self.session.session_id, context.clock
        )
        self._admission = Admission(
            box.broker_id, session_ms, context.clock.monotonic_ms, self._may_give_up, notify_refused, context.notifier.status, context.log
        )
        self._own_runner = OperationRunner(self.session.submit, self._disks.command, self._publisher.publish)
        now_ms = context.clock.monotonic_ms
        self._isr = IsrKeeper(self.cluster, self._runner, lambda: self._arrived, context.counters, self._on_failure)
        deadline_ms = box.integer("log.disk.deadline.ms")
        self._bring_up = DiskBringUp(
            self.cluster, self._runner, self._disks, self._isr.is_settled, deadline_ms, now_ms, context.counters, context.log, self._on_failure
        )
        self._roles = RoleKeeper(self.cluster, self._own_runner, self._bring_up.is_brought_up, now_ms)
        self._live_brokers = LiveBrokers(self.cluster, self._own_runner, now_ms)
        self._hosting = Hosting(self.cluster, self._runner, self._spaces, self._bring_up.all_told, context.counters, context.log, self._on_failure)
        self._failover = Failover(
            self.cluster,
            self._runner,
            self._bring_up.is_dead,
            self._bring_up.is_brought_up,
            lambda: self._bring_up.patience_ms(session_ms),
            now_ms,
            context.counters,
            context.log,
            self._on_failure,
        )
        self._administration = ClusterAdministration(context, self.cluster, self._runner, self._spaces, new_topic_id, self._on_failure)
        self._looks = TreeLooks(
            self.cluster,
            self._runner,
            new_topic_id,
            lambda: self._administration.topics.creating,
            lambda: self.session.session_id,
            context.clock,
            context.log,
            self._on_cluster_changed,
            self._on_failure,
        )
        self._moves = MoveAdministration(
            self.cluster,
            self._runner,
            self._own_runner,
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
        peers = Peers(f"controller of broker {box.broker_id}", context.poller, context.clock)
        self._elsewhere = CreationElsewhere(peers, lambda: self._publisher.image, lambda name: internal_topic(name, box, len(self._publisher.image.brokers)))
        self._requests = ControllerRequests(
            self.cluster,
            self._administration,
            lambda wait, answer: BoxRequests(self.cluster, self._runner, context.log, self._on_failure, wait, answer, context.clock.monotonic_ms),
            self._elsewhere,
            lambda wait, answer: MoveRequests(self._moves.orders, self._administration.draining, box.disks, wait, answer, context.clock.monotonic_ms),
            broker_configs(box),
            lambda: self._arrived,
            lambda: box.zookeeper if self.session.state in AWAY else "",
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
        counter, gauge = self._context.counters.counter, self._context.counters.gauge
        self._connected_gauge = gauge("controller.zookeeper_connected")
        self._sessions_lost = counter("controller.zookeeper_sessions_lost")
        self._suspensions = counter("controller.zookeeper_suspensions")
        self._leads_gauge = gauge("controller.is_controller")
        self._terms = counter("controller.terms")
        self._last_term = -1
        self._topics_gauge = gauge("controller.topics")
        self._generation_gauge = gauge("controller.image_generation")

    def _count_term(self) -> None:
        """A role that was kept over a look at everything is no new one."""
        fence = self.cluster.fence
        if fence is not None and fence.controller_epoch != self._last_term:
            self._last_term = fence.controller_epoch
            self._terms.add()

    def _open_session(self) -> ZooKeeperSession:
        saved = SavedSession.load(self._session_path, self._box.zookeeper)
        session = self._make_session(self._box.zookeeper, self._box.integer("zookeeper.session.timeout.ms"), saved, self._on_state, self._on_change)
        self._context.poller.register(session.fileno(), READABLE, lambda _events: None)  # it wakes us; `do_work` drains
        return session

    # --- the duty cycle -----------------------------------------------------------------------------------------------------

    def do_work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        now_ns = self._clock.monotonic_ns()
        self._look_at_disks(now_ns)
        self._look_for_stop(now_ms)
        work = self.session.drain()
        work += self._disks.do_work(now_ns)
        if self._arrive_at_ms is not None and now_ms >= self._arrive_at_ms:
            self._start_arrival()
            work += 1
        if self._arrived and now_ms >= self._reconsider_at_ms:
            self._reconsider_at_ms = now_ms + RECONSIDER_MS
            self._bring_up.reconsider()
            self._failover.reconsider()
            self._hosting.reconsider()
            self._administration.reconsider()
        work += self._lease.do_work(self._arrived and self.cluster.has_other_boxes and self._bring_up.roles_are_told())
        work += self._isr.do_work()
        work += self._roles.do_work()
        work += self._live_brokers.do_work()
        work += self._moves.do_work(now_ns, self._arrived)
        if self.cluster.is_image_due:
            self.cluster.is_image_due = False
            self._publisher.publish(lambda _: None)
        work += self._publisher.do_work(now_ns)
        work += self._requests.do_work()
        work += self._coordinator_services.do_work()
        work += self._elsewhere.do_work(now_ns)
        self._disks.flush()
        if not self._ready_told:
            self._maybe_ready(now_ms)
        return work

    def may_park(self) -> bool:
        return self._disks.may_park()

    def unpark(self) -> None:
        self._disks.unpark()

    def park_ms(self) -> int:
        return self._lease.park_ms(10 if self._publisher.is_pending else MOVES_PARK_MS if self._moves.is_busy() else PARK_MS_MAX)

    def _look_for_stop(self, now_ms: int) -> None:
        """Whether the whole box is about to stop. The first step of that is ours: what it leads goes to others while everybody still serves."""
        if now_ms < self._stop_look_at_ms:
            return
        self._stop_look_at_ms = now_ms + STOP_LOOK_MS
        if os.path.exists(self._context.layout.stopping_file):
            self._stop_look_at_ms = 1 << 62
            self._failover.is_leaving = True
            if self._arrived and self.cluster.has_other_boxes:
                self._log.info("the box is about to stop: what other boxes can lead goes to them")
                self._failover.leave(self._on_left)
            else:
                self._on_left(0)

    def _on_left(self, moved: int) -> None:
        if moved:
            self._log.info(f"{moved} partitions were given to other boxes, as leaders or in sync")
        Path(self._context.layout.left_file).touch()

    def begin_stop(self) -> None:
        self._stop_deadline_ms = self._clock.monotonic_ms() + STOP_MS

    def stopped(self) -> bool:
        """Operations may be cut off at every step, so the stop waits for them only for a moment."""
        return not len(self._runner) or self._stop_deadline_ms is None or self._clock.monotonic_ms() >= self._stop_deadline_ms

    def close(self) -> None:
        """End the session: other boxes learn at once that this one is gone. If it is not, and only this process ends, the next life goes on with it."""
        self._server.close()
        self._elsewhere.close()
        self._runner.drop_all()
        self._own_runner.drop_all()
        self._context.poller.unregister(self.session.fileno())
        if self._failover.is_leaving or not self.cluster.has_other_boxes:
            self._lease.end()
            self.session.close()
            Path(self._session_path).unlink(missing_ok=True)
        else:
            self.session.abandon()
        self._lease.close()
        self._disks.close()

    def status_line(self) -> str:
        role = "controller" if self.cluster.fence is not None else "not controller"
        line = f"ZooKeeper {self.session.state.value}, {role}, {len(self.cluster.topics)} topics, {len(self._runner)} operations under way"
        return f"waits: {self._admission.reason}; {line}" if self._admission.reason else line

    def _maybe_ready(self, now_ms: int) -> None:
        """Ready once the tree is loaded and the disks lead what is theirs, or have not come within two seconds."""
        if not self._arrived:
            return
        if self._bring_up.all_brought_up() or now_ms - self._arrived_ms >= WITHOUT_DISKS_MS:
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
            self._lease.end()
            self._sessions_lost.add()
            self._log.warning("the ZooKeeper session has expired; a new one is opened")
        else:
            self._suspensions.add()
            self._log.warning("the connection to ZooKeeper is lost; admin requests wait, produce and fetch go on")
        self._admission.on_disconnected()
        self._leave()

    def _leave(self) -> None:
        """Nothing that ZooKeeper said can be acted on any more."""
        self._arrived = False
        self._arrive_at_ms = None
        self._looks.forget()
        self._runner.drop_all()
        self._publisher.forget_waiting()
        self.cluster.forget()
        self._leads_gauge.set(0)

    def _on_failure(self, failure: Exception) -> None:
        """An operation failed in a way that only a fresh look can mend."""
        if isinstance(failure, ConnectionLost):
            return  # the session tells of it too, and what was begun begins again then
        if isinstance(failure, RegistrationLost):
            self._on_registration_lost(failure)
            return
        if isinstance(failure, Refusal):
            self._admission.on_refused(failure)
            wait_ms = 0 if self._arrived else ARRIVE_AGAIN_MS  # what was registered before the disks told who they are is taken back at once
            self._leave()
            self._arrive_at_ms = self._clock.monotonic_ms() + wait_ms
            return
        trouble = f"{type(failure).__name__}: {failure}"
        if trouble != self._last_trouble:
            self._last_trouble = trouble
            self._log.warning(f"looks at ZooKeeper and all disks anew, because of {trouble}")
        self._leave()
        self._arrive_at_ms = self._clock.monotonic_ms() + (0 if isinstance(failure, ControllerMoved) else ARRIVE_AGAIN_MS)

    def _on_registration_lost(self, loss: RegistrationLost) -> None:
        """As if the session were lost, but at once: we register again, or are told who is in the way."""
        self._admission.on_lost(loss)
        self._lease.end()
        self._leave()
        self._arrive_at_ms = self._clock.monotonic_ms()

    def _may_give_up(self) -> bool:
        return not self._ready_told and len(self.cluster.reports) == len(self.cluster.disks)

    def _start_arrival(self) -> None:
        self._leave()
        if self.session.state is not SessionState.CONNECTED:
            return
        self._runner.start("arrive", arrive(self.cluster, self._arrival()), self._on_arrived)

    def _arrival(self) -> Arrival:
        box = self._box
        now_ms = self._clock.wall_ms()
        registration = BrokerRegistration(box.broker_id, (("PLAINTEXT", box.advertise, box.kafka_port),), {"PLAINTEXT": "PLAINTEXT"}, box.rack, now_ms)
        directories = {report.directory_id: report.disk for report in self.cluster.reports.values()}
        known = box.cluster_id or self._joined_cluster
        cluster_id = known or str(new_topic_id())
        record = BoxRecord(self._identity, directories, is_fenced=self._failover.is_leaving or not self._bring_up.all_settled())
        has_been_member = bool(self._joined_cluster)
        return Arrival(self.session.session_id, registration, record, cluster_id, bool(known), has_been_member, now_ms, new_topic_id)

    def _on_arrived(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        self._arrived = True
        self._last_trouble = ""
        if self._joined_cluster != self.cluster.cluster_id:
            self._keep_cluster(self.cluster.cluster_id)
        self._admission.on_admitted()
        self._arrived_ms = self._clock.monotonic_ms()
        self._leads_gauge.set(int(self.cluster.fence is not None))
        self._count_term()
        self._moves.on_arrived()
        self._administration.on_arrived()
        self._looks.on_arrived()
        self._bring_up.on_arrived()
        self._failover.on_arrived()
        self._reconsider_at_ms = 0

    def _keep_cluster(self, cluster_id: str) -> None:
        """From now on the box, and after its next start each of its disks, is of this cluster."""
        self._joined_cluster = cluster_id
        try:
            write_joined_cluster(self._box.state_directory, cluster_id)
        except OSError as error:
            self._log.warning(f"could not write down in {self._box.state_directory} that the box is of cluster {cluster_id}: {error.strerror}")

    def _on_cluster_changed(self) -> None:
        """Others have changed something: whoever may have to act on it looks at it in this turn or the next."""
        self._leads_gauge.set(int(self.cluster.fence is not None))
        self._reconsider_at_ms = 0

    def _on_change(self, path: str) -> None:
        """Somebody changed something that we watch: look at it again. Our own writes come along here too, and find nothing new."""
        if self._admission.reason and path == broker_path(self._box.broker_id):
            self._arrive_at_ms = self._clock.monotonic_ms()  # who was in the way may be gone
        self._looks.on_change(path)

    # --- the disks ----------------------------------------------------------------------------------------------------------

    def _on_disk_connected(self, disk: str) -> None:
        report = DiskReport.from_writer_info(disk, self._disks.writer_info(disk))
        self.cluster.add_report(report)
        bump = ", leader epochs must be raised first" if report.needs_epoch_bump else ""
        self._log.info(f"log-writer@{disk} is there with {len(report.partitions)} partitions{bump}", disk=disk, peer=f"log-writer@{disk}")
        self._moves.on_disk_connected(report)
        self._bring_up.on_connected(report)
        self._reconsider_at_ms = 0

    def _on_isr_wishes(self, disk: str, wishes: list[dict[str, Any]]) -> None:
        self._isr.on_wishes(disk, wishes)

    def _look_at_disks(self, now_ns: int) -> None:
        """Disks that were added, removed or replaced while we run."""
        came, went, replaced = self._box_disks.look(now_ns)
        for disk in came:
            self._bring_up.on_added(disk.name)
            self.cluster.disks.append(disk.name)
            self._disks.add_disk(disk.name)
        for disk in went:
            self._disks.remove_disk(disk.name)
            self.cluster.remove_disk(disk.name)
            self._bring_up.on_removed(disk.name)
            self._bring_up.reconsider_replacements()
            self._reconsider_at_ms = 0
        for disk in replaced:
            self._disks.replace_disk(disk.name)

    def _on_disk_gone(self, disk: str) -> None:
        self.cluster.reports.pop(disk, None)
        self._bring_up.on_gone(disk)
        self._isr.on_disk_gone(disk)
        self._log.info(f"log-writer@{disk} is gone; those of its partitions that no other box has wait until it is back", disk=disk, peer=f"log-writer@{disk}")

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
