"""Whether a disk hangs, as one source sees it, from the words in which the log-writer stores since
when it waits for its disk.

Asking the process of a hung disk would block. `look` costs three loads per disk, ten times a
second. A disk counts as hung when it is overdue in two checks in a row, so that log-writers can
catch up after the whole box was suspended. It is healthy again when its log-writer no longer waits.
Owned by one source (acceptor, ingest, controller); each decides for itself, at about the same time.
Weak: a log-writer that does not run at all (suspended) without waiting for its disk looks healthy;
the deadline of each request covers that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.shm.disk_words import overdue_operation

CHECK_NS = 100_000_000


class DiskHealth:
    """Sets `is_hung` of each proxy; calls `on_hung(disk, operation)` and `on_well(disk)` at
    changes. A dead log-writer is not hung."""

    def __init__(self, proxies: Collection[LogWriterProxy], deadline_ms: int, on_hung: Callable[[str, str], None], on_well: Callable[[str], None]) -> None:
        self._proxies = proxies
        self._deadline_ns = deadline_ms * 1_000_000
        self._on_hung = on_hung
        self._on_well = on_well
        self._next_look_ns = 0
        self._suspected: set[str] = set()

    def look(self, now_ns: int) -> int:
        """Check the disks when due; call it in each turn. Returns how many disks changed."""
        if now_ns < self._next_look_ns:
            return 0
        self._next_look_ns = now_ns + CHECK_NS
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
