"""Which ingest of the box serves a sender, and the way of its connection there.

What is sent again is known to the ingest that took it the first time: its memory and its journal are its own. So with several ingests each address of a
sender has one of them, by a hash, for the protocols in which records are recognised; whoever accepts a connection of another one's hands it over unread.
Owned by the room of the connections. While the owner is started again its senders wait here, for OWNER_AWAY_MS_MAX at most: then they are served by who has
them, counted, as whoever stops one ingest for good would expect.

A sender that was cut off and comes back at once may overtake itself here: its old connection is accepted by another ingest that has not handed it over yet,
its new one by its owner. So the owner reads nothing of a new connection before the others have answered an inquiry: their answer comes the way of the
connections, behind all that they had accepted by then. One inquiry serves all connections that came before it was made.

Weak: senders behind one address (a proxy, believed or not) all have one ingest; and a sender that comes from another address, or to a box that has another
number of ingests by now, is somebody else. Who does not answer within ANSWER_MS_MAX (stopped, or busy for that long) is not waited for.
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

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.runtime.poller import READABLE, WRITABLE, Poller
from appliance.senders.listener import Protocol
from appliance.shm.counters import Counters

RECOGNISING: frozenset[Protocol] = frozenset((Protocol.RELP, Protocol.FLUENT, Protocol.LUMBERJACK, Protocol.HTTP))
"""Protocols with which a sender may send again what is stored."""
OWNER_AWAY_MS_MAX = 30_000
TRY_AGAIN_MS = 50
ANSWER_MS_MAX = 1_000
WAITING_MAX = 1_024
"""Connections that wait for one owner."""
TAKEN_AT_ONCE = 64
MESSAGE_BYTES_MAX = 1_024


class Guest(NamedTuple):
    """A connection that has been accepted and not read, by the name of its listener."""

    listener: str
    socket: socket.socket
    address: str
    port: int


class _Owner:
    """The way to another ingest."""

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.socket: socket.socket | None = None
        self.is_watched = False
        self.waiting: deque[tuple[int, Guest | bytes]] = deque()
        """Guests, and messages behind them; with the time at which each came, in ms."""


class SenderOwners:
    """Of `count` ingests this is number `index`. `serve(guest)`: it is ours, or nobody else's."""

    def __init__(self, layout: BoxLayout, index: int, count: int, poller: Poller, clock: Clock, counters: Counters, serve: Callable[[Guest], object]) -> None:
        self._index = index
        self._count = count
        self._poller = poller
        self._clock = clock
        self._serve = serve
        self._owners = {number: _Owner(number, layout.senders_socket(number)) for number in range(count) if number != index}
        self._try_again_ms = 0
        self._socket: socket.socket | None = None
        self._made = self._answered = 0
        """Numbers of inquiries: of the last one that was made, and of the last one that all have answered. At most one is under way."""
        self._is_next_wanted = False
        self._asked: set[int] = set()
        """Who has not answered the one that is under way."""
        self._asked_ms = 0
        self._handed_over = counters.counter("ingest.connections_handed_over")
        self._kept = counters.counter("ingest.connections_kept")
        self._path = layout.senders_socket(index)

    def owner_of(self, address: str) -> int:
        return zlib.crc32(address.removeprefix("::ffff:").encode()) % self._count

    def is_ours(self, address: str) -> bool:
        return self.owner_of(address) == self._index

    def accept(self, accepting: bool) -> None:
        """Whether connections that others hand over are taken; until then they wait at the others'."""
        if accepting and self._socket is None:
            if os.path.exists(self._path):
                os.unlink(self._path)  # our former life's
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._socket.bind(self._path)
            os.chmod(self._path, 0o600)
            self._poller.register(self._socket.fileno(), READABLE, self._on_guests)
        elif not accepting and self._socket is not None:
            os.unlink(self._path)  # from here on they wait
            while self._take(self._socket):
                pass
            self._poller.unregister(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def hand_over(self, guest: Guest) -> bool:
        """To the owner of its address, now or when he is there. False, and the socket is still the caller's, if too many wait for him."""
        owner = self._owners[self.owner_of(guest.address)]
        if len(owner.waiting) >= WAITING_MAX:
            return False
        guest.socket.setblocking(False)
        owner.waiting.append((self._clock.monotonic_ms(), guest))
        if owner.socket is not None or len(owner.waiting) == 1:
            self._send(owner)
        return True

    # -- what others have accepted, and not handed over yet

    def inquire(self) -> int:
        """The number of an inquiry that is made now, or as soon as the one before it is answered."""
        if self._answered < self._made:
            self._is_next_wanted = True
            return self._made + 1
        self._inquire()
        return self._made

    def is_answered(self, inquiry: int) -> bool:
        """Whether all is here that others had accepted when it was made; or we take nothing from them any more."""
        return inquiry <= self._answered or self._socket is None

    def _inquire(self) -> None:
        self._made += 1
        self._is_next_wanted = False
        self._asked = set(self._owners)
        self._asked_ms = self._clock.monotonic_ms()
        for owner in self._owners.values():
            self._say(owner, (self._index, self._made, False))
        self._maybe_answered()

    def _say(self, owner: _Owner, words: tuple[int, int, bool]) -> None:
        """(who says it, the number of an inquiry, whether this is the answer), behind those who wait for that ingest. One that is not there hears nothing:
        what it had accepted has ended with it."""
        owner.waiting.append((self._clock.monotonic_ms(), json.dumps(words).encode()))
        if not owner.is_watched:
            self._send(owner)

    def _ask_again(self, now_ms: int) -> int:
        """Who died with the question is found out by that, and the next life answers it."""
        if now_ms - self._asked_ms >= ANSWER_MS_MAX:
            self._asked.clear()
            self._maybe_answered()
            return 1
        for number in list(self._asked):
            if not self._owners[number].is_watched:
                self._say(self._owners[number], (self._index, self._made, False))
        return int(not self._asked)

    def _on_words(self, number: int, inquiry: int, is_answer: bool) -> None:
        owner = self._owners.get(number)
        if owner is None:
            return  # of a box that had more ingests
        if not is_answer:
            self._say(owner, (self._index, inquiry, True))
        elif inquiry == self._made:
            self._asked.discard(number)
            self._maybe_answered()

    def _maybe_answered(self) -> None:
        while not self._asked and self._answered < self._made:
            self._answered = self._made
            if self._is_next_wanted:
                self._inquire()

    def do_work(self) -> int:
        """Once in a while: owners that were away may be back, or away for too long."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._try_again_ms:
            return 0
        self._try_again_ms = now_ms + TRY_AGAIN_MS
        work = 0
        if self._asked:
            work += self._ask_again(now_ms)
        for owner in self._owners.values():
            if owner.waiting and not owner.is_watched:
                work += self._send(owner)
            while owner.waiting and now_ms - owner.waiting[0][0] >= OWNER_AWAY_MS_MAX:
                _, waiting = owner.waiting.popleft()
                if isinstance(waiting, Guest):
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
                if isinstance(waiting, Guest):
                    message = json.dumps((waiting.listener, waiting.address, waiting.port)).encode()
                    owner.socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [waiting.socket.fileno()]))])
                else:
                    owner.socket.send(waiting)
            except BlockingIOError:
                self._watch(owner)
                return sent
            except OSError:  # nobody is there; or no longer, and its next life may be
                if self._disconnect(owner):
                    continue
                self._on_away(owner)
                return sent
            owner.waiting.popleft()
            if isinstance(waiting, Guest):
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
        """Its queue is full: go on when there is room."""
        if not owner.is_watched and owner.socket is not None:
            owner.is_watched = True
            self._poller.register(owner.socket.fileno(), WRITABLE, lambda _events: self._on_room(owner))

    def _on_room(self, owner: _Owner) -> None:
        self._send(owner)

    def _disconnect(self, owner: _Owner) -> bool:
        """Whether there was a way to it."""
        was_connected = owner.socket is not None
        if owner.socket is not None:
            self._poller.unregister(owner.socket.fileno())
            owner.socket.close()
        owner.socket, owner.is_watched = None, False
        return was_connected

    def _on_away(self, owner: _Owner) -> None:
        """What it had accepted has ended with it, and nobody waits for our answer."""
        owner.waiting = deque(each for each in owner.waiting if isinstance(each[1], Guest))
        self._asked.discard(owner.number)
        self._maybe_answered()

    def _on_guests(self, _events: int) -> None:
        for _ in range(TAKEN_AT_ONCE):
            if self._socket is None or not self._take(self._socket):
                return

    def _take(self, sock: socket.socket) -> bool:
        """One that was handed over. False when none is left; or no descriptor is free, and the connection is closed with its message."""
        try:
            message, rights, _flags, _address = sock.recvmsg(MESSAGE_BYTES_MAX, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        first, second, third = json.loads(message)
        if type(first) is int:
            self._on_words(first, second, third)
            return True
        for level, kind, content in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._serve(Guest(first, socket.socket(fileno=array.array("i", content)[0]), second, third))
        return True

    def close(self) -> None:
        """Who still waits for another one is closed, unread."""
        self.accept(False)
        for owner in self._owners.values():
            for _, waiting in owner.waiting:
                if isinstance(waiting, Guest):
                    waiting.socket.close()
            owner.waiting.clear()
            self._disconnect(owner)
