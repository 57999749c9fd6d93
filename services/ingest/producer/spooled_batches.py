"""What previous lives left in the spool, on its way to the outlet: in order, and each only when it is known that it is not stored.

Owned by one ingest while there is something left over. A batch with identities may have been taken out of the spool and offered before the process died; then
its leader is asked first, as for every batch in the journal. Until a batch is stored, replays of what it holds wait. Weak: a batch without identities is
offered again without asking, so what of plain syslog was under way out of the spool is stored twice.
"""

from __future__ import annotations

from collections import deque

from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.replay.replays import Replays
from services.ingest.replay.spool_records import SpoolEntry


class SpooledBatches:
    """`turn` until `is_empty`; `adopt` what it gives."""

    def __init__(self, spool: IngestSpool, replays: Replays) -> None:
        """After the journal was read."""
        self._spool = spool
        self._replays = replays
        self._waiting: dict[tuple[str, int], deque[SpoolEntry]] = {}
        self._offered: dict[object, SpoolEntry] = {}
        self.found_stored: list[SpoolEntry] = []
        """Those that need not be offered; their owner books and removes them."""
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
        """Topics and partitions for which something is left of which it is not known whether it is stored."""
        return list(self._waiting)

    def turn(self) -> list[SpoolEntry]:
        """Those that are to be offered now; make a batch of each and `adopt` it."""
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
        """`batch` carries it on."""
        self._spool.adopt(batch, left)
        self._offered[batch] = left

    def _on_done(self, batch: object) -> None:
        """The spool needs it no more: it was stored, or refused; what is stored of it the memory knows."""
        left = self._offered.pop(batch, None)
        if left is not None:
            self._replays.end_left_over(left.topic, left.parts, is_stored=False)
