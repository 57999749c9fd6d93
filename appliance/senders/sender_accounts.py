"""Who sent how much: one account for each sender (an address without its port), bounded, with those seen longest ago folded into one.

Pure; time is an argument (wall clock, ms). Owned by one ingest, which writes the accounts into a file once a second (`sender_books`);
`millrace ingest status` adds up those of all ingests. Weak: an address is a sender: what comes through a relay or a proxy that is not believed
is the relay's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakSet

SENDERS_MAX = 4096
OTHERS = "others"
"""The name under which those are kept that had no room."""


class SenderLedger:
    """One sender's account; whoever holds one adds to it. `reasons` are those of `counted` and `refused` together."""

    __slots__ = ("__weakref__", "_heir", "duplicate", "host", "last_seen_ms", "listeners", "malformed", "reasons", "received", "refused", "stored")

    def __init__(self, host: str) -> None:
        self.host = host
        self.received = 0
        self.stored = 0
        self.duplicate = 0
        self.malformed = 0
        self.refused = 0
        """Not stored: counted after it was received, or refused before."""
        self.reasons: dict[str, int] = {}
        self.listeners: set[str] = set()
        self.last_seen_ms = 0
        self._heir: SenderLedger | None = None

    def seen(self, now_ms: int) -> None:
        """It sent something."""
        self.last_seen_ms = now_ms

    def refuse(self, reason: str, count: int = 1) -> None:
        """Not stored, for this reason."""
        self.refused += count
        self.reasons[reason] = self.reasons.get(reason, 0) + count

    def fold_into(self, heir: SenderLedger) -> None:
        """There is no room for it any more: what it has is the heir's, and what is added from now on as well."""
        self._heir = heir
        self.hand_over()

    def hand_over(self) -> None:
        """Give the heir what came since."""
        heir = self._heir
        if heir is None:
            return
        heir.absorb(self)
        self.received = self.stored = self.duplicate = self.malformed = self.refused = 0
        self.reasons = {}

    def absorb(self, other: SenderLedger) -> None:
        """Add what another account has."""
        self.received += other.received
        self.stored += other.stored
        self.duplicate += other.duplicate
        self.malformed += other.malformed
        self.refused += other.refused
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.listeners |= other.listeners
        self.last_seen_ms = max(self.last_seen_ms, other.last_seen_ms)

    def __del__(self) -> None:
        self.hand_over()  # nobody adds to it any more

    def figures(self) -> SenderFigures:
        """What it says now."""
        return SenderFigures(
            self.host, self.received, self.stored, self.duplicate, self.malformed, self.refused, dict(self.reasons), sorted(self.listeners), self.last_seen_ms
        )


class SenderFigures(NamedTuple):
    """An account as it is written and shown."""

    host: str
    received: int
    stored: int
    duplicate: int
    malformed: int
    refused: int
    reasons: dict[str, int]
    listeners: list[str]
    last_seen_ms: int

    def book(self) -> SenderLedger:
        """The account with these figures, to go on with."""
        book = SenderLedger(self.host)
        book.received, book.stored, book.duplicate, book.malformed, book.refused = self[1:6]
        book.reasons, book.listeners, book.last_seen_ms = dict(self.reasons), set(self.listeners), self.last_seen_ms
        return book

    def silent_ms(self, now_ms: int) -> int:
        """Since when nothing came of it."""
        return max(0, now_ms - self.last_seen_ms)


class SenderAccounts:
    """The accounts of one ingest: `SENDERS_MAX` at most, and one for all others."""

    def __init__(self, figures: Iterable[SenderFigures] = (), senders_max: int = SENDERS_MAX) -> None:
        self._books: dict[str, SenderLedger] = {}
        self._senders_max = senders_max
        self.others = SenderLedger(OTHERS)
        self._folded: WeakSet[SenderLedger] = WeakSet()
        """Those that somebody may still add to."""
        for known in sorted(figures, key=lambda known: -known.last_seen_ms):
            if known.host == OTHERS:
                self.others.absorb(known.book())
            elif len(self._books) < senders_max:
                self._books[known.host] = known.book()
            else:
                self.others.absorb(known.book())

    def __len__(self) -> int:
        return len(self._books)

    def of(self, host: str) -> SenderLedger:
        """A sender's account, a new one if need be."""
        book = self._books.get(host)
        if book is None:
            if len(self._books) >= self._senders_max:
                self._make_room()
            book = self._books[host] = SenderLedger(host)
        return book

    def _make_room(self) -> None:
        """Fold the eighth part that was seen longest ago, so that a flood of addresses does not sort all of them for each."""
        oldest = sorted(self._books.values(), key=lambda book: book.last_seen_ms)[: max(1, self._senders_max // 8)]
        for book in oldest:
            del self._books[book.host]
            book.fold_into(self.others)
            self._folded.add(book)

    def news_mark(self) -> int:
        """A number that changes when anything is counted; much cheaper than looking at all figures."""
        books = (*self._books.values(), *self._folded)
        return sum(book.received + book.stored + book.duplicate + book.malformed + book.refused + book.last_seen_ms for book in books)

    def figures(self) -> list[SenderFigures]:
        """All of them; `OTHERS` last, if there are any."""
        for book in self._folded:
            book.hand_over()
        found = [book.figures() for book in self._books.values()]
        return [*found, self.others.figures()] if self.others.last_seen_ms or self.others.received or self.others.refused else found


def add_figures(figures: Iterable[SenderFigures]) -> list[SenderFigures]:
    """Of several ingests, by sender: the busiest first, `OTHERS` last."""
    books: dict[str, SenderLedger] = {}
    for known in figures:
        books.setdefault(known.host, SenderLedger(known.host)).absorb(known.book())
    return sorted((book.figures() for book in books.values()), key=lambda known: (known.host == OTHERS, -known.received, known.host))
