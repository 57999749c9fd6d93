"""ZooKeeper: one tree, changed by one request after the other; sessions that time out; watches that fire once.

It carries out the requests of `services.controller.zookeeper.requests` (`memory_tree`), so the shipped operations run against it. One server stands
for the ensemble:
it is linearizable, and whether a client reaches it is the network's business. Each connection is first in, first out both ways, as TCP is; what a dead
connection still brings is carried out only as long as its session has made no other one. Weak spots: no rights, no quotas, and a read is never stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from services.controller.zookeeper.requests import Exists, Get, GetChildren, Request, Write, ZooKeeperFailed
from tests.simulation.world import MS, World
from tests.support.memory_tree import MemoryTree

SESSION_TIMEOUT = 600 * MS
TICK = 100 * MS


class _Session:
    def __init__(self, session_id: int, now: int) -> None:
        self.session_id = session_id
        self.heard = now
        self.connection = 0
        self.tell: Callable[[str], None] | None = None
        """Receives watch events; None while it has no connection."""


class ZooKeeperReply(NamedTuple):
    value: Any = None
    failure: ZooKeeperFailed | None = None


class ZooKeeper:
    """`on_write(path, old data, new data, write)` hears of every SetData that was carried out; the invariants listen there."""

    def __init__(self, world: World, on_write: Callable[[str, bytes, bytes, Write], None]) -> None:
        self._world = world
        self._on_write = on_write
        self._tree = MemoryTree()
        self._sessions: dict[int, _Session] = {}
        self._watches: dict[str, set[int]] = {}
        self._last_session = 1_000
        self._connections = 0
        self.is_down = False
        """No session is served, and none times out (an ensemble without a leader)."""
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
            watchers.discard(session_id)  # a session that reconnects reads everything again
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
        self._tree.end(session_id)
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

    def handle(self, session_id: int, request: Request) -> ZooKeeperReply:
        tree = self._tree
        try:
            reply = ZooKeeperReply(tree.carry_out(request, session_id))
        except ZooKeeperFailed as failure:
            return ZooKeeperReply(failure=failure)
        if isinstance(request, Get | Exists | GetChildren):
            if request.watch:
                self._watches.setdefault(f"{request.path}/" if isinstance(request, GetChildren) else request.path, set()).add(session_id)
            return reply
        for write in tree.written:
            self._on_write(*write)
        tree.written.clear()
        self._fire()
        return reply

    def data(self, path: str) -> bytes:
        return self._tree[path].data

    def version(self, path: str) -> int:
        return self._tree[path].version

    def owner(self, path: str) -> int:
        """The session that an ephemeral node belongs to; 0: there is none."""
        return self._tree[path].owner if path in self._tree else 0

    def _fire(self) -> None:
        fired, self._tree.changed = self._tree.changed, {}
        for path in fired:
            for session_id in sorted(self._watches.pop(path, ())):
                session = self._sessions.get(session_id)
                if session is not None and session.tell is not None:
                    session.tell(path)
