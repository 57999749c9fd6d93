"""Stream connections of an ingest: accept, read in fair shares, pause, end.

Owned by one ingest agent. Nothing that was received is dropped: a connection is paused after the
piece that reached a blocked partition or filled its window, and TCP slows its sender down. Bounds:
connections in total and for each address (the claimed one behind trusted proxies), unread answers,
incomplete frames, handshakes. If repeats are recognised by the session before, the earlier
connections of a sender are read before its new one (`half_closed_connections`).

Weak: the share of a turn is one for all; with many busy senders each waits for its turn in the
poller's order.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from appliance.runtime.agent import ServiceContext
from appliance.senders.listener import Listener
from appliance.senders.listener import Protocol as ListenerProtocol
from services.ingest.listeners.half_closed_connections import SESSION_SCOPED_IDS, HalfClosedConnections
from services.ingest.listeners.listening_socket import ReservedDescriptor, SenderListeningSocket
from services.ingest.listeners.sender_connection import ENDED, GONE, LINGERING, NEW, OPEN, RECEIVE_BYTES, PauseReason, SenderConnection
from services.ingest.listeners.sender_limits import SenderLimits, UnfinishedFrames, connections_possible
from services.ingest.listeners.sender_owners import REPEATING, AcceptedConnection, SenderOwners
from services.ingest.listeners.sender_stream import StreamError
from services.ingest.listeners.sliced_work import SlicedWork
from services.ingest.protocols.session import AnsweringSession, RepeatingSession, Session
from services.ingest.protocols.steps import Steps
from services.ingest.records.intake import Intake, RefusedReason

TURN_BYTES = 1 << 18
HANDSHAKE_STEPS_A_TURN = 8
TICKS_A_TURN = 256
KEEPALIVE_SECONDS = 60
FINISH_MS_MAX = 30_000
"""How long groups in flight keep a connection whose peer has ended its side."""
STOP_MS_MAX = 5_000
"""The same while the process stops; a sender that is not answered by then repeats its records."""
LINGER_MS = 2_000
DRAIN_BYTES_MAX = 8 << 20
"""What a stop still takes from one sender: more than the kernel keeps of a connection
(`net.ipv4.tcp_rmem`), so the rest arrived after the stop began."""
_NEVER_MS = 1 << 62
_BROKEN = select.EPOLLHUP | select.EPOLLERR

Partition = tuple[str, int]


class BlockingIntake(Intake, Protocol):
    """The intake as `SenderConnections` uses it."""

    blocked_partition: Partition | None
    """The blocked partition that a record reached since this was last set to None."""


def _finish(session: Session) -> Steps:
    """Tell a session that its sender has ended, after the work that waits before it."""
    session.finished()
    yield from ()


class SenderConnections:
    """All stream connections of one ingest, over all its listeners."""

    def __init__(self, context: ServiceContext, intake: BlockingIntake) -> None:
        box, counters = context.box, context.counters
        self._context = context
        self._poller = context.poller
        self._clock = context.clock
        self._intake = intake
        self._limits = SenderLimits(connections_possible(box.integer("max.connections"), context.log), box.integer("max.connections.per.ip"))
        self.reserved_descriptor = ReservedDescriptor()
        self.is_one_of_several = box.ingests > 1
        """True if other processes accept from the same sockets."""
        self._owners = SenderOwners(context, self._serve) if self.is_one_of_several else None
        self._window_bytes = box.integer("ingest.connection.window.bytes")
        self._listening_sockets: list[SenderListeningSocket] = []
        self._connections: dict[int, SenderConnection] = {}
        self._changed: dict[SenderConnection, None] = {}  # with something to send, to read again, or to end
        self._blocked: dict[SenderConnection, Partition] = {}
        self._throttled: dict[SenderConnection, int] = {}
        """Over their quota, with the time in ms at which to look again."""
        self._resume_ms = _NEVER_MS
        self._is_draining = False
        """A stop takes what has arrived, whatever the quotas."""
        self._windowed: dict[SenderConnection, None] = {}
        self._behind: dict[SenderConnection, None] = {}
        self._half_closed = HalfClosedConnections()
        self._drained_bytes: dict[SenderConnection, int] = {}
        self._work = SlicedWork(context.clock, self._on_step, self._on_work_done, self._on_unstarted)
        self._unfinished = UnfinishedFrames(box.integer("ingest.unfinished.bytes"), counters)
        self._ticks: Iterator[SenderConnection] = iter(())
        self._turn_bytes_left = TURN_BYTES
        self._handshake_steps_left = HANDSHAKE_STEPS_A_TURN
        self._open = counters.gauge("ingest.connections")
        self._accepted = counters.counter("ingest.connections_accepted")
        self._pauses = counters.counter("ingest.connections_paused")
        self._handshakes_throttled = counters.counter("ingest.tls_handshakes_throttled")
        self._over_quota = counters.counter("ingest.connections_over_quota")

    def __len__(self) -> int:
        return len(self._connections)

    # -- coming and going

    def add(self, listener: Listener, sock: socket.socket) -> None:
        """Accept senders of `listener` from this listening socket."""
        self._listening_sockets.append(SenderListeningSocket(listener, sock, self, self._context))

    def accept(self, accepting: bool) -> None:
        for listening in self._listening_sockets:
            listening.accept(accepting)
        if self._owners is not None:
            self._owners.accept(accepting)

    def on_accepted(self, listening: SenderListeningSocket, sock: socket.socket, address: str, port: int) -> None:
        """A connection was accepted: serve it, or hand it over to the ingest that owns its sender."""
        if self._owners is None or listening.listener.protocol not in REPEATING or self._owners.owns(address):
            self.open(listening, sock, address, port)
        elif not self._owners.hand_over(AcceptedConnection(listening.listener.name, sock, address, port)):
            listening.count_closed("connection-limit")
            sock.close()

    def _serve(self, accepted: AcceptedConnection) -> None:
        """Serve a connection that another ingest accepted, or that waited too long for its owner."""
        listening = next((listening for listening in self._listening_sockets if listening.listener.name == accepted.listener), None)
        if listening is None:
            accepted.socket.close()
            return
        self.open(listening, accepted.socket, accepted.address, accepted.port)

    def open(self, listening: SenderListeningSocket, sock: socket.socket, address: str, port: int) -> None:
        """Start serving a connection."""
        if not self._limits.acquire(address):
            listening.count_closed("connection-limit")
            sock.close()
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = SenderConnection(sock, listening, (address, port), self._intake, self._on_changed, self._work.run)
        self._connections[connection.descriptor] = connection
        if listening.listener.protocol in SESSION_SCOPED_IDS:
            connection.phase = NEW
            self._half_closed.add(connection)
            if self._owners is not None and self._owners.owns(address):
                connection.inquiry = self._owners.inquire()
        self._accepted.add()
        self._open.set(len(self._connections))
        try:
            connection.stream = listening.make_stream()
        except StreamError as error:
            listening.count_closed(error.reason)
            self._drop(connection)
            return
        if not connection.stream.is_established:
            connection.phase = NEW
        connection.begin(listening.make_session)
        self._update(connection)

    def move_address(self, old: str, new: str) -> None:
        """Count a connection for the address behind a trusted proxy. Raises StreamError if that
        address has too many."""
        if not self._limits.move(old, new):
            raise StreamError("connection-limit")

    def _drop(self, connection: SenderConnection) -> None:
        """Remove the connection, whichever side ended it."""
        connection.phase = GONE
        self._poller.unregister(connection.descriptor)
        del self._connections[connection.descriptor]
        self._blocked.pop(connection, None)
        self._throttled.pop(connection, None)
        for paused in (self._windowed, self._behind, self._changed):
            paused.pop(connection, None)
        self._half_closed.remove(connection)
        self._unfinished.remove(connection)
        self._limits.release(connection.address)
        if connection.has_handshake_token and not connection.stream.has_started:
            connection.bucket.return_handshake()
        connection.socket.close()
        self._open.set(len(self._connections))
        if connection.session is not None:
            connection.session.lost()
        self._work.finish(connection)

    # -- reading

    def _on_event(self, connection: SenderConnection, events: int) -> None:
        if connection.phase is GONE:
            return
        if connection.interest & select.EPOLLIN:
            if self._turn_bytes_left > 0 and self._may_read(connection):
                self._read(connection)
        elif events & _BROKEN:
            self._drop(connection)
            return
        self._update(connection)

    def _may_read(self, connection: SenderConnection) -> bool:
        """Pause a new connection while an earlier one that its sender has left is not at its end.

        If the new one were read first, the sender's repeats on it would be taken for new lines.
        """
        if connection.phase is NEW:
            if not self._is_first(connection):
                connection.pauses |= PauseReason.ORDER
                self._behind[connection] = None
                return False
            if connection.stream.is_established:
                connection.phase = OPEN
            elif not self._may_shake_hands(connection):
                return False
        return True

    def _may_shake_hands(self, connection: SenderConnection) -> bool:
        """True if a step of the TLS handshake may run. Each costs up to 6 ms (RSA-4096), so a turn has
        few, and an address begins few in a second."""
        if self._handshake_steps_left <= 0:
            return False  # its descriptor stays readable: in the next turn
        if not connection.has_handshake_token:
            connection.has_handshake_token = True
            if wait_ms := connection.bucket.reserve_handshake():
                self._handshakes_throttled.add()
                self._throttle(connection, wait_ms)
                return False
        self._handshake_steps_left -= 1
        return True

    def _is_first(self, connection: SenderConnection) -> bool:
        if self._owners is not None and not self._owners.is_answered(connection.inquiry):
            return False
        return all(self._read_to_its_end(each) for each in self._half_closed.before(connection))

    def _read_to_its_end(self, connection: SenderConnection) -> bool:
        """Read a connection that its sender has closed to its end. False if this turn's share was
        not enough; what the kernel keeps of a connection is bounded."""
        connection.phase = max(connection.phase, OPEN)
        while connection.phase is not GONE and not connection.is_stopped:
            left = self._turn_bytes_left
            if left <= 0:
                return False
            if not self._read(connection) and self._turn_bytes_left == left:
                break
        if connection.work or connection.pauses & PauseReason.QUOTA:
            return False  # what it sent is taken before what its sender repeats
        if connection.phase in (ENDED, GONE) or connection.close_reason:
            pass
        elif connection.session is not None and connection.session.unacknowledged_bytes:
            # Its partition or window may block it for long. From now on the stream can be found,
            # and the next session that continues it repeats the rest.
            cast("RepeatingSession", connection.session).left()
        else:
            self._drop(connection)  # nothing of it is in flight: the rest was never taken and is repeated
        self._update(connection)
        return True

    def _read(self, connection: SenderConnection) -> bool:
        """Read one piece. False if there was none, or the connection ended."""
        is_reset = False
        try:
            received = connection.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received, is_reset = b"", True  # what was received before it is kept
        size_bytes = len(received)
        self._turn_bytes_left -= size_bytes
        if connection.phase is LINGERING:
            if not received:
                self._drop(connection)
            return False
        if not received:
            self._on_end(connection, is_reset)
            return False
        connection.listening.input_bytes.add(size_bytes)
        bucket = connection.bucket
        left = bucket.bytes_left = bucket.bytes_left - size_bytes
        self._intake.blocked_partition = None
        try:
            connection.take(received)
        except StreamError as error:
            connection.listening.log_once(connection.source, error)
            connection.fail(error)
            return False
        if left < 0:
            self._check_quota(connection)
        self._maybe_pause(connection)
        return True

    def _on_end(self, connection: SenderConnection, is_reset: bool, is_by_us: bool = False) -> None:
        connection.is_broken = is_reset or is_by_us
        if connection.session is not None:
            if connection.work:
                connection.run(_finish(connection.session))  # what was received is taken first
            else:
                connection.session.finished()
        connection.phase = ENDED
        connection.deadline_ms = self._clock.monotonic_ms() + FINISH_MS_MAX
        self._changed[connection] = None
        if is_reset:
            self._drop(connection)

    def _maybe_pause(self, connection: SenderConnection) -> None:
        session = connection.session
        if session is None:
            return
        if session.unacknowledged_bytes > self._window_bytes:
            connection.pauses |= PauseReason.WINDOW
            self._windowed[connection] = None
        if self._intake.blocked_partition is not None:
            connection.pauses |= PauseReason.PARTITION
            self._blocked[connection] = self._intake.blocked_partition
            self._pauses.add()
        self._unfinished.check(connection)

    def _on_step(self, connection: SenderConnection) -> None:
        """A step of its work was run, and others follow."""
        self._maybe_pause(connection)
        self._intake.blocked_partition = None

    def _on_work_done(self, connection: SenderConnection) -> None:
        if connection.phase is not GONE:
            self._maybe_pause(connection)
            connection.release(PauseReason.WORK)
        self._intake.blocked_partition = None

    def _check_quota(self, connection: SenderConnection) -> None:
        """Draw new credit for the sender; without any, its connection is not read. HTTP is read
        between requests, which are answered."""
        wait_ms = connection.quota_wait_ms
        if not wait_ms or self._is_draining:
            return
        session = connection.session
        if connection.listener.protocol is ListenerProtocol.HTTP and cast("AnsweringSession", session).is_between_requests:
            return
        if not connection.pauses & PauseReason.QUOTA:
            self._over_quota.add()
        self._throttle(connection, wait_ms)

    def _throttle(self, connection: SenderConnection, wait_ms: int) -> None:
        connection.pauses |= PauseReason.QUOTA
        resume_ms = self._throttled[connection] = self._clock.monotonic_ms() + wait_ms
        self._resume_ms = min(self._resume_ms, resume_ms)

    def _resume_throttled(self, now_ms: int) -> None:
        due = [connection for connection, resume_ms in self._throttled.items() if resume_ms <= now_ms or self._is_draining]
        for connection in due:
            del self._throttled[connection]
            wait_ms = connection.quota_wait_ms
            if wait_ms and not self._is_draining:
                self._throttled[connection] = now_ms + wait_ms
            else:
                connection.release(PauseReason.QUOTA)
                self._update(connection)
        self._resume_ms = min(self._throttled.values(), default=_NEVER_MS)

    def wait_ms(self, limit_ms: int) -> int:
        """Return how long the process may wait until a sender is within its quota again."""
        return max(0, min(limit_ms, self._resume_ms - self._clock.monotonic_ms())) if self._throttled else limit_ms

    def resume(self, is_partition_blocked: Callable[[Partition], bool]) -> None:
        """The blocked partitions changed: read the connections whose partition takes records again."""
        for connection in [each for each, partition in self._blocked.items() if not is_partition_blocked(partition)]:
            del self._blocked[connection]
            connection.release(PauseReason.PARTITION)

    # -- a turn

    def _on_changed(self, connection: SenderConnection) -> None:
        self._changed[connection] = None

    def do_work(self) -> int:
        """Send answers, resume connections whose pause is over, tick some; and start a new share of
        bytes."""
        self._turn_bytes_left = TURN_BYTES
        self._handshake_steps_left = HANDSHAKE_STEPS_A_TURN
        self._half_closed.begin_turn()
        for connection in [each for each in self._windowed if each.session is None or each.session.unacknowledged_bytes <= self._window_bytes]:
            del self._windowed[connection]
            connection.release(PauseReason.WINDOW)
        for connection in self._unfinished.released():
            connection.release(PauseReason.FRAMES)
        self._intake.blocked_partition = None
        worked = self._work.do_work()
        if self._throttled and (now_ms := self._clock.monotonic_ms()) >= self._resume_ms:
            self._resume_throttled(now_ms)
        for connection in list(self._behind):
            if connection.phase is not GONE and self._is_first(connection):
                self._release(connection)
        changed = list(self._changed)
        for connection in changed:
            self._update(connection)
        handed_over = self._owners.do_work() if self._owners is not None else 0
        return len(changed) + worked + handed_over + self._tick_some()

    def _release(self, connection: SenderConnection) -> None:
        """No earlier connection has to be read before it."""
        self._behind.pop(connection, None)
        connection.phase = max(connection.phase, OPEN)
        connection.release(PauseReason.ORDER)

    def _update(self, connection: SenderConnection) -> None:
        """Bring a connection to what its state requires: sent, polled, ended."""
        self._changed.pop(connection, None)
        if connection.phase is GONE:
            return
        if connection.unsent_bytes and not connection.flush():
            self._drop(connection)
            return
        if not connection.unsent_bytes and connection.phase is not LINGERING and self._is_over(connection) and not self._linger(connection):
            self._drop(connection)
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
        return bool(connection.close_reason) or (
            connection.phase is ENDED and not connection.work and (connection.session is None or not connection.session.unacknowledged_bytes)
        )

    def _linger(self, connection: SenderConnection) -> bool:
        """Everything is sent: discard input until the peer ends, too. False if it has already."""
        if connection.phase is ENDED:
            return False
        connection.phase = LINGERING
        connection.deadline_ms = self._clock.monotonic_ms() + LINGER_MS
        try:
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    # -- once a second

    def sweep(self) -> None:
        """Once a second: sweep listeners, and start a round of ticks."""
        for listening in self._listening_sockets:
            listening.sweep()
        self._ticks = iter(list(self._connections.values()))

    def _tick_some(self) -> int:
        now_ms = self._clock.monotonic_ms()
        ticked = 0
        for connection in self._ticks:
            if connection.phase is not GONE:
                self._tick(connection, now_ms)
            ticked += 1
            if ticked == TICKS_A_TURN:
                break
        return ticked

    def _tick(self, connection: SenderConnection, now_ms: int) -> None:
        idle_ms_max = connection.listener.idle_ms_max
        if connection.deadline_ms and now_ms >= connection.deadline_ms:
            self._drop(connection)
        elif connection.unsent_bytes and now_ms - connection.taken_ms > idle_ms_max:
            connection.listening.count_closed("answers-not-taken")
            self._drop(connection)
        elif connection.session is None:
            if connection.has_begun and now_ms - connection.opened_ms > idle_ms_max:
                connection.close("handshake-timeout")
                self._update(connection)
        elif connection.phase is not LINGERING and not connection.work:
            connection.session.tick(now_ms)
            self._update(connection)

    # -- the end

    def drain(self) -> bool:
        """Stop: take what has arrived, within this turn's share. True if nothing is left, or only
        what arrived since."""
        self._is_draining = True
        if self._throttled:
            self._resume_throttled(self._clock.monotonic_ms())
        for connection in list(self._connections.values()):
            taken_bytes = self._drained_bytes.get(connection, 0)
            if connection.phase is NEW:
                if not self._is_first(connection):
                    return False
                self._release(connection)
                self._update(connection)
            while taken_bytes < DRAIN_BYTES_MAX and connection.interest & select.EPOLLIN and connection.phase is not GONE:
                left = self._turn_bytes_left
                goes_on = self._read(connection)
                self._drained_bytes[connection] = taken_bytes = taken_bytes + left - self._turn_bytes_left
                if not goes_on or connection.pauses or connection.is_stopped:
                    break
                if self._turn_bytes_left <= 0:
                    return False
            self._update(connection)
        return self._work.is_empty

    def _on_unstarted(self, connection: SenderConnection, steps: Steps) -> None:
        """Count input that was received and never looked at; its sender is not answered."""
        if getattr(steps, "gi_code", None) is not _finish.__code__:
            self._intake.refuse(connection.listener, connection.source, RefusedReason.INCOMPLETE)

    def finish_all(self) -> None:
        """End every session; connections close when their groups are complete and their answers are
        sent."""
        for connection in list(self._connections.values()):
            self._work.finish(connection)
            if connection.phase is not ENDED and not connection.close_reason:
                self._on_end(connection, False, is_by_us=True)
            connection.deadline_ms = self._clock.monotonic_ms() + STOP_MS_MAX
            self._update(connection)

    @property
    def is_empty(self) -> bool:
        """True if no connection waits for an answer."""
        return not any(connection.unsent_bytes or not self._is_over(connection) for connection in self._connections.values())

    def close(self) -> None:
        for connection in list(self._connections.values()):
            connection.flush()
            self._drop(connection)
        for listening in self._listening_sockets:
            listening.close()
        self.reserved_descriptor.close()
        if self._owners is not None:
            self._owners.close()
