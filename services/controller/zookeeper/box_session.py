"""Keep the box's ZooKeeper session over the incarnations of its controller process.

Owned by the controller process. On each connection the session's id and password are saved in the
runtime directory. The next incarnation resumes the session, so the box stays registered while the
process restarts. The file is deleted when the box stops and its session is closed.

Weak: the session's time-out continues while the process is away. An incarnation that starts too
late learns it only when ZooKeeper rejects the saved session.
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
        self.zookeeper = make_session(self._hosts, context.box.integer("zookeeper.session.timeout.ms"), saved, self._on_changed_state, on_change, self.access)
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
