"""The ledger of an ingest: each record by listener and by sender, from received to stored,
duplicate or lost.

Owned by one ingest agent. Invariant for each listener, also over a restart: received = stored +
duplicate + counted + in flight. `received` is counted before anything else is done with a record,
so that the sums hold wherever the process is killed.

Weak: if a record goes to several topics, only the first counts; copies are only in `ingest.copies`.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.senders.accounting import LossReason
from appliance.senders.listener import Listener
from appliance.senders.sender_accounts import SenderLedger
from appliance.shm.counters import Counters
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.intake import Oddity, RefusedReason
from services.ingest.records.listener_ledgers import ListenerLedgers
from services.ingest.records.sender_ledgers import SenderLedgers


class IngestLedger:
    """Each event is counted for the listener and for the sender."""

    def __init__(self, listeners: Iterable[Listener], senders: SenderLedgers, counters: Counters) -> None:
        self._counters = counters
        self._listeners = {listener.name: ListenerLedgers(counters, listener.name, listener.is_datagram) for listener in listeners}
        self._senders = senders

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
        book = self._sender(group)
        book.received += count
        book.seen(now_ms)

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

    def on_counted(self, group: AckGroup, reason: LossReason, count: int) -> None:
        """Count records that were received and are not stored."""
        self.of(group.listener).counted(reason).add(count)
        self._sender(group).refuse(str(reason), count)

    def on_acknowledged(self, group: AckGroup) -> None:
        """The sender of the group is being answered."""
        self.of(group.listener).acknowledged.add(group.record_count - len(group.rejected))

    def _sender(self, group: AckGroup) -> SenderLedger:
        book: SenderLedger | None = group.sender_ledger
        if book is None:
            book = group.sender_ledger = self._senders.of(group.source.host, group.listener.name)
        return book

    # -- what was no record, or an odd one

    def on_refused(self, listener: Listener, host: bytes, reason: RefusedReason, count: int) -> None:
        self.of(listener).refused(reason).add(count)
        self._senders.of(host, listener.name).refuse(str(reason), count)

    def on_odd(self, listener: Listener, host: bytes, oddity: Oddity, count: int) -> None:
        self._listeners[listener.name].odd[oddity].add(count)
        if oddity is Oddity.UNPARSED:
            self._senders.of(host, listener.name).malformed += count
