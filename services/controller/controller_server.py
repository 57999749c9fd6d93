"""The controller's server on `controller.sock`: it passes requests to their handlers and notifies
all clients of new images.

Owned by the controller process. `controller_requests` handles admin requests and automatic
creation, `coordinator_services` the coordinator's requests. A topic that only another box's
controller may create is requested there (`CreationElsewhere`). Weak: as of `request_server`.
"""

from __future__ import annotations

from appliance.client.peers import Peers
from appliance.cluster.broker_configs import broker_configs
from appliance.cluster.state_log import internal_topic
from appliance.ipc.controller_frames import GENERATION, IMAGE_CHANGED
from appliance.ipc.frames import Frame
from appliance.runtime.agent import ServiceContext
from appliance.runtime.request_server import RequestClient, RequestServer
from services.controller.admin.box_requests import BoxRequests
from services.controller.admin.cluster_administration import ClusterAdministration
from services.controller.admin.controller_requests import ControllerRequests
from services.controller.admin.coordinator_services import KINDS as COORDINATOR_KINDS
from services.controller.admin.coordinator_services import CoordinatorServices
from services.controller.admin.move_administration import MoveAdministration
from services.controller.admin.move_requests import MoveRequests
from services.controller.admin.topic_administration import CreationElsewhere
from services.controller.decisions.cluster import Cluster
from services.controller.image_publisher import ImagePublisher
from services.controller.zookeeper.box_session import BoxSession
from services.controller.zookeeper.cluster_membership import ClusterMembership
from services.controller.zookeeper.operation import OperationRunner


class ControllerServer:
    """`session` names unreachable ZooKeeper servers; `membership` knows whether requests can begin."""

    def __init__(
        self,
        context: ServiceContext,
        cluster: Cluster,
        runner: OperationRunner,
        session: BoxSession,
        membership: ClusterMembership,
        administration: ClusterAdministration,
        moves: MoveAdministration,
        publisher: ImagePublisher,
    ) -> None:
        box, counters, now_ms = context.box, context.counters, context.clock.monotonic_ms
        self._publisher = publisher
        self._server = RequestServer(context.layout.controller_socket, context.poller, self._on_frame, self._notification)
        self._elsewhere = CreationElsewhere(
            Peers(f"controller of broker {box.broker_id}", context.poller, context.clock),
            lambda: publisher.image,
            lambda name: internal_topic(name, box, len(publisher.image.brokers)),
        )
        self._requests = ControllerRequests(
            cluster,
            administration,
            lambda wait, answer: BoxRequests(cluster, runner, context.log, membership.on_failure, wait, answer, now_ms),
            self._elsewhere,
            lambda wait, answer: MoveRequests(moves.orders, administration.draining, box.disks, wait, answer, now_ms),
            broker_configs(box),
            lambda: membership.has_arrived,
            session.unreached,
            self._server.send,
            counters,
            now_ms,
        )
        self._coordinator_services = CoordinatorServices(
            box.broker_id, box.integer("producer.id.block.size"), runner, lambda: membership.has_arrived, self._server.send, counters, now_ms
        )

    def _on_frame(self, client: RequestClient, frame: Frame) -> None:
        if frame.kind in COORDINATOR_KINDS:
            self._coordinator_services.on_frame(client, frame)
        else:
            self._requests.on_frame(client, frame)

    def _notification(self) -> tuple[int, bytes]:
        """Return the notification that clients receive: the generation of the image."""
        return IMAGE_CHANGED, GENERATION.pack(self._publisher.generation)

    def on_published(self) -> None:
        """Notify all clients of a new image."""
        self._server.broadcast(*self._notification())

    def do_work(self, now_ns: int) -> int:
        """Begin requests, answer those that are done or have timed out."""
        return self._requests.do_work() + self._coordinator_services.do_work() + self._elsewhere.do_work(now_ns)

    def close(self) -> None:
        self._server.close()
        self._elsewhere.close()
