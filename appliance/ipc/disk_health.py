"""Whether a disk hangs, as one source sees it: from the words in which the log-writer says since when it waits for its disk.

Nobody is asked: who asks a hung disk's process waits with it. `look` costs three loads a disk, ten times a second. A disk is hung when it is overdue at two
looks one after the other, so that a box that was stopped as a whole gives its log-writers a moment first; it is well again when its log-writer
waits no longer. Owned by one source (acceptor, ingest, controller); each decides for itself, at about the same time. Weak spot: a
log-writer that does not run at all (stopped, starved) while it waits for nothing looks well; the deadline of each request stands for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.shm.disk_words import overdue_operation

LOOK_NS = 100_000_000


class DiskHealth:
    """Sets `is_hung` of each proxy; `on_hung(disk, operation)` and `on_well(disk)` when that changes. A log-writer that is gone is not hung."""

    def __init__(self, proxies: Collection[LogWriterProxy], deadline_ms: int, on_hung: Callable[[str, str], None], on_well: Callable[[str], None]) -> None:
        self._proxies = proxies
        self._deadline_ns = deadline_ms * 1_000_000
        self._on_hung = on_hung
        self._on_well = on_well
        self._next_look_ns = 0
        self._suspected: set[str] = set()

    def look(self, now_ns: int) -> int:
        """To be called once a turn; how many disks changed."""
        if now_ns < self._next_look_ns:
            return 0
        self._next_look_ns = now_ns + LOOK_NS
        changes = 0
        for proxy in self._proxies:
            table = proxy.table
            operation = overdue_operation(table.words, now_ns, self._deadline_ns) if table is not None else ""
            if not operation:
                self._suspected.discard(proxy.disk)
                if proxy.is_hung:
                    proxy.is_hung = False
                    self._on_well(proxy.disk)
                    changes += 1
            elif proxy.disk not in self._suspected:
                self._suspected.add(proxy.disk)
            elif not proxy.is_hung:
                proxy.is_hung = True
                self._on_hung(proxy.disk, operation)
                changes += 1
        return changes
