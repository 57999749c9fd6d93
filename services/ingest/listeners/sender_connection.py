"""One connection of a sender: its socket, what is between that and its session (a proxy's header, TLS), and the answers that are not out yet.

Owned by the room (`sender_connections`), which says when it is read and looks at its deadlines. It begins with a header or a handshake if its listener wants
them, then it has a session; it ends by the peer's end (`is_finishing`: units under way are still answered), by `close` (what was sent still goes out, and what
comes is thrown away for a moment: a close over unread bytes would reset the connection and with it the answer), or by being lost. Weak: answers are joined
for each send, so a peer that takes them in small sips costs a copy of the rest for each sip.
"""

from __future__ import annotations

import fcntl
import select
import socket
import termios
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from appliance.senders.listener import Listener, ProxyMode
from services.ingest.listeners.proxy_header import BadProxyHeader, read_proxy_header
from services.ingest.listeners.sender_stream import PLAIN, SenderStream, StreamError
from services.ingest.protocols.session import MakeSession, Session
from services.ingest.records.event import EventSource
from services.ingest.records.intake import Intake

if TYPE_CHECKING:
    from services.ingest.listeners.listening_socket import ListeningSocket

RECEIVE_BYTES = 65536
UNSENT_BYTES_MAX = 1 << 20
"""With more answers than this that the peer does not take, it is not read."""
READING = select.EPOLLIN | select.EPOLLRDHUP
_INT = Struct("i")
_TLS_RECORD_START = (b"\x16\x03\x01", b"\x16\x03\x03")


class SenderConnection:
    """What the session sees of it is `ingest.session.Connection`."""

    __slots__ = (
        "_began", "_head", "_unsent", "address", "blocked_by", "came_from", "close_reason",
        "deadline_ms", "descriptor", "door", "held", "inquiry", "intake", "interest", "is_behind",
        "is_broken", "is_crowded", "is_finishing", "is_gone", "is_lingering", "is_unread",
        "is_windowed", "listener", "on_changed", "opened_ms", "session", "socket", "source",
        "stream", "taken_ms", "unfinished_bytes", "unsent_bytes",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        door: ListeningSocket,
        address: str,
        source: EventSource,
        intake: Intake,
        on_changed: Callable[[SenderConnection], None],
        now_ms: int,
    ) -> None:
        self.socket = sock
        self.descriptor = sock.fileno()
        self.door = door
        self.listener: Listener = door.listener
        self.address = self.came_from = address
        """Whose it is, for limits: the claimed one behind believed proxies; and the peer's own."""
        self.source = source
        self.intake = intake
        self.on_changed = on_changed
        """Tells the room that there is something to send, or that reading may start or must stop."""
        self.stream: SenderStream = PLAIN
        self.session: Session | None = None
        self.opened_ms = self.taken_ms = now_ms
        self.deadline_ms = 0
        """When an ending connection is given up; 0 while it is not ending."""
        self.interest = 0
        self.blocked_by: tuple[str, int] | None = None
        """The partition that its reading waits for."""
        self.held = self.is_windowed = self.is_crowded = self.is_finishing = self.is_lingering = self.is_gone = False
        self.is_unread = self.is_behind = False
        """Nothing of it was read yet, and before that others may have to be (`left_connections`); it waits for that now."""
        self.inquiry = 0
        """Of the other ingests, about connections of its sender that were accepted before it (`sender_owners`)."""
        self.is_broken = False
        """Cut off, by either side: who knows what the peer has read."""
        self.close_reason = ""
        self.unfinished_bytes = 0
        """What of it `unfinished_frames` counts."""
        self.unsent_bytes = 0
        self._unsent: list[bytes] = []
        self._head: bytes | None = b"" if self.listener.proxy is not ProxyMode.NO else None
        self._began = False

    @property
    def principal(self) -> str:
        return self.stream.principal

    @property
    def held_bytes(self) -> int:
        """What is here of a frame or request that is not whole."""
        return 0 if self.session is None else self.session.buffered_bytes

    @property
    def has_begun(self) -> bool:
        """Whether a handshake or a header is due, which has a deadline: every listener may wait for one, and many a sender says nothing for hours."""
        return bool(self._head) or self.stream is not PLAIN or self.listener.proxy is ProxyMode.REQUIRED

    @property
    def has_delivered(self) -> bool:
        if self.is_broken or self.unsent_bytes or self._was_reset:
            return False
        (unacknowledged,) = _INT.unpack(fcntl.ioctl(self.socket, termios.TIOCOUTQ, _INT.pack(0)))
        return not unacknowledged

    @property
    def _was_reset(self) -> bool:
        """A reset behind the peer's end is not told by a receive: its program has left without reading what its kernel had taken."""
        poll = select.poll()
        poll.register(self.descriptor, 0)
        return bool(poll.poll(0))

    # -- what the session may do

    def send(self, data: bytes) -> None:
        if data and not self.close_reason and not self.is_gone:
            self._send_raw(self.stream.encode(data))

    def hold(self) -> None:
        self.held = True
        self.on_changed(self)

    def release(self) -> None:
        self.held = False
        self.on_changed(self)

    def close(self, reason: str) -> None:
        if not self.close_reason and not self.is_gone:
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
        """The session, as soon as one can be: some protocols' servers speak first."""
        if self.session is None and self._head is None and self.stream.is_established:
            self.session = make_session(self)

    def take(self, received: bytes) -> None:
        """A piece from the wire, through header and TLS, to the session. Raises StreamError."""
        if self._head is not None:
            if not self._head:
                self.opened_ms = self.intake.monotonic_ms()
            received = self._take_header(self._head + received)
            if not received:
                return
        if not self._began:
            self._began = True
            if self.stream is PLAIN and received[:3] in _TLS_RECORD_START:
                raise StreamError("tls-on-plain-port", "speaks TLS where plaintext is expected; nothing of it is taken")
        data = self.stream.decode(received)
        if self.stream is not PLAIN:
            self._send_raw(self.stream.take_outgoing())
        if self.session is None:
            self.begin(self.door.make_session)
        if data and self.session is not None:
            self.session.received(data)
        if self.stream.broken is not None:
            raise self.stream.broken

    def _take_header(self, data: bytes) -> bytes:
        """What follows a proxy's header; b"" while it is not all here."""
        try:
            header = read_proxy_header(data, self.listener.proxy)
        except BadProxyHeader as error:
            raise StreamError("proxy-header", f"is turned away: {error}") from error
        if header is None:
            self._head = data
            return b""
        self._head = None
        if header.size_bytes:
            self.door.on_header(self, header)
        if self.stream is PLAIN:
            self.begin(self.door.make_session)
        return data[header.size_bytes :]

    def fail(self, error: StreamError) -> None:
        """The stream cannot go on: its last words (an alert) go out, then it closes."""
        self._send_raw(self.stream.take_outgoing())
        self.is_broken = True
        if self.session is not None:
            self.session.finished()
        if not self.close_reason:
            self._close(error.reason)

    def _close(self, reason: str) -> None:
        self.close_reason = reason
        self.door.count_closed(reason)
        self.on_changed(self)

    # -- out

    def flush(self) -> bool:
        """Send what the peer takes. False when the connection broke."""
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
        """Whether what it brings is not taken, because of its session, its partition, its window, its unread answers or its end."""
        is_paused = self.held or self.blocked_by is not None or self.is_windowed or self.unsent_bytes > UNSENT_BYTES_MAX
        return is_paused or self.is_finishing or bool(self.close_reason)

    @property
    def wanted_interest(self) -> int:
        """What the poller shall tell us: nothing of a paused connection, because a hang-up is told whatever the interest, and would spin."""
        is_reading = self.is_lingering or not (self.is_stopped or self.is_crowded or self.is_behind)
        return (READING if is_reading else 0) | (select.EPOLLOUT if self.unsent_bytes else 0)
