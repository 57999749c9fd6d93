"""The offset index and the time index of a segment: entry formats and look-ups.

They are read with pread and never mapped. The log-writer appends to them and keeps their exact
length; any process with a descriptor may read. An index is a hint: it may lag behind its log, and an
entry never points past the valid end. Weak spot: a look-up costs about log2(entries) small reads.

    .index      8 bytes an entry: int32 relative offset (last offset of a batch), int32 position (where that batch starts)
    .timeindex 12 bytes an entry: int64 largest timestamp so far, int32 relative offset (last offset of the batch that holds it)

Entries ascend strictly in offset, and in the time index also in timestamp.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from appliance.base.model import FILE_START, Offset, Position
from appliance.storage import file_io

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
LARGEST_RELATIVE_OFFSET = 2**31 - 1
_BLOCKS_KEPT = 32

assert OFFSET_ENTRY.size == 8 and TIME_ENTRY.size == 12


class OffsetEntry(NamedTuple):
    """`offset` is the last offset of the batch that starts at `position`."""

    offset: Offset
    position: Position


class TimeEntry(NamedTuple):
    """`timestamp` is the largest of the segment up to `offset`."""

    timestamp: int
    offset: Offset


class OffsetIndex:
    """Reads an `.index` through the caller's descriptor. Raises OSError."""

    def __init__(self, fd: int, base_offset: Offset, block_entries: int = 1) -> None:
        """It reads `block_entries` at a time and keeps them, for a caller that takes many."""
        self._fd = fd
        self._base_offset = base_offset
        self._block_entries = block_entries
        self._blocks: dict[int, bytes] = {}

    def count(self) -> int:
        """Return the number of whole entries."""
        return file_io.size_of(self._fd) // OFFSET_ENTRY.size

    def entry(self, number: int) -> OffsetEntry:
        """Return the entry with this number, from 0."""
        block, place = divmod(number, self._block_entries)
        place *= OFFSET_ENTRY.size
        entries = self._blocks.get(block, b"")
        if place + OFFSET_ENTRY.size > len(entries):
            if len(self._blocks) == _BLOCKS_KEPT:
                self._blocks.clear()
            block_bytes = self._block_entries * OFFSET_ENTRY.size
            entries = self._blocks[block] = file_io.pread_all(self._fd, block * block_bytes, block_bytes)
        relative, position = OFFSET_ENTRY.unpack_from(entries, place)
        return OffsetEntry(self._base_offset + relative, position)

    def lookup(self, offset: Offset) -> OffsetEntry:
        """Return the last entry at or below `offset`; without one, the start of the segment."""
        number = self.count_below(offset + 1) - 1
        return self.entry(number) if number >= 0 else OffsetEntry(self._base_offset, FILE_START)

    def count_below(self, offset: Offset) -> int:
        """Return the number of entries with an offset below `offset`."""
        return bisect_left(range(self.count()), offset, key=lambda number: self.entry(number).offset)

    def count_at_or_before(self, position: Position) -> int:
        """Return the number of entries that point at or before `position`."""
        return bisect_right(range(self.count()), position, key=lambda number: self.entry(number).position)


class TimeIndex:
    """Reads a `.timeindex` through the caller's descriptor. Raises OSError."""

    def __init__(self, fd: int, base_offset: Offset) -> None:
        self._fd = fd
        self._base_offset = base_offset

    def count(self) -> int:
        """Return the number of whole entries."""
        return file_io.size_of(self._fd) // TIME_ENTRY.size

    def entry(self, number: int) -> TimeEntry:
        """Return the entry with this number, from 0."""
        timestamp, relative = TIME_ENTRY.unpack(file_io.pread_all(self._fd, number * TIME_ENTRY.size, TIME_ENTRY.size))
        return TimeEntry(timestamp, self._base_offset + relative)

    def last(self) -> TimeEntry:
        """Return the last entry, or (-1, base offset) for an empty index."""
        count = self.count()
        return self.entry(count - 1) if count else TimeEntry(-1, self._base_offset)

    def lookup(self, timestamp: int) -> TimeEntry:
        """Return the last entry at or below `timestamp` (ms): no record up to its offset is
        younger. Without one, (-1, base offset).
        """
        count = bisect_right(range(self.count()), timestamp, key=lambda number: self.entry(number).timestamp)
        return self.entry(count - 1) if count else TimeEntry(-1, self._base_offset)

    def count_below(self, offset: Offset) -> int:
        """Return the number of entries with an offset below `offset`."""
        return bisect_left(range(self.count()), offset, key=lambda number: self.entry(number).offset)
