"""Check one closed segment: checksums and offsets of every batch, and its indexes.

The log-reader's scrubber uses it, a piece at a time. It only reads, past the page cache, so that it
does not evict what consumers read. Damage in the log is reported batch by batch: the scan continues
behind a batch whose length is plausible. An index is judged by what look-ups need of it, not byte
by byte: Kafka's followers and cleaners write other entries than our appends, which are as good.
Weak spot: behind a broken length the batches of the segment cannot be found, and the rest is
reported as one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.base.model import FILE_START, NO_OFFSET, Offset, Position
from appliance.records.batch import LOG_OVERHEAD, MAGIC, RECORDS_AT, BatchHeader, read_batch_header
from appliance.storage.cold_file import SEALED_WAYS, ColdFile, ColdFileReader
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetEntry, TimeEntry
from appliance.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentScan

CHECKSUM, OFFSETS, UNREADABLE, INDEX, TIME_INDEX = "checksum", "offsets", "unreadable", "index", "time index"
REBUILDABLE = (INDEX, TIME_INDEX)
DAMAGES_MAX = 100
"""Of one segment: more say nothing new."""
SPARSE_BYTES = 4 << 20
"""An index whose entries lie farther apart than this, with batches between, has lost some: look-ups
would read all of that."""


class Damage(NamedTuple):
    """Damage in one file of a closed segment.

    `offset`: of the damaged records, or the segment's base offset. `sound_offset` and
    `sound_position`: the start of an intact batch before the damage, or of the segment; a repair
    compares from there on.
    """

    kind: str
    file: str
    base_offset: Offset
    offset: Offset
    position: Position
    words: str
    sound_offset: Offset = NO_OFFSET
    sound_position: Position = FILE_START


class SegmentScrub:
    """Iterate to check a segment; each step yields the bytes read since the last, so that the
    caller can pace it. Then `damages` is complete.

    `end_offset` is the next segment's base offset. Raises OSError if the disk cannot be read, which
    the caller reports.
    """

    def __init__(self, directory: str, base_offset: Offset, end_offset: Offset) -> None:
        self.damages: list[Damage] = []
        self._directory = directory
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._next_offset = base_offset
        self._largest_timestamp = -1
        self._before = [(base_offset, FILE_START)] * 2
        """(offset, position) of the last two batches that were passed; the segment's own where it
        begins."""

    def __iter__(self) -> Iterator[int]:
        offset_entries = _OffsetEntries(self.index_bytes(INDEX_SUFFIX), self._base_offset)
        time_entries = _TimeEntries(self.index_bytes(TIME_INDEX_SUFFIX), self._base_offset)
        cold = ColdFile(segment_path(self._directory, self._base_offset, LOG_SUFFIX), SEALED_WAYS)
        try:
            size_bytes = cold.size_bytes()
            read_bytes = 0
            for position, header in self.batches(ColdFileReader(cold), FILE_START, size_bytes):
                self.on_batch(position, header)
                self._largest_timestamp = max(self._largest_timestamp, header.max_timestamp)
                offset_entries.on_batch(position, header)
                time_entries.on_batch(header, self._largest_timestamp)
                if position - read_bytes >= 1 << 20:
                    yield position - read_bytes
                    read_bytes = position
            yield size_bytes - read_bytes
        finally:
            cold.close()
        if any(damage.kind in (CHECKSUM, OFFSETS, UNREADABLE) for damage in self.damages):
            return  # what an index leads to cannot be judged by a log that is damaged itself
        for kind, suffix, problem in (
            (INDEX, INDEX_SUFFIX, offset_entries.finish(size_bytes)),
            (TIME_INDEX, TIME_INDEX_SUFFIX, time_entries.finish(self._largest_timestamp)),
        ):
            if problem:
                self._report(kind, suffix, self._base_offset, FILE_START, problem)

    def batches(self, pieces: ColdFileReader, position: Position, size_bytes: int) -> Iterator[tuple[Position, BatchHeader]]:
        """Yield each intact batch from `position` on. A damaged one is reported, and skipped if its
        header has a plausible length."""
        while position < size_bytes:
            scan = SegmentScan(-1, position, size_bytes, read=pieces.read)
            yield from scan
            if scan.problem is None:
                return
            position = scan.valid_end
            head = pieces.read(-1, position, min(RECORDS_AT, size_bytes - position))
            header = read_batch_header(head) if len(head) == RECORDS_AT else None
            if header is None or not self._is_passable(header, size_bytes - position):
                self._report(UNREADABLE, LOG_SUFFIX, self._next_offset, position, f"{scan.problem}; no batch can be found in {size_bytes - position} bytes")
                return
            self._report(CHECKSUM, LOG_SUFFIX, header.base_offset, position, scan.problem)
            self._next_offset = header.last_offset + 1
            position += header.size_bytes

    def _is_passable(self, header: BatchHeader, left_bytes: int) -> bool:
        """Whether length and offsets of a batch with a wrong checksum can be believed (neither is
        covered by it).
        """
        return (
            RECORDS_AT <= header.batch_length + LOG_OVERHEAD <= left_bytes
            and header.magic == MAGIC
            and self._next_offset <= header.base_offset <= header.last_offset < self._end_offset
        )

    def begin_at(self, offset: Offset, position: Position) -> None:
        """Let `batches` start at this location, where an intact batch or the segment begins."""
        self._next_offset = offset
        self._before = [(offset, position)] * 2

    def on_batch(self, position: Position, header: BatchHeader) -> None:
        """Check the offsets of a batch that `batches` yielded."""
        self._check_offsets(position, header)
        self._before = [self._before[1], (header.base_offset if position else self._base_offset, position)]

    def _check_offsets(self, position: Position, header: BatchHeader) -> None:
        if header.base_offset < self._next_offset or header.last_offset >= self._end_offset:
            words = f"a batch holds offsets {header.base_offset} to {header.last_offset}; {self._next_offset} to {self._end_offset - 1} may come here"
            self._report(OFFSETS, LOG_SUFFIX, header.base_offset, position, words, self._before[0])  # the one before it may be the one that lies
        if header.last_offset < self._end_offset:
            self._next_offset = max(self._next_offset, header.last_offset + 1)

    def index_bytes(self, suffix: str) -> bytes | None:
        """Return the content of an index file, None if it is missing. Raises OSError."""
        try:
            cold = ColdFile(segment_path(self._directory, self._base_offset, suffix), SEALED_WAYS)
        except FileNotFoundError:
            return None
        try:
            return ColdFileReader(cold).read(-1, FILE_START, cold.size_bytes())
        finally:
            cold.close()

    def _report(self, kind: str, suffix: str, offset: Offset, position: Position, words: str, sound: tuple[Offset, Position] | None = None) -> None:
        if len(self.damages) < DAMAGES_MAX:
            name = segment_path("", self._base_offset, suffix).lstrip("/")
            self.damages.append(Damage(kind, name, self._base_offset, offset, position, words, *(sound or self._before[1])))


class _OffsetEntries:
    """Follows the batches along an offset index: each entry must name a batch's start and no offset
    before that batch.
    """

    def __init__(self, content: bytes | None, base_offset: Offset) -> None:
        self._problem = "it is missing" if content is None else ""
        content = content or b""
        if len(content) % OFFSET_ENTRY.size:
            self._problem = "it ends inside an entry"
        whole = len(content) // OFFSET_ENTRY.size * OFFSET_ENTRY.size
        self._entries = (OffsetEntry(base_offset + relative, position) for relative, position in OFFSET_ENTRY.iter_unpack(content[:whole]))
        self._next = next(self._entries, None)
        self._last = OffsetEntry(base_offset - 1, FILE_START)
        self._batch_position = 0

    def on_batch(self, position: Position, header: BatchHeader) -> None:
        entry = self._next
        self._batch_position = position
        if self._problem or entry is None or position < entry.position:
            return
        if position != entry.position:
            self._problem = f"an entry names byte {entry.position}, where no batch begins"
        elif entry.offset < header.base_offset or entry.offset <= self._last.offset:
            self._problem = f"an entry names offset {entry.offset} at byte {position}, where the batch of {header.base_offset} begins"
        elif position - self._last.position > SPARSE_BYTES + header.size_bytes:
            self._problem = f"it has no entry from byte {self._last.position} to {position}"
        self._last, self._next = entry, next(self._entries, None)

    def finish(self, size_bytes: int) -> str:
        """What is wrong; empty if nothing."""
        if self._problem:
            return self._problem
        if self._next is not None:
            return f"an entry names byte {self._next.position} of {size_bytes}"
        if self._batch_position - self._last.position > SPARSE_BYTES:
            return f"it has no entry behind byte {self._last.position} of {size_bytes}"
        return ""


class _TimeEntries:
    """Follows the batches along a time index: each entry's timestamp is the largest up to its
    offset, and the last one the segment's.
    """

    def __init__(self, content: bytes | None, base_offset: Offset) -> None:
        self._problem = "it is missing" if content is None else ""
        content = content or b""
        if len(content) % TIME_ENTRY.size:
            self._problem = "it ends inside an entry"
        whole = len(content) // TIME_ENTRY.size * TIME_ENTRY.size
        self._entries = (TimeEntry(timestamp, base_offset + relative) for timestamp, relative in TIME_ENTRY.iter_unpack(content[:whole]))
        self._next = next(self._entries, None)
        self._last = TimeEntry(-1, base_offset - 1)

    def on_batch(self, header: BatchHeader, largest_timestamp: int) -> None:
        """`largest_timestamp`: of all batches up to this one."""
        while not self._problem and self._next is not None and self._next.offset <= header.last_offset:
            entry = self._next
            if entry.timestamp <= self._last.timestamp or entry.offset <= self._last.offset:
                self._problem = f"the entry of offset {entry.offset} is not behind the one before it"
            elif entry.timestamp != largest_timestamp:
                self._problem = f"an entry says that {entry.timestamp} is the largest timestamp up to offset {entry.offset}; it is {largest_timestamp}"
            self._last, self._next = entry, next(self._entries, None)

    def finish(self, largest_timestamp: int) -> str:
        """What is wrong; empty if nothing."""
        if self._problem:
            return self._problem
        if self._next is not None:
            return f"an entry names offset {self._next.offset}, which the segment does not have"
        if self._last.timestamp < largest_timestamp:
            return f"its last entry says {self._last.timestamp}; the segment's largest timestamp is {largest_timestamp}"
        return ""


ENTRIES_TRIED = 8


class PlaceScrub:
    """Check the batches around one offset at once, in a segment that may still grow.

    For damage that a reader found. After `look`, `damages` has the result and `span` the bytes
    [from, to) that were read; `end_offset` is beyond everything if the segment grows. The scan
    begins at an intact batch before the offset, which the index leads to, and ends with the batch
    that holds the offset: what is behind it may just be written. Weak spot: if the index is wrong
    eight times, the whole segment up to the offset is read. Raises OSError.
    """

    def __init__(self, directory: str, base_offset: Offset, end_offset: Offset, offset: Offset, ways: tuple[str, ...]) -> None:
        self.damages: list[Damage] = []
        self.span = (0, 0)
        self._path = segment_path(directory, base_offset, LOG_SUFFIX)
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._offset = offset
        self._ways = ways
        self._scrub = SegmentScrub(directory, base_offset, end_offset)

    def look(self) -> None:
        """Check the batches up to the offset, and set `damages` and `span`."""
        cold = ColdFile(self._path, self._ways)
        try:
            self._look(ColdFileReader(cold), cold.size_bytes())
        finally:
            cold.close()

    def _look(self, pieces: ColdFileReader, size_bytes: int) -> None:
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

    def _sound_place(self, pieces: ColdFileReader, size_bytes: int) -> tuple[Offset, Position]:
        """(offset, position) of the last batch before the offset that the index names and that is
        intact; the segment's beginning, if none of a few is.
        """
        content = self._scrub.index_bytes(INDEX_SUFFIX) or b""
        whole = len(content) // OFFSET_ENTRY.size * OFFSET_ENTRY.size
        named = [(self._base_offset + relative, position) for relative, position in OFFSET_ENTRY.iter_unpack(content[:whole])]
        before = [entry for entry in named if entry[0] < self._offset and 0 <= entry[1] < size_bytes]
        for offset, position in before[: -ENTRIES_TRIED - 1 : -1]:
            for _, header in SegmentScan(-1, position, size_bytes, read=pieces.read):
                if self._base_offset <= header.base_offset <= offset <= header.last_offset < self._end_offset:
                    return (header.base_offset, position) if position else (self._base_offset, FILE_START)
                break
        return self._base_offset, FILE_START
