"""Read a range in place, from the segment files of a box on this machine, without a request to a broker.

The partition table limits the range: the high watermark, or with read_committed the last stable offset. A segment is read
through a window of memory: mapped if it is in the page cache, otherwise read with direct I/O, so that a backfill evicts
nothing. Mapped pages are populated by MADV_POPULATE_READ, which reports a failing disk as an error; a plain access would end
the process with SIGBUS.

Owned by one reader, read-only. Weak spots: a hung disk blocks the task until the disk answers; a process of another user
cannot open table and files, and fetches; before Linux 5.14 there is no MADV_POPULATE_READ; pages that are evicted between
the residency check and the mapping are read one by one.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from appliance.base.errors import RequestRefused, StorageFailed
from appliance.base.model import FILE_START, Offset, Position, TopicId
from appliance.pipeline.batch_scan import AbortedRecords, RawBatches, ReadProgress
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.local_rows import LocalRow, find_local_row
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.problems import DataLoss, OnDataLoss
from appliance.shm.partition_table import Row, TornRow
from appliance.storage import file_io
from appliance.storage.cold_file import ACTIVE_WAYS, SEALED_WAYS, ColdFile
from appliance.storage.directory_identity import read_topic_id
from appliance.storage.page_cache import PAGE_BYTES, Cachestat, FileMap, pages_of
from appliance.storage.reading import Located, LogReading, OffsetOutOfRange
from appliance.storage.segment_files import LOG_SUFFIX, segment_path

MADV_POPULATE_READ = 22


class SegmentWindow(NamedTuple):
    """A window of the file: `memory[n]` is its byte at `start` + n."""

    memory: memoryview
    start: int


class LocalSegment:
    """An open segment. It owns `descriptor`."""

    def __init__(self, descriptor: int, path: str, is_active: bool) -> None:
        self._descriptor = descriptor
        self._path = path
        self._ways = ACTIVE_WAYS if is_active else SEALED_WAYS
        self._cold: ColdFile | None = None
        self._room: mmap.mmap | None = None
        """For cold reads. Its first touch costs ten times a read into it, so windows share it."""
        self._figures = file_io.fstat(descriptor)

    @property
    def inode(self) -> int:
        return self._figures.st_ino

    @property
    def figures(self) -> os.stat_result:
        """Return what the file system said about the file when it was opened."""
        return self._figures

    @property
    def size_bytes(self) -> int:
        """Return the file's size when it was opened."""
        return self._figures.st_size

    def close(self) -> None:
        file_io.close(self._descriptor)
        if self._cold is not None:
            self._cold.close()
        if self._room is not None:
            with suppress(BufferError):  # a view still exists; the last one unmaps it
                self._room.close()

    @contextmanager
    def window(self, position: int, end: int) -> Iterator[SegmentWindow]:
        """Return the bytes from `position` (or slightly before) to `end`. Raises OSError if the disk fails."""
        start = position // PAGE_BYTES * PAGE_BYTES
        content = self._mapped(start, end) if self._is_resident(start, end - start) else self._read(start, end)
        memory = memoryview(content)[: end - start]  # shared memory may be larger
        try:
            yield SegmentWindow(memory, start)
        finally:
            with suppress(BufferError):  # a view still exists; the last one unmaps it
                memory.release()
                if content is not self._room:
                    content.close()

    def _is_resident(self, position: int, size_bytes: int) -> bool:
        pages = Cachestat().pages(self._descriptor, position, size_bytes)
        if pages < 0:
            pages = FileMap(self._descriptor).resident_pages(position, size_bytes)
        return pages == pages_of(position, size_bytes)

    def _mapped(self, start: int, end: int) -> mmap.mmap:
        mapped = mmap.mmap(self._descriptor, end - start, access=mmap.ACCESS_READ, offset=start)
        try:
            mapped.madvise(MADV_POPULATE_READ)
        except OSError as error:
            if error.errno != errno.EINVAL:
                mapped.close()
                raise
        return mapped

    def _read(self, start: int, end: int) -> mmap.mmap:
        if self._cold is None:
            cold = ColdFile(self._path, self._ways)
            if cold.inode != self.inode:
                cold.close()
                return self._mapped(start, end)  # the name is another file's by now, and this one will not come back
            self._cold = cold
        size_bytes = -(-(end - start) // PAGE_BYTES) * PAGE_BYTES
        room = self._free_room(size_bytes)
        with memoryview(room) as view:
            count = self._cold.read_into(view[:size_bytes], start)
        if count < end - start:
            raise OSError(errno.EIO, f"{self._path} ends at byte {start + count}, before byte {end}")
        return room

    def _free_room(self, size_bytes: int) -> mmap.mmap:
        """Return memory of this size or more that no view of an earlier window keeps."""
        if self._room is not None and len(self._room) >= size_bytes:
            with suppress(BufferError):  # what mmap raises while there is a view
                self._room.resize(len(self._room))
                return self._room
        self._room = mmap.mmap(-1, size_bytes)
        return self._room


WINDOW_BYTES = 16 * 1024 * 1024
_END_OF_SEGMENT = Position(2**62)


class NotReadHere(Exception):
    """This machine cannot read the range, or the rest of it; the text says why. Another path may."""


Parts = Callable[[Offset, int, os.stat_result], Iterable[tuple[int, int]]]
"""Takes base offset, position and file figures of a sealed segment; yields the parts to read from there on, each from the beginning
of a batch to the end of one."""


def _whole(_base_offset: Offset, position: int, figures: os.stat_result) -> Iterable[tuple[int, int]]:
    return ((position, figures.st_size),)


class LocalSegments:
    """One partition of a local box, to read one range once."""

    def __init__(self, found: LocalRow, wanted: OffsetRange, read_committed: bool, window_bytes: int = WINDOW_BYTES, parts: Parts = _whole) -> None:
        """`parts` is called with each sealed segment before anything of it is read."""
        self._parts = parts
        self._found = found
        self._wanted = wanted
        self._read_committed = read_committed
        self._window_bytes = window_bytes

    def raw_batches(self, progress: ReadProgress, on_data_loss: OnDataLoss) -> Generator[RawBatches, None, None]:
        """Yield windows of segments; each must be scanned before the next. Raises `NotReadHere`."""
        try:
            yield from self._windows(progress, on_data_loss)
        except (RequestRefused, StorageFailed, TornRow, OSError, ValueError) as error:
            raise NotReadHere(str(error)) from error
        finally:
            self._found.table.close()

    def _windows(self, progress: ReadProgress, on_data_loss: OnDataLoss) -> Iterator[RawBatches]:
        reading = LogReading(self._found.directory)
        self._require_topic()
        aborted = self._aborted(reading, progress)
        while progress.next_offset < self._wanted.end:
            row = self._found.read()
            self._report_loss(row, progress, on_data_loss)
            try:
                located = reading.locate(Offset(progress.next_offset), row.high_watermark)
            except OffsetOutOfRange:
                if self._found.read().log_start_offset > progress.next_offset:
                    continue  # retention was faster
                raise
            holder = max((base for base in reading.segments() if base <= progress.next_offset), default=located.segment_base_offset)
            if not located.batch_size_bytes or located.segment_base_offset != holder:
                # A gap left by compaction, or a damaged header: the scan of the whole segment shows which.
                located = Located(holder, FILE_START, 0, 0, holder)
            yield from self._segment(reading, row, located, aborted, progress, on_data_loss)

    def _report_loss(self, row: Row, progress: ReadProgress, on_data_loss: OnDataLoss) -> None:
        self._lose(progress, row.log_start_offset, f"the log begins at offset {row.log_start_offset} now", on_data_loss)

    def _lose(self, progress: ReadProgress, end: int, reason: str, on_data_loss: OnDataLoss) -> None:
        end = min(end, self._wanted.end)
        if end > progress.next_offset:
            on_data_loss(DataLoss(self._wanted.topic, self._wanted.partition, progress.next_offset, end, reason))
            progress.lose(end)

    def _aborted(self, reading: LogReading, progress: ReadProgress) -> AbortedRecords | None:
        """Return the aborted transactions of the whole range; one object for all segments."""
        if not self._read_committed:
            return None
        if self._found.aborted_end <= progress.next_offset or not reading.segments():
            return AbortedRecords(())
        _, found = reading.aborted_in(max(Offset(progress.next_offset), reading.earliest), reading.segments()[-1], _END_OF_SEGMENT, Offset(self._wanted.end))
        return AbortedRecords((each.producer_id, each.first_offset) for each in found)

    def _segment(self, reading: LogReading, row: Row, located: Located, aborted: AbortedRecords | None, progress: ReadProgress,
                 on_data_loss: OnDataLoss) -> Iterator[RawBatches]:  # fmt: skip
        """Yield windows from a position to the end of its segment."""
        base = located.segment_base_offset
        is_active = base == row.watermark_base_offset
        path = segment_path(self._found.directory, base, LOG_SUFFIX)
        with closing(LocalSegment(reading.open_segment(base), path, is_active)) as segment:
            if located.segment_file not in (0, segment.inode):
                return  # compaction has just replaced it: look again
            self._require_topic()
            end = min(segment.size_bytes, row.watermark_position) if is_active else segment.size_bytes
            following = min((other for other in reading.segments() if other > base), default=self._wanted.end)
            position: int = located.position
            for start, part_end in ((position, end),) if is_active else self._parts(Offset(base), position, segment.figures):
                position, window_bytes = start, self._window_bytes
                while position < part_end and progress.next_offset < self._wanted.end:
                    window_end = min(part_end, position + window_bytes)
                    resume_offset = following if part_end == end else progress.next_offset
                    with segment.window(position, window_end) as window:
                        yield RawBatches(window.memory, position - window.start, window_end - window.start, aborted, window_end == part_end, resume_offset)
                    reached = window.start + progress.position
                    if reached == position and window_end == part_end:
                        self._lose(progress, resume_offset, f"segment {path} ends inside a batch", on_data_loss)
                        break
                    window_bytes = 2 * window_bytes if reached == position else self._window_bytes
                    position = reached
            if progress.next_offset < self._wanted.end:
                progress.reach(min(following, self._wanted.end))

    def _require_topic(self) -> None:
        """Return whether the directory belongs to this topic id, not to another topic of that name."""
        if read_topic_id(self._found.directory) != self._found.topic_id:
            raise NotReadHere(f"{self._found.directory} belongs to another topic now")


def find_local_segments(access: ClusterAccess, wanted: OffsetRange) -> LocalSegments | str:
    """Return the partition if a box of this machine has the whole range, or why not."""
    topic_id = access.topic_id(wanted.topic)
    if topic_id is None or not access.cluster_id:
        return "the cluster does not tell the ids of topics"
    found = find_local_row(access.cluster_id, access.data_directory, wanted.topic, TopicId(topic_id), wanted.partition)
    if isinstance(found, str):
        return found
    limit = found.row.last_stable_offset if access.read_committed else found.row.high_watermark
    if limit < wanted.end:
        found.table.close()
        return f"it can be read up to offset {limit} here, and offset {wanted.end - 1} is wanted"
    return LocalSegments(found, wanted, access.read_committed)
