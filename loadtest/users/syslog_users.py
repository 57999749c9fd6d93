"""Users that send syslog, RFC 5424: datagrams, or a TCP stream with octet counts (RFC 6587). Imports locust.

Python's sockets are gevent's here, so a sender that must wait lets others run. Nothing acknowledges a line: what counts as sent was taken by the kernel whole.
Weak spot: what lay in the kernel's buffers when a connection broke may or may not have been received; the last call's lines are counted as unknown,
those of calls before it may be missing.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime
from typing import Any

from loadtest.users.box_user import BoxUser
from loadtest.users.crew import crew
from loadtest.users.sample_text import padded
from loadtest.users.targets import syslog_address

PRIORITY = 134
"""local0.info"""
CONNECT_SECONDS = 5.0


class SyslogUser(BoxUser):
    """Sends `--batch-lines` lines at a time. Each user is a host, so its lines have a key of their own."""

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._socket: socket.socket | None = None
        self._sent = 0

    def rate(self) -> float:
        return float(crew.options.syslog_rate)

    def lines(self) -> list[bytes]:
        options = crew.options
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        head = f"<{PRIORITY}>1 {now} {self.name} loadtest {os.getpid()} {options.run_id} - "
        self._sent += options.batch_lines
        return [padded(f"{head}{self._sent - options.batch_lines + number} ", options.line_bytes) for number in range(options.batch_lines)]

    def act(self) -> None:
        started = time.perf_counter()
        size_bytes, failure = 0, ""
        try:
            if self._socket is None:
                self._socket = self.connect()
            size_bytes = self.send(self._socket, self.lines())
        except OSError as error:
            failure = error.strerror or type(error).__name__
            self.close()
        self.report(str(syslog_address(crew.options)), (time.perf_counter() - started) * 1000, size_bytes, failure)

    def connect(self) -> socket.socket:
        raise NotImplementedError

    def send(self, connection: socket.socket, lines: list[bytes]) -> int:
        """Counts them in the ledger, whatever happens; returns bytes."""
        raise NotImplementedError

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()


class SyslogTcpUser(SyslogUser):
    """One connection. The time of a request is how long the box made it wait: next to nothing, until it is too slow."""

    abstract = False
    kind = "syslog-tcp"

    def connect(self) -> socket.socket:
        return socket.create_connection(syslog_address(crew.options), CONNECT_SECONDS)

    def send(self, connection: socket.socket, lines: list[bytes]) -> int:
        data = b"".join(b"%d %s" % (len(line), line) for line in lines)
        try:
            connection.sendall(data)
        except OSError:
            crew.ledger.add_lines("tcp", 0, unknown=len(lines))
            raise
        crew.ledger.add_lines("tcp", len(lines))
        return len(data)


class SyslogUdpUser(SyslogUser):
    """Datagrams from one port. The time of a request is the kernel's, and says little."""

    abstract = False
    kind = "syslog-udp"

    def connect(self) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(*syslog_address(crew.options), type=socket.SOCK_DGRAM)[0]
        connection = socket.socket(family, kind, protocol)
        connection.connect(address)
        return connection

    def send(self, connection: socket.socket, lines: list[bytes]) -> int:
        sent = 0
        try:
            for line in lines:
                connection.send(line)
                sent += 1
        finally:
            crew.ledger.add_lines("udp", sent)
        return sum(map(len, lines))
