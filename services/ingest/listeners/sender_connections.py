"""The room of all senders that come by a stream: accepts them, reads them in fair shares, stops reading those whose records nobody can take, ends them.

Owned by one ingest agent. Nothing that was received is dropped: a connection is paused after the piece that met a block or filled its window, and its
sender feels it through TCP. Bounds: connections in total and for each address (the claimed one behind believed proxies), answers not taken, frames not
finished, handshakes. Where a sender is known again by its former session, what it has left is read before its next connection (`left_connections`).
Weak: the share of a turn is one for all; with many busy senders each waits for its turn in the poller's order.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.runtime.poller import Poller
from appliance.senders.listener import Listener
from appliance.shm.counters import Counters
from services.ingest.listeners.half_closed_connections import SESSION_SCOPED_IDS, HalfClosedConnections
from services.ingest.listeners.listening_socket import ListeningSocket
from services.ingest.listeners.sender_connection import RECEIVE_BYTES, SenderConnection
from services.ingest.listeners.sender_limits import SenderLimits, connections_possible
from services.ingest.listeners.sender_owners import RECOGNISING, Guest, SenderOwners
from services.ingest.listeners.sender_stream import StreamError
from services.ingest.listeners.unfinished_frames import UnfinishedFrames
from services.ingest.protocols.session import RepeatingSession
from services.ingest.records.intake import Intake

TURN_BYTES = 1 << 18
TICKS_A_TURN = 256
KEEPALIVE_SECONDS = 60
FINISH_MS_MAX = 30_000
"""How long units under way may keep a connection whose peer has ended its side."""
STOP_MS_MAX = 5_000
"""The same while the process stops: who is not answered by then brings it again."""
LINGER_MS = 2_000
DRAIN_BYTES_MAX = 8 << 20
"""That a stop still takes from one sender: more than a kernel keeps of a connection (`net.ipv4.tcp_rmem`), so what is beyond came after the stop began."""
_BROKEN = select.EPOLLHUP | select.EPOLLERR

Partition = tuple[str, int]


class BlockingIntake(Intake, Protocol):
    """The intake as the room sees it."""

    blocked_partition: Partition | None
    """The partition that takes no more, which a record met since this was last set to None."""


class SenderConnections:
    """All streams of one ingest, over all its listeners."""

    def __init__(self, layout: BoxLayout, index: int, poller: Poller, clock: Clock, intake: BlockingIntake, box: Box, counters: Counters, log: Logger) -> None:
        """Of ingest number `index`."""
        self._poller = poller
        self._clock = clock
        self._intake = intake
        self._counters = counters
        self._log = log
        self._limits = SenderLimits(connections_possible(box.integer("max.connections"), log), box.integer("max.connections.per.ip"))
        self.is_one_of_several = box.ingests > 1
        """Whether other processes accept from the same sockets."""
        self._owners = SenderOwners(layout, index, box.ingests, poller, clock, counters, self._serve) if self.is_one_of_several else None
        self._window_bytes = box.integer("ingest.connection.window.bytes")
        self._doors: list[ListeningSocket] = []
        self._connections: dict[int, SenderConnection] = {}
        self._changed: dict[SenderConnection, None] = {}  # something to send, or to read again, or to end
        self._blocked: dict[SenderConnection, None] = {}
        self._windowed: dict[SenderConnection, None] = {}
        self._behind: dict[SenderConnection, None] = {}
        self._left = HalfClosedConnections()
        self._drained_bytes: dict[SenderConnection, int] = {}
        self._unfinished = UnfinishedFrames(box.integer("ingest.unfinished.bytes"), counters)
        self._ticks: Iterator[SenderConnection] = iter(())
        self._turn_bytes_left = TURN_BYTES
        self._open = counters.gauge("ingest.connections")
        self._accepted = counters.counter("ingest.connections_accepted")
        self._pauses = counters.counter("ingest.connections_paused")

    def __len__(self) -> int:
        return len(self._connections)

    # -- coming and going

    def add(self, listener: Listener, sock: socket.socket) -> None:
        """Senders of `listener` come by this listening socket."""
        self._doors.append(ListeningSocket(listener, sock, self, self._poller, self._counters, self._log))

    def accept(self, accepting: bool) -> None:
        for door in self._doors:
            door.accept(accepting)
        if self._owners is not None:
            self._owners.accept(accepting)

    def welcome(self, door: ListeningSocket, sock: socket.socket, address: str, port: int) -> None:
        """Somebody has come by a door: he is ours, or another ingest's of the box."""
        if self._owners is None or door.listener.protocol not in RECOGNISING or self._owners.is_ours(address):
            self.enter(door, sock, address, port)
        elif not self._owners.hand_over(Guest(door.listener.name, sock, address, port)):
            door.count_closed("connection-limit")
            sock.close()

    def _serve(self, guest: Guest) -> None:
        """Another ingest has accepted him; or he waited in vain for one."""
        door = next((door for door in self._doors if door.listener.name == guest.listener), None)
        if door is None:
            guest.socket.close()
            return
        self.enter(door, guest.socket, guest.address, guest.port)

    def enter(self, door: ListeningSocket, sock: socket.socket, address: str, port: int) -> None:
        """A connected sender."""
        if not self._limits.enter(address):
            door.count_closed("connection-limit")
            sock.close()
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = SenderConnection(sock, door, address, door.source_of(address, port), self._intake, self._on_changed, self._clock.monotonic_ms())
        self._connections[connection.descriptor] = connection
        if door.listener.protocol in SESSION_SCOPED_IDS:
            connection.is_unread = True
            self._left.add(connection)
            if self._owners is not None and self._owners.is_ours(address):
                connection.inquiry = self._owners.inquire()
        self._accepted.add()
        self._open.set(len(self._connections))
        try:
            connection.stream = door.make_stream()
        except StreamError as error:
            door.count_closed(error.reason)
            self._leave(connection)
            return
        connection.begin(door.make_session)
        self._update(connection)

    def move_address(self, connection: SenderConnection, address: str) -> None:
        """The sender behind a believed proxy counts for itself. Raises StreamError if it has too many connections."""
        if not self._limits.move(connection.address, address):
            raise StreamError("connection-limit")
        connection.address = address

    def _leave(self, connection: SenderConnection) -> None:
        """It is gone, whoever ended it."""
        connection.is_gone = True
        self._poller.unregister(connection.descriptor)
        del self._connections[connection.descriptor]
        for paused in (self._blocked, self._windowed, self._behind, self._changed):
            paused.pop(connection, None)
        self._left.remove(connection)
        self._unfinished.leave(connection)
        self._limits.leave(connection.address)
        connection.socket.close()
        self._open.set(len(self._connections))
        if connection.session is not None:
            connection.session.lost()

    # -- reading

    def _on_event(self, connection: SenderConnection, events: int) -> None:
        if connection.is_gone:
            return
        if connection.interest & select.EPOLLIN:
            if self._turn_bytes_left > 0 and self._may_read(connection):
                self._read(connection)
        elif events & _BROKEN:
            self._leave(connection)
            return
        self._update(connection)

    def _may_read(self, connection: SenderConnection) -> bool:
        """Whether what its sender brings again would be known: connections that he has left, and that are not at their end, come first."""
        if connection.is_unread:
            if not self._is_first(connection):
                connection.is_behind = True
                self._behind[connection] = None
                return False
            connection.is_unread = False
        return True

    def _is_first(self, connection: SenderConnection) -> bool:
        if self._owners is not None and not self._owners.is_answered(connection.inquiry):
            return False
        return all(self._read_to_its_end(each) for each in self._left.before(connection))

    def _read_to_its_end(self, connection: SenderConnection) -> bool:
        """Its sender has left it. False when this turn's share was not enough; what the kernel keeps of a connection is bounded."""
        connection.is_unread = False
        while not connection.is_gone and not connection.is_stopped:
            left = self._turn_bytes_left
            if left <= 0:
                return False
            if not self._read(connection) and self._turn_bytes_left == left:
                break
        if connection.is_gone or connection.is_finishing or connection.close_reason:
            pass
        elif connection.session is not None and connection.session.unacknowledged_bytes:
            # Its partition, or its window, may keep it waiting for long. The stream can be found from now on: whoever goes on with it brings the rest.
            cast("RepeatingSession", connection.session).left()
        else:
            self._leave(connection)  # nothing of it is under way: all that it still has was never taken, and comes again
        self._update(connection)
        return True

    def _read(self, connection: SenderConnection) -> bool:
        """One piece; False when there was none, or the connection ended or pauses now."""
        is_reset = False
        try:
            received = connection.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received, is_reset = b"", True  # what came before it is still worth keeping
        self._turn_bytes_left -= len(received)
        if connection.is_lingering:
            if not received:
                self._leave(connection)
            return False
        if not received:
            self._on_end(connection, is_reset)
            return False
        connection.door.input_bytes.add(len(received))
        self._intake.blocked_partition = None
        try:
            connection.take(received)
        except StreamError as error:
            connection.door.say_once(connection, error)
            connection.fail(error)
            return False
        return not self._maybe_pause(connection)

    def _on_end(self, connection: SenderConnection, is_reset: bool, is_by_us: bool = False) -> None:
        connection.is_broken = is_reset or is_by_us
        if connection.session is not None:
            connection.session.finished()
        connection.is_finishing = True
        connection.deadline_ms = self._clock.monotonic_ms() + FINISH_MS_MAX
        self._changed[connection] = None
        if is_reset:
            self._leave(connection)

    def _maybe_pause(self, connection: SenderConnection) -> bool:
        session = connection.session
        if session is None:
            return False
        if session.unacknowledged_bytes > self._window_bytes:
            connection.is_windowed = True
            self._windowed[connection] = None
        if self._intake.blocked_partition is not None:
            connection.blocked_by = self._intake.blocked_partition
            self._blocked[connection] = None
            self._pauses.add()
        connection.is_crowded = self._unfinished.look(connection)
        return connection.is_stopped or connection.is_crowded

    def resume(self, is_partition_blocked: Callable[[Partition], bool]) -> None:
        """What is blocked has changed: go on reading those whose partition takes records again."""
        for connection in [each for each in self._blocked if each.blocked_by is None or not is_partition_blocked(each.blocked_by)]:
            del self._blocked[connection]
            connection.blocked_by = None
            self._changed[connection] = None

    # -- a turn

    def _on_changed(self, connection: SenderConnection) -> None:
        self._changed[connection] = None

    def do_work(self) -> int:
        """Send what sessions have answered, read on where windows have room again, tick some; and a new share of bytes."""
        self._turn_bytes_left = TURN_BYTES
        self._left.begin_turn()
        for connection in [each for each in self._windowed if each.session is None or each.session.unacknowledged_bytes <= self._window_bytes]:
            del self._windowed[connection]
            connection.is_windowed = False
            self._changed[connection] = None
        for connection in self._unfinished.released():
            connection.is_crowded = False
            self._changed[connection] = None
        for connection in list(self._behind):
            if not connection.is_gone and self._is_first(connection):
                self._release(connection)
        changed = list(self._changed)
        for connection in changed:
            self._update(connection)
        handed_over = self._owners.do_work() if self._owners is not None else 0
        return len(changed) + handed_over + self._tick_some()

    def _release(self, connection: SenderConnection) -> None:
        """Nothing has to be read before it."""
        self._behind.pop(connection, None)
        connection.is_unread = connection.is_behind = False
        self._changed[connection] = None

    def _update(self, connection: SenderConnection) -> None:
        """Bring a connection to where its state says it should be: sent, registered, ended."""
        self._changed.pop(connection, None)
        if connection.is_gone:
            return
        if connection.unsent_bytes and not connection.flush():
            self._leave(connection)
            return
        if not connection.unsent_bytes and not connection.is_lingering and self._is_over(connection) and not self._linger(connection):
            self._leave(connection)
            return
        wanted = connection.wanted_interest
        if wanted != connection.interest:
            if not connection.interest:
                self._poller.register(connection.descriptor, wanted, lambda events: self._on_event(connection, events))
            elif wanted:
                self._poller.modify(connection.descriptor, wanted)
            else:
                self._poller.unregister(connection.descriptor)
            connection.interest = wanted

    @staticmethod
    def _is_over(connection: SenderConnection) -> bool:
        return bool(connection.close_reason) or (connection.is_finishing and (connection.session is None or not connection.session.unacknowledged_bytes))

    def _linger(self, connection: SenderConnection) -> bool:
        """Everything is out: what the peer still sends is thrown away until it ends, too. False if it has already."""
        if connection.is_finishing:
            return False
        connection.is_lingering = True
        connection.deadline_ms = self._clock.monotonic_ms() + LINGER_MS
        try:
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    # -- once a second

    def look(self) -> None:
        """Once a second: doors, and a round of ticks."""
        for door in self._doors:
            door.look()
        self._ticks = iter(list(self._connections.values()))

    def _tick_some(self) -> int:
        now_ms = self._clock.monotonic_ms()
        ticked = 0
        for connection in self._ticks:
            if not connection.is_gone:
                self._tick(connection, now_ms)
            ticked += 1
            if ticked == TICKS_A_TURN:
                break
        return ticked

    def _tick(self, connection: SenderConnection, now_ms: int) -> None:
        idle_ms_max = connection.listener.idle_ms_max
        if connection.deadline_ms and now_ms >= connection.deadline_ms:
            self._leave(connection)
        elif connection.unsent_bytes and now_ms - connection.taken_ms > idle_ms_max:
            connection.door.count_closed("answers-not-taken")
            self._leave(connection)
        elif connection.session is None:
            if connection.has_begun and now_ms - connection.opened_ms > idle_ms_max:
                connection.close("handshake-timeout")
                self._update(connection)
        elif not connection.is_lingering:
            connection.session.tick(now_ms)
            self._update(connection)

    # -- the end

    def drain(self) -> bool:
        """Stopping: take what has arrived, as far as this turn's share goes. True when nothing is left to be taken, or only what came since."""
        for connection in list(self._connections.values()):
            taken_bytes = self._drained_bytes.get(connection, 0)
            if connection.is_unread and not connection.is_gone:
                if not self._is_first(connection):
                    return False
                self._release(connection)
                self._update(connection)
            while taken_bytes < DRAIN_BYTES_MAX and connection.interest & select.EPOLLIN and not connection.is_gone:
                left = self._turn_bytes_left
                goes_on = self._read(connection)
                self._drained_bytes[connection] = taken_bytes = taken_bytes + left - self._turn_bytes_left
                if not goes_on:
                    break
                if self._turn_bytes_left <= 0:
                    return False
            self._update(connection)
        return True

    def finish_all(self) -> None:
        """Tell every session that its stream ends; connections close when their units are settled and their answers are out."""
        for connection in list(self._connections.values()):
            if not connection.is_finishing and not connection.close_reason:
                self._on_end(connection, False, is_by_us=True)
            connection.deadline_ms = self._clock.monotonic_ms() + STOP_MS_MAX
            self._update(connection)

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return not any(connection.unsent_bytes or not self._is_over(connection) for connection in self._connections.values())

    def close(self) -> None:
        for connection in list(self._connections.values()):
            connection.flush()
            self._leave(connection)
        for door in self._doors:
            door.close()
        if self._owners is not None:
            self._owners.close()
