"""A unit: what one acknowledgement of a protocol speaks of. A RELP burst, a Fluent chunk, a part of a Lumberjack window, an HTTP request.

Made by a session, given to the intake with its records, sealed, and settled once: then its sender is answered. Owned by one session; `pending`, `outcome` and
`rejected` are the intake's to change. A unit without `on_settled` is for senders that nobody answers (plain syslog, datagrams): it may serve a whole
connection, and is never sealed. Weak: a unit is one answer, so one record that is refused for now makes its sender send all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from appliance.senders.listener import Listener
    from services.ingest.records.event import EventSource

IDENTITY_BYTES: Final = 16


class AckOutcome(IntEnum):
    """What its sender is told of a unit."""

    PENDING = 0
    STORED = 1
    """All of it is where the listener's `acks` wants it; without what is in `rejected`."""
    DUPLICATE = 2
    """All of it was stored before: answered like STORED."""
    REFUSED = 3
    """Some of it was not stored, and may be stored if it is sent again: the sender is told no, in its protocol's words."""


class ReplayedStream(Protocol):
    """Frames of one sender over several connections (`Intake.open_stream`)."""

    is_closed: bool
    """Something of this session was refused for now, or another one goes on with its stream, so nothing behind it may be taken. For the intake."""

    @property
    def is_holding(self) -> bool:
        """Whether it is not known yet where its frames belong. For the intake."""

    @property
    def identity(self) -> bytes: ...

    @property
    def replayed_end(self) -> int:
        """Serials below it may have been stored before."""

    def take(self, digests: Sequence[bytes], token: object) -> int | None:
        """The serial of the first frame; None: it is told later, with the token. For the intake."""

    def settled(self, first_serial: int, count: int) -> None:
        """Of these the sender is told. For the intake."""

    def hurry(self) -> None:
        """Nothing more comes before what was held back is answered: it is decided with what there is."""

    def leave(self) -> None:
        """The same, and one side has ended: the sender may bring what is not answered over its next session, while this one still answers, and takes what it
        still has until then."""

    def end(self, is_clean: bool) -> None:
        """The session is over. Clean: everything was answered, and the sender knows it. The first call counts."""


class AckGroup:
    """`identities` is None (a replay cannot be recognised), one digest (the whole unit is one thing: a chunk, a request) or one for each record (RELP)."""

    __slots__ = (
        "context", "duplicate_count", "identities", "is_sealed", "keeps_identity", "listener", "on_settled", "outcome", "pending", "record_count", "rejected",
        "replay", "sender_book", "source", "stream", "topic",
    )  # fmt: skip

    def __init__(
        self,
        listener: Listener,
        source: EventSource,
        identities: Sequence[bytes] | None = None,
        on_settled: Callable[[AckGroup], None] | None = None,
        topic: str = "",
    ) -> None:
        self.listener = listener
        self.source = source
        self.identities = identities
        self.on_settled = on_settled
        self.keeps_identity = True
        """False: its one identity is looked up, and where nothing is known of it nothing is remembered. Once the unit is settled: whether it is known now."""
        self.stream: ReplayedStream | None = None
        """Whose next records these are, where a protocol numbers frames anew on each connection: `identities` are digests of the frames then."""
        self.topic = topic
        """Where all its records go, because the sender says so; "": where the routes say."""
        self.outcome = AckOutcome.PENDING
        self.rejected: list[tuple[int, str]] = []
        """(number of the record in the unit, why) of records that can never be stored; they are counted. The sender must not send them again."""
        self.record_count = 0
        """Records taken so far."""
        self.duplicate_count = 0
        """Those of them that were stored before, or are under way already."""
        self.pending = 0
        """What has to come back before the unit is settled."""
        self.is_sealed = False
        self.context: Any = None
        """The session's own: a transaction number, a chunk, a sequence."""
        self.replay: Any = None
        """The intake's own: what it knows of `identities`."""
        self.sender_book: Any = None
        """The intake's own: where its sender is counted."""
