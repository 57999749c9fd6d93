"""Return the spooled batches of previous incarnations in order, each when it is known not to be
stored.

Owned by one ingest until the spool of the previous incarnations is empty. A batch with identities
may have been offered before the process died; then its leader is asked first, as for every batch in
the journal. Until a batch is stored, repeats of its records wait.

Weak: a batch without identities is offered again without asking; plain syslog that was in flight
from the spool is stored twice.
"""

from __future__ import annotations

from collections import deque

from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.replay.replays import Replays
from services.ingest.replay.spool_records import SpoolEntry


class SpooledBatches:
    """Call `turn` until `is_empty`; `adopt` what it returns."""

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
