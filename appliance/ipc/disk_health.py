"""Whether a disk hangs, as one source sees it: from the words in which the log-writer says since when it waits for its disk.

Nobody is asked: who asks a hung disk's process waits with it. `look` costs three loads a disk, ten times a second. A disk is hung when it is overdue at two
looks one after the other, so that a box that was stopped as a whole gives its log-writers a moment first; it is well again when its log-writer
waits no longer. Owned by one source (acceptor, ingest, controller); each decides for itself, at about the same time. Weak spot: a
log-writer that does not run at all (stopped, starved) while it waits for nothing looks well; the deadline of each request stands for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from appliance.ipc.proxies import LogWriterProxy
from appliance.shm.mapping import SharedObject, SharedObjectAbsent
from appliance.shm.partition_table import APPEND_SINCE_WORD, FENCE_WORD, FLUSH_SINCE_WORD, PROBE_SINCE_WORD, PURPOSE

LOOK_NS = 100_000_000
FLUSH_FACTOR = 20
"""A slice of a flush round may have hundreds of megabytes to write: so many deadlines are given to it."""


def overdue_operation(words: memoryview, now_ns: int, deadline_ns: int) -> str:
    """What the disk has kept waiting for longer than it may: "append", "probe", "flush"; empty when nothing."""
    for name, word, allowed_ns in (
        ("append", APPEND_SINCE_WORD, deadline_ns),
        ("probe", PROBE_SINCE_WORD, deadline_ns),
        ("flush", FLUSH_SINCE_WORD, deadline_ns * FLUSH_FACTOR),
    ):
        since_ns = words[word]
        if since_ns and now_ns - since_ns > allowed_ns:
            return name
    return ""


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


def fence_life(table_name: str) -> None:
    """Tell the life of a log-writer that made this table to publish nothing more. The controller's alone; for good. One that is gone needs none."""
    try:
        shared = SharedObject.attach(table_name, PURPOSE, writable=True)
    except SharedObjectAbsent:
        return
    shared.words[FENCE_WORD] = 1
    shared.close()
