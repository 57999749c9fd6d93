"""The books of an ingest: every record by listener and by sender, from the moment it is received to the moment it is stored, known before, or counted.

Owned by one ingest agent. Weak: of a record that goes to several topics the first is the one that counts; what became of a copy is `ingest.copies` alone.
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
    """One entry for each event, two books each."""

    def __init__(self, listeners: Iterable[Listener], senders: SenderLedgers, counters: Counters) -> None:
        self._counters = counters
        self._listeners = {listener.name: ListenerLedgers(counters, listener.name, listener.is_datagram) for listener in listeners}
        self._senders = senders

    def of(self, listener: Listener) -> ListenerLedgers:
        """Also of a listener that the table has no more, whose records are in the spool."""
        ledger = self._listeners.get(listener.name)
        if ledger is None:
            ledger = self._listeners[listener.name] = ListenerLedgers(self._counters, listener.name, listener.is_datagram)
        return ledger

    # -- records

    def on_received(self, group: AckGroup, count: int, now_ms: int) -> None:
        """Counted before anything else is done with them, so that the books balance wherever the process is killed."""
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
        """Stored before, or under way already."""
        group.duplicate_count += count
        self.of(group.listener).duplicate.add(count)
        self._sender(group).duplicate += count

    def on_counted(self, group: AckGroup, reason: LossReason, count: int) -> None:
        """Received, and not stored."""
        self.of(group.listener).counted(reason).add(count)
        self._sender(group).refuse(str(reason), count)

    def on_acknowledged(self, group: AckGroup) -> None:
        """Its sender is told so now."""
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
