"""Replay the spool of previous incarnations into the queues, in order.

Owned by one ingest until that spool is empty. Its records are still in flight in the ledger: they
do not count as `crash`. A batch with identities may have been offered before the process died; then
its leader is asked first, as for every batch in the journal. Until a batch is stored, repeats of
its records wait.

Weak: a batch without identities is offered again without asking, so plain syslog that was in flight
from the spool is stored twice. Records of a listener that was removed from the table count for that
listener, by its name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from appliance.senders.accounting import listeners_of, read_ledger
from appliance.senders.listener import Listener
from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.producer.partition_leaders import Key
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.records.ack_group import AckGroup, Share
from services.ingest.records.batcher import ReadyBatch
from services.ingest.records.event import EventSource
from services.ingest.replay.replays import Replays
from services.ingest.replay.spool_records import SpoolEntry, without_counted


class SpooledBatches:
    """Each spooled batch leaves `turn` when it is known not to be stored; `adopt` what it returns."""

    def __init__(self, spool: IngestSpool, replays: Replays) -> None:
        """Construct after the journal was read."""
        self._spool = spool
        self._replays = replays
        self._waiting: dict[tuple[str, int], deque[SpoolEntry]] = {}
        self._offered: dict[object, SpoolEntry] = {}
        self.found_stored: list[SpoolEntry] = []
        """Batches that are stored already; the owner counts and removes them."""
        for left in spool.left_over:
            self._waiting.setdefault((left.topic, left.partition), deque()).append(left)
            replays.await_left_over(left.parts)
        spool.left_over = []
        spool.on_done = self._on_done

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Partitions with batches of which it is not known whether they are stored."""
        return list(self._waiting)

    def turn(self) -> list[SpoolEntry]:
        """Return the batches to offer now; the caller makes a `ProducerBatch` of each and calls
        `adopt`."""
        ready = []
        for key, queue in list(self._waiting.items()):
            while queue:
                is_stored = self._replays.has_left_over(queue[0].topic, queue[0].parts)
                if is_stored is None:
                    break
                left = queue.popleft()
                if is_stored:
                    self._spool.forget(left)
                    self._replays.end_left_over(left.topic, left.parts, is_stored=True)
                    self.found_stored.append(left)
                else:
                    ready.append(left)
            if not queue:
                del self._waiting[key]
        return ready

    def adopt(self, batch: object, left: SpoolEntry) -> None:
        """`batch` stands for the spooled batch from now on."""
        self._spool.adopt(batch, left)
        self._offered[batch] = left

    def _on_done(self, batch: object) -> None:
        """The batch was stored or refused. `ReplayMemory` has what is stored of it."""
        left = self._offered.pop(batch, None)
        if left is not None:
            self._replays.end_left_over(left.topic, left.parts, is_stored=False)


_NOBODY = EventSource(b"spool", b"spool", b"spool")


class SpoolReceiver(Protocol):
    """`BatchSender`, as far as the spool is replayed into it."""

    def hold(self, keys: Collection[Key]) -> None: ...

    def adopt(self, batch: ProducerBatch) -> None: ...

    def account_stored(self, batch: ProducerBatch) -> None: ...


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

    def turn(self, replays: Replays, sender: SpoolReceiver, now_ns: int) -> int:
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
