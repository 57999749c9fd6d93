"""Select from raw stored bytes the wanted batches: whole, intact, with data, not aborted, from the next offset on.

Pure; one scan for both read paths. A `ReadProgress` is owned by the reader of one range; the path and the scan advance it.
Weak spot: after a batch with a damaged header, reading continues only if an intact batch follows in the same memory, or if
the path knows the next offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.opened_batches import StoredBatch
from appliance.pipeline.problems import CorruptBatchFound, CorruptRange, OnCorrupt
from appliance.records.batch import MAGIC, MAGIC_AT, RECORDS_AT, BatchHeader, batch_crc, read_batch_header, stored_batch_problem
from appliance.records.control_batch import read_end_transaction_marker

GROUP_RECORDS = 10_000
GROUP_BYTES = 4 * 1024 * 1024


class RawBatches(NamedTuple):
    """Memory that holds stored batches from `position` on; the last one may be cut off at `limit`."""

    memory: memoryview
    position: int
    limit: int
    aborted: AbortedRecords | None = None
    """None: read_uncommitted"""
    first_is_whole: bool = True
    """False: there is more behind `limit`, and even the first batch may reach into it"""
    resume_offset: int | None = None
    """where reading can go on if nothing in here can be read; None: not known"""


class ReadProgress:
    """How far a range was read."""

    def __init__(self, start: int) -> None:
        self.first_offset = start
        """records before it are not handed out, though they lie in a batch that is"""
        self.next_offset = start
        self.position = 0
        """where the last scan stopped in its memory"""

    def reach(self, offset: int) -> None:
        self.next_offset = max(self.next_offset, offset)

    def lose(self, end_offset: int) -> None:
        """Go on behind what was reported as lost, even where some of it is still there."""
        self.reach(end_offset)
        self.first_offset = max(self.first_offset, end_offset)


class AbortedRecords:
    """The transactional batches of aborted transactions, found in log order, as Kafka's consumer does it."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True)
        self._open: set[int] = set()

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch of data must be left out."""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        return header.is_transactional and header.producer_id in self._open

    def on_marker(self, header: BatchHeader, batch: memoryview) -> None:
        if header.producer_id in self._open:
            marker = read_end_transaction_marker(bytes(batch))
            if marker is not None and not marker.is_commit:
                self._open.discard(header.producer_id)


class BatchScan:
    """Eats raw batches of one range."""

    def __init__(self, wanted: OffsetRange, progress: ReadProgress, on_corrupt: OnCorrupt | None = None) -> None:
        self._wanted = wanted
        self._progress = progress
        self._on_corrupt = on_corrupt

    def batches(self, raw: RawBatches) -> Iterator[StoredBatch]:
        """Yield batches with wanted records and advance `progress` past the others. Raises `CorruptBatchFound` without `on_corrupt`."""
        progress, end_offset = self._progress, self._wanted.end
        memory, aborted = raw.memory, raw.aborted
        progress.position = raw.position
        while progress.next_offset < end_offset and progress.position + RECORDS_AT <= raw.limit:
            position = progress.position
            header = read_batch_header(memory, position)
            batch_end = position + header.size_bytes
            if not _is_plausible(header) or (batch_end > raw.limit and position == raw.position and raw.first_is_whole):
                self._pass_over(raw, header)
                continue
            if batch_end > raw.limit:
                return
            if header.base_offset >= end_offset:
                progress.reach(end_offset)  # compaction left nothing up to there
                return
            if header.last_offset < progress.next_offset:
                progress.position = batch_end
                continue
            if batch_crc(memory, position, header.size_bytes) != header.crc:
                self._pass_over(raw, header)
                continue
            progress.position = batch_end
            progress.reach(header.last_offset + 1)
            is_aborted = aborted is not None and aborted.has(header)
            if header.is_control:
                if aborted is not None:
                    aborted.on_marker(header, memory[position:batch_end])
            elif not is_aborted:
                yield StoredBatch(header, position)

    def _pass_over(self, raw: RawBatches, header: BatchHeader) -> None:
        """A damaged batch: say which, and go on behind it if that is wanted and possible."""
        progress = self._progress
        position, offset, resume_offset = progress.position, progress.next_offset, raw.resume_offset
        reason = stored_batch_problem(raw.memory, position, raw.limit) or f"it has offsets {header.base_offset} to {header.last_offset}"
        if _is_plausible(header):
            offset, resume_offset = max(offset, header.base_offset), header.last_offset + 1
            follows = _batch_at(raw, position + header.size_bytes, header.base_offset) or find_batch(raw.memory, position + 1, raw.limit, offset + 1)
        else:
            follows = find_batch(raw.memory, position + 1, raw.limit, offset)
        if follows is not None:
            progress.position, resume_offset = follows
            if resume_offset <= offset:
                return  # what is damaged lies before the range
        end_offset = self._wanted.end if resume_offset is None else min(resume_offset, self._wanted.end)
        corrupt = CorruptRange(self._wanted.topic, self._wanted.partition, offset, end_offset, reason)
        if self._on_corrupt is None or resume_offset is None:
            raise CorruptBatchFound(corrupt)
        self._on_corrupt(corrupt)
        if follows is None:
            progress.position = raw.limit
        progress.reach(end_offset)


def _is_plausible(header: BatchHeader) -> bool:
    return header.magic == MAGIC and header.size_bytes >= RECORDS_AT and min(header.last_offset_delta, header.base_offset, header.records_count) >= 0


def _batch_at(raw: RawBatches, position: int, before: int) -> tuple[int, int] | None:
    """(position, base offset) of the intact batch that begins at `position` and above the offset `before`."""
    if stored_batch_problem(raw.memory, position, raw.limit) is not None:
        return None
    header = read_batch_header(raw.memory, position)
    return (position, header.base_offset) if header.base_offset > before else None


def find_batch(memory: memoryview, position: int, limit: int, next_offset: int) -> tuple[int, int] | None:
    """(position, base offset) of the first intact batch at or behind `position` that has anything from `next_offset` on."""
    content = bytes(memory[position:limit])
    found = content.find(MAGIC, MAGIC_AT)
    while found >= 0 and found - MAGIC_AT + RECORDS_AT <= len(content):
        start = found - MAGIC_AT
        header = read_batch_header(content, start)
        if _is_plausible(header) and header.last_offset >= next_offset and stored_batch_problem(content, start, len(content)) is None:
            return position + start, header.base_offset
        found = content.find(MAGIC, found + 1)
    return None


def grouped(batches: Iterable[StoredBatch]) -> Iterator[list[StoredBatch]]:
    """Neighbours put together until they make a batch of Arrow's that is worth its cost."""
    group: list[StoredBatch] = []
    records = size_bytes = 0
    for batch in batches:
        group.append(batch)
        records += batch.header.records_count
        size_bytes += batch.header.size_bytes
        if records >= GROUP_RECORDS or size_bytes >= GROUP_BYTES:
            yield group
            group, records, size_bytes = [], 0, 0
    if group:
        yield group
