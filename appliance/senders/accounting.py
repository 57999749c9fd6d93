"""The ledger of an ingest process, whole and by listener: received = stored + duplicate + counted + in flight; and what its next life books for it.

Pure functions over the values of the shared counters (which outlive the process); the agent reads and writes those. A record is `received`
once its framing is known and before it is parsed, `stored` when it is where its listener's acks want it, `duplicate` if it was stored before,
else `counted` under one reason. `resent` counts records that were offered again, `copies` those that went to further topics; they are neither
received nor stored twice. What was refused before it was a record (`ingest.refused`), and kernel drops, were never received.

Weak: a completion that was taken out of its ring and not yet added to `stored` when the process was killed is booked as `crash`
though it is stored: the sum stays right, the reason is too pessimistic by one burst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from appliance.base.invariants import check


class LossReason(StrEnum):
    """Why a received line is not stored. The values are counter labels."""

    OVERFLOW = "overflow"
    """The partition of a datagram's line takes no more, because its disk does not keep up (TCP is slowed down instead)."""
    TOO_LARGE = "too_large"
    """Its record is larger than the topic allows."""
    REFUSED = "refused"
    """The log-writer said no, for good."""
    NO_KEY = "no_key"
    """It has no key where its listener or route requires one."""
    DAMAGED = "damaged"
    """It waited in the spool, and cannot be read there."""
    SHUTDOWN = "shutdown"
    """The process was stopped, and no log-writer took the line in the time that a stop has."""
    CRASH = "crash"
    """The process died between receiving it and seeing it stored."""


RECEIVED_COUNTER = 'ingest.received{{listener="{listener}"}}'
STORED_COUNTER = 'ingest.stored{{listener="{listener}"}}'
ACKNOWLEDGED_COUNTER = 'ingest.acknowledged{{listener="{listener}"}}'
DUPLICATE_COUNTER = 'ingest.duplicate{{listener="{listener}"}}'
COUNTED_COUNTER = 'ingest.counted{{listener="{listener}",reason="{reason}"}}'
REFUSED_COUNTER = 'ingest.refused{{listener="{listener}",reason="{reason}"}}'
INPUT_BYTES_COUNTER = 'ingest.input_bytes{{listener="{listener}"}}'
COPIES_COUNTER = 'ingest.copies{{listener="{listener}"}}'
KERNEL_DROPS_COUNTER = 'ingest.kernel_drops{{listener="{listener}"}}'
TRUNCATED_COUNTER = 'ingest.truncated{{listener="{listener}"}}'
UNPARSED_COUNTER = 'ingest.unparsed{{listener="{listener}"}}'
RESYNCHRONISED_COUNTER = 'ingest.framing_resynchronised{{listener="{listener}"}}'
RESENT_COUNTER = "ingest.resent"
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')
_COLUMNS = {
    "ingest.received": "received",
    "ingest.stored": "stored",
    "ingest.counted": "counted",
    "ingest.resent": "resent",
    "ingest.duplicate": "duplicate",
}


class Ledger(NamedTuple):
    """Totals in records since the counters were made."""

    received: int
    stored: int
    counted: int
    resent: int = 0
    duplicate: int = 0

    @property
    def in_flight(self) -> int:
        """Received, and neither stored, nor found stored before, nor counted yet."""
        return self.received - self.stored - self.duplicate - self.counted

    @property
    def balances(self) -> bool:
        """Whether every received record is accounted for; true of an idle process, always."""
        return self.in_flight == 0


def labels_of(counter: str) -> tuple[str, dict[str, str]]:
    """`ingest.counted{listener="dmz",reason="crash"}` → its name, and its labels."""
    name, _, rest = counter.partition("{")
    return name, dict(_LABEL.findall(rest))


def read_ledger(values: Mapping[str, int], listener: str | None = None) -> Ledger:
    """The ledger in a process's counters (label → value), of one listener or of all."""
    sums = dict.fromkeys(Ledger._fields, 0)
    for label, value in values.items():
        column = _COLUMNS.get(label.partition("{")[0])
        if column is not None and (listener is None or labels_of(label)[1].get("listener") == listener):
            sums[column] += value
    return Ledger(**sums)


def listeners_of(values: Mapping[str, int]) -> list[str]:
    """The listeners that have counters here, sorted."""
    return sorted({labels["listener"] for label in values if label.startswith("ingest.") and "listener" in (labels := labels_of(label)[1])})


def add_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    """The ledger of several ingest processes together."""
    totals = [sum(column) for column in zip(*ledgers, strict=True)]
    return Ledger(*totals) if totals else Ledger(0, 0, 0)


class CrashAccounting(NamedTuple):
    """What a new life adds to the counters before it receives anything."""

    stored: int
    crash: int


def plan_crash_accounting(ledger: Ledger, completed_unseen: int) -> CrashAccounting:
    """The previous life's end: `completed_unseen` records were completed and never looked at; what else is in flight died with it.

    More completions than lines in flight would be a mistake of the previous life. It cannot be put right by dying again at every
    start, so it is bounded here and asserted where records are counted.
    """
    check(completed_unseen >= 0, f"completions hold a negative number of records: {completed_unseen}")
    stored = min(completed_unseen, max(0, ledger.in_flight))
    return CrashAccounting(stored, max(0, ledger.in_flight) - stored)


def plan_crash_accountings(ledgers: Mapping[str, Ledger], completed_unseen: int, spooled: Mapping[str, int]) -> dict[str, CrashAccounting]:
    """The same by listener, without what waits in the spool: that is in flight still. Completions do not say whose records they are: they are given to the
    listeners in turn, as far as each has something in flight. So the sums are right, and of several listeners the split between stored and crash may not be."""
    bookings = {}
    for listener, ledger in ledgers.items():
        booking = plan_crash_accounting(ledger._replace(received=ledger.received - spooled.get(listener, 0)), completed_unseen)
        completed_unseen -= booking.stored
        bookings[listener] = booking
    return bookings
