"""Tracks the disks of the box for a process that serves several, while disks are added, removed and
replaced.

The supervisor replaces `box.json`; `look` detects that by its mtime, once a second (one stat on
tmpfs). Owned by one process, whose `box.disks` it updates. Weak: a change is seen up to a second
after the supervisor applied it.

Whether a disk hangs or is full, as one source sees it, from the words of its partition table.

Asking the process of a hung disk would block. `look` costs six loads per disk, ten times a second.
A disk counts as hung in two cases:

* An operation is overdue in two checks in a row (the second one lets log-writers catch up after the
  whole box was suspended).
* The log-writer makes no turn during as many checks of this source as the deadline has: it is
  suspended, starved, or waits for memory. A source that gets no processor time makes no checks, so a
  busy machine is not taken for a stopped log-writer.

The disk is healthy again when its log-writer no longer waits and makes turns. Owned by one source
(acceptor, ingest, controller, …); each decides for itself, at about the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box, load_box
from appliance.ipc.log_writer_proxy import LogWriterProxy
from appliance.shm.disk_tables import overdue_operation
from appliance.shm.partition_table import DISK_FULL, RECOVERY_DONE_WORD, TURNS_WORD, PartitionTableReader

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
NO_TURN_CHECKS_MIN = 30
"""A parked log-writer makes a turn every 100 ms (`PARK_MS_MAX`), so a shorter deadline does not
apply to turns."""


class DiskHealth:
    """Sets `is_hung` and `is_full` of each proxy; calls `on_hung(disk, operation)`, `on_well(disk)`
    and `on_full(disk)` (also when it has space again) at changes. A dead log-writer is not hung."""

    def __init__(
        self,
        proxies: Collection[LogWriterProxy],
        deadline_ms: int,
        on_hung: Callable[[str, str], None],
        on_well: Callable[[str], None],
        on_full: Callable[[str], None] = lambda _disk: None,
    ) -> None:
        self._proxies = proxies
        self._deadline_ns = deadline_ms * 1_000_000
        self._on_hung = on_hung
        self._on_well = on_well
        self._on_full = on_full
        self._checks_max = max(NO_TURN_CHECKS_MIN, self._deadline_ns // CHECK_NS)
        self._turns: dict[str, tuple[int, int]] = {}
        """Disk → its log-writer's progress, and the checks since it changed."""
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
            is_full = table is not None and table.disk_state == DISK_FULL
            if is_full != proxy.is_full:
                proxy.is_full = is_full
                self._on_full(proxy.disk)
                changes += 1
            is_stopped = table is not None and self._is_stopped(proxy.disk, table)
            operation = overdue_operation(table.words, now_ns, self._deadline_ns) if table is not None else ""
            if is_stopped:
                self._suspected.add(proxy.disk)
                operation = operation or "no turn of its log-writer"
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

    def _is_stopped(self, disk: str, table: PartitionTableReader) -> bool:
        """Whether the log-writer has made no turn, and recovered nothing within one, for too many
        checks.
        """
        progress = table.words[TURNS_WORD] + table.words[RECOVERY_DONE_WORD]
        before, checks = self._turns.get(disk, (-1, 0))
        checks = checks + 1 if progress == before else 0
        self._turns[disk] = progress, checks
        return checks >= self._checks_max
