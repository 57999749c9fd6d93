"""Check the batches around one offset at once, in a segment that may still grow.

The log-reader's scrubber uses it when a reader found damage there. It only reads, past the page cache
as far as the segment allows. The scan begins at an intact batch before the offset, which the index
leads to, and ends with the batch that holds the offset: what is behind it may just be written. Weak
spot: if the index is wrong eight times, the whole segment up to the offset is read.
"""

from __future__ import annotations

from appliance.storage.cold_file import ColdFile, ColdPieces
from appliance.storage.indexes import OFFSET_ENTRY
from appliance.storage.scrub import Damage, SegmentScrub
from appliance.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentScan

ENTRIES_TRIED = 8


class PlaceScrub:
    """`look`, then `damages`, and `span`: bytes [from, to) that were looked at. `end_offset` is beyond everything where the segment grows. Raises OSError."""

    def __init__(self, directory: str, base_offset: int, end_offset: int, offset: int, ways: tuple[str, ...]) -> None:
        self.damages: list[Damage] = []
        self.span = (0, 0)
        self._path = segment_path(directory, base_offset, LOG_SUFFIX)
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._offset = offset
        self._ways = ways
        self._scrub = SegmentScrub(directory, base_offset, end_offset)

    def look(self) -> None:
        cold = ColdFile(self._path, self._ways)
        try:
            self._look(ColdPieces(cold), cold.size_bytes())
        finally:
            cold.close()

    def _look(self, pieces: ColdPieces, size_bytes: int) -> None:
        scrub = self._scrub
        place = self._sound_place(pieces, size_bytes)
        scrub.begin_at(*place)
        end = place[1]
        for position, header in scrub.batches(pieces, place[1], size_bytes):
            if header.base_offset > self._offset:
                break
            scrub.on_batch(position, header)
            end = position + header.size_bytes
        self.damages = [damage for damage in scrub.damages if damage.offset <= self._offset]
        self.span = (place[1], max([end, *(damage.position + 1 for damage in self.damages)]))

    def _sound_place(self, pieces: ColdPieces, size_bytes: int) -> tuple[int, int]:
        """(offset, position) of the last batch before the offset that the index names and that is intact; the segment's beginning, if none of a few is."""
        content = self._scrub.index_bytes(INDEX_SUFFIX) or b""
        whole = len(content) // OFFSET_ENTRY.size * OFFSET_ENTRY.size
        named = [(self._base_offset + relative, position) for relative, position in OFFSET_ENTRY.iter_unpack(content[:whole])]
        before = [entry for entry in named if entry[0] < self._offset and 0 <= entry[1] < size_bytes]
        for offset, position in before[: -ENTRIES_TRIED - 1 : -1]:
            for _, header in SegmentScan(-1, position, size_bytes, read=pieces.read):
                if self._base_offset <= header.base_offset <= offset <= header.last_offset < self._end_offset:
                    return (header.base_offset, position) if position else (self._base_offset, 0)
                break
        return self._base_offset, 0
