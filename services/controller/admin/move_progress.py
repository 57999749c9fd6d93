"""How far copies are, from the files that the log-writers of the target disks write.

Owned by one process that watches moves. A file is read when its time has changed; on tmpfs, so nobody waits for a disk. Weak spot: as of `ipc/move_report.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from appliance.base.layout import BoxLayout
from appliance.ipc.move_report import MoveProgress, moves_file, read_moves


class MoveProgressFiles:
    """What was read last, by target disk."""

    def __init__(self, layout: BoxLayout) -> None:
        self._layout = layout
        self._seen: dict[str, tuple[int, int]] = {}
        self._moves: dict[str, dict[tuple[str, int], MoveProgress]] = {}

    def look(self, disk: str) -> bool:
        """Whether the file of a disk was another one than last time."""
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
        """All moves of those disks whose file has changed."""
        return [move for disk in disks if self.look(disk) for move in self._moves[disk].values()]

    def progress(self, disk: str, key: tuple[str, int]) -> MoveProgress | None:
        return self._moves.get(disk, {}).get(key)
