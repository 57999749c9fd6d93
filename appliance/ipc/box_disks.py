"""Tracks the disks of the box for a process that serves several, while disks are added, removed and
replaced.

The supervisor replaces `box.json`; `look` detects that by its mtime, once a second (one stat on
tmpfs). Owned by one process, whose `box.disks` it updates. Weak: a change is seen up to a second
after the supervisor applied it.

Whether a disk hangs, as one source sees it, from the words in which the log-writer stores since
when it waits for its disk.

Asking the process of a hung disk would block. `look` costs three loads per disk, ten times a
second. A disk counts as hung when it is overdue in two checks in a row, so that log-writers can
catch up after the whole box was suspended. It is healthy again when its log-writer no longer waits.
Owned by one source (acceptor, ingest, controller); each decides for itself, at about the same time.
Weak: a log-writer that does not run at all (suspended) without waiting for its disk looks healthy;
the deadline of each request covers that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box, load_box
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.shm.disk_tables import overdue_operation

LOOK_NS = 1_000_000_000


class DiskSetChange(NamedTuple):
    """Changes of the disks. `replaced`: other processes serve them now, from other directories; the
    previous ones may still be blocked by their disk."""

    came: list[Disk]
    went: list[Disk]
    replaced: list[Disk]


NO_CHANGES = DiskSetChange([], [], [])


class BoxDisks:
    """The disks of the box, as one process knows them."""

    def __init__(self, layout: BoxLayout, box: Box) -> None:
        self._layout = layout
        self._box = box
        self._next_look_ns = 0
        self._seen_ns = self._changed_ns()

    def _changed_ns(self) -> int:
        try:
            return os.stat(self._layout.box_file).st_mtime_ns
        except OSError:
            return 0

    def look(self, now_ns: int) -> DiskSetChange:
        """Return the disks that were added, removed and replaced since the last call."""
        if now_ns < self._next_look_ns:
            return NO_CHANGES
        self._next_look_ns = now_ns + LOOK_NS
        changed_ns = self._changed_ns()
        if changed_ns in (0, self._seen_ns):
            return NO_CHANGES
        self._seen_ns = changed_ns
        now = load_box(self._layout).disks
        names, before = {disk.name for disk in now}, {disk.name: disk for disk in self._box.disks}
        came = [disk for disk in now if disk.name not in before]
        went = [disk for disk in self._box.disks if disk.name not in names]
        replaced = [disk for disk in now if disk.name in before and disk.replacements != before[disk.name].replacements]
        self._box.disks[:] = now
        return DiskSetChange(came, went, replaced)


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
