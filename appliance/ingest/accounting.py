"""The ledger of an ingest process: received = stored + counted + in flight, and what its next life books for it.

Pure functions over the values of the shared counters (which outlive the process); the agent reads and writes those. A message is
`received` once its framing is known and before it is parsed, `stored` when the log-writer's completion says so, else `counted` under one
reason. `resent` counts records that were offered again; they are neither received nor stored twice. Kernel drops were never received.

Weak: a completion that was taken out of its ring and not yet added to `stored` when the process was killed is booked as `crash`
though it is stored: the sum stays right, the reason is too pessimistic by one burst.
"""

from __future__ import annotations

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
    SHUTDOWN = "shutdown"
    """The process was stopped, and no log-writer took the line in the time that a stop has."""
    CRASH = "crash"
    """The process died between receiving it and seeing it stored."""


RECEIVED_COUNTER = 'ingest.received{{transport="{transport}"}}'
STORED_COUNTER = "ingest.stored"
COUNTED_COUNTER = 'ingest.counted{{reason="{reason}"}}'
INPUT_BYTES_COUNTER = 'ingest.input_bytes{{transport="{transport}"}}'
RESENT_COUNTER = "ingest.resent"
KERNEL_DROPS_COUNTER = "ingest.kernel_drops"
_RECEIVED_PREFIX = RECEIVED_COUNTER.partition("{")[0]
_COUNTED_PREFIX = COUNTED_COUNTER.partition("{")[0]


class Ledger(NamedTuple):
    """Totals in lines since the counters were made."""

    received: int
    stored: int
    counted: int
    resent: int = 0

    @property
    def in_flight(self) -> int:
        """Received, and neither stored nor counted yet."""
        return self.received - self.stored - self.counted

    @property
    def balances(self) -> bool:
        """Whether every received line is accounted for; true of an idle process, always."""
        return self.in_flight == 0


def read_ledger(values: Mapping[str, int]) -> Ledger:
    """The ledger in a process's counters (label → value)."""
    return Ledger(
        received=_sum(values, _RECEIVED_PREFIX),
        stored=values.get(STORED_COUNTER, 0),
        counted=_sum(values, _COUNTED_PREFIX),
        resent=values.get(RESENT_COUNTER, 0),
    )


def add_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    """The ledger of several ingest processes together."""
    totals = [sum(column) for column in zip(*ledgers, strict=True)]
    return Ledger(*totals) if totals else Ledger(0, 0, 0)


class CrashBooking(NamedTuple):
    """What a new life adds to the counters before it receives anything."""

    stored: int
    crash: int


def plan_crash_booking(ledger: Ledger, completed_unseen: int) -> CrashBooking:
    """The previous life's end: `completed_unseen` records were completed and never looked at; what else is in flight died with it.

    More completions than lines in flight would be a mistake of the previous life. It cannot be put right by dying again at every
    start, so it is bounded here and asserted where records are counted.
    """
    check(completed_unseen >= 0, f"completions hold a negative number of records: {completed_unseen}")
    stored = min(completed_unseen, max(0, ledger.in_flight))
    return CrashBooking(stored, max(0, ledger.in_flight) - stored)


def _sum(values: Mapping[str, int], prefix: str) -> int:
    return sum(value for label, value in values.items() if label.partition("{")[0] == prefix)
