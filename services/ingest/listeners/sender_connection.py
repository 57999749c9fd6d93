"""One connection of a sender: socket, PROXY header, TLS, session, unsent answers.

Owned by `SenderConnections`, which decides when it is read and checks its deadlines. A connection
starts with a header or a handshake if its listener requires them; then it has a session. It ends in
one of three ways: the peer ends its side (groups in flight are still answered), `close` (what was
sent goes out, and input is discarded for a moment, because a close over unread bytes would reset
the connection and destroy the answer), or the connection is lost.

Weak: answers are joined for each send, so a peer that reads in small pieces costs a copy of the
rest for each piece.
"""

from __future__ import annotations

import fcntl
import select
import socket
import termios
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from struct import Struct

from appliance.senders.listener import Listener, Protocol, ProxyMode
from appliance.senders.sender_accounts import network_of
from services.ingest.listeners.listening_socket import SenderListeningSocket
from services.ingest.listeners.proxy_header import BadProxyHeader, read_proxy_header
from services.ingest.listeners.sender_stream import PLAIN, SenderStream, StreamError
from services.ingest.protocols.session import MakeSession, Session
from services.ingest.protocols.steps import Steps
from services.ingest.records.intake import Intake

RECEIVE_BYTES = 65536
UNSENT_BYTES_MAX = 1 << 20
"""A connection with more unread answers is not read."""
READING = select.EPOLLIN | select.EPOLLRDHUP
_INT = Struct("i")
_TLS_RECORD_START = (b"\x16\x03\x01", b"\x16\x03\x03")
_HTTP_METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH")
_HTTP_REQUEST_START = (*(b"%b /" % method for method in _HTTP_METHODS), b"OPTIONS *", b"PRI * HTTP/2")


class ConnectionPhase(IntEnum):
    """How far a connection is. `close` sets `close_reason` in NEW, OPEN or ENDED; no phase returns
    to an earlier one."""

    NEW = 0
    """Nothing was read: earlier connections of the sender may have to be read first
    (`half_closed_connections`). With TLS: its handshake is not complete."""
    OPEN = 1
    ENDED = 2
    """The peer has ended its side, or this process stops: groups in flight are still answered."""
    LINGERING = 3
    """Closed, and everything is sent: input is discarded until the peer ends, too."""
    GONE = 4


NEW, OPEN, ENDED, LINGERING, GONE = ConnectionPhase  # reading an enum member costs 60 ns in Python 3.11


class PauseReason(IntEnum):
    """Why a connection is not read: bits of `SenderConnection.pauses`."""

    SESSION = 1
    """The window of its session is full (`hold`)."""
    PARTITION = 2
    """A partition that its records go to is blocked."""
    WINDOW = 4
    """Too many of its bytes are unacknowledged."""
    FRAMES = 8
    """All connections together hold too many bytes of incomplete frames."""
    ORDER = 16
    """Earlier connections of its sender are read first."""
    QUOTA = 64
    """Its sender, or its listener, has exceeded its quota (`sender_quotas`)."""
    WORK = 32
    """A large request is taken in steps over turns (`sliced_work`)."""


_STOPPING = PauseReason.SESSION | PauseReason.PARTITION | PauseReason.WINDOW | PauseReason.WORK | PauseReason.QUOTA


class SenderConnection:
    """Implements `protocols.session.SessionConnection` for its session."""

    __slots__ = (
        "_began", "_head", "_run", "_unsent", "address", "bucket", "close_reason", "deadline_ms", "descriptor",
        "has_handshake_token", "inquiry", "intake", "interest", "is_broken", "listener", "listening", "network",
        "on_changed", "opened_ms", "pauses", "peer_address", "phase", "session", "socket", "source", "stream",
        "taken_ms", "unfinished_bytes", "unsent_bytes", "work", "work_network",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        listening: SenderListeningSocket,
        peer: tuple[str, int],
        intake: Intake,
        on_changed: Callable[[SenderConnection], None],
        run: Callable[[SenderConnection, Steps], None],
    ) -> None:
        """`on_changed`: there is something to send, or reading may start or must stop. `run`:
        `SlicedWork.run`."""
        self.socket = sock
        self.descriptor = sock.fileno()
        self.listening = listening
        self.listener: Listener = listening.listener
        self.address = self.peer_address = peer[0]
        """`address` counts for limits: the one that a trusted proxy claims, otherwise the peer's
        own."""
        self.network = network_of(peer[0])
        self.bucket = listening.quotas.bucket_of(peer[0])
        self.source = listening.source_of(*peer)
        self.intake = intake
        self.on_changed = on_changed
        self.stream: SenderStream = PLAIN
        self.session: Session | None = None
        self.opened_ms = self.taken_ms = intake.monotonic_ms()
        self.deadline_ms = 0
        """When an ending connection is dropped; 0 while it is not ending."""
        self.interest = 0
        self.phase = OPEN
        self.pauses = 0
        self.inquiry = 0
        """Number of the inquiry to other ingests about earlier connections of its sender
        (`sender_owners`)."""
        self.has_handshake_token = False
        """Its TLS handshake has taken its token, and begins when its pause is over."""
        self.is_broken = False
        """Cut off by either side: it is unknown what the peer has read."""
        self.close_reason = ""
        self.unfinished_bytes = 0
        """Bytes that `UnfinishedFrames` counts for it."""
        self.unsent_bytes = 0
        self.work: deque[Steps] = deque()
        """For `SlicedWork`: what is not done yet, in order; and the network that it is counted
        for."""
        self.work_network: str | bytes = ""
        self._run = run
        self._unsent: list[bytes] = []
        self._head: bytes | None = b"" if self.listener.proxy is not ProxyMode.NO else None
        self._began = False

    @property
    def principal(self) -> str:
        return self.stream.principal

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete frame or request."""
        return 0 if self.session is None else self.session.buffered_bytes

    @property
    def has_begun(self) -> bool:
        """True if a handshake or header is expected, which has a deadline. Other senders may be
        silent for hours."""
        return bool(self._head) or self.stream is not PLAIN or self.listener.proxy is ProxyMode.REQUIRED

    @property
    def has_delivered(self) -> bool:
        if self.is_broken or self.unsent_bytes or self._was_reset:
            return False
        (unacknowledged,) = _INT.unpack(fcntl.ioctl(self.socket, termios.TIOCOUTQ, _INT.pack(0)))
        return not unacknowledged

    @property
    def _was_reset(self) -> bool:
        """True if the peer has reset the connection after its end: its program exited without
        reading what its kernel had received. A receive does not report that."""
        poll = select.poll()
        poll.register(self.descriptor, 0)
        return bool(poll.poll(0))

    # -- what the session may do

    def send(self, data: bytes) -> None:
        if data and not self.close_reason and self.phase is not GONE:
            self._send_raw(self.stream.encode(data))

    def run(self, steps: Steps) -> None:
        self._run(self, steps)

    @property
    def quota_wait_ms(self) -> int:
        bucket = self.bucket
        return bucket.wait_ms(*self.intake.records_of(self.listener, self.source)) if bucket.bytes_left < 0 else 0

    def charge(self, size_bytes: int) -> None:
        if size_bytes > 0:  # content may open to less, and costs at least what was received
            self.bucket.bytes_left -= size_bytes

    def hold(self) -> None:
        self.pauses |= PauseReason.SESSION
        self.on_changed(self)

    def release(self, reason: PauseReason = PauseReason.SESSION) -> None:
        self.pauses &= ~reason
        self.on_changed(self)

    def close(self, reason: str) -> None:
        if not self.close_reason and self.phase is not GONE:
            self._send_raw(self.stream.end())
            self._close(reason)

    def _send_raw(self, data: bytes) -> None:
        if data:
            if not self._unsent:
                self.taken_ms = self.intake.monotonic_ms()
            self._unsent.append(data)
            self.unsent_bytes += len(data)
            self.on_changed(self)

    # -- in

    def begin(self, make_session: MakeSession) -> None:
        """Make the session as soon as possible: the servers of some protocols speak first."""
        if self.session is None and self._head is None and self.stream.is_established:
            self.session = make_session(self)

    def take(self, received: bytes) -> None:
        """Pass received bytes through header and TLS to the session. Raises StreamError."""
        if self._head is not None:
            if not self._head:
                self.opened_ms = self.intake.monotonic_ms()
            received = self._take_header(self._head + received)
            if not received:
                return
        data = self.stream.decode(received)
        if not self._began and data:
            self._began = True
            self._check_beginning(data)
        if self.stream is not PLAIN:
            self._send_raw(self.stream.take_outgoing())
        if self.session is None:
            self.begin(self.listening.make_session)
        if data and self.session is not None:
            self.session.received(data)
        if self.stream.broken is not None:
            raise self.stream.broken

    def _check_beginning(self, data: bytes) -> None:
        """Refuse other protocols. A web page can send an HTTP request to any port; its header and
        body would be lines of syslog."""
        if self.stream is PLAIN and data[:3] in _TLS_RECORD_START:
            raise StreamError("tls-on-plain-port", "speaks TLS where plaintext is expected; nothing of it is taken")
        if self.listener.protocol is not Protocol.HTTP and data.startswith(_HTTP_REQUEST_START):
            raise StreamError("http-on-plain-port", f"speaks HTTP where {self.listener.protocol} is expected; nothing of it is taken")

    def _take_header(self, data: bytes) -> bytes:
        """Return what follows the PROXY header; b"" while it is incomplete."""
        try:
            header = read_proxy_header(data, self.listener.proxy)
        except BadProxyHeader as error:
            raise StreamError("proxy-header", f"is refused: {error}") from error
        if header is None:
            self._head = data
            return b""
        self._head = None
        if header.size_bytes:
            self.source, self.address = self.listening.origin_behind(header, self.source, self.address)
            self.network = network_of(self.address)
            self.bucket = self.listening.quotas.bucket_of(self.address)
        if self.stream is PLAIN:
            self.begin(self.listening.make_session)
        return data[header.size_bytes :]

    def fail(self, error: StreamError) -> None:
        """Send the stream's last bytes (an alert) and close."""
        self._send_raw(self.stream.take_outgoing())
        self.is_broken = True
        if self.session is not None:
            self.session.finished()
        if not self.close_reason:
            self._close(error.reason)

    def _close(self, reason: str) -> None:
        self.close_reason = reason
        self.listening.count_closed(reason)
        self.on_changed(self)

    # -- out

    def flush(self) -> bool:
        """Send what the peer accepts. False if the connection broke."""
        while self._unsent:
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                self._unsent = [data]
                return True
            except OSError:
                return False
            self.unsent_bytes -= sent
            self.taken_ms = self.intake.monotonic_ms()
            self._unsent = [data[sent:]] if sent < len(data) else []
        return True

    # -- what follows from its state

    @property
    def is_stopped(self) -> bool:
        """True if its session, partition, window, unread answers or end stop the reading."""
        return bool(self.pauses & _STOPPING or self.unsent_bytes > UNSENT_BYTES_MAX or self.phase is ENDED or self.close_reason)

    @property
    def wanted_interest(self) -> int:
        """Return the events to poll for. A paused connection polls for nothing: a hang-up is
        reported regardless of the interest and would spin."""
        is_reading = self.phase is LINGERING or not (self.pauses or self.is_stopped)
        return (READING if is_reading else 0) | (select.EPOLLOUT if self.unsent_bytes else 0)
