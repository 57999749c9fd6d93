"""The controller's server on `controller.sock`: it passes requests to their handlers and notifies
all clients of new images.

Owned by the controller process. `controller_requests` handles admin requests and automatic
creation, `coordinator_services` the coordinator's requests. A topic that only another box's
controller may create is requested there (`OtherController`). Weak: as of `request_server`.
"""

from __future__ import annotations

from appliance.client.peer_stream import peer_context
from appliance.client.peers import CONTROLLER_CLIENT, Peers
from appliance.cluster.state_log import internal_topic
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import GENERATION, IMAGE_CHANGED
from appliance.runtime.agent import ServiceContext
from appliance.runtime.request_server import RequestClient, RequestServer
from services.controller.admin.acls import AclAdministration
from services.controller.admin.client_quotas import QuotaAdministration
from services.controller.admin.cluster_administration import ClusterAdministration
from services.controller.admin.controller_requests import ControllerRequests
from services.controller.admin.coordinator_services import KINDS as COORDINATOR_KINDS
from services.controller.admin.coordinator_services import CoordinatorServices
from services.controller.admin.move_administration import MoveAdministration
from services.controller.admin.tokens import TokenAdministration
from services.controller.admin.topic_administration import OtherController
from services.controller.admin.users import UserAdministration
from services.controller.admin.waiting_requests import WaitingRequests
from services.controller.decisions.cluster import ControllerContext
from services.controller.image_publisher import ImagePublisher
from services.controller.zookeeper.box_session import BoxSession


class ControllerServer:
    """`session` names unreachable ZooKeeper servers."""

    def __init__(
        self,
        service: ServiceContext,
        context: ControllerContext,
        session: BoxSession,
        administration: ClusterAdministration,
        moves: MoveAdministration,
        publisher: ImagePublisher,
        acls: AclAdministration | None,
        users: UserAdministration,
        quotas: QuotaAdministration,
        tokens: TokenAdministration,
    ) -> None:
        box = service.box
        self._publisher = publisher
        self._server = RequestServer(service.layout.controller_socket, service.poller, self._on_frame, self._notification)
        self._elsewhere = OtherController(
            box.broker_id,
            Peers(f"{CONTROLLER_CLIENT}{box.broker_id}", service.poller, service.clock, peer_context(box, service.log)),
            lambda: publisher.image,
            lambda name: internal_topic(name, box, len(publisher.image.brokers)),
            acls is not None,
        )
        self._waiting = WaitingRequests(context, session.unreached, self._server.send)
        self._requests = ControllerRequests(context, administration, self._elsewhere, moves.orders, box, self._waiting, acls, users, quotas, tokens)
        self._coordinator_services = CoordinatorServices(context, box.integer("producer.id.block.size"), self._server.send)

    def _on_frame(self, client: RequestClient, frame: Frame) -> None:
        if frame.kind in COORDINATOR_KINDS:
            self._coordinator_services.on_frame(client, frame)
        else:
            self._requests.on_frame(client, frame)

    def _notification(self) -> tuple[int, bytes]:
        """Return the notification that clients receive: the generation of the image."""
        return IMAGE_CHANGED, GENERATION.pack(self._publisher.generation)

    def on_reloaded(self) -> None:
        """The settings of this box were reloaded."""
        self._requests.on_reloaded()

    def on_published(self) -> None:
        """Notify all clients of a new image, or security image: they look at both."""
        self._server.broadcast(*self._notification())

    def do_work(self, now_ns: int) -> int:
        """Begin requests, answer those that are done or have timed out."""
        return self._waiting.do_work() + self._coordinator_services.do_work() + self._elsewhere.do_work(now_ns)

    def close(self) -> None:
        self._server.close()
        self._elsewhere.close()
