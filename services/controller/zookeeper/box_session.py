"""The box's ZooKeeper session over the lives of its controller process: a life that was killed leaves it to the next one.

Owned by the controller process. Id and password are kept in the runtime directory from each connection on, so the box stays registered while the process
starts again; they go with the session, when the box stops. Weak spot: the time-out goes on while the process is away, and a life that starts after it finds
out only when ZooKeeper refuses the old session.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.base.zookeeper_access import zookeeper_access
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import READABLE
from services.controller.zookeeper.session import SavedSession, SessionState, ZooKeeperSession

SESSION_FILE = "zookeeper.session"
_AWAY = (SessionState.SUSPENDED, SessionState.EXPIRED)

OPEN_TREE = (
    "the ZooKeeper tree is open: every program that reaches ZooKeeper can change it; set zookeeper.digest.file for an ensemble elsewhere, "
    "or leave zookeeper.auth.required at true for one of the boxes' own"
)

REFUSED = (
    "ZooKeeper refuses the login of this box: is the secret that of the other boxes? `millrace cluster secret show` prints it; "
    "if it differs, say `millrace cluster secret set --replace` and start the box again"
)

MakeSession = Callable[..., ZooKeeperSession]


class BoxSession:
    """`on_state(state)` and `on_change(path)` are those of the session; who acts on a state hears of it before it is counted and said."""

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
        self.zookeeper = make_session(self._hosts, context.box.integer("zookeeper.session.timeout.ms"), saved, self._on_changed_state, on_change, self.access)
        self._poller.register(self.zookeeper.fileno(), READABLE, lambda _events: None)  # it wakes us; `do_work` drains

    def _on_changed_state(self, state: SessionState) -> None:
        self._on_state(state)
        self._connected_gauge.set(int(state is SessionState.CONNECTED))
        if state is SessionState.CONNECTED:
            SavedSession(self.zookeeper.session_id, self.zookeeper.password).save(self._path, self._hosts)
            self._log.info(f"connected to ZooKeeper, session {self.zookeeper.session_id:#x}")
        elif state is SessionState.EXPIRED:
            self._sessions_lost.add()
            self._log.warning("the ZooKeeper session has expired; a new one is opened")
        else:
            self._suspensions.add()
            if self.zookeeper.refusals and not self._is_refused:
                self._log.warning(REFUSED)
            self._is_refused = self.zookeeper.refusals > 0
            self._log.warning("the connection to ZooKeeper is lost; admin requests wait, produce and fetch go on")

    def unreached(self) -> str:
        """The servers to which there was a connection and is none; else ''."""
        return self._hosts if self.zookeeper.state in _AWAY else ""

    def end(self) -> None:
        """Other boxes learn at once that this one is gone."""
        self._poller.unregister(self.zookeeper.fileno())
        self.zookeeper.close()
        Path(self._path).unlink(missing_ok=True)

    def leave_to_next_life(self) -> None:
        """Only this process ends."""
        self._poller.unregister(self.zookeeper.fileno())
        self.zookeeper.abandon()
