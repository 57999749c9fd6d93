"""A ZooKeeper in memory: the part of its behaviour that the controller relies on, for several boxes in one process, without time or sockets.

Nodes with versions and czxid, ephemeral and sequential nodes, transactions, one-shot watches, sessions that end when a test says so. A session has the
interface of `appliance.metadata.session.ZooKeeperSession`. Requests of one session are carried out in order, when it is drained; `lose_connection` leaves
those that were submitted and not drained undone, or carries them out without an answer. Against the real server: `tests/system/test_controller.py` runs the
same operations there.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.metadata.requests import (
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Get,
    GetChildren,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Request,
    SetData,
    Write,
    ZooKeeperFailed,
)
from appliance.metadata.session import OnReply, Reply, SavedSession, SessionState


class _Znode:
    def __init__(self, data: bytes, czxid: int, owner: int, created_ms: int) -> None:
        self.data = data
        self.version = 0
        self.czxid = czxid
        self.owner = owner
        self.created_ms = created_ms
        self.created_below = 0
        """Children ever created: the next sequence number."""


class MemoryZooKeeper:
    """The tree, its sessions and their watches. `now_ms` is the server's clock."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self._nodes: dict[str, _Znode] = {"": _Znode(b"", 0, 0, 0)}
        self._zxid = 0
        self._next_session_id = 1
        self._sessions: set[int] = set()
        self._data_watches: dict[str, set[MemorySession]] = {}
        self._child_watches: dict[str, set[MemorySession]] = {}
        self.requests: list[Request] = []
        """Everything that was carried out or refused, in order."""
        self.is_reachable = True

    def session(
        self,
        connect: str,
        session_timeout_ms: int,
        saved: SavedSession | None,
        on_state: Callable[[SessionState], None],
        on_change: Callable[[str], None],
    ) -> MemorySession:
        """A client's session, made as a `ZooKeeperSession` is; with `saved` one that still lives goes on."""
        del connect, session_timeout_ms
        is_alive = saved is not None and saved.session_id in self._sessions
        return MemorySession(self, on_state, on_change, saved.session_id if saved is not None and is_alive else 0)

    # --- what tests look at and do

    def paths(self) -> list[str]:
        return sorted(path for path in self._nodes if path)

    def data(self, path: str) -> bytes:
        return self._nodes[path].data

    def version(self, path: str) -> int:
        return self._nodes[path].version

    def __contains__(self, path: str) -> bool:
        return path in self._nodes

    def write(self, write: Write) -> Any:
        """As another client."""
        return self._apply(write, 0)

    def new_session_id(self) -> int:
        self._next_session_id += 1
        self._sessions.add(self._next_session_id - 1)
        return self._next_session_id - 1

    def end_session(self, session_id: int) -> None:
        """Its ephemeral nodes go, as at a time-out or a clean end."""
        self._sessions.discard(session_id)
        for path in [path for path, node in self._nodes.items() if node.owner == session_id and session_id]:
            self._apply(Delete(path), 0)

    # --- carrying out

    def carry_out(self, request: Request, session: MemorySession) -> Any:
        """The result, or raises `ZooKeeperFailed`."""
        self.requests.append(request)
        if isinstance(request, Get):
            node = self._nodes.get(request.path)
            if node is None:
                raise NoNode(f"Get {request.path}")
            self._watch(self._data_watches, request.path, request.watch, session)
            return Node(node.data, node.version, node.czxid, node.owner, node.created_ms)
        if isinstance(request, Exists):
            self._watch(self._data_watches, request.path, request.watch, session)
            node = self._nodes.get(request.path)
            return None if node is None else Node(b"", node.version, node.czxid, node.owner, node.created_ms)
        if isinstance(request, GetChildren):
            if request.path not in self._nodes:
                raise NoNode(f"GetChildren {request.path}")
            self._watch(self._child_watches, request.path, request.watch, session)
            return tuple(sorted(self._children(request.path)))
        if isinstance(request, Multi):
            return self._multi(request, session.session_id)
        return self._apply(request, session.session_id)

    def _children(self, path: str) -> list[str]:
        prefix = f"{path}/"
        return [other[len(prefix) :] for other in self._nodes if other.startswith(prefix) and "/" not in other[len(prefix) :]]

    def _watch(self, watches: dict[str, set[MemorySession]], path: str, wanted: bool, session: MemorySession) -> None:
        if wanted:
            watches.setdefault(path, set()).add(session)

    def _multi(self, multi: Multi, session_id: int) -> tuple[Any, ...]:
        before = {path: (node, node.data, node.version, node.created_below) for path, node in self._nodes.items()}
        fired: list[tuple[dict[str, set[MemorySession]], str]] = []
        results = []
        zxid = self._zxid
        self._zxid += 1
        for index, write in enumerate(multi.writes):
            try:
                results.append(self._do(write, session_id, fired))
            except ZooKeeperFailed as refused:
                self._nodes = {}
                for path, (node, data, version, created_below) in before.items():
                    node.data, node.version, node.created_below = data, version, created_below
                    self._nodes[path] = node
                self._zxid = zxid
                raise MultiFailed(index, write, refused) from refused
        self._fire(fired)
        return tuple(results)

    def _apply(self, write: Write, session_id: int) -> Any:
        fired: list[tuple[dict[str, set[MemorySession]], str]] = []
        self._zxid += 1
        result = self._do(write, session_id, fired)
        self._fire(fired)
        return result

    def _do(self, write: Write, session_id: int, fired: list[tuple[dict[str, set[MemorySession]], str]]) -> Any:
        if isinstance(write, Create):
            return self._create(write, session_id, fired)
        node = self._nodes.get(write.path)
        if node is None:
            raise NoNode(f"{type(write).__name__} {write.path}")
        if write.version not in (-1, node.version):
            raise BadVersion(f"{type(write).__name__} {write.path}: version {node.version}, not {write.version}")
        if isinstance(write, Check):
            return True
        if isinstance(write, SetData):
            node.data = write.data
            node.version += 1
            fired.append((self._data_watches, write.path))
            return node.version
        if self._children(write.path):
            raise NotEmpty(f"Delete {write.path}")
        del self._nodes[write.path]
        fired += [(self._data_watches, write.path), (self._child_watches, write.path), (self._child_watches, write.path.rpartition("/")[0])]
        return True

    def _create(self, write: Create, session_id: int, fired: list[tuple[dict[str, set[MemorySession]], str]]) -> str:
        parent_path = write.path.rpartition("/")[0]
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNode(f"Create {write.path}: there is no {parent_path}")
        path = f"{write.path}{parent.created_below:010d}" if write.sequence else write.path
        if path in self._nodes:
            raise NodeExists(f"Create {path}")
        parent.created_below += 1
        self._nodes[path] = _Znode(write.data, self._zxid, session_id if write.ephemeral else 0, self._now_ms())
        fired += [(self._data_watches, path), (self._child_watches, parent_path)]
        return path

    def _fire(self, fired: list[tuple[dict[str, set[MemorySession]], str]]) -> None:
        for watches, path in fired:
            for session in sorted(watches.pop(path, ()), key=lambda session: session.session_id):
                session.tell_change(path)

    def forget_watches(self, session: MemorySession) -> None:
        for watches in (self._data_watches, self._child_watches):
            for sessions in watches.values():
                sessions.discard(session)


class MemorySession:
    """One client. What it submits is carried out by `drain`, at most `window` requests a call (a test may make that small)."""

    def __init__(self, server: MemoryZooKeeper, on_state: Callable[[SessionState], None], on_change: Callable[[str], None], session_id: int = 0) -> None:
        self._server = server
        self._on_state = on_state
        self._on_change = on_change
        self._wanted_session_id = session_id
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.password = b"memory"
        self.window = 64
        self.requests_sent = 0
        self._submitted: deque[tuple[Request, OnReply]] = deque()
        self._arrived: deque[Callable[[], None]] = deque()
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def _in_flight(self) -> int:
        return 0

    def start(self) -> None:
        self.connect()

    def fileno(self) -> int:
        return self._doorbell

    def _hand_over(self, event: Callable[[], None]) -> None:
        self._arrived.append(event)
        os.eventfd_write(self._doorbell, 1)

    def tell_change(self, path: str) -> None:
        self._hand_over(lambda: self._on_change(path))

    # --- what a test does to it

    def connect(self) -> None:
        """Go on with the session, or open one."""
        if not self._server.is_reachable:
            return
        self.session_id = self.session_id or self._wanted_session_id or self._server.new_session_id()
        self._hand_over(lambda: self._become(SessionState.CONNECTED))

    def lose_connection(self, carried_out: bool = False) -> None:
        """What was submitted was carried out, or not; nobody hears which."""
        submitted, self._submitted = self._submitted, deque()
        for request, on_reply in submitted:
            if carried_out:
                try:
                    self._server.carry_out(request, self)
                except ZooKeeperFailed:
                    pass
            self._hand_over(lambda on_reply=on_reply: on_reply(Reply(None, ConnectionLost("lost"))))  # type: ignore[misc]
        self._server.forget_watches(self)
        self._hand_over(lambda: self._become(SessionState.SUSPENDED))

    def expire(self) -> None:
        """The server has ended the session; the client hears of it, and opens another."""
        self.lose_connection()
        self._server.end_session(self.session_id)
        self.session_id = self._wanted_session_id = 0
        self._hand_over(lambda: self._become(SessionState.EXPIRED))
        self.connect()

    def abandon(self) -> None:
        """As a killed process: the session lives on until somebody ends it."""
        self.lose_connection()
        self._arrived.clear()
        self.state = SessionState.CLOSED
        os.close(self._doorbell)

    def close(self) -> None:
        if self.state is SessionState.CLOSED:
            return
        self._server.forget_watches(self)
        self._server.end_session(self.session_id)
        self.state = SessionState.CLOSED
        os.close(self._doorbell)

    # --- in the duty cycle

    def submit(self, request: Request, on_reply: OnReply) -> None:
        if self.state is not SessionState.CONNECTED:
            self._hand_over(lambda: on_reply(Reply(None, ConnectionLost("there is no connection"))))
            return
        self.requests_sent += 1
        self._submitted.append((request, on_reply))
        os.eventfd_write(self._doorbell, 1)

    def drain(self, limit: int = 256) -> int:
        try:
            os.eventfd_read(self._doorbell)
        except BlockingIOError:
            pass
        for _ in range(min(self.window, len(self._submitted))):
            request, on_reply = self._submitted.popleft()
            try:
                reply = Reply(self._server.carry_out(request, self), None)
            except ZooKeeperFailed as failure:
                reply = Reply(None, failure)
            self._arrived.append(lambda on_reply=on_reply, reply=reply: on_reply(reply))  # type: ignore[misc]
        handled = 0
        while self._arrived and handled < limit:
            self._arrived.popleft()()
            handled += 1
        if self._arrived or self._submitted:
            os.eventfd_write(self._doorbell, 1)
        return handled

    def _become(self, state: SessionState) -> None:
        if self.state is not SessionState.CLOSED:
            self.state = state
            self._on_state(state)
