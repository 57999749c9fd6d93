"""The box's membership in the cluster: it arrives after each (re)connect to ZooKeeper, and leaves
when its knowledge is stale.

Owned by the controller process. An *arrival* registers the box and loads the tree
(`services/controller/decisions/arrival.py`). Operations run only between an arrival and the next
leave. The box leaves if the connection or the registration is lost, or if an operation fails in a
way that only a reload can repair. Leaving drops all operations under way; the next arrival starts
them again.

`LeaseKeeper` keeps the lease, which states until when the registration is certain. `Admission`
handles refused registrations. Weak: an arrival loads the whole tree, however small the failure was.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from appliance.base.model import TopicId
from appliance.cluster.znodes import BoxRecord, BrokerRegistration, broker_path
from appliance.runtime.agent import ServiceContext
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.runtime.identity import read_generation, read_joined_cluster, write_generation, write_joined_cluster
from appliance.storage import file_io
from services.controller.decisions.arrival import Arrival, arrive
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper.admission import Admission, Refusal
from services.controller.zookeeper.box_session import BoxSession, LeaseKeeper
from services.controller.zookeeper.broker_registry import RegistrationLost, change_record
from services.controller.zookeeper.operation import ControllerMoved, Operation, OperationOutcome
from services.controller.zookeeper.requests import ZooKeeperConnectionLost
from services.controller.zookeeper.session import SessionState

BOX_ID_FILE = "box.id"
ARRIVE_AGAIN_MS = 1000
GENERATION_MS = 600_000
"""A copy that is older than this is recognised when the box is restored from it."""


def box_id(state_directory: str) -> str:
    """Return the identity of the box, created at its first start and kept in its state directory."""
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


class GenerationWrite:
    """Writes the next generation to the state directory, in a thread: its disk may hang."""

    def __init__(self, state: str, remembered: int, now_ms: int) -> None:
        """`remembered`: the generation that the cluster has. Raises ThreadRefused."""
        self.began_ms = now_ms
        self.is_late = False
        self.number = 0
        """What the state directory has, once it is durable."""
        self.problem = "its thread ended before its work"
        self._state = state
        self._remembered = remembered
        self.thread = BackgroundThread(self._run, "generation")
        self.thread.start()

    def _run(self) -> None:
        try:
            number = max(read_generation(self._state) or 0, self._remembered) + 1
            if write_generation(self._state, number):
                file_io.fsync_directory(self._state)
        except OSError as error:
            self.problem = error.strerror or str(error)
        else:
            self.number = number


class MembershipListener(Protocol):
    """The controller agent, as the membership uses it."""

    def is_fenced(self) -> bool:
        """True while no other box may elect this one."""

    def may_give_up(self) -> bool:
        """True if this incarnation has not served yet and has a report of each disk."""

    def on_arrived(self) -> None:
        """The tree was loaded."""

    def on_left(self) -> None:
        """The loaded tree has become stale."""


class ClusterMembership:
    """Arrive, leave, and keep the lease. The context's runner runs what is allowed only in between."""

    def __init__(
        self, service: ServiceContext, context: ControllerContext, session: BoxSession, new_topic_id: Callable[[], TopicId], listener: MembershipListener
    ) -> None:
        box, zookeeper = service.box, session.zookeeper
        self._box = box
        self._clock = service.clock
        self._log = service.log
        self._cluster = context.cluster
        self._session = session
        self._runner = context.runner
        self._new_topic_id = new_topic_id
        self._listener = listener
        self._identity = box_id(box.state_directory)
        self._joined_cluster = read_joined_cluster(box.state_directory)
        self.has_arrived = False
        """Whether the loaded tree may be acted on."""
        self._arrive_at_ms: int | None = None
        self._last_failure = ""
        self._raise_at_ms = 0
        self._writing: GenerationWrite | None = None
        self._late_writes = service.counters.counter("controller.late_state_writes")
        self._deadline_ms = box.integer("log.disk.deadline.ms")
        self._restored = service.counters.gauge("controller.restored")
        session_ms = box.integer("zookeeper.session.timeout.ms")
        self._lease = LeaseKeeper(service.layout, service.incarnation, box.broker_id, session_ms, zookeeper, service.clock)
        self._admission = Admission(service, listener.may_give_up)

    @property
    def refusal(self) -> str:
        """The reason why the cluster refuses the box; '' if it does not."""
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
        """A watch fired: if it was on the registration that prevents ours, retry at once."""
        if self._admission.reason and path == broker_path(self._box.broker_id):
            self._arrive_in(0)

    def on_failure(self, failure: Exception) -> None:
        """Handle an operation's failure: leave, and arrive again."""
        if isinstance(failure, ZooKeeperConnectionLost):
            return  # the session reports it as well, and that starts the next arrival
        if isinstance(failure, RegistrationLost):
            self._on_registration_lost(failure)
            return
        if isinstance(failure, Refusal):
            self._admission.on_refused(failure)
            # A box that registered before its disks had reported their ids withdraws its registration at once.
            wait_ms = 0 if self.has_arrived else ARRIVE_AGAIN_MS
            self._leave()
            self._arrive_in(wait_ms)
            return
        description = f"{type(failure).__name__}: {failure}"
        if description != self._last_failure:
            self._last_failure = description
            self._log.warning(f"reloading everything from ZooKeeper and all disks: {description}")
        self._leave()
        self._arrive_in(0 if isinstance(failure, ControllerMoved) else ARRIVE_AGAIN_MS)

    def _on_registration_lost(self, loss: RegistrationLost) -> None:
        """Act as after a lost session, but register again at once."""
        self._admission.on_lost(loss)
        self._lease.end()
        self._leave()
        self._arrive_in(0)

    # --- arriving and leaving

    def _arrive_in(self, wait_ms: int) -> None:
        self._arrive_at_ms = self._clock.monotonic_ms() + wait_ms

    def maybe_arrive(self, now_ms: int) -> int:
        """Start an arrival that is due; return whether there was one."""
        if self._arrive_at_ms is None or now_ms < self._arrive_at_ms:
            return 0
        self.arrive()
        return 1

    def arrive(self) -> None:
        """Drop all operations, register, and load the tree."""
        self._leave()
        if self._session.zookeeper.state is SessionState.CONNECTED:
            self._runner.start("arrive", arrive(self._cluster, self._arrival()), self._on_loaded)

    def _arrival(self) -> Arrival:
        box = self._box
        now_ms = self._clock.wall_ms()
        endpoints = tuple(listener.endpoint for listener in box.kafka_listeners)
        protocols = {listener.name: listener.protocol for listener in box.kafka_listeners}
        registration = BrokerRegistration(box.broker_id, endpoints, protocols, box.rack, now_ms)
        directories = {report.directory_id: report.disk for report in self._cluster.reports.values()}
        known = box.cluster_id or self._joined_cluster
        cluster_id = known or str(self._new_topic_id())
        record = BoxRecord(self._identity, directories, is_fenced=self._listener.is_fenced())
        has_been_member = bool(self._joined_cluster)
        generation = read_generation(box.state_directory)
        return Arrival(
            self._session.zookeeper.session_id, registration, record, cluster_id, bool(known), has_been_member, now_ms, self._new_topic_id, generation
        )

    def _on_loaded(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self.on_failure(outcome.failure)
            return
        self.has_arrived = True
        self._last_failure = ""
        if self._joined_cluster != self._cluster.cluster_id:
            self._keep_cluster(self._cluster.cluster_id)
        self._admission.on_admitted()
        if self._cluster.is_restored:
            self._report_restored()
        self._listener.on_arrived()

    def _report_restored(self) -> None:
        self._restored.set(1)
        number, state = self._cluster.box.generation, self._box.state_directory
        found = read_generation(state) or "none"
        self._log.critical(
            f"this box was restored from a copy: {state} has generation {found}, and the cluster remembers {number}. No replica here leads"
            " before its leader epoch has grown, and all leave the in-sync sets. Replicas on other boxes have what is missing, or it is lost"
        )

    # --- the generation

    def keep_generation(self, now_ms: int, are_disks_settled: Callable[[], bool]) -> int:
        """Raise the generation after the arrival and every `GENERATION_MS`; not before the disks of a restored box are settled."""
        if self._writing is not None and not self._has_written(self._writing, now_ms):
            return 0
        if not self.has_arrived or (self._cluster.is_restored and not are_disks_settled()):
            return 0
        if self._writing is not None:  # first: the cluster never remembers more than the state directory has, also after a power cut
            number, self._writing = self._writing.number, None
            if self._cluster.is_restored:
                self._cluster.is_restored, self._cluster.settled = False, set()
            self._runner.start("generation", self._remember_generation(number), self._on_remembered)
            return 1
        if now_ms < self._raise_at_ms:
            return 0
        self._raise_at_ms = now_ms + GENERATION_MS
        try:
            self._writing = GenerationWrite(self._box.state_directory, self._cluster.box.generation, now_ms)
        except ThreadRefused as refusal:
            self._report_unwritten(str(refusal))
        return 1

    def _has_written(self, writing: GenerationWrite, now_ms: int) -> bool:
        """Return whether the state directory has the next generation; report a disk that does not answer, or refuses."""
        state, waited_ms = self._box.state_directory, now_ms - writing.began_ms
        if writing.thread.is_alive():
            if waited_ms >= self._deadline_ms and not writing.is_late:
                writing.is_late = True
                self._late_writes.add()
                words = f"the disk of the state directory {state} has not answered a write for {waited_ms / 1000:.0f} s; check it"
                self._log.error(words, reason="state-disk")
            return False
        if writing.is_late:
            self._log.warning(f"the disk of the state directory {state} answered a write after {waited_ms / 1000:.0f} s", reason="state-disk")
        if writing.number:
            return True
        self._writing = None
        self._report_unwritten(writing.problem)
        return False

    def _report_unwritten(self, problem: str) -> None:
        state = self._box.state_directory
        self._log.warning(f"could not write the generation of this box to {state}: {problem}; retrying in {GENERATION_MS // 60_000} minutes")

    def _remember_generation(self, number: int) -> Operation[None]:
        cluster = self._cluster
        cluster.use_own_record(*(yield from change_record(cluster.broker_id, lambda record: record._replace(generation=number))))

    def _on_remembered(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._raise_at_ms = 0
            self.on_failure(outcome.failure)

    def _keep_cluster(self, cluster_id: str) -> None:
        """Store the cluster id: from now on the box, and after its next start each disk, belongs to
        it.
        """
        self._joined_cluster = cluster_id
        try:
            write_joined_cluster(self._box.state_directory, cluster_id)
        except OSError as error:
            self._log.warning(
                f"could not store cluster id {cluster_id} in {self._box.state_directory}: {error.strerror}; the next start of the controller tries again"
            )

    def _leave(self) -> None:
        """Drop all operations and mark the loaded tree as stale."""
        self.has_arrived = False
        self._arrive_at_ms = None
        self._runner.drop_all()
        self._cluster.forget()
        self._listener.on_left()

    # --- the lease

    def keep_lease(self, are_roles_sent: Callable[[], bool]) -> int:
        """Extend the lease. Without `are_roles_sent()` there is none: a log-writer may still lead
        what an old image said.
        """
        return self._lease.do_work(self.has_arrived and self._cluster.has_other_boxes and are_roles_sent())

    def park_ms(self, most_ms: int) -> int:
        """Return how long the lease needs no turn, at most `most_ms`."""
        return self._lease.park_ms(most_ms)

    def close(self, is_over: bool) -> None:
        """End the session if `is_over`, else leave it open for the next incarnation."""
        if is_over:
            self._lease.end()
            self._session.end()
        else:
            self._session.leave_to_next_incarnation()
        self._lease.close()
