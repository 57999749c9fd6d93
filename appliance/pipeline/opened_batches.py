"""Batches whose records are in plain memory, one after the other: where they were stored, or decompressed.

Pure. Uncompressed batches stay in place, without a copy. Weak spot: a group is decompressed whole before its first record is
decoded, each batch up to `OPENED_BATCH_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

from appliance.records.batch import CODEC_MASK, RECORDS_AT, BatchHeader
from appliance.records.compression import Buffer, Codec, CorruptBatch, decompress, opened_batch_limit

OPENED_BATCH_BYTES_MAX = 1 << 30
OPENED_BYTES_MAX = 2**31 - 1
_GUESS_MARGIN = 1.1


class CorruptRecords(CorruptBatch):
    """A batch with a correct checksum and invalid contents: its producer wrote it so."""

    def __init__(self, base_offset: int, reason: str) -> None:
        super().__init__(reason)
        self.base_offset = base_offset
        self.reason = reason


class StoredBatch(NamedTuple):
    """An intact batch (its CRC was checked) at `position` of some memory."""

    header: BatchHeader
    position: int

    @property
    def end(self) -> int:
        return self.position + self.header.size_bytes


class OpenedBatches(NamedTuple):
    """The records of the batch with `headers[n]` are `memory[positions[n]:ends[n]]`."""

    memory: memoryview
    positions: list[int]
    ends: list[int]
    headers: list[BatchHeader]


OPENED_GROUP_BYTES = 32 << 20


class BatchOpener:
    """Opens groups of one partition; earlier batches decide how much memory it reserves for the next.

    `is_bounded`, for a process that others need: no batch may hold more than `opened_batch_limit`, and about
    `OPENED_GROUP_BYTES` are open at a time.
    """

    def __init__(self, is_bounded: bool = False) -> None:
        self._is_bounded = is_bounded
        self._bytes_a_record = 0.0

    def open(self, memory: memoryview, batches: Sequence[StoredBatch]) -> Iterator[OpenedBatches]:
        """Open in order; batches that compaction emptied are left out. Raises `CorruptRecords`."""
        for codec, neighbours in groupby(filter(_has_records, batches), key=lambda batch: batch.header.attributes & CODEC_MASK):
            members = list(neighbours)
            headers = [batch.header for batch in members]
            if codec == Codec.NONE:
                yield _small_enough(OpenedBatches(memory, [batch.position + RECORDS_AT for batch in members], [batch.end for batch in members], headers))
                continue
            bodies: list[Buffer] = []
            size_bytes = 0
            for number, batch in enumerate(members, 1):
                bodies.append(self._open(memory, batch))
                size_bytes += len(bodies[-1])
                if number == len(members) or (self._is_bounded and size_bytes >= OPENED_GROUP_BYTES):
                    edges = list(accumulate(map(len, bodies), initial=0))
                    body = memoryview(bodies[0] if len(bodies) == 1 else b"".join(bodies))
                    yield _small_enough(OpenedBatches(body, edges[:-1], edges[1:], headers[number - len(bodies) : number]))
                    bodies, size_bytes = [], 0

    def _open(self, memory: memoryview, batch: StoredBatch) -> Buffer:
        header = batch.header
        number = header.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptRecords(header.base_offset, f"compression codec {number} is unknown")
        limit_bytes = opened_batch_limit(header.size_bytes) if self._is_bounded else OPENED_BATCH_BYTES_MAX
        guess_bytes = min(limit_bytes, int(self._bytes_a_record * header.records_count * _GUESS_MARGIN))
        try:
            opened = decompress(Codec(number), memory[batch.position + RECORDS_AT : batch.end], limit_bytes, guess_bytes)
        except CorruptBatch as problem:
            raise CorruptRecords(header.base_offset, str(problem)) from problem
        self._bytes_a_record = len(opened) / header.records_count
        return opened


def _has_records(batch: StoredBatch) -> bool:
    return batch.header.records_count > 0


def _small_enough(opened: OpenedBatches) -> OpenedBatches:
    size_bytes = opened.ends[-1] - opened.positions[0]
    if size_bytes > OPENED_BYTES_MAX:
        raise CorruptRecords(opened.headers[0].base_offset, f"{size_bytes} bytes of records are too many for one piece of memory")
    return opened
