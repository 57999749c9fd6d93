"""Complete ack groups when their batches are stored or lost, and notify their sessions.

Owned by one ingest agent. Only this class counts `stored`. A share is completed when its batch is
where its listener's `acks` require it: on the leader (acks=1) or on all in-sync replicas
(acks=all). Sessions are called from the agent's turn only, because a session that is called from
inside its own `take` would see half its state.

Weak: with acks=1 a record counts as stored when the leader has appended it. If that leader dies
before a follower has the batch, the record is lost, as for any Kafka producer with acks=1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.senders.accounting import LossReason
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.ack_group import AckGroup, AckOutcome, Share
from services.ingest.records.ingest_ledger import IngestLedger


class Acknowledger:
    """`on_completed` (set by the router) is called for each group before its session is."""

    def __init__(self, ledger: IngestLedger) -> None:
        self.ledger = ledger
        self._completed: list[AckGroup] = []
        self.on_completed: Callable[[AckGroup], None] = lambda _group: None

    @property
    def has_completed(self) -> bool:
        """True if `notify_sessions` has work."""
        return bool(self._completed)

    # -- batches

    def on_appended(self, batch: ProducerBatch) -> None:
        """Complete the shares that need only the leader's append, and count the others as in its
        log: if this process dies now, they are stored. What is in the spool is offered again."""
        for share in batch.shares:
            if batch.was_leased and not share.wants_all:
                self._store(share)
            elif share.count and not batch.is_spooled and not share.is_appended and not share.is_completed:
                share.is_appended = True
                self.ledger.on_appended(share.group, share.count)

    def on_returned(self, batch: ProducerBatch) -> None:
        """The batch is offered again, by this process or, from the spool, by its next incarnation."""
        for share in batch.shares:
            self._forget_append(share)

    def on_stored(self, batch: ProducerBatch) -> None:
        """Complete all shares: every in-sync replica has the batch, or the leader has it and no
        share needs more."""
        for share in batch.shares:
            self._store(share)

    def on_lost(self, batch: ProducerBatch, reason: LossReason) -> int:
        """Count the batch's records under `reason`, refuse their groups, and return the number of
        lost records.

        Shares that completed before (acks=1, appended) stay stored: their senders were answered.
        """
        lost = 0
        for share in batch.shares:
            if share.is_completed:
                continue
            share.is_completed = True
            self._forget_append(share)
            lost += share.count
            if share.count:
                self.ledger.on_counted(share.group, reason, share.count)
            share.group.outcome = AckOutcome.REFUSED
            if share.is_awaited:
                self.release(share.group)
        return lost

    def on_abandoned(self, groups: Sequence[AckGroup]) -> int:
        """Count records whose topic did not exist before the process stops, by the group of each;
        return how many."""
        for group in groups:
            self.ledger.on_counted(group, LossReason.SHUTDOWN, 1)
        return len(groups)

    def _store(self, share: Share) -> None:
        if share.is_completed:
            return
        share.is_completed = True
        self._forget_append(share)  # before it counts as stored: a process that dies in between counts it once
        self.ledger.on_stored(share.group, share.count, share.copies)
        if share.is_awaited:
            self.release(share.group)

    def _forget_append(self, share: Share) -> None:
        if share.is_appended:
            share.is_appended = False
            self.ledger.on_appended(share.group, -share.count)

    # -- groups

    def release(self, group: AckGroup) -> None:
        """Remove one of the things that the group waits for; the group completes when it is closed
        and none is left."""
        group.pending -= 1
        if not group.pending and group.is_closed:
            self._completed.append(group)

    def close(self, group: AckGroup) -> None:
        group.is_closed = True
        if not group.pending:
            self._completed.append(group)

    def notify_sessions(self) -> int:
        """Call the session of each completed group; return the number of groups."""
        completed, self._completed = self._completed, []
        for group in completed:
            if group.outcome is AckOutcome.PENDING:
                group.outcome = AckOutcome.DUPLICATE if 0 < group.record_count == group.duplicate_count else AckOutcome.STORED
            self.on_completed(group)
            if group.outcome is not AckOutcome.REFUSED:
                self.ledger.on_acknowledged(group)
            if group.on_completed is not None:
                group.on_completed(group)
        return len(completed)
