"""A box's session with ZooKeeper, as its controller process has it: the simulated counterpart of `services.controller.zookeeper.session`.

What is asked in one instant travels together. A message that is lost ends its connection, for both: everything behind it is lost, too, and whether what
was under way was carried out is unknown. The session itself outlives connections, and a restart of the controller process (its id is kept in /run), until
it times out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.controller.zookeeper.requests import Request, ZooKeeperConnectionLost
from tests.simulation.world import MS, ZOOKEEPER, World
from tests.simulation.zookeeper import ZooKeeper, ZooKeeperReply

PING_EVERY = 200 * MS
LOST_AFTER = 400 * MS
RECONNECT_EVERY = 100 * MS


class Session:
    """`on_connected` also after a connection was lost and the session went on; `on_watch(path)`: children have a '/' behind their parent's path."""

    def __init__(
        self,
        world: World,
        zookeeper: ZooKeeper,
        broker_id: int,
        session_id: int,
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
        on_watch: Callable[[str], None],
    ) -> None:
        self._world, self._zookeeper, self._broker_id = world, zookeeper, broker_id
        self.session_id = session_id
        self._on_connected, self._on_lost, self._on_watch = on_connected, on_lost, on_watch
        self.is_connected = False
        self.is_closed = False
        self._connection = 0
        self._is_broken = False
        self._outbox: list[tuple[Request, Callable[[Any], None]]] = []
        self._outstanding: dict[int, Callable[[Any], None]] = {}
        self._asked = 0
        self._heard = 0
        self._sent_until = self._told_until = 0
        self._connect()
        self._ping()

    def close(self) -> None:
        """The process has died. The session has not."""
        self.is_closed = True
        self.is_connected = False
        self._outstanding.clear()
        self._outbox.clear()

    # --- asking

    def ask(self, request: Request, on_reply: Callable[[Any], None]) -> None:
        if not self.is_connected:
            self._world.after(0, self._refuse, on_reply)
            return
        self._outbox.append((request, on_reply))
        if len(self._outbox) == 1:
            self._world.after(0, self._flush)

    def _refuse(self, on_reply: Callable[[Any], None]) -> None:
        if not self.is_closed:
            on_reply(ZooKeeperReply(failure=ZooKeeperConnectionLost("not connected")))

    def _flush(self) -> None:
        if not self._outbox or self.is_closed or not self.is_connected:
            return
        packet = []
        for request, on_reply in self._outbox:
            self._asked += 1
            self._outstanding[self._asked] = on_reply
            packet.append((self._asked, request))
        self._outbox.clear()
        self._send(packet)

    def _send(self, packet: list[tuple[int, Request]]) -> None:
        if self._is_broken or self._world.is_lost(self._broker_id, ZOOKEEPER):
            self._is_broken = True
            return
        self._sent_until = max(self._sent_until, self._world.now + self._world.delay(is_zookeeper=True))
        self._world.after(self._sent_until - self._world.now, self._serve, self._connection, self.session_id, packet)

    def _serve(self, connection: int, session_id: int, packet: list[tuple[int, Request]]) -> None:
        """At the server. It serves a process that is dead by now, too."""
        if self._zookeeper.is_down:
            self._is_broken = True
            return
        if not self._zookeeper.is_connected(session_id, connection):
            self._tell(connection, None)
            return
        self._tell(connection, [(number, self._zookeeper.handle(session_id, request)) for number, request in packet])

    def _tell(self, connection: int, answers: list[tuple[int, ZooKeeperReply]] | str | None) -> None:
        if self.is_closed or connection != self._connection or self._is_broken:
            return
        if self._world.is_lost(ZOOKEEPER, self._broker_id):
            self._is_broken = True
            return
        self._told_until = max(self._told_until, self._world.now + self._world.delay(is_zookeeper=True))
        self._world.after(self._told_until - self._world.now, self._hear, connection, answers)

    def _hear(self, connection: int, answers: list[tuple[int, ZooKeeperReply]] | str | None) -> None:
        if self.is_closed or connection != self._connection or not self.is_connected:
            return
        self._heard = self._world.now
        if answers is None:
            self._lose()
        elif isinstance(answers, str):
            self._on_watch(answers)
        else:
            for number, reply in answers:
                on_reply = self._outstanding.pop(number, None)
                if on_reply is not None:
                    on_reply(reply)

    # --- connecting

    def _connect(self) -> None:
        if self.is_closed or self.is_connected:
            return
        self._connection = self._zookeeper.next_connection()
        self._is_broken = False
        self._sent_until = self._told_until = 0
        self._world.send(self._broker_id, ZOOKEEPER, self._accept, self._connection, self.session_id)
        self._world.after(RECONNECT_EVERY, self._connect)

    def _accept(self, connection: int, session_id: int) -> None:
        if self._zookeeper.is_down:
            return
        given = self._zookeeper.connect(session_id, connection, lambda path: self._tell(connection, path))
        self._world.send(ZOOKEEPER, self._broker_id, self._accepted, connection, given)

    def _accepted(self, connection: int, session_id: int) -> None:
        if self.is_closed or connection != self._connection or self.is_connected:
            return
        if session_id == 0:
            self._world.note(f"box {self._broker_id}: its session is over")
            self.session_id = 0
            self._connect()
            return
        self.session_id, self.is_connected, self._heard = session_id, True, self._world.now
        self._on_connected()

    def _ping(self) -> None:
        if self.is_closed:
            return
        if self.is_connected:
            if self._world.now - self._heard > LOST_AFTER:
                self._lose()
            else:
                self._send([])
        self._world.after(PING_EVERY, self._ping)

    def _lose(self) -> None:
        self.is_connected = False
        waiting = [*self._outstanding.values(), *(on_reply for _, on_reply in self._outbox)]
        self._outstanding.clear()
        self._outbox.clear()
        self._on_lost()
        for on_reply in waiting:
            on_reply(ZooKeeperReply(failure=ZooKeeperConnectionLost("the connection was lost")))
        self._connect()
