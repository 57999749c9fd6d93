"""The ledger of an ingest process, in total and by listener: received = stored + duplicate +
counted + in flight; and what the next incarnation adds to it.

Pure functions over the values of the shared counters, which outlive the process. A record is
`received` when its frame is complete and before it is parsed, `stored` when its listener's acks are
met, `duplicate` if it was stored before; otherwise it is `counted` with a reason. `resent` counts
records that were offered again, `copies` those in further topics; neither is received or stored
twice. What was refused before it was a record (`ingest.refused`) and kernel drops were never
received.

Weak: what a leader had appended when the process was killed counts as stored, also if that leader
dies before a follower has it. If the process is killed after it took a completion from its ring and before it added it to
`stored`, the records are counted as `crash` although they are stored. The sum stays right; the
reason may be wrong for one batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from appliance.base.invariants import check


class LossReason(StrEnum):
    """Why a received record is not stored. The values are counter labels."""

    OVERFLOW = "overflow"
    """The partition of a datagram accepts no more, because its disk is too slow (TCP is slowed down
    instead).
    """
    TOO_LARGE = "too_large"
    """The record is larger than its topic allows."""
    REFUSED = "refused"
    """The log-writer refused the record for good."""
    NO_KEY = "no_key"
    """The record has no key, and its listener or route requires one."""
    UNAUTHORIZED = "unauthorized"
    """The principal of the listener may not write to the topic. There is no dead letter."""
    DAMAGED = "damaged"
    """The record waited in the spool and cannot be read back."""
    SHUTDOWN = "shutdown"
    """The process was stopped, and no log-writer accepted the record in time."""
    CRASH = "crash"
    """The process died before it saw that the record was stored."""


RECEIVED_COUNTER = 'ingest.received{{listener="{listener}"}}'
STORED_COUNTER = 'ingest.stored{{listener="{listener}"}}'
ACKNOWLEDGED_COUNTER = 'ingest.acknowledged{{listener="{listener}"}}'
APPENDED_COUNTER = 'ingest.appended{{listener="{listener}"}}'
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
    """Totals in records since the counters were created."""

    received: int
    stored: int
    counted: int
    resent: int = 0
    duplicate: int = 0

    @property
    def in_flight(self) -> int:
        """Received, and not yet stored, found to be a duplicate, or counted."""
        return self.received - self.stored - self.duplicate - self.counted

    @property
    def balances(self) -> bool:
        """Whether every received record is accounted for. Always true of an idle process."""
        return self.in_flight == 0


def labels_of(counter: str) -> tuple[str, dict[str, str]]:
    """Split `ingest.counted{listener="dmz",reason="crash"}` into its name and its labels."""
    name, _, rest = counter.partition("{")
    return name, dict(_LABEL.findall(rest))


def read_ledger(values: Mapping[str, int], listener: str | None = None) -> Ledger:
    """Return the ledger in a process's counters (label → value), of one listener or of all."""
    sums = dict.fromkeys(Ledger._fields, 0)
    for label, value in values.items():
        column = _COLUMNS.get(label.partition("{")[0])
        if column is not None and (listener is None or labels_of(label)[1].get("listener") == listener):
            sums[column] += value
    return Ledger(**sums)


def listeners_of(values: Mapping[str, int]) -> list[str]:
    """Return the listeners that have counters, sorted."""
    return sorted({labels["listener"] for label in values if label.startswith("ingest.") and "listener" in (labels := labels_of(label)[1])})


def add_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    """Add up the ledgers of several ingest processes."""
    totals = [sum(column) for column in zip(*ledgers, strict=True)]
    return Ledger(*totals) if totals else Ledger(0, 0, 0)


class CrashAccounting(NamedTuple):
    """What a new incarnation adds to the counters before it receives anything."""

    stored: int
    crash: int


def plan_crash_accounting(ledger: Ledger, completed_unseen: int) -> CrashAccounting:
    """Account for what the previous incarnation had in flight: `completed_unseen` records have a
    completion that it did not read; the rest is lost.

    More completions than records in flight would be a bug of the previous incarnation. An exception
    would stop every further start as well, so the number is limited here and checked where records
    are counted.
    """
    check(completed_unseen >= 0, f"completions hold a negative number of records: {completed_unseen}")
    stored = min(completed_unseen, max(0, ledger.in_flight))
    return CrashAccounting(stored, max(0, ledger.in_flight) - stored)


def plan_crash_accountings(
    ledgers: Mapping[str, Ledger], completed_unseen: int, spooled: Mapping[str, int], appended: Mapping[str, int]
) -> dict[str, CrashAccounting]:
    """Do the same for each listener. Records in the spool are still in flight; `appended` ones are
    stored.

    Completions do not name their listeners, so they are given to the listeners in turn, at most
    what each has in flight. The sums are right; with several listeners the split between stored and
    crash may not be.
    """
    bookings = {}
    for listener, ledger in ledgers.items():
        ledger = ledger._replace(received=ledger.received - spooled.get(listener, 0))
        seen = min(max(0, appended.get(listener, 0)), max(0, ledger.in_flight))
        booking = plan_crash_accounting(ledger._replace(stored=ledger.stored + seen), completed_unseen)
        completed_unseen -= booking.stored
        bookings[listener] = booking._replace(stored=booking.stored + seen)
    return bookings
