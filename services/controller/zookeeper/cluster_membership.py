"""The box's membership in the cluster: it arrives after every (re)connect to ZooKeeper, and leaves when what ZooKeeper said cannot be acted on any more.

Owned by the controller process. An arrival registers the box and loads the tree (`services/controller/decisions/arrival.py`); until it is left
again, operations may begin.
It is left when the connection or the registration is lost, and for any failure that only a fresh look can mend: what was begun is dropped, and all of it is
looked at anew. The lease, which says how long the registration surely stands, is kept beside (`lease_keeper`); who stands in the way of the registration
is for `admission` to say. Weak spot: an arrival loads everything, however little the failure was about.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

from appliance.base.model import TopicId
from appliance.cluster.znodes import BoxRecord, BrokerRegistration, broker_path
from appliance.runtime.agent import ServiceContext
from appliance.runtime.identity import read_joined_cluster, write_joined_cluster
from appliance.runtime.systemd import notify_refused
from services.controller.decisions.arrival import Arrival, arrive
from services.controller.decisions.cluster import Cluster
from services.controller.zookeeper.admission import Admission, Refusal
from services.controller.zookeeper.box_session import BoxSession
from services.controller.zookeeper.broker_registry import RegistrationLost
from services.controller.zookeeper.lease_keeper import LeaseKeeper
from services.controller.zookeeper.operation import ControllerMoved, OperationRunner, Outcome
from services.controller.zookeeper.requests import ConnectionLost
from services.controller.zookeeper.session import SessionState

BOX_ID_FILE = "box.id"
ARRIVE_AGAIN_MS = 1000


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


class ClusterMembership:
    """`runner` has what may be done only while the box has arrived. `is_fenced()`: nobody is to elect this box, not yet or not any more; `may_give_up()`: it
    has not served in this life, and knows what its disks are. `on_arrived()`: everything was loaded anew; `on_left()`: nothing of it can be acted on."""

    def __init__(
        self,
        context: ServiceContext,
        cluster: Cluster,
        session: BoxSession,
        runner: OperationRunner,
        new_topic_id: Callable[[], TopicId],
        is_fenced: Callable[[], bool],
        may_give_up: Callable[[], bool],
        on_arrived: Callable[[], None],
        on_left: Callable[[], None],
    ) -> None:
        box, zookeeper = context.box, session.zookeeper
        self._box = box
        self._clock = context.clock
        self._log = context.log
        self._cluster = cluster
        self._session = session
        self._runner = runner
        self._new_topic_id = new_topic_id
        self._is_fenced = is_fenced
        self._on_arrived = on_arrived
        self._on_left = on_left
        self._identity = box_id(box.state_directory)
        self._joined_cluster = read_joined_cluster(box.state_directory)
        self.has_arrived = False
        """Whether what ZooKeeper said can be acted on."""
        self._arrive_at_ms: int | None = None
        self._last_trouble = ""
        session_ms = box.integer("zookeeper.session.timeout.ms")
        self._lease = LeaseKeeper(context.layout, context.incarnation, box.broker_id, session_ms, zookeeper.submit, lambda: zookeeper.session_id, context.clock)
        self._admission = Admission(box.broker_id, session_ms, context.clock.monotonic_ms, may_give_up, notify_refused, context.notifier.status, context.log)

    @property
    def refusal(self) -> str:
        """Why the cluster does not take the box; '' when nobody is in the way."""
        return self._admission.reason

    # --- what the session says

    def on_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._arrive_in(0)
            return
        if state is SessionState.EXPIRED:
            self._lease.end()
        self._admission.on_disconnected()
        self._leave()

    def on_change(self, path: str) -> None:
        """A watch has fired: who was in the way may be gone."""
        if self._admission.reason and path == broker_path(self._box.broker_id):
            self._arrive_in(0)

    def on_failure(self, failure: Exception) -> None:
        """An operation failed in a way that only a fresh look can mend."""
        if isinstance(failure, ConnectionLost):
            return  # the session tells of it too, and what was begun begins again then
        if isinstance(failure, RegistrationLost):
            self._on_registration_lost(failure)
            return
        if isinstance(failure, Refusal):
            self._admission.on_refused(failure)
            wait_ms = 0 if self.has_arrived else ARRIVE_AGAIN_MS  # what was registered before the disks told who they are is taken back at once
            self._leave()
            self._arrive_in(wait_ms)
            return
        trouble = f"{type(failure).__name__}: {failure}"
        if trouble != self._last_trouble:
            self._last_trouble = trouble
            self._log.warning(f"looks at ZooKeeper and all disks anew, because of {trouble}")
        self._leave()
        self._arrive_in(0 if isinstance(failure, ControllerMoved) else ARRIVE_AGAIN_MS)

    def _on_registration_lost(self, loss: RegistrationLost) -> None:
        """As if the session were lost, but at once: we register again, or are told who is in the way."""
        self._admission.on_lost(loss)
        self._lease.end()
        self._leave()
        self._arrive_in(0)

    # --- arriving and leaving

    def _arrive_in(self, wait_ms: int) -> None:
        self._arrive_at_ms = self._clock.monotonic_ms() + wait_ms

    def maybe_arrive(self, now_ms: int) -> int:
        """Begin an arrival that is due; whether there was one."""
        if self._arrive_at_ms is None or now_ms < self._arrive_at_ms:
            return 0
        self.arrive()
        return 1

    def arrive(self) -> None:
        """Drop what was begun, register, load everything anew."""
        self._leave()
        if self._session.zookeeper.state is SessionState.CONNECTED:
            self._runner.start("arrive", arrive(self._cluster, self._arrival()), self._on_loaded)

    def _arrival(self) -> Arrival:
        box = self._box
        now_ms = self._clock.wall_ms()
        registration = BrokerRegistration(box.broker_id, (("PLAINTEXT", box.advertise, box.kafka_port),), {"PLAINTEXT": "PLAINTEXT"}, box.rack, now_ms)
        directories = {report.directory_id: report.disk for report in self._cluster.reports.values()}
        known = box.cluster_id or self._joined_cluster
        cluster_id = known or str(self._new_topic_id())
        record = BoxRecord(self._identity, directories, is_fenced=self._is_fenced())
        has_been_member = bool(self._joined_cluster)
        return Arrival(self._session.zookeeper.session_id, registration, record, cluster_id, bool(known), has_been_member, now_ms, self._new_topic_id)

    def _on_loaded(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self.on_failure(outcome.failure)
            return
        self.has_arrived = True
        self._last_trouble = ""
        if self._joined_cluster != self._cluster.cluster_id:
            self._keep_cluster(self._cluster.cluster_id)
        self._admission.on_admitted()
        self._on_arrived()

    def _keep_cluster(self, cluster_id: str) -> None:
        """From now on the box, and after its next start each of its disks, is of this cluster."""
        self._joined_cluster = cluster_id
        try:
            write_joined_cluster(self._box.state_directory, cluster_id)
        except OSError as error:
            self._log.warning(f"could not write down in {self._box.state_directory} that the box is of cluster {cluster_id}: {error.strerror}")

    def _leave(self) -> None:
        """Nothing that ZooKeeper said can be acted on any more."""
        self.has_arrived = False
        self._arrive_at_ms = None
        self._runner.drop_all()
        self._cluster.forget()
        self._on_left()

    # --- the lease

    def keep_lease(self, roles_are_told: Callable[[], bool]) -> int:
        """`roles_are_told()`: nothing on this box leads any more what an old image said."""
        return self._lease.do_work(self.has_arrived and self._cluster.has_other_boxes and roles_are_told())

    def park_ms(self, most_ms: int) -> int:
        """How long nobody need turn for the lease."""
        return self._lease.park_ms(most_ms)

    def close(self, is_over: bool) -> None:
        """`is_over`: the box is gone from now on. If it is not, and only this process ends, the next life goes on with the session."""
        if is_over:
            self._lease.end()
            self._session.end()
        else:
            self._session.leave_to_next_life()
        self._lease.close()
