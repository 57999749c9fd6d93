"""The segments that a log-reader has open for cold reads, found by inode.

A consumer that continues is recognized by the position at which its last answer ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from appliance.storage.cold_file import ACTIVE_WAYS, ColdFile

SEGMENTS_MAX = 64
SEQUELS_MAX = 256


class ColdSegment:
    """An open segment, the reads that are under way in it, and where its readers are expected next."""

    __slots__ = ("cold", "number", "reads", "sequels")

    def __init__(self, number: int, cold: ColdFile) -> None:
        self.number = number
        """Unique among all files that this process has opened."""
        self.cold = cold
        self.reads = 0
        self.sequels: OrderedDict[int, None] = OrderedDict()

    def is_sequel(self, position: int) -> bool:
        return self.sequels.pop(position, self) is None

    def expect(self, position: int) -> None:
        self.sequels[position] = None
        if len(self.sequels) > SEQUELS_MAX:
            self.sequels.popitem(last=False)


class ColdSegments:
    """At most `SEGMENTS_MAX`; the least recently used is closed. `on_retired(number)`: pieces of that
    file must not be found any more."""

    def __init__(self, ways: tuple[str, ...], on_retired: Callable[[int], None]) -> None:
        """`ways`: how files are read, the preferred way first."""
        self._ways = ways
        self._active_ways = tuple(way for way in ways if way in ACTIVE_WAYS) or ways
        self._on_retired = on_retired
        self._open: OrderedDict[tuple[int, bool], ColdSegment] = OrderedDict()
        self._retired: list[ColdSegment] = []
        self._next_number = 0

    def open(self, path: str, inode: int, is_active: bool) -> ColdSegment | None:
        """The file that the asker has open. None: another one has its name now. Raises OSError."""
        segment = self._open.get((inode, is_active))
        if segment is not None:
            self._open.move_to_end((inode, is_active))
            return segment
        cold = ColdFile(path, self._active_ways if is_active else self._ways)
        if cold.inode != inode:
            cold.close()
            return None
        self._next_number += 1
        segment = self._open[(inode, is_active)] = ColdSegment(self._next_number, cold)
        if len(self._open) > SEGMENTS_MAX:
            self._retire(next(iter(self._open)))
        return segment

    def retire_deleted(self) -> None:
        """Let go of files that were deleted: their space would be kept."""
        for key in [key for key, segment in self._open.items() if segment.cold.is_deleted()]:
            self._retire(key)
        self._close_retired()

    def retire_all(self) -> None:
        for key in list(self._open):
            self._retire(key)

    def _retire(self, key: tuple[int, bool]) -> None:
        """Close a file, at once or when the reads in it are over."""
        segment = self._open.pop(key)
        self._on_retired(segment.number)
        self._retired.append(segment)
        self._close_retired()

    def _close_retired(self) -> None:
        for segment in self._retired:
            if not segment.reads:
                segment.cold.close()
        self._retired = [segment for segment in self._retired if segment.reads]
