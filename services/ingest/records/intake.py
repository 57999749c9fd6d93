"""`Intake`: what sessions call to hand over records. `RecordRouter` implements it.

A session makes an `AckGroup` for what it will acknowledge together, passes its records with `take`
(in any number of calls) and then calls `close_group`. The group completes exactly once, in the
agent's turn and never from inside `take` or `close_group`, when each record is stored as the
listener's `acks` require, was stored before, or can never be stored. Groups complete in any order;
a protocol that answers in order keeps its own queue.

Weak: a group whose partition has no leader waits until there is one. A session that cannot wait
that long answers by itself and ignores the completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from services.ingest.records.ack_group import AckGroup, ReplayedStream
from services.ingest.records.ingest_record import IngestRecord

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.event import EventSource


class RefusedReason(StrEnum):
    """Why input was refused before it became a record. The values are counter labels."""

    MALFORMED = "malformed"
    """It cannot be decoded and contains no text to keep."""
    TOO_LARGE = "too_large"
    """A frame, a body or its decompressed size exceeds the limit."""
    UNAUTHORIZED = "unauthorized"
    """No token, a wrong token, or a wrong shared key."""
    BUSY = "busy"
    """Refused for now: 503, 429, RESOURCE_EXHAUSTED, or the end of the connection, as the protocol
    defines."""
    TIMED_OUT = "timed_out"
    """A part arrived, and the rest did not in time."""
    OVER_QUOTA = "over_quota"
    """The sender, or all senders of its listener, exceed their quota (`sender_quotas`)."""
    NO_TOPIC = "no_topic"
    """The sender names a topic that does not exist."""
    NO_INPUT = "no_input"
    """No input has this path, method or media type."""
    FORBIDDEN_TOPIC = "forbidden_topic"
    """The sender names a topic, or its record goes to one, that its token or listener may not use."""
    CROSS_SITE = "cross_site"
    """A web page of another site sent it, and `allow-origin` does not name the site."""
    UNKNOWN_HOST = "unknown_host"
    """It addresses the box by a name that is not its own (DNS rebinding)."""
    INCOMPLETE = "incomplete"
    """Pieces never arrived, or the connection ended inside it (GELF chunks, half a frame)."""


class Oddity(StrEnum):
    """Irregular input that is counted and stored all the same. The values name counters,
    `ingest.<value>{listener=…}`."""

    TRUNCATED = "truncated"
    UNPARSED = "unparsed"
    """Stored as an event with `parsed: false`."""
    FRAMING_RESYNCHRONISED = "framing_resynchronised"


class Intake(Protocol):
    """What a session may call."""

    def take(self, group: AckGroup, records: Sequence[IngestRecord]) -> None:
        """Take records of the group, in order; may be called several times before `close_group`.
        Counts them as received."""

    def take_syslog(self, group: AckGroup, messages: Sequence[bytes]) -> None:
        """Take unparsed syslog messages, each without its framing (a `CutMessage` if its end is
        missing)."""

    def close_group(self, group: AckGroup) -> None:
        """No more records follow. A group without records completes too."""

    def abandon(self, group: AckGroup) -> None:
        """Close a group of which some records will never be taken. It completes as refused, so it
        is not acknowledged; those that were taken are stored, and a repeat with an identity stores
        the others only."""

    def open_stream(self, listener: Listener, source: EventSource) -> ReplayedStream:
        """Return a stream for a session whose protocol numbers frames anew on each connection
        (RELP, Lumberjack). The session sets it as `AckGroup.stream` of all its groups."""

    def forget(self, identity: bytes) -> None:
        """The sender knows that this identity is stored: from now on the same identity is new."""

    def records_of(self, listener: Listener, source: EventSource) -> tuple[int, int]:
        """Return how many records the sender's network (`network_of`) has sent, and how many all
        senders of the listener, for their quotas."""

    def blocked_by(self, listener: Listener, topic: str = "") -> bool:
        """True if records would have to wait, so that a request-based protocol refuses them: HTTP
        answers 503 or 429, gRPC RESOURCE_EXHAUSTED. Streams need not call it: a blocked stream is
        not read. `topic` is the one that the sender names; "" is the topic of records that no route
        takes."""

    def refuse(self, listener: Listener, source: EventSource, reason: RefusedReason, count: int = 1) -> None:
        """Count input that was refused before it became a record."""

    def note(self, listener: Listener, source: EventSource, oddity: Oddity, count: int = 1) -> None:
        """Count irregular input."""

    def has_topic(self, topic: str) -> bool:
        """True if this topic exists or is named in the tables, and is not the box's own."""

    def topics_of(self, listener: Listener, record: IngestRecord | None = None) -> Iterable[str]:
        """Return the topics that a record goes to by the routes; without one, those that any record
        of the listener may go to."""

    def may_write(self, principal: str, source: EventSource, topic: str) -> bool:
        """Return whether the principal of a listener or token may write to the topic."""

    def now_ms(self) -> int:
        """Return the wall clock, for times of arrival."""

    def monotonic_ms(self) -> int:
        """Return the monotonic clock, for timeouts; `Session.tick` receives it too."""
