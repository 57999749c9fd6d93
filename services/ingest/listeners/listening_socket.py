"""One listener: its listening socket, certificate, proxies, and the protocol of its sessions.

Owned by `SenderConnections`; the socket belongs to the supervisor and survives this process. If
several ingests share a socket, the kernel wakes one of them for each connection (EPOLLEXCLUSIVE),
the same one again while it waits. So a process that has accepted registers anew, which puts it
behind the others.

Weak: if the woken process does not accept, the kernel wakes no other; therefore all accept once a
second. Turns are by connections, regardless of how much each sends.
"""

from __future__ import annotations

import os
import select
import socket
from typing import TYPE_CHECKING, Protocol

from appliance.runtime.agent import ServiceContext
from appliance.runtime.listening import NO_ROOM_TO_ACCEPT
from appliance.senders.accounting import INPUT_BYTES_COUNTER
from appliance.senders.listener import Listener, ListenerTransport
from services.ingest.listeners.proxy_header import Networks, ProxyHeader
from services.ingest.listeners.sender_quotas import SenderQuotas
from services.ingest.listeners.sender_stream import PLAIN, SenderStream, StreamError
from services.ingest.protocols.session import session_of
from services.ingest.records.event import EventSource, address_text

if TYPE_CHECKING:
    from services.ingest.listeners.tls_stream import TlsContext
    from services.ingest.protocols.session import MakeSession

ACCEPT_BURST = 64
SWEEPS_FOR_OTHERS = 5
"""Seconds in which another ingest accepts what this one has no descriptor for."""
FAIR_BURST = 4
"""If several ingests share the socket."""


class ReservedDescriptor:
    """A descriptor that is given up for a moment to refuse connections while no other is free."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._reserve()

    def _reserve(self) -> None:
        try:
            self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass  # none is free; the next refusal tries again

    def refuse(self, listening: socket.socket, count_max: int) -> int:
        """Accept and close waiting connections; return how many. A refused sender retries, one in
        the backlog hangs."""
        self.close()
        refused = 0
        while refused < count_max:
            try:
                sock, _ = listening.accept()
            except OSError:
                break  # none waits, or another process took the last descriptor (ENFILE)
            sock.close()
            refused += 1
        self._reserve()
        return refused

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ConnectionOwner(Protocol):
    """`SenderConnections`, as its listening sockets use it."""

    is_one_of_several: bool
    reserved_descriptor: ReservedDescriptor

    def on_accepted(self, listening: SenderListeningSocket, sock: socket.socket, address: str, port: int) -> None: ...

    def move_address(self, old: str, new: str) -> None: ...


class SenderListeningSocket:
    """One listener of an ingest."""

    def __init__(self, listener: Listener, sock: socket.socket, connections: ConnectionOwner, context: ServiceContext) -> None:
        counters = context.counters
        self.listener = listener
        self.source_transport = str(listener.protocol).encode() if listener.protocol != "syslog" else str(listener.transport).encode()
        self.input_bytes = counters.counter(INPUT_BYTES_COUNTER.format(listener=listener.name))
        self._socket = sock
        self._connections = connections
        self._poller = context.poller
        self._counters = counters
        self._log = context.log
        self._proxies = Networks(listener.proxy_from)
        self._make_session: MakeSession | None = None
        self.quotas = SenderQuotas(listener, context.clock)
        self._tls = self._tls_context()
        self._accepting = self._is_pausing = self._is_refusing = False
        self._pausing_sweeps = 0
        self._accept_failures = counters.counter("ingest.accept_failures")
        self._logged: set[str] = set()
        sock.setblocking(False)

    def _tls_context(self) -> TlsContext | None:
        if self.listener.transport is not ListenerTransport.TLS:
            return None
        from services.ingest.listeners.tls_stream import TlsContext  # imported on demand: OpenSSL takes 4 MB

        return TlsContext(self.listener, self._log)

    @property
    def make_session(self) -> MakeSession:
        if self._make_session is None:
            self._make_session = session_of(self.listener.protocol)
        return self._make_session

    def make_stream(self) -> SenderStream:
        """Return a stream for a new connection. Raises StreamError without a usable certificate."""
        if self._tls is None:
            return PLAIN
        if self._tls.current is None:
            raise StreamError("tls-no-certificate")
        from services.ingest.listeners.tls_stream import TlsStream

        return TlsStream(self._tls.current, self.listener.client_names)

    def source_of(self, address: str, port: int) -> EventSource:
        return EventSource(*address_text(address, port), self.source_transport)

    # -- accepting

    def accept(self, accepting: bool) -> None:
        if accepting != self._accepting:
            self._accepting = accepting
            if accepting:
                self._listen()
            else:
                self._poller.unregister(self._socket.fileno())

    def _listen(self) -> None:
        self._is_pausing = False
        self._poller.register(self._socket.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE, self._on_acceptable)

    def sweep(self) -> None:
        """Once a second: accept connections that no process was woken for, and reload a changed
        certificate."""
        if self._accepting:
            was_pausing = self._is_pausing
            if was_pausing:
                self._listen()
            self._on_acceptable(0)
            if was_pausing and self._is_pausing:
                self._maybe_refuse()
            elif not self._is_pausing:
                self._is_refusing = False
                self._pausing_sweeps = 0
        if self._tls is not None:
            self._tls.reload()

    def _on_acceptable(self, events: int) -> None:
        self._accept_some(FAIR_BURST if self._connections.is_one_of_several else ACCEPT_BURST)
        if events and self._connections.is_one_of_several and self._accepting and not self._is_pausing:
            self._poller.unregister(self._socket.fileno())  # behind the other ingests
            self._listen()

    def _accept_some(self, burst: int) -> None:
        for _ in range(burst):
            try:
                sock, peer = self._socket.accept()
            except OSError as error:
                if error.errno in NO_ROOM_TO_ACCEPT:
                    # The sender stays in the queue and the socket readable: going on at once would
                    # spin.
                    self._accept_failures.add()
                    self._poller.unregister(self._socket.fileno())
                    self._is_pausing = True
                return
            self._connections.on_accepted(self, sock, peer[0], peer[1])

    def _maybe_refuse(self) -> None:
        """No descriptor was free for a second. If other ingests share the socket, they accept what
        waits; what they leave for several seconds is refused."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        self._pausing_sweeps = self._pausing_sweeps + 1 if poll.poll(0) else 0
        if self._pausing_sweeps and (not self._connections.is_one_of_several or self._pausing_sweeps >= SWEEPS_FOR_OTHERS):
            self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Close the connections in the backlog, where they would wait without end."""
        refused = self._connections.reserved_descriptor.refuse(self._socket, ACCEPT_BURST)
        self.count_closed("descriptor-limit", refused)
        if refused and not self._is_refusing:
            self._is_refusing = True
            message = f"listener {self.listener.name} refuses new connections: no file descriptor is free; raise the limit of open files"
            self._log.warning(f"{message} (LimitNOFILE=, ulimit -Hn), or lower max.connections", listener=self.listener.name, reason="descriptor-limit")

    # -- called by connections

    def origin_behind(self, header: ProxyHeader, source: EventSource, address: str) -> tuple[EventSource, str]:
        """Return a sender's source and address after its PROXY header: the header's address is
        recorded, and is the sender's if the peer is in `proxy-from`. Raises StreamError if
        `proxy-from` does not contain the peer."""
        if self._proxies and not self._proxies.holds(address):
            raise StreamError("proxy-not-allowed", "sends a PROXY header and is not among proxy-from")
        if not header.address:
            return source, address
        claimed, host = address_text(header.address, header.port)
        if not self._proxies:
            return source._replace(proxied_source=claimed), address
        self._connections.move_address(address, header.address)
        return source._replace(proxied_source=claimed, host=host), header.address

    def count_closed(self, reason: str, count: int = 1) -> None:
        self._counters.counter(f'ingest.closed{{reason="{reason}"}}').add(count)

    def log_once(self, source: EventSource, error: StreamError) -> None:
        """Log each kind of failure once, so that a port scan does not fill the journal."""
        if error.message and error.reason not in self._logged:
            self._logged.add(error.reason)
            message = f"a sender at {source.address.decode()} {error.message} (listener {self.listener.name}; logged once, always counted)"
            self._log.warning(message, listener=self.listener.name, reason=error.reason)

    def close(self) -> None:
        self.accept(False)
        self._socket.close()
