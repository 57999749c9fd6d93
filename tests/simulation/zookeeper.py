"""ZooKeeper: one tree, changed by one request after the other; sessions that time out; watches that fire once.

It carries out the requests of `appliance.metadata.requests`, so the shipped operations run against it. One server stands for the ensemble: it is
linearizable, and whether a client reaches it is the network's business. Each connection is first in, first out both ways, as TCP is; what a dead
connection still brings is carried out only as long as its session has made no other one. Weak spots: no rights, no quotas, and a read is never stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from appliance.metadata.requests import (
    BadVersion,
    Check,
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
    Write,
    ZooKeeperFailed,
)
from tests.simulation.world import MS, World

SESSION_TIMEOUT = 600 * MS
TICK = 100 * MS


class _Znode:
    __slots__ = ("children", "czxid", "data", "owner", "sequence", "version")

    def __init__(self, data: bytes, czxid: int, owner: int) -> None:
        self.data, self.czxid, self.owner = data, czxid, owner
        self.version = self.sequence = 0
        self.children: set[str] = set()


class _Session:
    def __init__(self, session_id: int, now: int) -> None:
        self.session_id = session_id
        self.heard = now
        self.connection = 0
        self.tell: Callable[[str], None] | None = None
        """Where watches are told; None while it has no connection."""
        self.ephemerals: set[str] = set()


class Reply(NamedTuple):
    value: Any = None
    failure: ZooKeeperFailed | None = None


class ZooKeeper:
    """`on_write(path, old data, new data, write)` hears of every SetData that was carried out; the invariants listen there."""

    def __init__(self, world: World, on_write: Callable[[str, bytes, bytes, Write], None]) -> None:
        self._world = world
        self._on_write = on_write
        self._nodes = {"/": _Znode(b"", 0, 0)}
        self._sessions: dict[int, _Session] = {}
        self._watches: dict[str, set[int]] = {}
        self._fired: dict[str, None] = {}
        self._written: list[tuple[str, bytes, bytes, Write]] = []
        self._zxid = 100
        self._last_session = 1_000
        self._connections = 0
        self.is_down = False
        """Nobody is served, and no session times out (an ensemble without a leader)."""
        self.expired = 0
        world.after(TICK, self._tick)

    # --- sessions

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def connect(self, session_id: int, connection: int, tell: Callable[[str], None]) -> int:
        """Take a session up again, or begin one; its id, 0 if that session is over."""
        if session_id == 0:
            self._last_session += 1
            session_id = self._last_session
            self._sessions[session_id] = _Session(session_id, self._world.now)
        session = self._sessions.get(session_id)
        if session is None:
            return 0
        session.heard, session.connection, session.tell = self._world.now, connection, tell
        for watchers in self._watches.values():
            watchers.discard(session_id)  # whoever arrives again looks at everything again
        return session_id

    def is_connected(self, session_id: int, connection: int) -> bool:
        session = self._sessions.get(session_id)
        if session is None or session.connection != connection:
            return False
        session.heard = self._world.now
        return True

    def expire(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.expired += 1
        self._zxid += 1
        for path in sorted(session.ephemerals):
            self._remove(path, [])
        self._fire()

    def forgive(self) -> None:
        """A new leader of the ensemble counts every session anew."""
        for session in self._sessions.values():
            session.heard = self._world.now

    def _tick(self) -> None:
        if not self.is_down:
            for session in list(self._sessions.values()):
                if self._world.now - session.heard > SESSION_TIMEOUT:
                    self._world.note(f"zookeeper: session {session.session_id} timed out")
                    self.expire(session.session_id)
        self._world.after(TICK, self._tick)

    # --- requests

    def handle(self, session_id: int, request: Request) -> Reply:
        try:
            reply = Reply(self._carry_out(session_id, request))
        except ZooKeeperFailed as failure:
            return Reply(failure=failure)
        for write in self._written:
            self._on_write(*write)
        self._written.clear()
        if self._fired:
            self._fire()
        return reply

    def data(self, path: str) -> bytes:
        return self._nodes[path].data

    def version(self, path: str) -> int:
        return self._nodes[path].version

    def owner(self, path: str) -> int:
        """The session that an ephemeral node belongs to; 0: there is none."""
        node = self._nodes.get(path)
        return node.owner if node is not None else 0

    def _carry_out(self, session_id: int, request: Request) -> Any:
        if isinstance(request, Get):
            return self._get(session_id, request)
        if isinstance(request, GetChildren):
            if request.watch:
                self._watches.setdefault(f"{request.path}/", set()).add(session_id)
            node = self._nodes.get(request.path)
            if node is None:
                raise NoNode(request.path)
            return tuple(sorted(node.children))
        if isinstance(request, Exists):
            if request.watch:
                self._watches.setdefault(request.path, set()).add(session_id)
            node = self._nodes.get(request.path)
            return None if node is None else Node(b"", node.version, node.czxid, node.owner)
        self._zxid += 1
        if isinstance(request, Multi):
            return self._all_or_nothing(session_id, request)
        return self._write(session_id, request, [])

    def _get(self, session_id: int, request: Get) -> Node:
        node = self._nodes.get(request.path)
        if node is None:
            raise NoNode(request.path)
        if request.watch:
            self._watches.setdefault(request.path, set()).add(session_id)
        return Node(node.data, node.version, node.czxid, node.owner)

    def _all_or_nothing(self, session_id: int, multi: Multi) -> tuple[Any, ...]:
        undo: list[Callable[[], None]] = []
        results = []
        for index, write in enumerate(multi.writes):
            try:
                results.append(self._write(session_id, write, undo))
            except ZooKeeperFailed as cause:
                for step in reversed(undo):
                    step()
                self._fired.clear()
                self._written.clear()
                raise MultiFailed(index, write, cause) from None
        return tuple(results)

    def _write(self, session_id: int, write: Write, undo: list[Callable[[], None]]) -> Any:
        if isinstance(write, Create):
            return self._create(session_id, write, undo)
        node = self._nodes.get(write.path)
        if node is None:
            raise NoNode(write.path)
        if write.version not in (-1, node.version):
            raise BadVersion(write.path)
        if isinstance(write, Check):
            return None
        if isinstance(write, Delete):
            if node.children:
                raise NotEmpty(write.path)
            self._remove(write.path, undo)
            return None
        former, version = node.data, node.version

        def put_back() -> None:
            node.data, node.version = former, version

        undo.append(put_back)
        self._written.append((write.path, former, write.data, write))
        node.data, node.version = write.data, version + 1
        self._fired[write.path] = None
        return node.version

    def _create(self, session_id: int, write: Create, undo: list[Callable[[], None]]) -> str:
        parent_path, _, name = write.path.rpartition("/")
        parent = self._nodes.get(parent_path or "/")
        if parent is None:
            raise NoNode(parent_path)
        if write.sequence:
            name = f"{name}{parent.sequence:010d}"
        path = f"{parent_path}/{name}"
        if path in self._nodes:
            raise NodeExists(path)
        parent.sequence += 1
        parent.children.add(name)
        self._nodes[path] = _Znode(write.data, self._zxid, session_id if write.ephemeral else 0)
        if write.ephemeral:
            self._sessions[session_id].ephemerals.add(path)
        self._fired[path] = self._fired[f"{parent_path}/"] = None

        def put_back() -> None:
            parent.sequence -= 1
            parent.children.discard(name)
            del self._nodes[path]
            if write.ephemeral:
                self._sessions[session_id].ephemerals.discard(path)

        undo.append(put_back)
        return path

    def _remove(self, path: str, undo: list[Callable[[], None]]) -> None:
        node = self._nodes.pop(path)
        parent_path, _, name = path.rpartition("/")
        self._nodes[parent_path or "/"].children.discard(name)
        owner = self._sessions.get(node.owner)
        if owner is not None:
            owner.ephemerals.discard(path)
        self._fired[path] = self._fired[f"{parent_path}/"] = None

        def put_back() -> None:
            self._nodes[path] = node
            self._nodes[parent_path or "/"].children.add(name)
            if owner is not None:
                owner.ephemerals.add(path)

        undo.append(put_back)

    def _fire(self) -> None:
        fired, self._fired = self._fired, {}
        for path in fired:
            for session_id in sorted(self._watches.pop(path, ())):
                session = self._sessions.get(session_id)
                if session is not None and session.tell is not None:
                    session.tell(path)
