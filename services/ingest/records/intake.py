"""The one contract of all inputs: units of records in, one settlement for each out. What sessions see of it; `ingest_intake` does it.

A session takes a `AckGroup` for what it will answer, gives its records with `take` (in pieces, if it likes) and seals it. The settlement comes from the agent's
turn, never from inside `take` or `seal`, exactly once, when every record is stored as the listener's `acks` wants it, was stored before, or cannot be stored.
Units settle in any order: a protocol that answers in order keeps its own queue. Weak: a unit that waits for a leader waits as long as that takes; who cannot
wait that long answers for itself and ignores the settlement.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from services.ingest.records.ack_group import AckGroup, ReplayedStream
from services.ingest.records.record import IngestRecord

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.event import EventSource


class RefusedReason(StrEnum):
    """Why something was refused before it was a record. The values are counter labels."""

    MALFORMED = "malformed"
    """It cannot be read, and holds no text to keep."""
    TOO_LARGE = "too_large"
    """Frame, body or what it decompresses to is over its limit."""
    UNAUTHORIZED = "unauthorized"
    """No token, a wrong one, or a wrong shared key."""
    BUSY = "busy"
    """The sender was told to come again later (503, 429, RESOURCE_EXHAUSTED; its connection was ended, where its protocol says it so)."""
    TIMED_OUT = "timed_out"
    """A part of it came, and the rest never did."""
    NO_TOPIC = "no_topic"
    """It names a topic that is not there."""
    NO_INPUT = "no_input"
    """It came to a path, by a method or in a form that no input has."""
    INCOMPLETE = "incomplete"
    """Pieces of it never came, or the connection ended inside it (GELF chunks, half a frame)."""


class Oddity(StrEnum):
    """What senders do that is worth a count and harms nobody. The values name counters, `ingest.<value>{listener=…}`."""

    TRUNCATED = "truncated"
    UNPARSED = "unparsed"
    """Kept as an event with `parsed: false`."""
    FRAMING_RESYNCHRONISED = "framing_resynchronised"


class Intake(Protocol):
    """Where sessions bring what they received."""

    def take(self, unit: AckGroup, records: Sequence[IngestRecord]) -> None:
        """Take records of the unit, in order; may be called several times before `seal`. Counted as received here."""

    def take_syslog(self, unit: AckGroup, messages: Sequence[bytes]) -> None:
        """The same for syslog messages, unparsed: one message without its framing each (`CutMessage` where its end is missing)."""

    def seal(self, unit: AckGroup) -> None:
        """No more records come. A unit without records settles too."""

    def open_stream(self, listener: Listener, source: EventSource) -> ReplayedStream:
        """For a session whose frames are numbered anew on each connection (RELP, Lumberjack): goes into `AckGroup.stream` of all its units."""

    def forget(self, identity: bytes) -> None:
        """The sender knows that this is stored: the same identity is a new thing from now on."""

    def blocked_by(self, listener: Listener, topic: str = "") -> bool:
        """Whether the sender should come again later, because what it brings would wait: HTTP answers 503 or 429, gRPC RESOURCE_EXHAUSTED. Streams need
        not ask: they are not read while they are blocked. `topic`: where all of it goes, as the sender says; "": where the listener's records go that no
        route takes."""

    def refuse(self, listener: Listener, source: EventSource, reason: RefusedReason, count: int = 1) -> None:
        """Count what was refused before it was a record."""

    def note(self, listener: Listener, source: EventSource, oddity: Oddity, count: int = 1) -> None:
        """Count an oddity."""

    def has_topic(self, topic: str) -> bool:
        """Whether records may be sent to a topic that the sender names."""

    def now_ms(self) -> int:
        """Wall clock: arrival."""

    def monotonic_ms(self) -> int:
        """For time-outs; what `Session.tick` is told."""
