"""Batches behind a lane whose leader nobody can reach: to the state disk when the memory for them is used up, and back in order when there is room.

Owned by the outlet. What is behind a lane stays behind it, on disk or, when the spool is full, in memory: nothing overtakes. Nor does it after a death: before
the first batch of a lane goes to disk, what is before it is written there, too, so the next life finds all of a lane's line from its head on, and who brings
again what was lost with the memory stands behind that. A batch on disk is an object here still, so that its units, its order and its books are those of any
other. Weak: the head of a lane, and a batch that was read back, are in memory and on disk until they are stored; and the head is written in one turn.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from appliance.senders.accounting import LossReason
from services.ingest.producer.partition_queue import UNDER_WAY_MAX, PartitionQueue
from services.ingest.producer.producer_batch import ProducerBatch
from services.ingest.replay.identity import identity_of

_by_number = attrgetter("number")


class Spool(Protocol):
    """`ingest_spool`."""

    @property
    def has_room(self) -> bool: ...

    def write(self, batch: ProducerBatch, data: bytes) -> bool: ...

    def read(self, batch: ProducerBatch) -> bytes | None: ...

    def done(self, batch: ProducerBatch) -> None: ...


class IngestSpooling:
    """`put` behind, `refill` from behind. `charge(lane, batch)`: it takes memory from now on; `bytes_of` gives those of a batch in memory;
    `on_lost(batch, reason)`; `journal(batch)`: under which stamp it was offered."""

    def __init__(
        self,
        spool: Spool,
        charge: Callable[[PartitionQueue, ProducerBatch], None],
        bytes_of: Callable[[ProducerBatch], bytes],
        on_lost: Callable[[ProducerBatch, LossReason], int],
        journal: Callable[[ProducerBatch], None],
    ) -> None:
        self._spool = spool
        self._charge = charge
        self._bytes_of = bytes_of
        self._on_lost = on_lost
        self._journal = journal
        self._is_full = False
        """It has refused a batch; nothing in it was done since, and something waits."""

    @property
    def has_room(self) -> bool:
        return not self._is_full and self._spool.has_room

    def put(self, lane: PartitionQueue, batch: ProducerBatch) -> bool:
        """Behind the lane; whether it is on disk, as everything before it is then."""
        is_written = self._has_line(lane) and self._write(batch)
        lane.behind.append(batch)
        if is_written:
            batch.data = b""
            return True
        self._is_full = True
        self._charge(lane, batch)
        return False

    def _has_line(self, lane: PartitionQueue) -> bool:
        """Whether all of a lane is on disk; what is not is written, as far as there is room."""
        if lane.behind and lane.behind[-1].is_spooled:
            return True
        return all(batch.is_spooled or self._write(batch) for batch in (*lane.under_way, *lane.waiting, *lane.behind))

    def _write(self, batch: ProducerBatch) -> bool:
        batch.is_spooled = self._spool.write(batch, self._bytes_of(batch))
        return batch.is_spooled

    def refill(self, lane: PartitionQueue) -> None:
        """As much as may be offered next."""
        while lane.behind and len(lane.waiting) < UNDER_WAY_MAX:
            batch = lane.behind.popleft()
            if batch.is_spooled and not batch.data:
                data = self._spool.read(batch)
                if data is None:
                    self._on_lost(batch, LossReason.DAMAGED)
                    self.done(batch)
                    continue
                batch.fill(data)
                self._charge(lane, batch)
            lane.waiting.append(batch)

    def done(self, batch: ProducerBatch) -> None:
        """It is stored, or will never be."""
        if batch.is_spooled:
            batch.is_spooled = self._is_full = False
            self._spool.done(batch)

    def rest(self) -> None:
        """Nothing waits: whatever was wrong with the spool may be over."""
        self._is_full = False

    def keep(self, lane: PartitionQueue) -> list[ProducerBatch]:
        """The process ends: what is left of a lane goes to disk in its order, for the next life. What finds no room is given back, with all behind it."""
        batches = sorted((*lane.under_way, *lane.waiting, *lane.behind), key=_by_number)
        for place, batch in enumerate(batches):
            if not batch.is_spooled:
                self._make_known(batch)
                if not self._write(batch):
                    return [left for left in batches[place:] if not left.is_spooled]
        return []

    def _make_known(self, batch: ProducerBatch) -> None:
        """Its leader may have a batch that was offered. The next life asks about those with identities, so one that has none gets one."""
        if batch.was_offered and batch.base_sequence >= 0 and not batch.parts:
            identity = identity_of(b"stop", b"%d %d %d" % (batch.producer_id, batch.producer_epoch, batch.base_sequence))
            batch.shares[0].parts.append((identity, 0, batch.record_count))
            self._journal(batch)
