"""Which ingest of a box serves a sender, and how its connection gets there.

Only the ingest that took a record recognises its repeat: memory and journal are its own. So with
several ingests a hash of the sender's address selects one of them, for the protocols that recognise
repeats. An ingest that accepts a connection of another one hands it over unread. Owned by
`SenderConnections`. While the owner restarts, its senders wait here for at most OWNER_AWAY_MS_MAX;
then this ingest serves them (counted), so that a permanently stopped ingest blocks no sender.

A sender that was cut off and reconnects at once may overtake itself: its old connection is accepted
by another ingest that has not handed it over yet, its new one by its owner. So the owner reads
nothing of a new connection before the other ingests have answered an inquiry. The answer uses the
same socket as the connections and comes behind all that the other ingest had accepted by then. One
inquiry serves all connections that were accepted before it was made.

Weak: senders behind one address (a proxy, trusted or not) all have one ingest. A sender that
returns from another address, or to a box with another number of ingests, is not recognised. An
ingest that does not answer within ANSWER_MS_MAX (stopped, or busy for that long) is not waited for.
"""

from __future__ import annotations

import array
import json
import os
import socket
import zlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from appliance.ipc.frames import PEER_CREDENTIALS, is_trusted_user
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import READABLE, WRITABLE
from appliance.senders.listener import Protocol

REPEATING: frozenset[Protocol] = frozenset((Protocol.RELP, Protocol.FLUENT, Protocol.LUMBERJACK, Protocol.HTTP))
"""Protocols whose senders repeat records, by which they are recognised."""
OWNER_AWAY_MS_MAX = 30_000
TRY_AGAIN_MS = 50
ANSWER_MS_MAX = 1_000
WAITING_MAX = 1_024
"""Connections that wait for one owner."""
TAKEN_AT_ONCE = 64
MESSAGE_BYTES_MAX = 1_024
_ANCILLARY_BYTES = socket.CMSG_SPACE(array.array("i").itemsize) + socket.CMSG_SPACE(PEER_CREDENTIALS.size)


class AcceptedConnection(NamedTuple):
    """A connection that was accepted and not read, with the name of its listener."""

    listener: str
    socket: socket.socket
    address: str
    port: int


class _Owner:
    """The channel to another ingest."""

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.socket: socket.socket | None = None
        self.is_watched = False
        self.waiting: deque[tuple[int, AcceptedConnection | bytes]] = deque()
        """Connections and messages in order, each with its time of arrival in ms."""


class SenderOwners:
    """`serve(accepted)`: this ingest owns the connection, or its owner is away for too long."""

    def __init__(self, context: ServiceContext, serve: Callable[[AcceptedConnection], object]) -> None:
        layout, counters = context.layout, context.counters
        self._index = int(context.instance or 0)
        self._count = context.box.ingests
        self._poller = context.poller
        self._clock = context.clock
        self._serve = serve
        self._owners = {number: _Owner(number, layout.senders_socket(number)) for number in range(self._count) if number != self._index}
        self._try_again_ms = 0
        self._socket: socket.socket | None = None
        self._made = self._answered = 0
        """Numbers of the last inquiry that was made, and of the last that all have answered. At
        most one is in flight."""
        self._is_next_wanted = False
        self._unanswered: set[int] = set()
        """Ingests that have not answered the inquiry in flight."""
        self._inquired_ms = 0
        self._handed_over = counters.counter("ingest.connections_handed_over")
        self._kept = counters.counter("ingest.connections_kept")
        self._path = layout.senders_socket(self._index)

    def owner_of(self, address: str) -> int:
        return zlib.crc32(address.removeprefix("::ffff:").encode()) % self._count

    def owns(self, address: str) -> bool:
        return self.owner_of(address) == self._index

    def accept(self, accepting: bool) -> None:
        """Start or stop taking connections that others hand over; until then they wait there."""
        if accepting and self._socket is None:
            if os.path.exists(self._path):
                os.unlink(self._path)  # of the previous incarnation
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(self._path)
            os.chmod(self._path, 0o600)
            self._poller.register(self._socket.fileno(), READABLE, self._on_readable)
        elif not accepting and self._socket is not None:
            os.unlink(self._path)  # from now on connections wait at the other ingests
            while self._take(self._socket):
                pass
            self._poller.unregister(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def hand_over(self, accepted: AcceptedConnection) -> bool:
        """Hand a connection over to the owner of its address, now or when that is back. False, and
        the caller keeps the socket, if too many wait for it."""
        owner = self._owners[self.owner_of(accepted.address)]
        if len(owner.waiting) >= WAITING_MAX:
            return False
        accepted.socket.setblocking(False)
        owner.waiting.append((self._clock.monotonic_ms(), accepted))
        if owner.socket is not None or len(owner.waiting) == 1:
            self._send(owner)
        return True

    # -- connections that others have accepted and not handed over yet

    def inquire(self) -> int:
        """Return the number of an inquiry that is made now, or as soon as the one in flight is
        answered."""
        if self._answered < self._made:
            self._is_next_wanted = True
            return self._made + 1
        self._inquire()
        return self._made

    def is_answered(self, inquiry: int) -> bool:
        """True if everything is here that others had accepted when the inquiry was made, or this
        ingest takes nothing from them any more."""
        return inquiry <= self._answered or self._socket is None

    def _inquire(self) -> None:
        self._made += 1
        self._is_next_wanted = False
        self._unanswered = set(self._owners)
        self._inquired_ms = self._clock.monotonic_ms()
        for owner in self._owners.values():
            self._send_message(owner, (self._index, self._made, False))
        self._maybe_answered()

    def _send_message(self, owner: _Owner, message: tuple[int, int, bool]) -> None:
        """Queue (own number, number of an inquiry, True for an answer) behind the connections for
        that ingest. If that ingest is gone, so is what it had accepted."""
        owner.waiting.append((self._clock.monotonic_ms(), json.dumps(message).encode()))
        if not owner.is_watched:
            self._send(owner)

    def _ask_again(self, now_ms: int) -> int:
        """Repeat the inquiry to ingests that have not answered. The send finds out that one has
        died; its next incarnation answers."""
        if now_ms - self._inquired_ms >= ANSWER_MS_MAX:
            self._unanswered.clear()
            self._maybe_answered()
            return 1
        for number in list(self._unanswered):
            if not self._owners[number].is_watched:
                self._send_message(self._owners[number], (self._index, self._made, False))
        return int(not self._unanswered)

    def _on_message(self, number: int, inquiry: int, is_answer: bool) -> None:
        owner = self._owners.get(number)
        if owner is None:
            return  # of a box that had more ingests
        if not is_answer:
            self._send_message(owner, (self._index, inquiry, True))
        elif inquiry == self._made:
            self._unanswered.discard(number)
            self._maybe_answered()

    def _maybe_answered(self) -> None:
        while not self._unanswered and self._answered < self._made:
            self._answered = self._made
            if self._is_next_wanted:
                self._inquire()

    def do_work(self) -> int:
        """Retry owners that were away; serve connections that waited too long."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._try_again_ms:
            return 0
        self._try_again_ms = now_ms + TRY_AGAIN_MS
        work = 0
        if self._unanswered:
            work += self._ask_again(now_ms)
        for owner in self._owners.values():
            if owner.waiting and not owner.is_watched:
                work += self._send(owner)
            while owner.waiting and now_ms - owner.waiting[0][0] >= OWNER_AWAY_MS_MAX:
                _, waiting = owner.waiting.popleft()
                if isinstance(waiting, AcceptedConnection):
                    self._kept.add()
                    self._serve(waiting)
                    work += 1
        return work

    def _send(self, owner: _Owner) -> int:
        sent = 0
        while owner.waiting:
            waiting = owner.waiting[0][1]
            try:
                if owner.socket is None:
                    self._connect(owner)
                assert owner.socket is not None
                if isinstance(waiting, AcceptedConnection):
                    message = json.dumps((waiting.listener, waiting.address, waiting.port)).encode()
                    owner.socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [waiting.socket.fileno()]))])
                else:
                    owner.socket.send(waiting)
            except BlockingIOError:
                self._watch(owner)
                return sent
            except OSError:  # the owner is away, or it restarts
                if self._disconnect(owner):
                    continue
                self._on_away(owner)
                return sent
            owner.waiting.popleft()
            if isinstance(waiting, AcceptedConnection):
                waiting.socket.close()
                self._handed_over.add()
            sent += 1
        if owner.is_watched and owner.socket is not None:
            owner.is_watched = False
            self._poller.unregister(owner.socket.fileno())
        return sent

    def _connect(self, owner: _Owner) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.connect(owner.path)
        except OSError:
            made.close()
            raise
        owner.socket = made

    def _watch(self, owner: _Owner) -> None:
        """The owner's queue is full: continue when it has space."""
        if not owner.is_watched and owner.socket is not None:
            owner.is_watched = True
            self._poller.register(owner.socket.fileno(), WRITABLE, lambda _events: self._on_writable(owner))

    def _on_writable(self, owner: _Owner) -> None:
        self._send(owner)

    def _disconnect(self, owner: _Owner) -> bool:
        """Close the channel; return True if there was one."""
        was_connected = owner.socket is not None
        if owner.socket is not None:
            self._poller.unregister(owner.socket.fileno())
            owner.socket.close()
        owner.socket, owner.is_watched = None, False
        return was_connected

    def _on_away(self, owner: _Owner) -> None:
        """The ingest is gone, with what it had accepted; it waits for no answer."""
        owner.waiting = deque(each for each in owner.waiting if isinstance(each[1], AcceptedConnection))
        self._unanswered.discard(owner.number)
        self._maybe_answered()

    def _on_readable(self, _events: int) -> None:
        for _ in range(TAKEN_AT_ONCE):
            if self._socket is None or not self._take(self._socket):
                return

    def _take(self, sock: socket.socket) -> bool:
        """Take one connection or message. False if none is left. Without a free descriptor the
        kernel closes the connection and its message."""
        try:
            message, ancillary, _flags, _address = sock.recvmsg(MESSAGE_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        contents = {kind: content for level, kind, content in ancillary if level == socket.SOL_SOCKET}
        descriptors = array.array("i", contents.get(socket.SCM_RIGHTS, b""))
        if not is_trusted_user(PEER_CREDENTIALS.unpack(contents[socket.SCM_CREDENTIALS])[1]):
            for descriptor in descriptors:
                os.close(descriptor)
            return True
        first, second, third = json.loads(message)
        if type(first) is int:
            self._on_message(first, second, third)
            return True
        for descriptor in descriptors:
            self._serve(AcceptedConnection(first, socket.socket(fileno=descriptor), second, third))
        return True

    def close(self) -> None:
        """Close the connections that still wait for another ingest, unread."""
        self.accept(False)
        for owner in self._owners.values():
            for _, waiting in owner.waiting:
                if isinstance(waiting, AcceptedConnection):
                    waiting.socket.close()
            owner.waiting.clear()
            self._disconnect(owner)
