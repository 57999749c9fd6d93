"""A ZooKeeper in memory (`memory_tree`): the part of its behaviour that the controller relies on, for several boxes in one process, without time or sockets.

One-shot watches, and sessions that end when a test says so. A session has the interface of `services.controller.zookeeper.session.ZooKeeperSession`.
Requests of one
session are carried out in order, when it is drained; `lose_connection` leaves those that were submitted and not drained undone, or carries them out without an
answer.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from services.controller.zookeeper.requests import Exists, Get, GetChildren, Request, Write, ZooKeeperConnectionLost, ZooKeeperFailed
from services.controller.zookeeper.session import OnReply, SavedSession, SessionState, ZooKeeperReply
from tests.support.memory_tree import MemoryTree


class MemoryZooKeeper:
    """The tree, its sessions and their watches. `now_ms` is the server's clock."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._tree = MemoryTree(now_ms)
        self._next_session_id = 1
        self._sessions: set[int] = set()
        self._watches: dict[str, set[MemorySession]] = {}
        """By path, and `PATH/` for the children of a path."""
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
        access: object = None,
        tls: object = None,
    ) -> MemorySession:
        """A client's session, made as a `ZooKeeperSession` is; with `saved` one that has not
        expired continues.
        """
        del connect, session_timeout_ms, access, tls
        is_alive = saved is not None and saved.session_id in self._sessions
        return MemorySession(self, on_state, on_change, saved.session_id if saved is not None and is_alive else 0)

    # --- what tests look at and do

    def paths(self) -> list[str]:
        return self._tree.paths()

    def data(self, path: str) -> bytes:
        return self._tree[path].data

    def version(self, path: str) -> int:
        return self._tree[path].version

    def __contains__(self, path: str) -> bool:
        return path in self._tree

    def write(self, write: Write) -> Any:
        """As another client."""
        result = self._tree.carry_out(write)
        self._fire()
        return result

    def new_session_id(self) -> int:
        self._next_session_id += 1
        self._sessions.add(self._next_session_id - 1)
        return self._next_session_id - 1

    def end_session(self, session_id: int) -> None:
        """Its ephemeral nodes go, as at a time-out or a clean end."""
        self._sessions.discard(session_id)
        self._tree.end(session_id)
        self._fire()

    # --- carrying out

    def carry_out(self, request: Request, session: MemorySession) -> Any:
        """The result, or raises `ZooKeeperFailed`."""
        self.requests.append(request)
        result = self._tree.carry_out(request, session.session_id)
        if isinstance(request, Get | Exists | GetChildren):
            if request.watch:
                watched = f"{request.path}/" if isinstance(request, GetChildren) else request.path
                self._watches.setdefault(watched, set()).add(session)
        else:
            self._fire()
        return result

    def _fire(self) -> None:
        changed, self._tree.changed = self._tree.changed, {}
        self._tree.written.clear()
        for path in changed:
            for session in sorted(self._watches.pop(path, ()), key=lambda session: session.session_id):
                session.tell_change(path.removesuffix("/"))

    def forget_watches(self, session: MemorySession) -> None:
        for sessions in self._watches.values():
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
        self.refusals = 0
        self.window = 64
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

    @property
    def is_idle(self) -> bool:
        """True if `drain` has no request to carry out and no result to deliver."""
        return not self._submitted and not self._arrived

    def connect(self) -> None:
        """Go on with the session, or open one."""
        if not self._server.is_reachable:
            return
        self.session_id = self.session_id or self._wanted_session_id or self._server.new_session_id()
        self._hand_over(lambda: self._become(SessionState.CONNECTED))

    def lose_connection(self, carried_out: bool = False) -> None:
        """The submitted request was carried out, or not; no client learns which."""
        submitted, self._submitted = self._submitted, deque()
        for request, on_reply in submitted:
            if carried_out:
                try:
                    self._server.carry_out(request, self)
                except ZooKeeperFailed:
                    pass
            self._hand_over(lambda on_reply=on_reply: on_reply(ZooKeeperReply(None, ZooKeeperConnectionLost("lost"))))  # type: ignore[misc]
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
        """As a killed process: the session stays until the test expires it."""
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
            self._hand_over(lambda: on_reply(ZooKeeperReply(None, ZooKeeperConnectionLost("there is no connection"))))
            return
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
                reply = ZooKeeperReply(self._server.carry_out(request, self), None)
            except ZooKeeperFailed as failure:
                reply = ZooKeeperReply(None, failure)
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
