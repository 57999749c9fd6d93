"""What one connection of a sender is made of: a session that eats bytes and hands over records, on a connection that carries its answers.

A session owns its protocol's state and no socket, no clock and no shared memory; the room of its transport (`sender_connections`) drives it.
It never raises for bad input: it counts it (`Intake.refuse`), or keeps it as an event with `parsed: false`, and closes only where the stream cannot be found
again. It takes no memory for a size that a sender claims before that size is checked. Weak: a session trusts its room not to call it after `lost`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from services.ingest.records.intake import Intake

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.event import EventSource


class Connection(Protocol):
    """What a session may do with its connection."""

    @property
    def listener(self) -> Listener: ...

    @property
    def source(self) -> EventSource:
        """The peer, and what a PROXY header claimed. Whole before the session exists."""

    @property
    def intake(self) -> Intake: ...

    @property
    def principal(self) -> str:
        """The name in the client's certificate; "" without one."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the peer does not take."""

    @property
    def has_delivered(self) -> bool:
        """Whether the peer has every answer: a peer that ended its side when it had them all, and was not cut off, has read them (a kernel resets a
        connection whose program leaves without reading)."""

    def send(self, data: bytes) -> None:
        """Send an answer, behind those before it. A connection that is gone takes it and forgets it."""

    def hold(self) -> None:
        """Stop reading until `release`, because a window is full; holds do not nest."""

    def release(self) -> None: ...

    def close(self, reason: str) -> None:
        """Close after what was sent has gone out. `reason` is the label of a counter, `ingest.closed{reason=…}`. Nothing is received any more; `lost`
        follows."""


class Session(Protocol):
    """One protocol on one connection."""

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of units that are not settled; the room stops reading while they are above `ingest.connection.window.bytes`."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are kept of a frame or request that is not whole; the room reads large ones one after the other while there are too many of all
        connections together (`ingest.unfinished.bytes`)."""

    def received(self, data: bytes | memoryview) -> None:
        """The next piece of the stream, or one datagram. A memoryview is valid during the call only."""

    def finished(self) -> None:
        """The peer ended its side; what was whole was handed over before. Answers can still be sent: close when they are."""

    def lost(self) -> None:
        """The connection is gone, whoever ended it: never send again. Units under way go on, and their settlements come."""

    def tick(self, now_ms: int) -> None:
        """Once a second, `Intake.monotonic_ms`: what began and does not go on for `listener.idle_ms_max` is given up."""


class RepeatingSession(Session, Protocol):
    """Of a protocol whose replays are known by the session before, and by nothing else (`Intake.open_stream`)."""

    def left(self) -> None:
        """The peer has ended its side, or was cut off, and not all that it sent can be read yet. What goes on being received counts, until another session
        goes on with the stream."""


MakeSession = Callable[[Connection], Session]
"""One factory for each protocol."""
