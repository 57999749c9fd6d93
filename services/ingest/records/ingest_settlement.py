"""Carries what became of batches back to units, and tells sessions, once a unit, in the agent's turn.

Owned by one ingest agent, and the only place where `stored` is counted. A share is settled when its batch is where its listener's `acks` wants it: with the
leader, or with all in-sync replicas. Weak: a share with acks=1 counts as stored by the leader's word; a leader that dies alone with it loses it, as it
would for any producer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.senders.accounting import LossReason
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.ingest_ledger import IngestLedger
from services.ingest.records.share import Share
from services.ingest.records.topic_backlog import BackloggedRecord


class IngestSettlement:
    """`on_settled` (the intake's) sees every unit before its session does."""

    def __init__(self, books: IngestLedger) -> None:
        self._books = books
        self._ended: list[AckGroup] = []
        self.on_settled: Callable[[AckGroup], None] = lambda _unit: None

    @property
    def has_ended(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._ended)

    # -- batches

    def on_appended(self, batch: ProducerBatch) -> None:
        """The leader has it."""
        for share in batch.shares:
            if not share.wants_all:
                self._store(share)

    def on_stored(self, batch: ProducerBatch) -> None:
        """It is where it should be."""
        for share in batch.shares:
            self._store(share)

    def on_lost(self, batch: ProducerBatch, reason: LossReason) -> int:
        """It will not be stored; how many records that concerns."""
        lost = 0
        for share in batch.shares:
            if share.is_settled:
                continue
            share.is_settled = True
            lost += share.count
            if share.count:
                self._books.on_counted(share.unit, reason, share.count)
            share.unit.outcome = AckOutcome.REFUSED
            if share.is_awaited:
                self.release(share.unit)
        return lost

    def on_abandoned(self, delayed: Sequence[BackloggedRecord]) -> int:
        """The process ends before their topic was there; how many records that concerns."""
        for each in delayed:
            if not each.is_copy:
                self._books.on_counted(each.unit, LossReason.SHUTDOWN, 1)
        return sum(not each.is_copy for each in delayed)

    def _store(self, share: Share) -> None:
        if share.is_settled:
            return
        share.is_settled = True
        self._books.on_stored(share.unit, share.count, share.copies)
        if share.is_awaited:
            self.release(share.unit)

    # -- units

    def release(self, unit: AckGroup) -> None:
        """One thing less that it waits for."""
        unit.pending -= 1
        if not unit.pending and unit.is_sealed:
            self._ended.append(unit)

    def seal(self, unit: AckGroup) -> None:
        unit.is_sealed = True
        if not unit.pending:
            self._ended.append(unit)

    def settle(self) -> int:
        """Tell sessions; how many units."""
        ended, self._ended = self._ended, []
        for unit in ended:
            if unit.outcome is AckOutcome.PENDING:
                unit.outcome = AckOutcome.DUPLICATE if 0 < unit.record_count == unit.duplicate_count else AckOutcome.STORED
            self.on_settled(unit)
            if unit.outcome is not AckOutcome.REFUSED:
                self._books.on_acknowledged(unit)
            if unit.on_settled is not None:
                unit.on_settled(unit)
        return len(ended)
