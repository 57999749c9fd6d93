"""Ack groups, their shares of batches, and the identities of their records.

Examples: a burst of RELP frames, a Fluent chunk, a part of a Lumberjack window, an HTTP request. A
session makes the group, passes it to the router with its records, and closes it. Batches are stored
or refused whole; shares pass the result to the groups. The group completes once, when the outcome
of all its records is known; then the sender is answered. A group without `on_completed` belongs to
a sender that expects no answers (plain syslog, datagrams): it may serve a whole connection and is
never closed.

Identities are digests by which repeats are recognised: BLAKE2b of Python itself, without OpenSSL (2
MB in every process). Owned by one session; only the router changes `pending`, `outcome` and
`rejected`.

Weak: a group has one answer, so one record that is refused for now makes its sender repeat all of
them. A sender that knows the identities of another and shares its address can make the other's
repeats look stored.
"""

from __future__ import annotations

from _blake2 import blake2b as _blake2b
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.event import EventSource


IDENTITY_BYTES: Final = 16
_blake: Callable[..., Any] = _blake2b


def digest_of(content: bytes | memoryview) -> bytes:
    """Return the digest of one frame's payload, without what a sender numbers anew."""
    digest: bytes = _blake(content, digest_size=IDENTITY_BYTES).digest()
    return digest


def identity_of(*parts: bytes) -> bytes:
    """Return the digest of several parts, each with its length: ("a", "bc") is not ("ab", "c")."""
    digest = _blake(digest_size=IDENTITY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    identity: bytes = digest.digest()
    return identity


class AckOutcome(IntEnum):
    """What the acknowledgement of a group reports."""

    PENDING = 0
    STORED = 1
    """All records, except those in `rejected`, are where the listener's `acks` require them."""
    DUPLICATE = 2
    """All records were stored before; answered like STORED."""
    REFUSED = 3
    """Some records were not stored and may be stored when they are repeated: a negative
    acknowledgement."""


class ReplayedStream(Protocol):
    """Frames of one sender over several connections (`Intake.open_stream`). Only the router calls
    the attributes and methods above `hurry`; the session calls the rest."""

    is_closed: bool
    """True after a frame of this session was refused, or when another session continues its stream:
    the router takes no later frame, because it would overtake the refused one."""

    @property
    def is_holding(self) -> bool:
        """True while the position of its frames in the stream is unknown."""

    @property
    def identity(self) -> bytes: ...

    @property
    def replayed_end(self) -> int:
        """Serials below it may have been stored before."""

    def take(self, digests: Sequence[bytes], token: object) -> int | None:
        """Return the serial of the first frame, or None if it is passed later, with `token`."""

    def completed(self, first_serial: int, count: int) -> None:
        """The sender is being answered for these frames."""

    def hurry(self) -> None:
        """Decide with the frames that are here: the sender sends no more before it is answered."""

    def leave(self) -> None:
        """One side has ended before the sender had every answer. The sender may repeat the
        unanswered frames over its next session, while this one still takes and answers what it has.
        """

    def end(self, is_clean: bool) -> None:
        """The session is over; `is_clean` if the sender has read every answer. Only the first call
        counts."""


class AckGroup:
    """`identities` is None (repeats are not recognised), one digest for the whole group (a chunk, a
    request), or one digest for each record (RELP)."""

    __slots__ = (
        "context", "duplicate_count", "identities", "is_closed", "keeps_identity", "listener",
        "on_completed", "outcome", "pending", "record_count", "rejected", "replay", "sender_ledger",
        "source", "stream", "topic",
    )  # fmt: skip

    def __init__(
        self,
        listener: Listener,
        source: EventSource,
        identities: Sequence[bytes] | None = None,
        on_completed: Callable[[AckGroup], None] | None = None,
        topic: str = "",
    ) -> None:
        self.listener = listener
        self.source = source
        self.identities = identities
        self.on_completed = on_completed
        self.keeps_identity = True
        """False: its one identity is looked up, and remembered only if it is known already (a
        Splunk channel that does not poll). After completion: whether it is remembered."""
        self.stream: ReplayedStream | None = None
        """The stream that these records continue, if the protocol numbers frames anew on each
        connection; then `identities` are digests of the frames."""
        self.topic = topic
        """The topic of all its records, if the sender names it; "": the routes decide."""
        self.outcome = AckOutcome.PENDING
        self.rejected: list[tuple[int, str]] = []
        """(number of the record in the group, reason) of records that can never be stored. They are
        counted, and the sender must not repeat them."""
        self.record_count = 0
        """Records taken so far."""
        self.duplicate_count = 0
        """Those of them that were stored before or are in flight already."""
        self.pending = 0
        """Number of shares and held records that the group waits for."""
        self.is_closed = False
        self.context: Any = None
        """For the session: a transaction number, a chunk, a sequence."""
        self.replay: Any = None
        """For the router: what it knows about `identities` (`GroupMemory`)."""
        self.sender_ledger: Any = None
        """For the router: the ledger of its sender."""


Part = tuple[bytes, int, int]


class Share:
    """The share of one group in one batch, made by the batcher: `count` records that count as
    stored by this batch, and `copies` of records that count elsewhere.

    `parts` are the addresses of its records in the replay memory: runs of (identity, first ordinal,
    count) in the order of the records. A record whose repeat cannot be recognised has none.
    """

    __slots__ = ("copies", "count", "group", "is_appended", "is_completed", "parts")

    def __init__(self, group: AckGroup) -> None:
        self.group = group
        self.count = 0
        self.copies = 0
        self.parts: list[Part] = []
        self.is_appended = False
        """It is counted as in the leader's log (`Acknowledger.on_appended`)."""
        self.is_completed = False

    @property
    def is_awaited(self) -> bool:
        """True if its group completes only after this batch is stored."""
        return self.group.on_completed is not None and self.group.listener.acks != 0

    @property
    def wants_all(self) -> bool:
        """True if it is stored only when all in-sync replicas have it."""
        return self.group.listener.acks == -1

    def add_part(self, identity: bytes, ordinal: int, count: int = 1) -> None:
        """Add the addresses of the records that were appended last."""
        if self.parts:
            last, first, counted = self.parts[-1]
            if last == identity and first + counted == ordinal:
                self.parts[-1] = (identity, first, counted + count)
                return
        self.parts.append((identity, ordinal, count))
