"""Where senders of one listener come in: its listening socket, its certificate, its proxies, and the protocol of its sessions.

Owned by the room of the connections; the socket belongs to the supervisor and outlives us. With several ingests on one socket the kernel wakes one for each
connection (EPOLLEXCLUSIVE), always the same one if it can; so who has taken some registers anew and is behind the others. Weak: the kernel tells nobody else if
that one does not take it, hence the look once a second; and turns are by connections, however much each of them sends.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

from appliance.base.logging import Logger
from appliance.runtime.listening import NO_ROOM_TO_ACCEPT
from appliance.runtime.poller import Poller
from appliance.senders.accounting import INPUT_BYTES_COUNTER
from appliance.senders.listener import Listener, Transport
from appliance.shm.counters import Counters
from services.ingest.listeners.peer_address import address_text
from services.ingest.listeners.proxy_header import Networks, ProxyHeader
from services.ingest.listeners.sender_stream import PLAIN, SenderStream, StreamError
from services.ingest.protocols.registry import session_of
from services.ingest.records.event import EventSource

if TYPE_CHECKING:
    from services.ingest.listeners.sender_connection import SenderConnection
    from services.ingest.listeners.sender_connections import SenderConnections
    from services.ingest.listeners.tls_contexts import TlsContext
    from services.ingest.protocols.session import MakeSession

ACCEPT_BURST = 64
FAIR_BURST = 4
"""Where several ingests share the socket."""


class ListeningSocket:
    """One listener's side of the room."""

    def __init__(self, listener: Listener, sock: socket.socket, room: SenderConnections, poller: Poller, counters: Counters, log: Logger) -> None:
        self.listener = listener
        self.source_transport = str(listener.protocol).encode() if listener.protocol != "syslog" else str(listener.transport).encode()
        self.input_bytes = counters.counter(INPUT_BYTES_COUNTER.format(listener=listener.name))
        self._socket = sock
        self._room = room
        self._poller = poller
        self._counters = counters
        self._log = log
        self._proxies = Networks(listener.proxy_from)
        self._make_session: MakeSession | None = None
        self._tls = self._tls_context()
        self._accepting = self._is_pausing = False
        self._accept_failures = counters.counter("ingest.accept_failures")
        self._said: set[str] = set()
        sock.setblocking(False)

    def _tls_context(self) -> TlsContext | None:
        if self.listener.transport is not Transport.TLS:
            return None
        from services.ingest.listeners.tls_contexts import TlsContext  # OpenSSL: 4 MB that only who needs them should pay for

        return TlsContext(self.listener, self._log)

    @property
    def make_session(self) -> MakeSession:
        if self._make_session is None:
            self._make_session = session_of(self.listener.protocol)
        return self._make_session

    def make_stream(self) -> SenderStream:
        """Raises StreamError without a usable certificate."""
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

    def look(self) -> None:
        """Once a second: connections that nobody was woken for, and the certificate's files."""
        if self._accepting:
            if self._is_pausing:
                self._listen()
            self._on_acceptable(0)
        if self._tls is not None:
            self._tls.look()

    def _on_acceptable(self, events: int) -> None:
        self._accept_some(FAIR_BURST if self._room.is_one_of_several else ACCEPT_BURST)
        if events and self._room.is_one_of_several and self._accepting and not self._is_pausing:
            self._poller.unregister(self._socket.fileno())  # the kernel wakes who has waited longest since it was registered: let that be another one
            self._listen()

    def _accept_some(self, burst: int) -> None:
        for _ in range(burst):
            try:
                sock, peer = self._socket.accept()
            except OSError as error:
                if error.errno in NO_ROOM_TO_ACCEPT:
                    # The sender stays in the queue and the socket stays readable: without a pause until the next look we would spin.
                    self._accept_failures.add()
                    self._poller.unregister(self._socket.fileno())
                    self._is_pausing = True
                return
            self._room.welcome(self, sock, peer[0], peer[1])

    # -- what connections ask

    def on_header(self, connection: SenderConnection, header: ProxyHeader) -> None:
        """A proxy says who the sender is: recorded; and believed, if `proxy-from` names the proxies. Raises StreamError for one that it does not name."""
        if self._proxies and not self._proxies.holds(connection.address):
            raise StreamError("proxy-not-allowed", "sends a PROXY header and is not among proxy-from")
        if not header.address:
            return
        claimed, host = address_text(header.address, header.port)
        connection.source = connection.source._replace(proxied_source=claimed)
        if self._proxies:
            connection.source = connection.source._replace(host=host)
            self._room.move_address(connection, header.address)

    def count_closed(self, reason: str) -> None:
        self._counters.counter(f'ingest.closed{{reason="{reason}"}}').add()

    def say_once(self, connection: SenderConnection, error: StreamError) -> None:
        """Each kind of trouble once: a port that is scanned must not fill the journal."""
        if error.words and error.reason not in self._said:
            self._said.add(error.reason)
            words = f"a sender at {connection.source.address.decode()} {error.words} (listener {self.listener.name}; said once, counted always)"
            self._log.warning(words, listener=self.listener.name, reason=error.reason)

    def close(self) -> None:
        self.accept(False)
        self._socket.close()
