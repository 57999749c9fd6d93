"""Stored batches into columns: the fast decoder of every path by which Spark reads records.

`record_starts` finds where records begin, numpy computes all fields of some ten thousand of them at once, Arrow gathers keys and values in C++. What this
finds strange is read again by `records.record`, record by record, which names what is wrong. Owned by one task of Spark; not shared. Weak spots: headers
are read one record at a time; a group of batches must be smaller than 2 GiB when opened, as Arrow's offsets are 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from appliance.pipeline.opened_batches import BatchOpener, CorruptRecords, OpenedBatches, StoredBatch
from appliance.pipeline.record_starts import StartFinder
from appliance.pipeline.varint_columns import Bytes, Longs, Varints
from appliance.records.corrupt_batch import CorruptBatch
from appliance.records.record import Headers, read_record_headers, read_records

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Column `timestampType`, as in Spark's Kafka connector."""


class Wanted(NamedTuple):
    """Which columns cost something and are needed."""

    keys: bool = True
    values: bool = True
    headers: bool = False


EVERYTHING = Wanted()


class RecordColumns(NamedTuple):
    """Some records, each column as long as `offsets`."""

    offsets: Longs
    timestamps_ms: Longs
    """milliseconds since 1970 UTC"""
    timestamp_types: NDArray[np.int32]
    keys: pa.Array | None
    """binary, null where a record has none; None where not asked for"""
    values: pa.Array | None
    headers: list[Headers] | None


class ColumnDecoder:
    """Decodes one group of batches of a partition after the other; from what it has seen it guesses what is best for the next. Owned by one reader."""

    def __init__(self, wanted: Wanted = EVERYTHING) -> None:
        self._wanted = wanted
        self._opener = BatchOpener()
        self._starts = StartFinder()

    def decode(self, memory: memoryview, batches: Sequence[StoredBatch], start_offset: int, end_offset: int) -> list[RecordColumns]:
        """The records of `batches` (of data, CRC checked, in the order of their offsets) with start_offset <= offset < end_offset. Raises `CorruptRecords`."""
        return [self._decode(opened, start_offset, end_offset) for opened in self._opener.open(memory, batches)]

    def _decode(self, opened: OpenedBatches, start_offset: int, end_offset: int) -> RecordColumns:
        try:
            first = opened.positions[0]
            data: Bytes = np.frombuffer(opened.memory, np.uint8, opened.ends[-1] - first, first)
            return _compute(opened, data, self._starts.find(opened, data), start_offset, end_offset, self._wanted)
        except (CorruptBatch, IndexError) as found:
            raise _corrupt(opened, found) from found


def _corrupt(opened: OpenedBatches, found: Exception) -> CorruptRecords:
    """The slow reader says which batch it is, and what is wrong with it."""
    for position, end, header in zip(opened.positions, opened.ends, opened.headers):
        try:
            for _ in read_records(header, bytes(opened.memory[position:end])):
                pass
        except CorruptBatch as problem:
            return CorruptRecords(header.base_offset, str(problem))
    return CorruptRecords(opened.headers[0].base_offset, str(found))


def _compute(opened: OpenedBatches, data: Bytes, starts: Longs, start_offset: int, end_offset: int, wanted: Wanted) -> RecordColumns:
    varints = Varints(data)
    lengths, contents = varints.at(starts)
    ends = contents + lengths
    timestamp_deltas, positions = varints.at(contents + 1)  # behind the record's attributes, which mean nothing yet
    offset_deltas, positions = varints.at(positions)
    key_lengths, key_starts = varints.at(positions)
    value_lengths, value_starts = varints.at(_behind(key_starts, key_lengths, data.size))
    value_ends = _behind(value_starts, value_lengths, data.size)
    header_counts, header_ends = varints.at(value_ends)
    if (lengths < 0).any() or (header_ends > ends).any() or (header_counts < 0).any() or (header_ends != ends)[header_counts == 0].any():
        raise CorruptBatch("the fields of a record are not as long as it is")
    headers = opened.headers
    counts = [header.records_count for header in headers]
    offsets = np.repeat(np.array([header.base_offset for header in headers], np.int64), counts) + offset_deltas
    timestamps = np.repeat(np.array([header.base_timestamp for header in headers], np.int64), counts) + timestamp_deltas
    kinds = np.zeros(len(offsets), np.int32)
    if any(header.uses_log_append_time for header in headers):
        stamped = np.repeat([header.uses_log_append_time for header in headers], counts)
        timestamps = np.where(stamped, np.repeat([header.max_timestamp for header in headers], counts), timestamps)
        kinds[stamped] = LOG_APPEND_TIME
    part = _part(offsets, start_offset, end_offset)
    content = pa.py_buffer(data)
    return RecordColumns(
        offsets[part],
        timestamps[part],
        kinds[part],
        _gather(content, key_starts[part], key_lengths[part]) if wanted.keys else None,
        _gather(content, value_starts[part], value_lengths[part]) if wanted.values else None,
        _headers(data, value_ends[part], ends[part], header_counts[part]) if wanted.headers else None,
    )


def _behind(starts: Longs, lengths: Longs, size_bytes: int) -> Longs:
    """Where fields of these lengths end; a negative length is no field."""
    if lengths.size and lengths.max() > size_bytes:
        raise CorruptBatch("a field claims more bytes than there are")
    return starts + np.maximum(lengths, 0)


def _part(offsets: Longs, start_offset: int, end_offset: int) -> slice | NDArray[np.bool_]:
    """Which of them were asked for."""
    if not offsets.size or (offsets.min() >= start_offset and offsets.max() < end_offset):
        return slice(None)
    return (offsets >= start_offset) & (offsets < end_offset)


def _gather(content: pa.Buffer, starts: Longs, lengths: Longs) -> pa.Array:
    """A binary array of content[start : start + length], null where a length is negative."""
    count = len(starts)
    absent = lengths < 0
    if absent.all():
        return pa.nulls(count, pa.binary())
    # Every second value of this one lies between two of those that are wanted.
    edges = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = starts
    np.add(starts, np.maximum(lengths, 0), out=edges[1::2], casting="unsafe")
    edges[-1] = edges[-2]
    spread = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), content])
    return spread.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=absent if absent.any() else None))


def _headers(data: Bytes, starts: Longs, ends: Longs, counts: Longs) -> list[Headers]:
    found: list[Headers] = [()] * len(starts)
    for number in np.flatnonzero(counts):
        found[number] = read_record_headers(data[starts[number] : ends[number]].tobytes())
    return found
