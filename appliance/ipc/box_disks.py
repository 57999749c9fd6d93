"""Tracks the disks of the box for a process that serves several, while disks are added, removed and
replaced.

The supervisor replaces `box.json`; `look` detects that by its mtime, once a second (one stat on
tmpfs). Owned by one process, whose `box.disks` it updates. Weak: a change is seen up to a second
after the supervisor applied it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box, load_box

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
