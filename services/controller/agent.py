"""The controller: the box's ZooKeeper session, its registration, topics, the metadata image, and
commands to the log-writers.

One process per box; on one box of the cluster it is also the controller of the cluster. It owns
nothing on a log disk. If it is killed, the next incarnation resumes the session (id and password
are in the runtime directory), loads the tree and completes what was begun. While the process or
ZooKeeper is away, produce and fetch continue.

No box commands another one. Each follows the tree, sends roles to its own log-writers, and writes
for its own replicas. The controller of the cluster also writes for dead boxes and about topics.
Weak: kazoo's threads share this process's interpreter lock with the duty cycle.
"""

from __future__ import annotations

import hmac
import os

from appliance.base.model import TopicId
from appliance.base.zookeeper_access import ZooKeeperAccess
from appliance.cluster.credential_image import SECRET_BYTES
from appliance.cluster.metadata_image import MetadataImage
from appliance.ipc.box_disks import BoxDisks
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from services.controller.admin.acls import AclAdministration
from services.controller.admin.broker_loggers import BrokerLoggers
from services.controller.admin.client_quotas import QuotaAdministration
from services.controller.admin.cluster_administration import ClusterAdministration
from services.controller.admin.move_administration import MoveAdministration
from services.controller.admin.move_progress import MoveProgressFiles
from services.controller.admin.tokens import TokenAdministration
from services.controller.admin.users import UserAdministration
from services.controller.box_replicas import BoxReplicas, DiskReports
from services.controller.controller_server import ControllerServer
from services.controller.decisions.cluster import Cluster, ControllerContext, topic_id_of
from services.controller.decisions.config_operations import configs_in_effect, publish_changed_configs
from services.controller.disk_commands import DiskCommands
from services.controller.failover import ControlledShutdown
from services.controller.hosting import DiskSpaces
from services.controller.image_publisher import ImagePublisher
from services.controller.zookeeper.box_session import BoxSession, MakeSession
from services.controller.zookeeper.cluster_membership import ClusterMembership
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner, Pauses
from services.controller.zookeeper.session import ZooKeeperSession
from services.controller.zookeeper.tree_protection import TreeGuard
from services.controller.zookeeper.znode_watcher import ZnodeWatcher

RECONSIDER_MS = 500
STOP_MS = 1000
MOVES_PARK_MS = 20
IMAGE_PARK_MS = 10


def new_topic_id() -> TopicId:
    while True:
        try:
            return topic_id_of(os.urandom(16))
        except ValueError:
            continue


def scram_secret(access: ZooKeeperAccess | None) -> bytes:
    """Return what the made-up credentials of unknown users are derived from: the same on all boxes that share a secret for ZooKeeper."""
    if access is None or not access.password:
        return os.urandom(SECRET_BYTES)
    return hmac.digest(access.password.encode(), b"credentials of unknown users", "sha256")


class ControllerAgent:
    """The duty cycle, and the connections between session, arrival, disks and image."""

    def __init__(self, context: ServiceContext, make_session: MakeSession = ZooKeeperSession) -> None:
        box, layout, log = context.box, context.layout, context.log
        self._context = context
        self._clock = context.clock
        self._reconsider_at_ms = 0
        self._is_ready = False
        self._stop_deadline_ms: int | None = None
        self._make_counters()
        self.cluster = Cluster(box.broker_id, box.settings, [disk.name for disk in box.disks])
        self.cluster.reloads = box.reloads
        self.cluster.inter_broker_listener, self.cluster.inter_broker_protocol, *_ = box.kafka_listeners[0]
        self._publisher = ImagePublisher(layout.image_file, self._make_image, self._on_published)
        # Callbacks use components that are created below; none is called before the first turn.
        self._disks = DiskCommands(
            context,
            lambda disk: self._reports.on_connected(disk),
            lambda disk: self._reports.on_gone(disk),
            lambda disk, requests: self._replicas.isr.on_requests(disk, requests),
            self._reconsider_at_once,
        )
        box_session = BoxSession(context, make_session, lambda state: self._membership.on_state(state), self._on_change)
        self.session = box_session.zookeeper
        self._pauses = Pauses(context.clock.monotonic_ms)
        self._runner = OperationRunner(self.session.submit, self._disks.command, self._publisher.publish, self._pauses.pause)
        self._own_runner = OperationRunner(self.session.submit, self._disks.command, self._publisher.publish, self._pauses.pause)
        shared = ControllerContext(
            self.cluster,
            self._runner,
            context.clock,
            context.counters,
            log,
            lambda failure: self._membership.on_failure(failure),
            lambda: self._membership.has_arrived,
        )
        self._membership = ClusterMembership(context, shared, box_session, new_topic_id, self)
        self._spaces = DiskSpaces(context, self.cluster, self._disks)
        self._replicas = BoxReplicas(shared, box, self._own_runner, self._disks, self._spaces)
        self._administration = ClusterAdministration(shared, box, BrokerLoggers(layout, box, log), self._spaces.available, new_topic_id)
        self._watcher = ZnodeWatcher(
            shared,
            new_topic_id,
            lambda: self._administration.topics.creating,
            lambda: self.session.session_id,
            self._on_cluster_changed,
            lambda name: self._users.reload(name),
            lambda path: self._quotas.on_changed(path),
        )
        self._moves = MoveAdministration(
            shared,
            box,
            self._own_runner,
            lambda disk: self._disks.connected(disk) and not self._disks.is_offline(disk),
            self._publisher.publish,
            MoveProgressFiles(layout),
        )
        self._reports = DiskReports(shared, BoxDisks(layout, box), self._disks, self._replicas, self._moves, self._reconsider_at_once)
        has_authorizer = bool(box.text("authorizer.class.name"))
        self._acls = AclAdministration(shared, layout.security_image_file, lambda: self._server.on_published()) if has_authorizer else None
        self._users = UserAdministration(shared, layout.credential_image_file, lambda: scram_secret(box_session.access), lambda: self._server.on_published())
        self._quotas = QuotaAdministration(shared, layout.quota_image_file, lambda: self._server.on_published())
        self._tokens = TokenAdministration(shared, box, layout.token_image_file, lambda: self._server.on_published())
        self._tree_guard = TreeGuard(box_session.access, box, self._runner, log)
        self._controlled_shutdown = ControlledShutdown(layout, shared, self._replicas.failover)
        self._server = ControllerServer(
            context, shared, box_session, self._administration, self._moves, self._publisher, self._acls, self._users, self._quotas, self._tokens
        )
        self.session.start()

    def _make_counters(self) -> None:
        counter, gauge = self._context.counters.counter, self._context.counters.gauge
        self._leads_gauge = gauge("controller.is_controller")
        self._terms = counter("controller.terms")
        self._last_term = -1
        self._topics_gauge = gauge("controller.topics")
        self._generation_gauge = gauge("controller.image_generation")

    # --- the duty cycle -----------------------------------------------------------------------------------------------------

    def do_work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        now_ns = self._clock.monotonic_ns()
        self._reports.poll(now_ns)
        self._controlled_shutdown.poll(now_ms)
        work = self.session.drain()
        work += self._disks.do_work(now_ns)
        work += self._pauses.do_work(now_ms)
        work += self._membership.maybe_arrive(now_ms)
        if self._membership.has_arrived and now_ms >= self._reconsider_at_ms:
            self._reconsider_at_ms = now_ms + RECONSIDER_MS
            self._replicas.reconsider()
            self._administration.reconsider()
            self._users.reconsider()
            self._quotas.reconsider()
            self._tokens.reconsider()
            if self._acls is not None:
                self._acls.reconsider()
        work += self._membership.keep_lease(self._replicas.bring_up.are_roles_sent)
        work += self._membership.keep_generation(now_ms, self._replicas.bring_up.all_settled)
        work += self._replicas.do_work()
        work += self._moves.do_work(now_ns, self._membership.has_arrived)
        if self.cluster.is_image_due:
            self.cluster.is_image_due = False
            self._publisher.publish(lambda _: None)
        work += self._publisher.do_work(now_ns)
        work += self._users.publish()
        work += self._quotas.publish()
        work += self._tokens.publish()
        work += self._server.do_work(now_ns)
        self._disks.flush()
        if not self._is_ready:
            self._maybe_ready(now_ms)
        return work

    def may_park(self) -> bool:
        return self._disks.may_park()

    def unpark(self) -> None:
        self._disks.unpark()

    def park_ms(self) -> int:
        most_ms = IMAGE_PARK_MS if self._publisher.is_pending else MOVES_PARK_MS if self._moves.is_busy() else PARK_MS_MAX
        return self._membership.park_ms(self._pauses.park_ms(self._clock.monotonic_ms(), most_ms))

    def begin_stop(self) -> None:
        self._stop_deadline_ms = self._clock.monotonic_ms() + STOP_MS

    def stopped(self) -> bool:
        """Whether the process may exit. Operations may be dropped at any step, so the stop waits
        for them only `STOP_MS`.
        """
        return not len(self._runner) or self._stop_deadline_ms is None or self._clock.monotonic_ms() >= self._stop_deadline_ms

    def close(self) -> None:
        """End the session, so that other boxes learn at once that this box is gone.

        If only this process ends, leave the session to the next incarnation.
        """
        self._server.close()
        self._runner.drop_all()
        self._own_runner.drop_all()
        self._membership.close(self._replicas.failover.is_shutting_down or not self.cluster.has_other_boxes)
        self._disks.close()

    def status_line(self) -> str:
        role = "controller" if self.cluster.fence is not None else "not controller"
        line = f"ZooKeeper {self.session.state.value}, {role}, {len(self.cluster.topics)} topics, {len(self._runner)} operations under way"
        return f"waits: {self._membership.refusal}; {line}" if self._membership.refusal else line

    def _maybe_ready(self, now_ms: int) -> None:
        """Report readiness once the tree is loaded and the disks lead their partitions, or are 2 s
        late.
        """
        if not self._membership.has_arrived:
            return
        if self._replicas.bring_up.all_brought_up() or not self._spaces.are_waited_for(now_ms):
            self._is_ready = True
            self._context.notifier.ready()

    def is_fenced(self) -> bool:
        return self._replicas.is_fenced()

    def may_give_up(self) -> bool:
        return not self._is_ready and len(self.cluster.reports) == len(self.cluster.disks)

    def on_reloaded(self) -> None:
        """Topics inherit the reloaded settings. An arrival sends the configs of all topics anyway."""
        former = configs_in_effect(self.cluster)
        self.cluster.reloads += 1
        self.cluster.use_settings()
        self._server.on_reloaded()
        self._administration.on_reloaded()
        if self._membership.has_arrived:
            name = f"reload:settings:{self.cluster.reloads}"
            self._own_runner.start(name, publish_changed_configs(self.cluster, former), self._on_settings_sent)

    def _on_settings_sent(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._membership.on_failure(outcome.failure)

    # --- the box arrives and leaves, the tree changes -----------------------------------------------------------------------

    def on_arrived(self) -> None:
        """The tree was loaded."""
        self._spaces.on_arrived()
        self._leads_gauge.set(int(self.cluster.fence is not None))
        self._count_term()
        self._moves.on_arrived()
        self._administration.on_arrived()
        self._watcher.on_arrived()
        if self.cluster.is_restored:
            self._reports.on_restored()
        self._replicas.on_arrived()
        self._tree_guard.on_arrived()
        self._users.on_arrived()
        self._quotas.on_arrived()
        self._tokens.on_arrived()
        if self._acls is not None:
            self._acls.on_arrived()
        self._reconsider_at_once()

    def _count_term(self) -> None:
        """Count a new term as controller. Reloading the tree does not start one."""
        fence = self.cluster.fence
        if fence is not None and fence.controller_epoch != self._last_term:
            self._last_term = fence.controller_epoch
            self._terms.add()

    def on_left(self) -> None:
        self._watcher.forget()
        self._users.on_left()
        self._quotas.on_left()
        self._tokens.on_left()
        if self._acls is not None:
            self._acls.on_left()
        self._publisher.forget_waiting()
        self._leads_gauge.set(0)

    def _on_change(self, path: str) -> None:
        """A watch fired: reload the path. Our own writes fire watches, too."""
        self._membership.on_change(path)
        self._watcher.on_change(path)
        self._tokens.on_change(path)
        if self._acls is not None:
            self._acls.on_change(path)

    def _on_cluster_changed(self) -> None:
        """Another box has changed something: let all components reconsider in this turn or the
        next.
        """
        self._leads_gauge.set(int(self.cluster.fence is not None))
        self._reconsider_at_once()

    def _reconsider_at_once(self) -> None:
        self._reconsider_at_ms = 0

    # --- the image ----------------------------------------------------------------------------------------------------------

    def _make_image(self, generation: int) -> MetadataImage:
        return self.cluster.image(generation)

    def _on_published(self, generation: int) -> None:
        self._generation_gauge.set(generation)
        self._topics_gauge.set(len(self._publisher.image.topics))
        self._server.on_published()
