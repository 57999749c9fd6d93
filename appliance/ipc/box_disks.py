"""Which disks the box has: a process that serves several learns here of those that come and go while it runs.

The supervisor replaces `box.json` when a disk is added, removed or moved; `look` sees that by the file's time, once a second (one stat on tmpfs).
Owned by one process, whose `box.disks` it keeps as they are. Weak spot: a process hears of a new disk up to a second after the supervisor has started it.
"""

from __future__ import annotations

import os

from appliance.base.layout import BoxLayout, Disk
from appliance.base.settings import Box, load_box

LOOK_NS = 1_000_000_000


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

    def look(self, now_ns: int) -> tuple[list[Disk], list[Disk]]:
        """Disks that came and that went since the last look."""
        if now_ns < self._next_look_ns:
            return [], []
        self._next_look_ns = now_ns + LOOK_NS
        changed_ns = self._changed_ns()
        if changed_ns in (0, self._seen_ns):
            return [], []
        self._seen_ns = changed_ns
        now = load_box(self._layout).disks
        names, before = {disk.name for disk in now}, {disk.name for disk in self._box.disks}
        came = [disk for disk in now if disk.name not in before]
        went = [disk for disk in self._box.disks if disk.name not in names]
        self._box.disks[:] = now
        return came, went
