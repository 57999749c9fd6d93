"""The counters of one listener, in the shared counters of its ingest: they survive the process.

Owned by one ingest agent. Received = stored + duplicate + counted + in flight for each listener
(`senders/accounting.py`). Weak: a reason has a counter only after its first use, so a scrape sees
new reasons appear.
"""

from __future__ import annotations

from appliance.senders.accounting import (
    ACKNOWLEDGED_COUNTER,
    COPIES_COUNTER,
    COUNTED_COUNTER,
    DUPLICATE_COUNTER,
    INPUT_BYTES_COUNTER,
    KERNEL_DROPS_COUNTER,
    RECEIVED_COUNTER,
    REFUSED_COUNTER,
    RESYNCHRONISED_COUNTER,
    STORED_COUNTER,
    TRUNCATED_COUNTER,
    UNPARSED_COUNTER,
)
from appliance.shm.counters import Counter, Counters
from services.ingest.records.intake import Oddity


class ListenerLedgers:
    """The counters of one listener."""

    __slots__ = (
        "_counted",
        "_counters",
        "_refused",
        "acknowledged",
        "copies",
        "duplicate",
        "input_bytes",
        "kernel_drops",
        "listener",
        "odd",
        "received",
        "stored",
    )

    def __init__(self, counters: Counters, listener: str, is_datagram: bool = False) -> None:
        self._counters = counters
        self.listener = listener
        self.received = counters.counter(RECEIVED_COUNTER.format(listener=listener))
        self.stored = counters.counter(STORED_COUNTER.format(listener=listener))
        self.acknowledged = counters.counter(ACKNOWLEDGED_COUNTER.format(listener=listener))
        """Records whose sender received a positive acknowledgement."""
        self.duplicate = counters.counter(DUPLICATE_COUNTER.format(listener=listener))
        self.input_bytes = counters.counter(INPUT_BYTES_COUNTER.format(listener=listener))
        self.copies = counters.counter(COPIES_COUNTER.format(listener=listener))
        """Records stored in a further topic, including dead letters."""
        self.kernel_drops: Counter | None = counters.counter(KERNEL_DROPS_COUNTER.format(listener=listener)) if is_datagram else None
        self.odd = {
            Oddity.TRUNCATED: counters.counter(TRUNCATED_COUNTER.format(listener=listener)),
            Oddity.UNPARSED: counters.counter(UNPARSED_COUNTER.format(listener=listener)),
            Oddity.FRAMING_RESYNCHRONISED: counters.counter(RESYNCHRONISED_COUNTER.format(listener=listener)),
        }
        self._counted: dict[str, Counter] = {}
        self._refused: dict[str, Counter] = {}

    def counted(self, reason: str) -> Counter:
        """Return the counter of records that were received and not stored, for a `LossReason`."""
        counter = self._counted.get(reason)
        if counter is None:
            counter = self._counted[reason] = self._counters.counter(COUNTED_COUNTER.format(listener=self.listener, reason=str(reason)))
        return counter

    def refused(self, reason: str) -> Counter:
        """Return the counter of input that was refused before it became a record, for a
        `RefusedReason`."""
        counter = self._refused.get(reason)
        if counter is None:
            counter = self._refused[reason] = self._counters.counter(REFUSED_COUNTER.format(listener=self.listener, reason=str(reason)))
        return counter
