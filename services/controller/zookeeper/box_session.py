"""Keep the box's ZooKeeper session over the incarnations of its controller process, and the lease
that other processes derive from it.

Owned by the controller process. On each connection the session's id and password are saved in the
runtime directory. The next incarnation resumes the session, so the box stays registered while the
process restarts. The file is deleted when the box stops and its session is closed.

The lease (`shm/lease.py`) states until when the registration is certain. A reply to a read proves
that the session was alive when the request was sent, so the registration is certain for one session
time-out from then on. `LeaseKeeper` reads four times in that period, and does nothing on a box that
never had neighbours.

Weak: the session's time-out continues while the process is away; an incarnation that starts too
late learns it only when ZooKeeper rejects the saved session. A cut-off member of the ensemble
answers reads for up to its sync limit. The time-out of the lease is the requested one; a server
with other bounds may have granted a shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.zookeeper_access import zookeeper_access, zookeeper_tls
from appliance.cluster.znodes import broker_path
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import READABLE
from appliance.shm.lease import LeaseWriter
from services.controller.zookeeper.requests import Exists
from services.controller.zookeeper.session import SavedSession, SessionState, ZooKeeperReply, ZooKeeperSession

SESSION_FILE = "zookeeper.session"
_AWAY = (SessionState.SUSPENDED, SessionState.EXPIRED)

OPEN_TREE = (
    "the ZooKeeper tree is open: every program that reaches ZooKeeper can change it; set zookeeper.digest.file for an ensemble elsewhere, "
    "or leave zookeeper.auth.required at true for one of the boxes' own"
)

REFUSED = (
    "ZooKeeper refuses the login of this box: its secret may differ from that of the other boxes. Compare them with "
    "`millrace cluster secret show`; if they differ, run `millrace cluster secret set --replace` and restart the box"
)

MakeSession = Callable[..., ZooKeeperSession]


class BoxSession:
    """Open the session, and log and count its states.

    `on_state(state)` and `on_change(path)` are the session's callbacks. They run before the state
    is logged and counted.
    """

    def __init__(self, context: ServiceContext, make_session: MakeSession, on_state: Callable[[SessionState], None], on_change: Callable[[str], None]) -> None:
        self._poller = context.poller
        self._log = context.log
        self._hosts = context.box.zookeeper
        self._path = f"{context.layout.runtime_directory}/{SESSION_FILE}"
        self._on_state = on_state
        self._is_refused = False
        self._connected_gauge = context.counters.gauge("controller.zookeeper_connected")
        self._sessions_lost = context.counters.counter("controller.zookeeper_sessions_lost")
        self._suspensions = context.counters.counter("controller.zookeeper_suspensions")
        saved = SavedSession.load(self._path, self._hosts)
        self.access = zookeeper_access(context.box)
        """The credentials of the box; None where ZooKeeper is open."""
        if self.access is None or not self.access.guards:
            self._log.warning(OPEN_TREE)
        self.zookeeper = make_session(
            self._hosts,
            context.box.integer("zookeeper.session.timeout.ms"),
            saved,
            self._on_changed_state,
            on_change,
            self.access,
            zookeeper_tls(context.box.settings),
        )
        self._poller.register(self.zookeeper.fileno(), READABLE, lambda _events: None)  # wakes the agent, whose `do_work` drains

    def _on_changed_state(self, state: SessionState) -> None:
        self._on_state(state)
        self._connected_gauge.set(int(state is SessionState.CONNECTED))
        if state is SessionState.CONNECTED:
            SavedSession(self.zookeeper.session_id, self.zookeeper.password).save(self._path, self._hosts)
            self._log.info(f"connected to ZooKeeper, session {self.zookeeper.session_id:#x}")
        elif state is SessionState.EXPIRED:
            self._sessions_lost.add()
            self._log.warning("the ZooKeeper session has expired; opening a new one")
        else:
            self._suspensions.add()
            if self.zookeeper.refusals and not self._is_refused:
                self._log.warning(REFUSED)
            self._is_refused = self.zookeeper.refusals > 0
            self._log.warning("the connection to ZooKeeper is lost; admin requests wait, produce and fetch continue")

    def unreached(self) -> str:
        """Return the servers if a former connection to them is lost, else ''."""
        return self._hosts if self.zookeeper.state in _AWAY else ""

    def end(self) -> None:
        """Close the session, so that the other boxes learn at once that this box is gone."""
        self._poller.unregister(self.zookeeper.fileno())
        self.zookeeper.close()
        Path(self._path).unlink(missing_ok=True)

    def leave_to_next_incarnation(self) -> None:
        """Leave the session open for the next incarnation: only this process ends."""
        self._poller.unregister(self.zookeeper.fileno())
        self.zookeeper.abandon()


_MS: Final = 1_000_000
REQUESTS_PER_TIMEOUT: Final = 4


class LeaseKeeper:
    """Send at most one request at a time."""

    def __init__(
        self,
        layout: BoxLayout,
        incarnation: int,
        broker_id: int,
        session_timeout_ms: int,
        session: ZooKeeperSession,
        clock: Clock,
    ) -> None:
        self._layout = layout
        self._incarnation = incarnation
        self._path = broker_path(broker_id)
        self._timeout_ns = session_timeout_ms * _MS
        self._session = session
        self._clock = clock
        self._writer: LeaseWriter | None = None
        self._next_ns = 0
        self._is_needed = False
        self._is_in_flight = False

    def do_work(self, is_needed: bool) -> int:
        """Send a request if one is due. `is_needed`: the box has arrived, and there are other
        boxes.
        """
        self._is_needed = is_needed
        now_ns = self._clock.monotonic_ns()
        if not is_needed or self._is_in_flight or now_ns < self._next_ns:
            return 0
        if self._writer is None:
            self._writer = LeaseWriter(self._layout, self._incarnation)
        self._next_ns = now_ns + self._timeout_ns // REQUESTS_PER_TIMEOUT
        self._is_in_flight = True
        sent_ns, session_id = self._clock.boottime_ns(), self._session.session_id
        self._session.submit(Exists(self._path), lambda reply: self._on_reply(reply, sent_ns, session_id))
        return 1

    def _on_reply(self, reply: ZooKeeperReply, sent_ns: int, session_id: int) -> None:
        self._is_in_flight = False
        if self._writer is None or reply.failure is not None or session_id != self._session.session_id:
            return
        if reply.value is not None and reply.value.owner == session_id:
            self._writer.extend(sent_ns + self._timeout_ns)
        else:
            self._writer.end(self._clock.boottime_ns())  # the registration is gone, or another session's

    def park_ms(self, most_ms: int) -> int:
        """Return how long no request is due, at most `most_ms`."""
        if not self._is_needed or self._is_in_flight:
            return most_ms
        return max(0, min(most_ms, (self._next_ns - self._clock.monotonic_ns()) // _MS))

    def end(self) -> None:
        """End the lease: the session is over, or will be closed."""
        if self._writer is not None:
            self._writer.end(self._clock.boottime_ns())

    def close(self) -> None:
        """Unmap the lease; it stays valid for the next incarnation of the controller."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
