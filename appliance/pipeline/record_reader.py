"""Read a range of one partition as Arrow record batches: from segments of this machine if it has them, else by Fetch.

Runs in a Spark task or without Spark; one decoder serves both paths. Control batches are left out, and with
`read_committed` the records of aborted transactions. Lost or damaged records raise an error with their offsets, unless the
caller passes a callback. Owned by one thread. Weak spot: a change from segments to Fetch within a range (a dead disk, a
moved log) is not reported.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Protocol

import pyarrow as pa

from appliance.pipeline.batch_scan import BatchScan, RawBatches, ReadProgress, grouped
from appliance.pipeline.cluster_access import ClusterAccess, ReadPath
from appliance.pipeline.fetched_batches import FetchedBatches
from appliance.pipeline.local_segments import LocalSegments, NotReadHere, find_local_segments
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.opened_batches import CorruptRecords, StoredBatch
from appliance.pipeline.problems import CorruptBatchFound, CorruptRange, DataLoss, OffsetsLost, OnCorrupt, OnDataLoss, SourceProblem
from appliance.pipeline.record_columns import ColumnDecoder
from appliance.pipeline.record_schema import COLUMNS, RecordBatches, record_schema

__all__ = ["COLUMNS", "OnCorrupt", "OnDataLoss", "read_range", "record_schema"]


class BatchPath(Protocol):
    """A source of stored batches. Each request reads `progress`; what is lost is reported."""

    def raw_batches(self, progress: ReadProgress, on_data_loss: OnDataLoss) -> Generator[RawBatches, None, None]: ...


def read_range(access: ClusterAccess, wanted: OffsetRange, columns: Sequence[str] = COLUMNS, *,
               on_data_loss: OnDataLoss | None = None, on_corrupt: OnCorrupt | None = None) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield batches of about 10,000 rows in offset order.

    Raises `OffsetsLost` and `CorruptBatchFound` without the callback for them, `SourceProblem` for permanent failures, and
    the client's errors if no broker answers for `patience_ms`.
    """
    reader = RangeReader(wanted, columns, on_corrupt)
    for path in _paths(access, wanted):
        try:
            yield from reader.read(path, on_data_loss or _raise_loss)
            return
        except NotReadHere as reason:
            if access.path is ReadPath.SEGMENTS:
                raise SourceProblem(f"{wanted.topic}-{wanted.partition} cannot be read from segments of this machine any more: {reason}") from reason


def _paths(access: ClusterAccess, wanted: OffsetRange) -> Iterator[BatchPath]:
    if access.path is not ReadPath.FETCH and wanted.size > 0:
        found = find_local_segments(access, wanted)
        if isinstance(found, LocalSegments):
            yield found
        elif access.path is ReadPath.SEGMENTS:
            raise SourceProblem(f"{wanted.topic}-{wanted.partition} cannot be read from segments of this machine: {found}")
    yield FetchedBatches(access, wanted)


def _raise_loss(loss: DataLoss) -> None:
    raise OffsetsLost(loss)


class RangeReader:
    """Reads one range, and keeps its progress across read paths."""

    def __init__(self, wanted: OffsetRange, columns: Sequence[str], on_corrupt: OnCorrupt | None, is_bounded: bool = False) -> None:
        """`is_bounded`: a batch that holds far more than it stores is damaged (`BatchOpener`)."""
        self._wanted = wanted
        self._progress = ReadProgress(wanted.start)
        self._scan = BatchScan(wanted, self._progress, on_corrupt)
        self._batches = RecordBatches(wanted.topic, wanted.partition, columns)
        self._decoder = ColumnDecoder(self._batches.wanted, is_bounded)
        self._on_corrupt = on_corrupt

    def read(self, path: BatchPath, on_data_loss: OnDataLoss) -> Generator[pa.RecordBatch, None, None]:
        """Yield what `path` has of the range from the progress on."""
        with closing(path.raw_batches(self._progress, on_data_loss)) as pieces:
            for raw in pieces:
                for group in grouped(self._scan.batches(raw)):
                    yield from self._decode(raw.memory, group)

    def _decode(self, memory: memoryview, group: list[StoredBatch]) -> Iterator[pa.RecordBatch]:
        while group:
            try:
                for records, last in self._decoder.decode_each(memory, group, self._progress.first_offset, self._wanted.end):
                    group = [batch for batch in group if batch.header.base_offset > last]
                    if len(records.offsets):
                        yield self._batches.make(records)
                return
            except CorruptRecords as damage:
                group = self._without(group, damage)

    def _without(self, group: list[StoredBatch], damage: CorruptRecords) -> list[StoredBatch]:
        """Return the other batches of a group."""
        header = next(batch.header for batch in group if batch.header.base_offset == damage.base_offset)
        offset = max(header.base_offset, self._wanted.start)
        corrupt = CorruptRange(self._wanted.topic, self._wanted.partition, offset, header.last_offset + 1, damage.reason)
        if self._on_corrupt is None:
            raise CorruptBatchFound(corrupt) from damage
        self._on_corrupt(corrupt)
        return [batch for batch in group if batch.header.base_offset != damage.base_offset]
