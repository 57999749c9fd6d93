"""The client connections of an acceptor: accepted, read, answered, swept, closed.

Decides which clients may connect (limits in total and per address), in which order connections send
(`mark_dirty`), how much memory all of them hold, and counts why each was closed (`closings.py`). `serve` names
the code that answers requests. Owned by one acceptor agent. Weak spot: a response that is ready is sent at the
end of the turn, not at once; so one send carries several.
"""

from __future__ import annotations

import heapq
import os
import resource
import select
import socket
from collections import Counter as Tally
from collections.abc import Callable
from typing import TYPE_CHECKING

from appliance.base.errors import ProtocolViolation
from appliance.cluster.broker_configs import CONNECTIONS_MAX, CREATION_RATE
from appliance.runtime.agent import ServiceContext
from appliance.runtime.listening import NO_ROOM_TO_ACCEPT
from appliance.security.listeners import has_console_users
from appliance.security.principals import ANONYMOUS, RequestOrigin
from appliance.security.transport import ClientTransport, PlainTransport
from appliance.shm.arena import Arena
from services.acceptor.closings import (
    ADDRESS_LIMIT,
    ADDRESS_RATE,
    AUTHENTICATION_TIMEOUT,
    CERTIFICATE_REFUSED,
    CLIENT_LEFT,
    CONNECTION_LIMIT,
    DESCRIPTOR_LIMIT,
    DISK_READ_FAILED,
    FRAME_TIMEOUT,
    IDLE,
    MEMORY_LIMIT,
    SLOW_BODY,
    STOPPING,
    TLS_UNAVAILABLE,
    UNANSWERED,
    USER_REFUSED,
    Closings,
)
from services.acceptor.connection import Connection
from services.acceptor.connection_rates import ConnectionRates
from services.acceptor.fetch.cold_reads import ColdReads
from services.acceptor.listening_socket import ADMINISTRATION, LOCAL, Accepted, ListeningSocket, LocalListeningSocket, listening_sockets
from services.acceptor.receiver import OnRequest, Receiver
from services.acceptor.request_memory import HeldMemory

if TYPE_CHECKING:
    from services.acceptor.audit.audit_trail import AuditTrail
    from services.acceptor.sasl_connections import SaslConnections
    from services.acceptor.tls_connections import TlsConnections

READ_INTEREST = select.EPOLLIN | select.EPOLLRDHUP
ACCEPT_BURST = 64
FAIR_BURST = 4
"""Connections that one of several acceptors accepts before the kernel wakes another one."""
ACCEPT_PAUSE_NS = 100_000_000
STILL_NO_ROOM_NS = 1_000_000_000
"""A failure to accept within this time of the last one counts as the same problem."""
NO_ROOM_LOGGED_NS = 60_000_000_000
SHED_IDLE_NS = 10_000_000_000
"""A connection without a request for this long is closed for one that waits to be accepted."""
SHED_AT_ONCE = 64
FIRST_ACCEPTOR = "0"
"""The instance that serves the Unix socket."""
SWEEP_SLICE = 500
"""Connections that a sweep checks in one turn."""
DESCRIPTORS_RESERVED = 512
"""Reserved for segments, channels and look-ups."""


class ClientConnections:
    """`serve` once, then `accept`; a turn is `do_work` and `send_dirty`, and `sweep` once a second."""

    def __init__(self, context: ServiceContext, arena: Arena, segment_files_max: int) -> None:
        self._context = context
        self._clock = context.clock
        self._poller = context.poller
        self._arena = arena
        counters, box = context.counters, context.box
        self._connections: dict[int, Connection] = {}
        self._replaceable: list[tuple[int, Connection]] = []
        """Connections of other listeners with the times at which they were last active, the longest idle last."""
        self._per_address: Tally[tuple[str, str]] = Tally()
        """connections by listener and address"""
        self._dirty: set[Connection] = set()
        self._accepting = False
        self._is_one_of_several = box.acceptors > 1
        self._accept_again_ns = 0
        self._no_room_ns = self._no_room_logged_ns = -NO_ROOM_LOGGED_NS
        self._reserve = _open_reserve()
        """A descriptor that is given up for a moment to accept and close a connection when there is no other; -1: it could not be opened again."""
        self._accept_failures = counters.counter("acceptor.accept_failures")
        self._closings = Closings(counters, self._clock, context.log)
        self._held = HeldMemory(box.integer("acceptor.heap.bytes"))
        self._held_bytes = counters.gauge("acceptor.held_bytes")
        self._segment_files_max = segment_files_max
        self._connections_wanted = box.integer(CONNECTIONS_MAX)
        self._connections_max = self._find_connections_max(self._connections_wanted)
        self.rates = ConnectionRates(box.integer(CREATION_RATE))
        self._paused: list[ListeningSocket] = []
        """listeners above their rate, which take no connection for a moment"""
        self.listening = listening_sockets(box, context.listen_sockets, self._connections_max, context.log)
        self._has_one_listener = len(self.listening) == 1
        self._certificates = {
            each.name: counters.gauge(f'acceptor.certificate_seconds_left{{listener="{each.name}"}}') for each in self.listening if each.tls is not None
        }
        if context.instance == FIRST_ACCEPTOR:
            given = context.listen_sockets.get(ADMINISTRATION)
            path = context.layout.administration_socket(given is not None)
            self.listening.append(LocalListeningSocket(path, box, context.log, bool(box.text("authorizer.class.name")), given))
        self._tls = self._make_tls()
        self.sasl = self._make_sasl()
        """the authentication of clients; None without a listener with SASL and users of the console"""
        self._frame_timeout_ns = box.integer("request.frame.timeout.ms") * 1_000_000
        self._audit: AuditTrail | None = None
        self.on_closed: Callable[[Connection], None] = lambda _: None
        self._connections_open = counters.gauge("acceptor.connections")
        self._connections_accepted = counters.counter("acceptor.connections_accepted")
        self._sendfile_bytes = counters.counter("fetch.sendfile_bytes")
        self._unswept: list[Connection] = []
        """connections that this second's sweep has not come to"""
        self._stopping = False

    def serve(self, on_request: OnRequest, cold: ColdReads) -> None:
        """Set what answers requests, and what reads records for responses that are not in the page cache."""
        request_bytes_max = self._context.box.integer("socket.request.max.bytes")
        self._receiver = Receiver(self._arena, self._clock, self._context.counters, request_bytes_max, on_request, self._update_interest)
        self._cold = cold

    def audit_by(self, audit: AuditTrail) -> None:
        """Report logins."""
        self._audit = audit
        if self.sasl is not None:
            self.sasl.audit = audit

    def serve_by(self, on_request: OnRequest) -> None:
        """Pass requests to another function from now on: there are quotas, or none any more."""
        self._receiver.serve_by(on_request)
        for connection in self._connections.values():
            connection.limits = None

    def mute(self, connection: Connection) -> None:
        """Stop reading a connection; a large body that has begun to come is received, because it holds an arena slot."""
        if connection.body is None and not connection.closed:
            connection.read_paused = True
            connection.frame_since_ns = 0
            self._update_interest(connection)

    def unmute(self, connection: Connection) -> None:
        """Read it again, from what it has sent already."""
        if not connection.closed:
            connection.read_paused = False
            self._resume(connection)

    def _make_tls(self) -> TlsConnections | None:
        """Return None without a listener with TLS: OpenSSL takes 4 MB."""
        if all(listening.tls is None for listening in self.listening):
            return None
        from services.acceptor.tls_connections import TlsConnections

        return TlsConnections(self._on_established, self._on_handshake_wants, self._close, self._receive_tls)

    def _make_sasl(self) -> SaslConnections | None:
        if not any(listening.mechanisms for listening in self.listening) and not has_console_users(self._context.box):
            return None
        from services.acceptor.sasl_connections import SaslConnections

        return SaslConnections(self._context, self.listening, self._on_authenticated, self._close, self.mark_dirty, self._update_interest)

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def has_dirty(self) -> bool:
        """True if a connection has something to send, or TLS has work for the next turn."""
        return bool(self._dirty) or (self._tls is not None and self._tls.has_work)

    @property
    def has_outgoing(self) -> bool:
        """True if a client has not received all of its responses."""
        return any(connection.outgoing for connection in self._connections.values())

    # -- a turn

    def do_work(self, now_ns: int) -> int:
        """Retry requests that waited for an arena slot and accepts that waited for descriptors; sweep a slice."""
        work = 0
        if self._tls is not None:
            work += self._tls.do_work()
        if self.sasl is not None:
            work += self.sasl.do_work(now_ns)
        if self._receiver.has_waiting:
            work += self._receiver.retry(self._resume)
        if self._unswept:
            self._sweep_some(now_ns)
            work += 1
        if self._accept_again_ns and now_ns >= self._accept_again_ns:
            self.accept()
        if self._paused:
            self._resume_paused(now_ns)
        return work

    def send_dirty(self) -> int:
        """Send what is ready; return to how many connections."""
        work = 0
        while self._dirty:
            work += 1
            self._send(self._dirty.pop())
        return work

    def sweep(self, now_ns: int) -> None:
        """Called once a second. The following turns check the connections, in slices."""
        self._close_excess()
        self._unswept = list(self._connections.values())
        for connection in self._receiver.slow_bodies(now_ns):
            self._close(connection, SLOW_BODY, "it sends a large request too slowly, and other requests wait for its arena slot")
        for listening in self.listening:
            if listening.tls is not None:
                listening.tls.reload()
                if listening.tls.expires_s is not None:
                    self._certificates[listening.name].set(max(0, listening.tls.expires_s - self._clock.wall_ms() // 1000))
        self._closings.sweep(now_ns)
        if self.sasl is not None:
            self.sasl.sweep(now_ns)
        self.rates.sweep(now_ns)
        self._held_bytes.set(self._held.total_bytes)
        if self._accepting:
            for listening in self.listening:
                self._accept_some(
                    listening, FAIR_BURST if self._is_one_of_several else ACCEPT_BURST
                )  # EPOLLEXCLUSIVE wakes one acceptor, and that one may be stopped

    def begin_stop(self) -> None:
        """Neither accept nor read any more."""
        self._stopping = True
        self._stop_accepting()
        for connection in self._connections.values():
            self._update_interest(connection)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection, STOPPING)
        self.rates.close()
        for listening in self.listening:
            if listening.own_path:
                listening.socket.close()
        if self.sasl is not None:
            self.sasl.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    # -- coming

    def _find_connections_max(self, wanted: int) -> int:
        """As the setting says, or fewer where the process may not open so many descriptors."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            return wanted
        possible = max(allowed - DESCRIPTORS_RESERVED - self._segment_files_max, allowed // 2)
        if possible < wanted:
            self._context.log.notice(f"takes {possible} connections, not the {wanted} of max.connections: it may open {allowed} descriptors (ulimit -Hn)")
        return min(wanted, possible)

    def set_connections_max(self, wanted: int) -> None:
        """Apply `max.connections`, which may change while the box runs; the next sweeps close those above it."""
        if wanted != self._connections_wanted:
            self._connections_wanted = wanted
            self._connections_max = self._find_connections_max(wanted)
            for listening in self.listening:
                listening.limit_connections(self._connections_max)

    def _close_excess(self) -> None:
        """As in Kafka (KIP-402): those that were last active before the others go, and none of the listener of boxes."""
        excess = len(self._connections) - self._connections_max
        if excess > 0:
            others = filter(self._may_be_closed, self._connections.values())
            for connection in heapq.nsmallest(min(excess, SHED_AT_ONCE), others, key=lambda each: (not each.is_idle, each.last_active_ns)):
                self._close(connection, CONNECTION_LIMIT, f"only {self._connections_max} connections may be open now (max.connections)")

    def _may_be_closed(self, connection: Connection) -> bool:
        """False for connections of boxes, as far as they have a listener of their own."""
        return not connection.listening.is_inter_broker or self._has_one_listener

    def accept(self) -> None:
        """Take connections, from now on."""
        self._accept_again_ns = 0
        if not self._stopping and not self._accepting:
            self._accepting = True
            for listening in self.listening:
                if not listening.paused_until_ns:
                    self._watch_listening(listening)

    def _watch_listening(self, listening: ListeningSocket) -> None:
        self._poller.register(listening.socket.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE, lambda _events: self._on_acceptable(listening))

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            for listening in self.listening:
                if not listening.paused_until_ns:
                    self._poller.unregister(listening.socket.fileno())

    def _pause(self, listening: ListeningSocket, until_ns: int) -> None:
        """Take no connection of this listener for a moment: more would exceed its rate."""
        listening.paused_until_ns = until_ns
        self._paused.append(listening)
        if self._accepting:
            self._poller.unregister(listening.socket.fileno())

    def _resume_paused(self, now_ns: int) -> None:
        for listening in [each for each in self._paused if now_ns >= each.paused_until_ns]:
            self._paused.remove(listening)
            listening.paused_until_ns = 0
            if self._accepting:
                self._watch_listening(listening)

    def _on_acceptable(self, listening: ListeningSocket) -> None:
        self._accept_some(listening, FAIR_BURST if self._is_one_of_several else ACCEPT_BURST)
        if self._is_one_of_several and self._accepting and not listening.paused_until_ns:
            # EPOLLEXCLUSIVE wakes one waiter, and the same one again while it waits. Registering anew puts this acceptor behind the others.
            self._poller.unregister(listening.socket.fileno())
            self._watch_listening(listening)

    def _accept_some(self, listening: ListeningSocket, burst: int) -> None:
        for _ in range(burst):
            if listening.paused_until_ns:
                return
            try:
                accepted = listening.accept()
            except OSError as error:
                if error.errno in NO_ROOM_TO_ACCEPT:
                    self._on_no_room(listening, error)
                return
            if listening.name != LOCAL and self._exceeds_rate(listening, accepted):
                continue
            self._add_connection(listening, accepted)

    def _exceeds_rate(self, listening: ListeningSocket, accepted: Accepted) -> bool:
        """Count a new connection; False if it may stay. The listener pauses if it was one too many for it."""
        now_ns = self._clock.monotonic_ns()
        is_only_own = listening.is_inter_broker and not self._has_one_listener
        pause_ms = self.rates.pause_ms(listening, is_only_own, now_ns // 1_000_000)
        if pause_ms:
            self._pause(listening, now_ns + pause_ms * 1_000_000)
        throttle_ms = self.rates.connection_throttle_ms(accepted.address) if self.rates.connection_throttle_ms is not None else 0
        if throttle_ms:
            self.rates.close_later(accepted.sock, throttle_ms, now_ns)
            self._closings.log(ADDRESS_RATE, accepted.address, "it opens more connections a second than its quota (connection_creation_rate)")
        return throttle_ms > 0

    def _on_no_room(self, listening: ListeningSocket, error: OSError) -> None:
        """Stop accepting for a moment: no descriptor is free.

        The client stays in the queue and the socket readable, so retrying at once would spin, and another
        acceptor may have descriptors. If a client still waits after that, idle connections are closed for
        it; if there are none, it is closed itself.
        """
        now_ns = self._clock.monotonic_ns()
        self._accept_failures.add()
        self._stop_accepting()
        self._accept_again_ns = now_ns + ACCEPT_PAUSE_NS
        if now_ns - self._no_room_logged_ns >= NO_ROOM_LOGGED_NS:
            self._no_room_logged_ns = now_ns
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self._context.log.warning(
                f"cannot accept connections: {error.strerror}; {len(self._connections)} are open, the process may open {limit} descriptors; closing idle "
                "ones, then turning new ones away; raise the limit of open files (LimitNOFILE=, ulimit -Hn), or set max.connections lower",
                reason=DESCRIPTOR_LIMIT,
            )
        if now_ns - self._no_room_ns <= STILL_NO_ROOM_NS and not self._shed_idle(now_ns):
            self._turn_away(listening)
        self._no_room_ns = now_ns

    def _shed_idle(self, now_ns: int) -> bool:
        """Close the connections that were idle for longest. False: none was idle for `SHED_IDLE_NS`."""
        idle = [each for each in self._connections.values() if now_ns - each.last_active_ns >= SHED_IDLE_NS and each.is_idle]
        for connection in heapq.nsmallest(SHED_AT_ONCE, idle, key=lambda each: each.last_active_ns):
            self._close(connection, DESCRIPTOR_LIMIT, "it was idle, and no descriptor was left for new connections")
        return bool(idle)

    def _make_room_for(self, listening: ListeningSocket, origin: RequestOrigin) -> bool:
        """Close a connection of another listener, if boxes connect through this one (KIP-402), or for an administrator on the Unix socket: the one
        that was idle for longest, or, if none is idle, that was last active before the others."""
        if not (listening.is_inter_broker or origin.is_privileged) or not listening.can_serve:
            return False
        longest = self._longest_idle(listening)
        if longest is not None:
            self._close(longest, CONNECTION_LIMIT, f"{self._connections_max} connections are open (max.connections), and a box or administrator connects")
        return longest is not None

    def _longest_idle(self, listening: ListeningSocket) -> Connection | None:
        """Look at all connections once for a burst: comparing 10,000 takes 15 ms."""
        while self._replaceable:
            active_ns, candidate = self._replaceable.pop()
            if active_ns == candidate.last_active_ns and candidate.is_idle and not candidate.closed and candidate.listening is not listening:
                return candidate
        others = (each for each in self._connections.values() if each.listening is not listening and self._may_be_closed(each))
        longest = heapq.nsmallest(ACCEPT_BURST, others, key=lambda each: (not each.is_idle, each.last_active_ns))
        self._replaceable = [(each.last_active_ns, each) for each in longest[:0:-1]]
        return longest[0] if longest else None

    def _turn_away(self, listening: ListeningSocket) -> None:
        """Accept and close waiting clients, with the reserved descriptor: a closed client retries, a queued one hangs."""
        for _ in range(ACCEPT_BURST):
            if self._reserve >= 0:
                os.close(self._reserve)
                self._reserve = -1
            try:
                accepted = listening.accept()
            except OSError:
                break  # none waits; or the descriptor is taken
            accepted.sock.close()
            self._closings.log(DESCRIPTOR_LIMIT, accepted.address, "no descriptor was left for it")
        if self._reserve < 0:
            self._reserve = _open_reserve()

    def _add_connection(self, listening: ListeningSocket, accepted: Accepted) -> None:
        sock, address, origin, words = accepted
        if words:
            sock.close()
            self._closings.log(USER_REFUSED, address, words)
            if self._audit is not None:
                self._audit.login_failed(origin.principal.name, address, listening.name, "Unix socket", USER_REFUSED)
            return
        limited = listening.limited(address, origin)
        if listening.open_count >= listening.connections_max:
            sock.close()
            words = f"{listening.connections_max} connections of listener {listening.name} are open (max.connections)"
            self._closings.log(CONNECTION_LIMIT, address, words)
            return
        if self._per_address[limited] >= listening.per_address_max:
            sock.close()
            self._closings.log(ADDRESS_LIMIT, address, f"it has {listening.per_address_max} connections (max.connections.per.ip)")
            return
        if len(self._connections) >= self._connections_max and not self._make_room_for(listening, origin):
            sock.close()
            self._closings.log(CONNECTION_LIMIT, address, f"{self._connections_max} connections are open (max.connections)")
            return
        sock.setblocking(False)
        if listening.name != LOCAL:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listening.tls is not None:
            transport = self._tls_transport(listening, sock, address)
            if transport is None:
                return
        else:
            transport = PlainTransport(sock)
        connection = Connection(transport, address, self._clock.monotonic_ns(), origin)
        listening.open_count += 1
        connection.listening = listening
        connection.limited = limited
        descriptor = transport.fileno()
        self._connections[descriptor] = connection
        self._per_address[limited] += 1
        connection.interest = READ_INTEREST
        if listening.tls is None:
            if listening.mechanisms:
                self._begin_sasl(connection)
            else:
                self._poller.register(descriptor, READ_INTEREST, lambda events: self._on_event(connection, events))
        else:
            connection.frame_since_ns = connection.last_active_ns  # the deadline of the handshake is that of a request
            self._poller.register(descriptor, READ_INTEREST, lambda events: self._on_handshake_event(connection, events))
        if listening.name == LOCAL and self._audit is not None:
            self._audit.login(connection, "Unix socket")
        self._connections_accepted.add()
        self._connections_open.set(len(self._connections))

    # -- TLS

    def _tls_transport(self, listening: ListeningSocket, sock: socket.socket, address: str) -> ClientTransport | None:
        """Wrap an accepted socket; None if the listener has no usable certificate. The handshake follows in later turns."""
        assert listening.tls is not None
        context = listening.tls.current
        if context is None:
            sock.close()
            self._closings.log(TLS_UNAVAILABLE, address, f"listener {listening.name} has no usable certificate")
            return None
        from appliance.security.tls_transport import TlsTransport

        try:
            return TlsTransport(context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))
        except OSError:  # the client left
            sock.close()
            self._closings.count(CLIENT_LEFT)
            return None

    def _on_handshake_event(self, connection: Connection, _events: int) -> None:
        if not connection.closed and self._tls is not None:
            self._tls.on_handshake_event(connection)

    def _on_handshake_wants(self, connection: Connection, to_write: bool) -> None:
        interest = READ_INTEREST if not to_write else select.EPOLLOUT
        if interest != connection.interest:
            connection.interest = interest
            self._poller.modify(connection.transport.fileno(), interest)

    def _on_established(self, connection: Connection) -> None:
        """Receive requests from now on; some may have come with the end of the handshake."""
        connection.frame_since_ns = 0
        descriptor = connection.transport.fileno()
        self._poller.unregister(descriptor)
        connection.interest = READ_INTEREST
        if connection.listening.mechanisms and not connection.mechanism:
            self._begin_sasl(connection)
            return
        if self._audit is not None and not connection.mechanism and connection.principal != ANONYMOUS:
            self._audit.login(connection, "certificate")
        self._poller.register(descriptor, READ_INTEREST, lambda events: self._on_tls_event(connection, events))
        if not self._stopping:
            self._receive_tls(connection)

    def _on_tls_event(self, connection: Connection, events: int) -> None:
        """As `_on_event`, with what only TLS needs."""
        if connection.closed:
            return
        if (events & select.EPOLLIN or connection.transport.wants_write) and not connection.read_paused:  # type: ignore[attr-defined]
            self._receive_tls(connection)
        elif events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            self._close(connection, CLIENT_LEFT)
            return
        if events & select.EPOLLOUT and not connection.closed:
            self._send(connection)

    def _receive_tls(self, connection: Connection) -> None:
        self._receive(connection)
        if connection.closed or self._tls is None:
            return
        self._tls.on_received(connection)
        if connection.transport.wants_write:  # type: ignore[attr-defined]
            # Until it is writable nothing can be received, and a readable socket would be reported again and again.
            connection.interest = select.EPOLLOUT | select.EPOLLRDHUP
            self._poller.modify(connection.transport.fileno(), connection.interest)
        elif not connection.interest & select.EPOLLIN:
            self._update_interest(connection)

    # -- SASL

    def _begin_sasl(self, connection: Connection) -> None:
        """Let the connection authenticate; its first request may have come with the end of a TLS handshake."""
        assert self.sasl is not None
        self._poller.register(connection.transport.fileno(), READ_INTEREST, lambda events: self._on_sasl_event(connection, events))
        self.sasl.begin(connection)
        if connection.listening.tls is not None and not self._stopping:
            self.sasl.receive(connection)

    def _on_sasl_event(self, connection: Connection, events: int) -> None:
        if connection.closed or self.sasl is None:
            return
        if events & select.EPOLLIN and not connection.read_paused:
            connection.last_active_ns = self._clock.monotonic_ns()
            self.sasl.receive(connection)
        elif events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            self._close(connection, CLIENT_LEFT)
            return
        if events & select.EPOLLOUT and not connection.closed:
            self._send(connection)

    def _on_authenticated(self, connection: Connection, received: bytes) -> None:
        """Receive requests from now on; `received` are the first ones."""
        if connection.listening.tls is None:
            descriptor = connection.transport.fileno()
            self._poller.unregister(descriptor)
            connection.interest = READ_INTEREST
            self._poller.register(descriptor, READ_INTEREST, lambda events: self._on_event(connection, events))
        connection.pending = received
        if received:
            self._resume(connection)
        if connection.listening.tls is not None and not connection.closed:
            self._on_established(connection)

    # -- reading and sending

    def _on_event(self, connection: Connection, events: int) -> None:
        if connection.closed:
            return
        if events & select.EPOLLIN and not connection.read_paused:
            self._receive(connection)
        elif events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            self._close(connection, CLIENT_LEFT)
            return
        if events & select.EPOLLOUT and not connection.closed:
            self._send(connection)

    def _receive(self, connection: Connection) -> None:
        connection.last_active_ns = self._clock.monotonic_ns()
        try:
            if not self._receiver.receive(connection):
                self._close(connection, CLIENT_LEFT)
                return
        except ProtocolViolation as violation:
            self._violated(connection, violation)
            return
        except OSError:
            self._close(connection, CLIENT_LEFT)
            return
        self._charge(connection)

    def _charge(self, connection: Connection) -> None:
        """Count what the connection holds; close the oldest large holders if all hold too much together."""
        if connection.closed or not (connection.held_bytes or connection.pending or connection.outgoing_bytes or connection.request_bytes):
            return
        held = self._held
        held.update(connection)
        if held.is_over:
            for leaving in held.plan_shedding():
                words = f"it holds {leaving.held_bytes} bytes of the {held.limit_bytes} that all connections may hold (acceptor.heap.bytes)"
                self._close(leaving, MEMORY_LIMIT, words)

    def _violated(self, connection: Connection, violation: ProtocolViolation) -> None:
        self._close(connection, violation.reason, str(violation))

    def mark_dirty(self, connection: Connection) -> None:
        """The connection has something to send: the next `send_dirty` sends it."""
        self._dirty.add(connection)

    def on_disk_read_failed(self, connection: Connection) -> None:
        """Its response was sent in part and cannot be completed: close the connection."""
        self._close(connection, DISK_READ_FAILED)

    def _send(self, connection: Connection) -> None:
        """Send what is ready, then read requests that had to wait for that."""
        if connection.closed or connection.waits_for_disk:
            return
        if connection.outgoing:
            connection.last_active_ns = self._clock.monotonic_ns()  # the client reads its response, however slowly
        try:
            stays_open = connection.collect_ready()
            sent_before = connection.sent_file_bytes
            connection.send_outgoing()
            self._sendfile_bytes.add(connection.sent_file_bytes - sent_before)
            if not stays_open:
                self._close(connection, *(connection.closing or (UNANSWERED,)))
                return
            if not self._cold.maybe_read_rest(connection):
                self._close(connection, DISK_READ_FAILED)
                return
            if connection.read_paused:
                self._receiver.resume(connection)
        except ProtocolViolation as violation:
            self._violated(connection, violation)
            return
        except OSError:
            self._close(connection, CLIENT_LEFT)
            return
        self._update_interest(connection)
        self._charge(connection)

    def _update_interest(self, connection: Connection) -> None:
        reads = not connection.read_paused and not self._stopping
        interest = (READ_INTEREST if reads else 0) | (select.EPOLLOUT if connection.outgoing and not connection.waits_for_disk else 0)
        if interest != connection.interest and not connection.closed:
            connection.interest = interest
            self._poller.modify(connection.transport.fileno(), interest)

    def _resume(self, connection: Connection) -> None:
        """Continue with a connection whose request found no free arena slot."""
        try:
            self._receiver.resume(connection)
        except ProtocolViolation as violation:
            self._violated(connection, violation)
            return
        self._update_interest(connection)
        self._charge(connection)

    # -- going

    def _sweep_some(self, now_ns: int) -> None:
        """Close idle and slow connections, a few per turn: ten thousand would delay all clients by 10 ms."""
        some, self._unswept = self._unswept[-SWEEP_SLICE:], self._unswept[:-SWEEP_SLICE]
        for connection in some:
            if connection.closed:
                continue
            if connection.sasl is not None and now_ns - connection.sasl.began_ns > self._frame_timeout_ns:
                self._close(connection, AUTHENTICATION_TIMEOUT, "it did not authenticate in time (request.frame.timeout.ms)")
            elif connection.frame_since_ns and now_ns - connection.frame_since_ns > self._frame_timeout_ns:
                self._close(connection, FRAME_TIMEOUT, "it did not send a whole request in time (request.frame.timeout.ms)")
            elif now_ns - connection.last_active_ns > connection.listening.idle_ns and not connection.replies:
                self._close(connection, IDLE)
            if connection.outgoing and connection.move_to_heap(now_ns):
                self._charge(connection)
            if connection.replies:
                for reply in list(connection.replies):
                    if reply.awaited is not None and now_ns > reply.awaited.deadline_ns:
                        reply.awaited.on_too_late()

    def _close(self, connection: Connection, reason: str, words: str = "") -> None:
        """Close a connection and count the reason; `words` go to the log, if the client caused it."""
        if connection.closed:
            return
        connection.closed = True
        descriptor = connection.transport.fileno()
        self._poller.unregister(descriptor)
        del self._connections[descriptor]
        listening = connection.listening
        listening.open_count -= 1
        self._per_address[connection.limited] -= 1
        if not self._per_address[connection.limited]:
            del self._per_address[connection.limited]
        self._receiver.drop(connection)
        if self._tls is not None:
            self._tls.forget(connection)
        connection.outgoing.clear()
        connection.replies.clear()
        connection.transport.close()
        self._held.forget(connection)
        self.on_closed(connection)
        self._dirty.discard(connection)
        self._connections_open.set(len(self._connections))
        if reason == CERTIFICATE_REFUSED and self._audit is not None:
            self._audit.login_failed(ANONYMOUS.name, connection.address, listening.name, "certificate", words)
        if words:
            self._closings.log(reason, connection.address, words)
        else:
            self._closings.count(reason)


def _open_reserve() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
