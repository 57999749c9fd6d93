"""Replay the spool of previous incarnations into the queues.

Owned by one ingest. Their records are still in flight in the ledger: they do not count as `crash`.

Weak: records of a listener that was removed from the table count for that listener, by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.senders.accounting import listeners_of, read_ledger
from appliance.senders.listener import Listener
from services.ingest.producer.batch_sender import BatchSender
from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.producer.spooled_batches import SpooledBatches
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.batcher import ReadyBatch
from services.ingest.records.event import EventSource
from services.ingest.records.share import Share
from services.ingest.replay.replays import Replays
from services.ingest.replay.spool_records import SpoolEntry, without_counted

_NOBODY = EventSource(b"spool", b"spool", b"spool")


class SpoolReplay:
    """Call `turn` each turn until `is_done`."""

    def __init__(self, spool: IngestSpool, values: Mapping[str, int], listeners: Mapping[str, Listener], make_listener: Callable[[str], Listener]) -> None:
        """`values`: the counters as they were found."""
        spool.left_over = without_counted(spool.left_over, {name: read_ledger(values, name).in_flight for name in listeners_of(values)})
        self.records: dict[str, int] = {}
        """Records in the spool, by listener."""
        for batch in spool.left_over:
            for share in batch.shares:
                self.records[share.listener] = self.records.get(share.listener, 0) + share.records
        self._spool = spool
        self._listeners = listeners
        self._make_listener = make_listener
        self._groups: dict[str, AckGroup] = {}
        self._batches: SpooledBatches | None = None
        self._number = -len(spool.left_over)
        self._keys = {(batch.topic, batch.partition) for batch in spool.left_over}
        self.topics = sorted({batch.topic for batch in spool.left_over})
        """Topics of the spool. Their leaders must be known even if no sender writes to them any
        more."""
        self.is_done = not spool.left_over

    def turn(self, replays: Replays, sender: BatchSender, now_ns: int) -> int:
        """Pass the batches that are known not to be stored to the sender; return the number of
        batches."""
        if not replays.is_loaded:
            sender.hold(self._keys)
            return 0
        if self._batches is None:
            self._batches = SpooledBatches(self._spool, replays)
        left_over = self._batches.turn()
        for left in self._batches.found_stored:
            sender.account_stored(self._batch_of(left, now_ns))
        self._batches.found_stored.clear()
        for left in left_over:
            batch = self._batch_of(left, now_ns)
            self._batches.adopt(batch, left)
            sender.adopt(batch)
        self.is_done = self._batches.is_empty
        sender.hold(self._batches.keys)
        return len(left_over)

    def _batch_of(self, left: SpoolEntry, now_ns: int) -> ProducerBatch:
        shares = []
        for spooled in left.shares:
            share = Share(self._group_of(spooled.listener))
            share.count, share.copies, share.parts = spooled.records, spooled.copies, list(spooled.parts)
            shares.append(share)
        self._number += 1
        return ProducerBatch(left.topic, ReadyBatch(left.partition, b"", left.record_count, shares), self._number - 1, now_ns)

    def _group_of(self, listener: str) -> AckGroup:
        group = self._groups.get(listener)
        if group is None:
            group = self._groups[listener] = AckGroup(self._listeners.get(listener) or self._make_listener(listener), _NOBODY)
        return group
