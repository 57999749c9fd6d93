"""The progress of copies, from the files that the log-writers of the target disks write.

Owned by one process that watches moves. A file on tmpfs, read when its time has changed, so no disk
delays the reader. Weak: as of `ipc/disk_reports.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from appliance.base.layout import BoxLayout
from appliance.ipc.disk_reports import MoveProgress, moves_file, read_moves


class MoveProgressFiles:
    """The last content of each file, by target disk."""

    def __init__(self, layout: BoxLayout) -> None:
        self._layout = layout
        self._seen: dict[str, tuple[int, int]] = {}
        self._moves: dict[str, dict[tuple[str, int], MoveProgress]] = {}

    def poll(self, disk: str) -> bool:
        """Read the file of a disk if it has changed; return whether it has."""
        path = moves_file(self._layout, disk)
        try:
            status = os.stat(path)
            seen = status.st_mtime_ns, status.st_ino
        except OSError:
            seen = 0, 0
        if self._seen.get(disk) == seen:
            return False
        self._seen[disk] = seen
        self._moves[disk] = {(move.topic, move.partition): move for move in read_moves(path)}
        return True

    def changed(self, disks: Iterable[str]) -> list[MoveProgress]:
        """Return all moves of those disks whose file has changed."""
        return [move for disk in disks if self.poll(disk) for move in self._moves[disk].values()]

    def progress(self, disk: str, key: tuple[str, int]) -> MoveProgress | None:
        return self._moves.get(disk, {}).get(key)
