"""Which disks the box has: a process that serves several learns here of those that come and go while it runs.

The supervisor replaces `box.json` when a disk is added, removed or moved; `look` sees that by the file's time, once a second (one stat on tmpfs).
Owned by one process, whose `box.disks` it keeps as they are. Weak spot: a process hears of a new disk up to a second after the supervisor has started it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box, load_box

LOOK_NS = 1_000_000_000


class DiskSetChange(NamedTuple):
    """`replaced`: another process serves them now, from another directory; the one that did may still be held by its disk."""

    came: list[Disk]
    went: list[Disk]
    replaced: list[Disk]


NO_CHANGES = DiskSetChange([], [], [])


class BoxDisks:
    """`box.disks` of one process."""

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
        """Disks that came, went, and were replaced since the last look."""
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
