"""How much each sender sent: one account for each address (without port), bounded; the least
recently seen ones are added up in one.

Owned by one ingest, which writes its accounts to `RUN/net/senders.ingest@K` once a second; its
next incarnation and commands read the file. Time is an argument (wall clock, ms). Weak: an address
counts as a sender, so lines through a relay or an untrusted proxy belong to the relay; the file is
on tmpfs, so it ends with the box.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from weakref import WeakSet, WeakValueDictionary

import orjson

from appliance.base.layout import BoxLayout

SENDERS_MAX = 4096
FILE_BYTES_MAX = 16 << 20
"""Of the accounts' file; an account takes about 500 bytes."""
OTHERS = "others"
"""The name of the account for all senders above the limit."""


class RecordCount:
    """Records received from one network in this incarnation, for quotas. It never decreases, so it is
    kept apart from the accounts, which are folded."""

    __slots__ = ("__weakref__", "records")

    def __init__(self) -> None:
        self.records = 0


def network_of(address: str) -> str | bytes:
    """Return what quotas are counted for: an IPv4 address, or the /64 of an IPv6 address, because one
    host can use all of it."""
    if ":" not in address or address.startswith("::ffff:"):
        return address.removeprefix("::ffff:")
    try:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8]
    except OSError:
        return address


class SenderLedger:
    """One sender's account; its connections hold it and add to it. `reasons`: those of `counted`
    and `refused` together. Accounts of one network share `network`.
    """

    __slots__ = (
        "__weakref__", "_heir", "duplicate", "host", "last_seen_ms", "listeners", "malformed", "network", "reasons", "received", "refused", "stored",
    )  # fmt: skip

    def __init__(self, host: str) -> None:
        self.host = host
        self.received = 0
        self.stored = 0
        self.duplicate = 0
        self.malformed = 0
        self.refused = 0
        """Not stored: lost after it was received, or refused before."""
        self.reasons: dict[str, int] = {}
        self.listeners: set[str] = set()
        self.last_seen_ms = 0
        self.network = RecordCount()
        self._heir: SenderLedger | None = None

    def seen(self, now_ms: int) -> None:
        """The sender sent something."""
        self.last_seen_ms = now_ms

    def refuse(self, reason: str, count: int = 1) -> None:
        """Count records that were not stored."""
        self.refused += count
        self.reasons[reason] = self.reasons.get(reason, 0) + count

    def fold_into(self, heir: SenderLedger) -> None:
        """Give the counts of this account, and those added from now on, to `heir`."""
        self._heir = heir
        self.hand_over()

    def hand_over(self) -> None:
        """Move the counts since the last call to the heir."""
        heir = self._heir
        if heir is None:
            return
        heir.absorb(self)
        self.received = self.stored = self.duplicate = self.malformed = self.refused = 0
        self.reasons = {}

    def absorb(self, other: SenderLedger) -> None:
        """Add the counts of another account."""
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
        self.hand_over()  # no connection adds to it any more

    def figures(self) -> SenderFigures:
        """The counts now."""
        return SenderFigures(
            self.host, self.received, self.stored, self.duplicate, self.malformed, self.refused, dict(self.reasons), sorted(self.listeners), self.last_seen_ms
        )


class SenderFigures(NamedTuple):
    """An account as it is written to the file and shown."""

    host: str
    received: int
    stored: int
    duplicate: int
    malformed: int
    refused: int
    reasons: dict[str, int]
    listeners: list[str]
    last_seen_ms: int

    def ledger(self) -> SenderLedger:
        """An account that continues these counts."""
        ledger = SenderLedger(self.host)
        ledger.received, ledger.stored, ledger.duplicate, ledger.malformed, ledger.refused = self[1:6]
        ledger.reasons, ledger.listeners, ledger.last_seen_ms = dict(self.reasons), set(self.listeners), self.last_seen_ms
        return ledger

    def silent_ms(self, now_ms: int) -> int:
        """How long the sender has been silent."""
        return max(0, now_ms - self.last_seen_ms)


class SenderAccounts:
    """The accounts of one ingest: `SENDERS_MAX` at most, and one for all others."""

    def __init__(self, figures: Iterable[SenderFigures] = (), senders_max: int = SENDERS_MAX) -> None:
        self._ledgers: dict[str, SenderLedger] = {}
        self._senders_max = senders_max
        self._networks: WeakValueDictionary[str | bytes, RecordCount] = WeakValueDictionary()
        self.others = SenderLedger(OTHERS)
        self._folded: WeakSet[SenderLedger] = WeakSet()
        """Accounts without a place of their own that a connection still adds to."""
        for known in sorted(figures, key=lambda known: -known.last_seen_ms):
            if known.host == OTHERS:
                self.others.absorb(known.ledger())
            elif len(self._ledgers) < senders_max:
                self._ledgers[known.host] = self._counted(known.ledger())
            else:
                self.others.absorb(known.ledger())

    def __len__(self) -> int:
        return len(self._ledgers)

    def of(self, host: str) -> SenderLedger:
        """Return a sender's account; make a new one if there is none."""
        ledger = self._ledgers.get(host)
        if ledger is None:
            if len(self._ledgers) >= self._senders_max:
                self._fold_oldest()
            ledger = self._ledgers[host] = self._counted(SenderLedger(host))
        return ledger

    def _counted(self, ledger: SenderLedger) -> SenderLedger:
        """Let the account count for its network, also with those that were folded."""
        ledger.network = self._networks.setdefault(network_of(ledger.host), ledger.network)
        return ledger

    def _fold_oldest(self) -> None:
        """Move the least recently seen eighth into `others`. An eighth, so that a flood of
        addresses does not sort all accounts for each.
        """
        oldest = sorted(self._ledgers.values(), key=lambda ledger: ledger.last_seen_ms)[: max(1, self._senders_max // 8)]
        for ledger in oldest:
            del self._ledgers[ledger.host]
            ledger.fold_into(self.others)
            self._folded.add(ledger)

    def news_mark(self) -> int:
        """A number that changes when anything is counted; much cheaper than comparing all figures."""
        ledgers = (*self._ledgers.values(), *self._folded)
        return sum(ledger.received + ledger.stored + ledger.duplicate + ledger.malformed + ledger.refused + ledger.last_seen_ms for ledger in ledgers)

    def figures(self) -> list[SenderFigures]:
        """All of them; `OTHERS` last, if there are any."""
        for ledger in self._folded:
            ledger.hand_over()
        found = [ledger.figures() for ledger in self._ledgers.values()]
        return [*found, self.others.figures()] if self.others.last_seen_ms or self.others.received or self.others.refused else found


def add_figures(figures: Iterable[SenderFigures]) -> list[SenderFigures]:
    """Add up the figures of several ingests by sender: the busiest first, `OTHERS` last."""
    ledgers: dict[str, SenderLedger] = {}
    for known in figures:
        ledgers.setdefault(known.host, SenderLedger(known.host)).absorb(known.ledger())
    return sorted((ledger.figures() for ledger in ledgers.values()), key=lambda known: (known.host == OTHERS, -known.received, known.host))


def senders_file(layout: BoxLayout, process_name: str) -> str:
    """The path of an ingest's file."""
    return f"{layout.network_directory}/senders.{process_name}"


def write_senders(path: str, figures: Sequence[SenderFigures]) -> None:
    """Replace the file. Raises OSError."""
    with open(f"{path}.new", "wb") as file:
        file.write(orjson.dumps([list(known) for known in figures]))
    os.rename(f"{path}.new", path)


def read_senders(path: str) -> list[SenderFigures]:
    """Read the file; return nothing if it cannot be read. Processes that face the network could
    replace it, so it is opened without following links or waiting for a FIFO."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        rows = orjson.loads(content) if len(content) <= FILE_BYTES_MAX else ()
        return [SenderFigures(*row) for row in rows if _is_row(row)]
    except (OSError, ValueError, TypeError):
        return []


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != len(SenderFigures._fields):
        return False
    host, *counts, reasons, listeners, last_seen_ms = row
    numbers = [*counts, last_seen_ms]
    return isinstance(host, str) and all(isinstance(number, int) for number in numbers) and isinstance(reasons, dict) and isinstance(listeners, list)
