"""The interface between ingest's listeners and the protocols of senders: sessions on connections,
handlers of datagrams.

A session owns its protocol's state, and no socket, clock or shared memory; `SenderConnections`
drives it. It takes bytes and hands over records. It never raises for bad input: it counts it
(`Intake.refuse`) or stores it with `parsed: false`, and closes only if it cannot find the next
frame. It allocates nothing for a claimed size before that size is checked. A protocol's module is
imported by the first connection that needs it, so that an idle box stays small. Weak: no call after
`lost` is the listener's duty; a wrong module name shows at the first connection, so a test imports
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from appliance.senders.listener import Listener
from appliance.senders.listener import Protocol as ListenerProtocol
from services.ingest.protocols.steps import Steps
from services.ingest.records.intake import Intake

if TYPE_CHECKING:
    from services.ingest.records.ack_group import AckGroup
    from services.ingest.records.event import EventSource


class SessionConnection(Protocol):
    """A sender's connection as its session sees it."""

    @property
    def listener(self) -> Listener: ...

    @property
    def source(self) -> EventSource:
        """The peer, and the content of a PROXY header. Complete before the session exists."""

    @property
    def intake(self) -> Intake: ...

    @property
    def principal(self) -> str:
        """The name in the client's certificate; "" without a certificate."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the peer has not received."""

    @property
    def has_delivered(self) -> bool:
        """Whether the peer has every answer. A peer that closed its side after all answers were
        sent, without a reset, has read them: the kernel resets a connection whose program ends
        without reading.
        """

    @property
    def quota_wait_ms(self) -> int:
        """How long until the sender is within its quota again; 0: it is."""

    def charge(self, size_bytes: int) -> None:
        """Count bytes for the sender's quota: what decompressed content has beyond what was
        received."""

    def send(self, data: bytes) -> None:
        """Send an answer after those before it. A lost connection discards it."""

    def run(self, steps: Steps) -> None:
        """Run the steps, at once or over several turns, after those before. Nothing is received
        while steps are left. They run to their end although the peer has closed its side; if the
        connection is dropped, or the process stops, they are closed (GeneratorExit).
        """

    def hold(self) -> None:
        """Stop reading until `release`, because a window is full. Holds do not nest."""

    def release(self) -> None: ...

    def close(self, reason: str) -> None:
        """Close after the answers were sent. `reason` is the label of the counter
        `ingest.closed{reason=…}`. Nothing more is received; `lost` follows.
        """


class Session(Protocol):
    """One protocol on one connection."""

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of ack groups that are not complete. Above `ingest.connection.window.bytes` the
        connection is not read.
        """

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete frame or request. If all connections together exceed
        `ingest.unfinished.bytes`, those with large incomplete frames are read one after the other.
        """

    def received(self, data: bytes | memoryview) -> None:
        """Take the next piece of the stream. A memoryview is valid during the call only."""

    def finished(self) -> None:
        """The peer closed its side. Answers can still be sent: close after the last one."""

    def lost(self) -> None:
        """The connection is closed: send nothing more. Open ack groups still complete."""

    def tick(self, now_ms: int) -> None:
        """Called once a second with `Intake.monotonic_ms`: give up frames without progress for
        `listener.idle_ms_max`.
        """


class RepeatingSession(Session, Protocol):
    """A session of a protocol whose repeated records only the preceding session can identify
    (`Intake.open_stream`).
    """

    def left(self) -> None:
        """The peer closed its side or was cut off, and not all bytes that it sent were read yet.
        They still count, until another session continues the stream.
        """


MakeSession = Callable[[SessionConnection], Session]
"""Makes the session of a connection."""


class AnsweringSession(Session, Protocol):
    """A session of a protocol that can refuse a request for now."""

    @property
    def is_between_requests(self) -> bool:
        """True if what comes next is a request, which is answered even above the quota. Inside a
        body the connection is not read then."""


class Unfinished:
    """How long a frame has been incomplete. Frames may be minutes apart, but one that has begun
    must end within a limit.

    Weak: it is checked once a second, so a frame may be a second older.
    """

    __slots__ = ("_frames_done", "_since_ms")

    def __init__(self) -> None:
        self._frames_done = -1
        self._since_ms = 0

    def is_overdue(self, frames_done: int, buffered_bytes: int, now_ms: int, limit_ms: int) -> bool:
        """`frames_done` is any number that changes with each complete frame, `buffered_bytes` the
        size of the incomplete one.
        """
        if not buffered_bytes or frames_done != self._frames_done:
            self._frames_done = frames_done
            self._since_ms = now_ms
            return False
        return now_ms - self._since_ms > limit_ms


class DatagramHandler(Protocol):
    """One protocol on one UDP listener. It never raises for bad input.

    The socket's owner keeps the ack groups of its senders; a handler keeps what its protocol must
    remember between datagrams (chunks of GELF), bounded for all senders of its listener together.
    """

    def received(self, group: AckGroup, datagrams: list[bytes]) -> int:
        """Take what one sender (`group.source`) sent in one burst, in order, none empty. The group
        is never closed, because datagrams have no answers. Return the bytes that compressed content
        has beyond its size."""

    def tick(self, now_ms: int) -> None:
        """Called once a second with `Intake.monotonic_ms`: drop what does not continue."""


MakeDatagramHandler = Callable[[Listener, Intake], DatagramHandler]
"""Makes the handler of a listener's datagrams."""

SESSIONS: dict[ListenerProtocol, tuple[str, str]] = {
    ListenerProtocol.SYSLOG: ("services.ingest.protocols.syslog.syslog_session", "SyslogSession"),
    ListenerProtocol.RELP: ("services.ingest.protocols.syslog.relp_session", "RelpSession"),
    ListenerProtocol.FLUENT: ("services.ingest.protocols.fluent.fluent_session", "FluentSession"),
    ListenerProtocol.LUMBERJACK: ("services.ingest.protocols.lumberjack.lumberjack_session", "LumberjackSession"),
    ListenerProtocol.GELF: ("services.ingest.protocols.gelf.gelf_session", "GelfSession"),
    ListenerProtocol.HTTP: ("services.ingest.protocols.http.http_session", "HttpSession"),
}
"""Streams: (module, class) by protocol."""
DATAGRAM_HANDLERS: dict[ListenerProtocol, tuple[str, str]] = {
    ListenerProtocol.SYSLOG: ("services.ingest.protocols.syslog.syslog_session", "SyslogDatagrams"),
    ListenerProtocol.GELF: ("services.ingest.protocols.gelf.gelf_datagrams", "GelfDatagrams"),
}
"""Datagrams: (module, class) by protocol."""


def session_of(protocol: ListenerProtocol) -> MakeSession:
    """Import the module of a protocol, and return its session class."""
    module, name = SESSIONS[protocol]
    return cast("MakeSession", getattr(import_module(module), name))


def handler_of(protocol: ListenerProtocol) -> MakeDatagramHandler:
    """Import the module of a protocol, and return its datagram handler class."""
    module, name = DATAGRAM_HANDLERS[protocol]
    return cast("MakeDatagramHandler", getattr(import_module(module), name))
