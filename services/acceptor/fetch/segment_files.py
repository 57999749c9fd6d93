"""Segment files that a log-reader opened for us: a bounded, least-recently-used set, and the ranges of them that responses hold.

A file is closed when nobody holds it any more: neither the set nor a range that is still being sent. That is CPython's reference
counting at work, so no cycle may ever run through these objects. Owned by one acceptor.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from appliance.storage.page_cache import FileMap
    from services.acceptor.fetch.residency import Residency


class Origin(NamedTuple):
    """Where a segment is to be had."""

    disk: str
    topic: str
    partition: int
    base_offset: int


class SegmentFile:
    """An open segment. The end of the active one is told by the partition's row; a sealed one does not change any more."""

    __slots__ = ("_inode", "_sealed_bytes", "descriptor", "map", "origin", "residency")

    def __init__(self, descriptor: int, origin: Origin, residency: Residency) -> None:
        self.descriptor = descriptor
        self.origin = origin
        self.residency = residency
        self.map: FileMap | None = None
        """where mincore is asked"""
        self._sealed_bytes = -1
        self._inode = 0

    @property
    def inode(self) -> int:
        """Which file it is: compaction puts another one under the same name."""
        if not self._inode:
            self._inode = os.fstat(self.descriptor).st_ino
        return self._inode

    @property
    def was_sealed(self) -> bool:
        return self._sealed_bytes >= 0

    def sealed_size_bytes(self) -> int:
        """Its size, to be asked only once a later segment is known to be active: it may have been opened while it still grew."""
        if self._sealed_bytes < 0:
            self._sealed_bytes = os.fstat(self.descriptor).st_size
        return self._sealed_bytes

    def __del__(self) -> None:
        os.close(self.descriptor)


class FileRange(NamedTuple):
    """Bytes of a segment that a response sends from the page cache. `is_checked`: the first of them were seen there just now."""

    file: SegmentFile
    position: int
    size_bytes: int
    is_checked: bool = False


SegmentKey = tuple[str, int, int, int]
"""(disk, row, row generation, base offset)"""


class SegmentFiles:
    """The least recently used of `maximum` files goes first."""

    def __init__(self, maximum: int, residency: Residency) -> None:
        self._residency = residency
        self._files: OrderedDict[SegmentKey, SegmentFile] = OrderedDict()
        self._maximum = maximum

    def get(self, key: SegmentKey) -> SegmentFile | None:
        found = self._files.get(key)
        if found is not None:
            self._files.move_to_end(key)
        return found

    def add(self, key: SegmentKey, descriptor: int, topic: str, partition: int) -> SegmentFile:
        file = SegmentFile(descriptor, Origin(key[0], topic, partition, key[3]), self._residency)
        self._files[key] = file
        if len(self._files) > self._maximum:
            self._files.popitem(last=False)
        return file

    def forget(self, key: SegmentKey) -> None:
        self._files.pop(key, None)

    def keep_active(self, disk: str, row: int, row_generation: int, base_offset: int) -> None:
        """A partition's segment list has changed: let go of all but its active segment, or what was deleted or compacted keeps its space. One that was
        sealed once and is active again was truncated: it ends elsewhere now."""
        partition = (disk, row, row_generation)
        for key in [key for key, file in self._files.items() if key[:3] == partition and (key[3] != base_offset or file.was_sealed)]:
            del self._files[key]

    def forget_disk(self, disk: str) -> None:
        """A log-writer's next life numbers its rows anew."""
        for key in [key for key in self._files if key[0] == disk]:
            del self._files[key]

    def keep_only(self, rows: set[tuple[str, int, int]]) -> None:
        """Let go of segments whose partition is gone: an open descriptor keeps the space of a deleted file. `rows`: (disk, row, row generation)."""
        for key in [key for key in self._files if key[:3] not in rows]:
            del self._files[key]

    def __len__(self) -> int:
        return len(self._files)
