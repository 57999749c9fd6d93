"""Syslog over TCP: accepts senders, splits their streams, and stops reading those whose lines nobody can take now.

Owned by one ingest agent. Nothing that was received is dropped: a connection whose partition is blocked is paused after the piece
that met the block, and the sender feels it through TCP. A closing connection's last line is taken without its trailer.
Weak: what a sender has in our kernel's receive buffer when the process is killed is lost; plain syslog has no acknowledgement.
"""

from __future__ import annotations

import select
import socket
from collections import Counter as Tally

from appliance.agents.syslog_intake import SyslogIntake, address_text
from appliance.ingest.event import EventSource
from appliance.ingest.syslog_framing import SyslogSplitter
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters

RECEIVE_BYTES = 65536
ACCEPT_BURST = 64
KEEPALIVE_SECONDS = 60
_INTEREST = select.EPOLLIN | select.EPOLLRDHUP


class SyslogConnection:
    """One sender. `blocked_partition` is what its reading waits for, -1 if it does not wait."""

    __slots__ = ("address", "blocked_partition", "cut_messages", "resynchronisations", "socket", "source", "splitter")

    def __init__(self, sock: socket.socket, address: str, source: EventSource, max_message_bytes: int) -> None:
        self.socket = sock
        self.address = address
        self.source = source
        self.splitter = SyslogSplitter(max_message_bytes)
        self.blocked_partition = -1
        self.cut_messages = 0
        self.resynchronisations = 0


class SyslogConnections:
    """All senders of one ingest."""

    def __init__(
        self,
        listening: socket.socket,
        poller: Poller,
        intake: SyslogIntake,
        max_message_bytes: int,
        connections_max: int,
        per_address_max: int,
        counters: Counters,
    ) -> None:
        self._listening = listening
        self._poller = poller
        self._intake = intake
        self._max_message_bytes = max_message_bytes
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._connections: dict[int, SyslogConnection] = {}
        self._paused: dict[SyslogConnection, None] = {}
        self._per_address: Tally[str] = Tally()
        self._accepting = False
        self._counters = counters
        self._open = counters.counter("ingest.connections")
        self._accepted = counters.counter("ingest.connections_accepted")
        self._pauses = counters.counter("ingest.connections_paused")
        self._truncated = counters.counter('ingest.truncated{transport="tcp"}')
        self._resynchronised = counters.counter("ingest.framing_resynchronised")
        self._open.set(0)
        listening.setblocking(False)

    def __len__(self) -> int:
        return len(self._connections)

    # -- coming and going

    def accept(self, accepting: bool) -> None:
        """Start or stop accepting."""
        if accepting != self._accepting:
            self._accepting = accepting
            if accepting:
                self._poller.register(self._listening.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE, self._on_acceptable)
            else:
                self._poller.unregister(self._listening.fileno())

    def look(self) -> None:
        """Once a second: a connection that woke a process which does not take it (EPOLLEXCLUSIVE wakes one) is told to nobody else."""
        if self._accepting:
            self._on_acceptable(0)

    def _on_acceptable(self, _events: int) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                sock, peer = self._listening.accept()
            except OSError:
                return
            self.add(sock, peer[0], peer[1])

    def add(self, sock: socket.socket, address: str, port: int) -> None:
        """A connected sender."""
        if len(self._connections) >= self._connections_max or self._per_address[address] >= self._per_address_max:
            self._counters.counter('ingest.closed{reason="connection-limit"}').add()
            sock.close()
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        connection = SyslogConnection(sock, address, EventSource(*address_text(address, port), b"tcp"), self._max_message_bytes)
        descriptor = sock.fileno()
        self._connections[descriptor] = connection
        self._per_address[address] += 1
        self._poller.register(descriptor, _INTEREST, lambda _events: self._on_readable(connection))
        self._accepted.add()
        self._open.set(len(self._connections))

    def _close(self, connection: SyslogConnection) -> None:
        descriptor = connection.socket.fileno()
        self._poller.unregister(descriptor)
        del self._connections[descriptor]
        self._paused.pop(connection, None)
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]
        connection.socket.close()
        self._open.set(len(self._connections))

    # -- reading

    def _on_readable(self, connection: SyslogConnection) -> None:
        if self._intake.turn_bytes_left > 0 and connection.blocked_partition < 0 and connection.socket.fileno() >= 0:
            self._read(connection)

    def _read(self, connection: SyslogConnection) -> bool:
        """One piece; False when there was none, or the connection ended."""
        try:
            received = connection.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""  # reset: what came before it is still worth keeping
        splitter = connection.splitter
        messages = splitter.feed(received) if received else splitter.finish()
        if splitter.proxied_source is not None and connection.source.proxied_source is None:
            connection.source = connection.source._replace(proxied_source=splitter.proxied_source)
        blocked_partition = self._intake.take_stream(messages, len(received), connection.source)
        self._count_oddities(connection)
        if not received:
            self._close(connection)
            return False
        if blocked_partition >= 0:
            self._pause(connection, blocked_partition)
            return False
        return True

    def _count_oddities(self, connection: SyslogConnection) -> None:
        splitter = connection.splitter
        if splitter.cut_messages != connection.cut_messages:
            self._truncated.add(splitter.cut_messages - connection.cut_messages)
            connection.cut_messages = splitter.cut_messages
        if splitter.resynchronisations != connection.resynchronisations:
            self._resynchronised.add(splitter.resynchronisations - connection.resynchronisations)
            connection.resynchronisations = splitter.resynchronisations

    def _pause(self, connection: SyslogConnection, partition: int) -> None:
        connection.blocked_partition = partition
        self._paused[connection] = None
        self._pauses.add()
        # Not modify(…, 0): a hang-up is reported whatever the interest, and would spin until the block is over.
        self._poller.unregister(connection.socket.fileno())

    def resume(self, blocked: frozenset[int]) -> None:
        """Go on reading those whose partition takes lines again."""
        for connection in [connection for connection in self._paused if connection.blocked_partition not in blocked]:
            del self._paused[connection]
            connection.blocked_partition = -1
            self._poller.register(connection.socket.fileno(), _INTEREST, lambda _events, connection=connection: self._on_readable(connection))  # type: ignore[misc]

    def drain(self) -> bool:
        """Stopping: take what has arrived, as far as this turn's share goes. True when nothing is left to be taken."""
        for connection in list(self._connections.values()):
            if connection.blocked_partition >= 0:
                continue
            while self._read(connection):
                if self._intake.turn_bytes_left <= 0:
                    return False
        return True

    def close_all(self) -> None:
        """Take the unfinished lines and close every connection."""
        for connection in list(self._connections.values()):
            self._intake.take_stream(connection.splitter.finish(), 0, connection.source)
            self._count_oddities(connection)
            self._close(connection)

    def close(self) -> None:
        self.accept(False)
        for connection in list(self._connections.values()):
            self._close(connection)
        self._listening.close()
