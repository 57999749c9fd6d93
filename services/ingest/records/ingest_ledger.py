"""The ledger of an ingest: what became of each record, by listener and by sender.

Owned by one ingest agent. Invariant for each listener, also over a restart: received = stored +
duplicate + counted + in flight (`senders/accounting.py`). `received` is counted before anything
else is done with a record, so that the sums hold wherever the process is killed. Counters of
listeners are in shared memory and survive the process. Accounts of senders are in memory and, once
a second, in `RUN/net/senders.ingest@K`, which commands read.

Weak: if a record goes to several topics, only the first counts; copies are only in `ingest.copies`.
A `kill -9` loses what senders' accounts counted since the last write, a second at most; what was in
flight then is only in a sender's `received`. A reason has a counter only after its first use, so a
scrape sees new reasons appear.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.senders.accounting import (
    ACKNOWLEDGED_COUNTER,
    APPENDED_COUNTER,
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
    LossReason,
)
from appliance.senders.listener import Listener
from appliance.senders.sender_accounts import SenderAccounts, SenderLedger, read_senders, senders_file, write_senders
from appliance.shm.counters import Counter, Counters
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import Oddity, RefusedReason
from services.ingest.records.live_tap import LiveTap


class SenderLedgers:
    """`of` returns an account; `write_changes` is called once a second."""

    def __init__(self, layout: BoxLayout, process_name: str, clock: Clock) -> None:
        self._path = senders_file(layout, process_name)
        self._clock = clock
        self._accounts = SenderAccounts(read_senders(self._path))
        self._written = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, host: bytes, listener: str = "") -> SenderLedger:
        """Return the account of an address; the caller keeps it as long as its connection."""
        account = self._accounts.of(host.decode("ascii", "replace"))
        account.seen(self._clock.wall_ms())
        if listener:
            account.listeners.add(listener)
        return account

    def write_changes(self) -> bool:
        """Write the accounts that changed; return True if there are any."""
        mark = self._accounts.news_mark()
        if mark == self._written:
            return False
        self._written = mark
        try:
            write_senders(self._path, self._accounts.figures())
        except OSError:
            self._written = 0  # the runtime directory is being removed or is full: retry in a second
        return True

    def close(self) -> None:
        self.write_changes()


class ListenerLedgers:
    """The counters of one listener."""

    __slots__ = (
        "_counted",
        "_counters",
        "_refused",
        "acknowledged",
        "appended",
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
        self.appended = counters.counter(APPENDED_COUNTER.format(listener=listener))
        """Records that are in a leader's log and wait for its followers."""
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


class IngestLedger:
    """Each event is counted for the listener and for the sender."""

    def __init__(self, listeners: Iterable[Listener], senders: SenderLedgers, counters: Counters) -> None:
        self._counters = counters
        self._listeners = {listener.name: ListenerLedgers(counters, listener.name, listener.is_datagram) for listener in listeners}
        self._senders = senders
        self.tap: LiveTap | None = None
        """Set while a command watches what passes."""

    def of(self, listener: Listener) -> ListenerLedgers:
        """Return the counters of a listener, also of one that was removed from the table and whose
        records are in the spool."""
        ledger = self._listeners.get(listener.name)
        if ledger is None:
            ledger = self._listeners[listener.name] = ListenerLedgers(self._counters, listener.name, listener.is_datagram)
        return ledger

    # -- records

    def on_received(self, group: AckGroup, count: int, now_ms: int) -> None:
        """Count records before anything else is done with them."""
        self.of(group.listener).received.add(count)
        account = self._sender(group)
        account.received += count
        account.network.records += count
        account.seen(now_ms)

    def on_appended(self, group: AckGroup, count: int) -> None:
        """`count` records more, or less, are in the log of a leader and wait for its followers."""
        self.of(group.listener).appended.add(count)

    def on_stored(self, group: AckGroup, count: int, copies: int) -> None:
        ledger = self.of(group.listener)
        ledger.stored.add(count)
        if copies:
            ledger.copies.add(copies)
        self._sender(group).stored += count

    def on_duplicate(self, group: AckGroup, count: int) -> None:
        """Count records that were stored before or are in flight already."""
        group.duplicate_count += count
        self.of(group.listener).duplicate.add(count)
        self._sender(group).duplicate += count
        if self.tap is not None:
            self.tap.count(group.listener.name, group.source.host, group.source.address, "repeated", count)

    def on_counted(self, group: AckGroup, reason: LossReason, count: int) -> None:
        """Count records that were received and are not stored."""
        self.of(group.listener).counted(reason).add(count)
        self._sender(group).refuse(str(reason), count)
        if self.tap is not None:
            self.tap.count(group.listener.name, group.source.host, group.source.address, f"lost: {reason}", count)

    def on_acknowledged(self, group: AckGroup) -> None:
        """The sender of the group is being answered."""
        self.of(group.listener).acknowledged.add(group.record_count - len(group.rejected))

    def records_of(self, listener: Listener, host: bytes) -> tuple[int, int]:
        """Return the records that the network of an address has sent to this incarnation, and those
        that a listener has received."""
        return self._senders.of(host).network.records, self.of(listener).received.value

    def _sender(self, group: AckGroup) -> SenderLedger:
        account: SenderLedger | None = group.sender_ledger
        if account is None:
            account = group.sender_ledger = self._senders.of(group.source.host, group.listener.name)
        return account

    # -- what was no record, or an odd one

    def on_refused(self, listener: Listener, host: bytes, reason: RefusedReason, count: int) -> None:
        self.of(listener).refused(reason).add(count)
        self._senders.of(host, listener.name).refuse(str(reason), count)
        if self.tap is not None:
            self.tap.count(listener.name, host, host, f"refused: {reason}", count)

    def on_odd(self, listener: Listener, host: bytes, oddity: Oddity, count: int) -> None:
        self._listeners[listener.name].odd[oddity].add(count)
        if oddity is Oddity.UNPARSED:
            self._senders.of(host, listener.name).malformed += count
