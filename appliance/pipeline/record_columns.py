"""Decode stored batches into Arrow columns: the fast decoder of every read path of the pipeline.

`record_starts` finds the record boundaries, numpy computes the fields of about ten thousand records at once, and Arrow
gathers keys and values in C++. Irregular records go to `records.record`, one by one, which names what is wrong.

A record states only its own length, so boundaries cannot be computed in parallel. But log lines begin with a length, mostly
of two bytes, and a zero byte, and text contains no other zero. So all candidates are taken at once and accepted only if each
record ends where the next begins, from the first to the last byte of every batch. Otherwise Python walks the records.

Owned by one Spark task. Weak spots: more than 16 headers are read one record at a time; records that contain zero bytes, and records
below 64 bytes, are walked (0.15 µs each); varints of more than four bytes cost ten times as much; a group of batches must be
smaller than 2 GiB after decompression, because Arrow's offsets have 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from appliance.pipeline.opened_batches import BatchOpener, CorruptRecords, OpenedBatches, StoredBatch
from appliance.records.compression import CorruptBatch
from appliance.records.record import read_record_headers, read_records

Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_WORD_BYTES = 4


class Varints:
    """Decode zig-zag integers at many places of some bytes; those of up to four bytes take one step."""

    def __init__(self, data: Bytes) -> None:
        if data.size < _WORD_BYTES:
            raise CorruptBatch(f"{data.size} bytes are too few for a record")
        self._data = data
        self._words: NDArray[np.uint32] = np.ndarray(data.size - _WORD_BYTES + 1, np.dtype("<u4"), data, strides=(1,))

    def at(self, positions: Longs) -> tuple[Longs, Longs]:
        """Return (values, positions after them). Raises CorruptBatch for an integer that exceeds the bytes."""
        words = self._look(positions)
        more = words >> 7 & 1
        if not more.any():
            return _unzigzag(words & 0x7F), positions + 1
        values = words & 0x7F | (words >> 1 & 0x3F80) * more
        behind = positions + 1 + more
        more &= words >> 15
        if more.any():
            values |= (words >> 2 & 0x1FC000) * more
            behind += more
            more &= words >> 23
            values |= (words >> 3 & 0xFE00000) * more
            behind += more
            longer = np.flatnonzero(more & words >> 31)
            if longer.size:
                found = _unzigzag(values)
                found[longer], behind[longer] = _long_varints(self._data, positions[longer])
                return found, behind
        return _unzigzag(values), behind

    def _look(self, positions: Longs) -> NDArray[np.uint32]:
        """Return the four bytes from each place on, with zeros beyond the end."""
        last = self._words.size - 1
        if positions.max() <= last:
            return self._words[positions]
        beyond = np.maximum(positions - last, 0)
        if beyond.max() >= _WORD_BYTES:
            raise CorruptBatch("a record ends too early")
        return self._words[positions - beyond] >> (8 * beyond).astype(np.uint32)


def _unzigzag(values: NDArray[np.integer[Any]]) -> Longs:
    signed = values.astype(np.int64)
    return signed >> 1 ^ -(signed & 1)


def _long_varints(data: Bytes, positions: Longs) -> tuple[Longs, Longs]:
    """Decode byte by byte, up to ten bytes."""
    values = np.zeros(positions.size, np.uint64)
    behind = positions.copy()
    more = np.arange(positions.size)
    for shift in range(0, 64, 7):
        byte = data[behind[more]]
        if shift == 63 and (byte > 1).any():
            break
        values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[more] += 1
        more = more[byte >= 0x80]
        if not more.size:
            return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64), behind
    raise CorruptBatch("an integer has more than 64 bits")


_LENGTH_BYTES = 2
_ZEROS_A_RECORD_MAX = 8
_WALKS = 15


class StartFinder:
    """Finds them in one group after the other of a partition, whose records are mostly alike: where a look did not help, the next groups are walked at once.
    Owned by one reader."""

    def __init__(self) -> None:
        self._walks_left = 0

    def find(self, opened: OpenedBatches, data: Bytes) -> Longs:
        """Return positions in `data`, which starts with the first batch's records.

        Raises CorruptBatch or IndexError for records that do not fill their batches.
        """
        if self._walks_left:
            self._walks_left -= 1
        elif (found := look_for_starts(opened, data)) is not None:
            return found
        else:
            self._walks_left = _WALKS
        return np.array(walk(opened), np.int64)


def look_for_starts(opened: OpenedBatches, data: Bytes) -> Longs | None:
    """Find all starts at once; None if they do not prove correct."""
    counts = [header.records_count for header in opened.headers]
    total = sum(counts)
    zeros = np.flatnonzero(data == 0)
    if not total <= zeros.size <= _ZEROS_A_RECORD_MAX * total or zeros[0] < _LENGTH_BYTES:
        return None
    low, high = data[zeros - 2], data[zeros - 1]
    likely = np.flatnonzero((low >= 0x80) & (high < 0x80))
    first = opened.positions[0]
    batch_starts, batch_ends = np.array(opened.positions, np.int64) - first, np.array(opened.ends, np.int64) - first
    if len(counts) > 1:  # between batches there are headers, with zeros of their own
        batch = np.searchsorted(batch_starts, zeros[likely] - _LENGTH_BYTES, "right") - 1
        likely = likely[(batch >= 0) & (zeros[likely] < batch_ends[batch])]
    if likely.size != total:
        return None
    contents = zeros[likely]
    ends = contents + ((low[likely] & 0x7F).astype(np.int64) | high[likely].astype(np.int64) << 7) // 2
    starts: Longs = contents - _LENGTH_BYTES
    last = np.cumsum(counts) - 1
    following = np.append(starts[1:], batch_ends[-1])
    following[last] = batch_ends
    begins = np.append(0, last[:-1] + 1)
    return starts if (ends == following).all() and (starts[begins] == batch_starts).all() else None


def walk(opened: OpenedBatches) -> list[int]:
    """Walk from record to record; positions count from the first batch's records. Raises if the records do not fill their batch."""
    first = opened.positions[0]
    memory = bytes(opened.memory[first : opened.ends[-1]])  # a copy is read faster than a view
    starts: list[int] = []
    add = starts.append
    for position, batch_end, header in zip((each - first for each in opened.positions), (each - first for each in opened.ends), opened.headers):
        for _ in range(header.records_count):
            add(position)
            length = memory[position]
            if length < 0x80:
                position += 1 + (length >> 1)
            elif (byte := memory[position + 1]) < 0x80:
                position += 2 + ((length & 0x7F | byte << 7) >> 1)
            else:
                length = length & 0x7F | (byte & 0x7F) << 7
                position += 2
                shift = 14
                while (byte := memory[position]) >= 0x80:
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    position += 1
                position += 1 + ((length | byte << shift) >> 1)
        if position != batch_end:
            raise CorruptBatch("the records of a batch do not end where it does")
    return starts


HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
HEADERS_AT_ONCE_MAX = 16
"""Records with more headers are read one by one."""
CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Column `timestampType`, as in Spark's Kafka connector."""


class WantedColumns(NamedTuple):
    """The requested columns among those that cost time."""

    keys: bool = True
    values: bool = True
    headers: bool = False


EVERYTHING = WantedColumns()


class RecordColumns(NamedTuple):
    """Decoded records; each column is as long as `offsets`."""

    offsets: Longs
    timestamps_ms: Longs
    """milliseconds since 1970 UTC"""
    timestamp_types: NDArray[np.int32]
    keys: pa.Array | None
    """binary, null for a record without one; None if the column was not requested"""
    values: pa.Array | None
    headers: pa.Array | None
    """of `HEADERS_TYPE`, null for a record without any"""


class ColumnDecoder:
    """Decodes groups of batches of one partition; earlier groups decide how it tries the next. Owned by one reader."""

    def __init__(self, wanted: WantedColumns = EVERYTHING, is_bounded: bool = False) -> None:
        """`is_bounded`: see `BatchOpener`."""
        self._wanted = wanted
        self._opener = BatchOpener(is_bounded)
        self._starts = StartFinder()

    def decode(self, memory: memoryview, batches: Sequence[StoredBatch], start_offset: int, end_offset: int) -> list[RecordColumns]:
        """Decode records with start_offset <= offset < end_offset of data batches with checked CRC, in offset order. Raises `CorruptRecords`."""
        return [columns for columns, _ in self.decode_each(memory, batches, start_offset, end_offset)]

    def decode_each(self, memory: memoryview, batches: Sequence[StoredBatch], start_offset: int, end_offset: int) -> Iterator[tuple[RecordColumns, int]]:
        """Yield what `decode` returns piece by piece, each with the base offset of its last batch. Raises `CorruptRecords`."""
        for opened in self._opener.open(memory, batches):
            yield self._decode(opened, start_offset, end_offset), opened.headers[-1].base_offset

    def _decode(self, opened: OpenedBatches, start_offset: int, end_offset: int) -> RecordColumns:
        try:
            first = opened.positions[0]
            data: Bytes = np.frombuffer(opened.memory, np.uint8, opened.ends[-1] - first, first)
            return _compute(opened, data, self._starts.find(opened, data), start_offset, end_offset, self._wanted)
        except (CorruptBatch, IndexError) as found:
            raise _corrupt(opened, found) from found


def _corrupt(opened: OpenedBatches, found: Exception) -> CorruptRecords:
    """Let the simple reader find the damaged batch and its problem."""
    for position, end, header in zip(opened.positions, opened.ends, opened.headers):
        try:
            for _ in read_records(header, bytes(opened.memory[position:end])):
                pass
        except CorruptBatch as problem:
            return CorruptRecords(header.base_offset, str(problem))
    return CorruptRecords(opened.headers[0].base_offset, str(found))


def _compute(opened: OpenedBatches, data: Bytes, starts: Longs, start_offset: int, end_offset: int, wanted: WantedColumns) -> RecordColumns:
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
        _headers(data, (value_ends[part], header_ends[part], ends[part]), header_counts[part]) if wanted.headers else None,
    )


def _behind(starts: Longs, lengths: Longs, size_bytes: int) -> Longs:
    """Return the ends of fields of these lengths; a negative length means a null field."""
    if lengths.size and lengths.max() > size_bytes:
        raise CorruptBatch("a field claims more bytes than there are")
    return starts + np.maximum(lengths, 0)


def _part(offsets: Longs, start_offset: int, end_offset: int) -> slice | NDArray[np.bool_]:
    """Return which records were requested."""
    if not offsets.size or (offsets.min() >= start_offset and offsets.max() < end_offset):
        return slice(None)
    return (offsets >= start_offset) & (offsets < end_offset)


def _gather(content: pa.Buffer, starts: Longs, lengths: Longs) -> pa.Array:
    """Return a binary array of content[start : start + length], null for a negative length."""
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


def _headers(data: Bytes, sections: tuple[Longs, Longs, Longs], counts: Longs) -> pa.Array:
    """Return the headers of records; null for a record without any. `sections`: where they begin, the first of them, and where they end."""
    starts, firsts, ends = sections
    if not counts.any():
        return pa.nulls(len(counts), HEADERS_TYPE)
    if counts.max() <= HEADERS_AT_ONCE_MAX and (found := _headers_at_once(data, firsts, ends, counts)) is not None:
        return found
    rows: list[list[dict[str, Any]] | None] = [None] * len(counts)
    for number in np.flatnonzero(counts):
        headers = read_record_headers(data[starts[number] : ends[number]].tobytes())
        rows[number] = [{"key": key, "value": value} for key, value in headers]
    return pa.array(rows, HEADERS_TYPE)


def _headers_at_once(data: Bytes, firsts: Longs, ends: Longs, counts: Longs) -> pa.Array | None:
    """Decode the n-th header of all records in one step; None if one is irregular."""
    varints = Varints(data)
    sums = np.cumsum(counts)
    keys, values = np.empty((2, sums[-1]), np.int64), np.empty((2, sums[-1]), np.int64)
    rows = np.flatnonzero(counts)
    positions = firsts[rows]
    for number in range(counts.max()):
        slots = (sums - counts)[rows] + number
        for place, is_key in ((keys, True), (values, False)):
            lengths, begins = varints.at(positions)
            if is_key and (lengths < 0).any():
                return None
            place[:, slots] = begins, lengths
            positions = _behind(begins, lengths, data.size)
        is_last = counts[rows] == number + 1
        if (positions > ends[rows]).any() or (positions != ends[rows])[is_last].any():
            return None
        rows, positions = rows[~is_last], positions[~is_last]
    content = pa.py_buffer(data)
    try:
        names = _gather(content, *keys).cast(pa.string())
    except pa.ArrowInvalid:
        return None  # a name that is not UTF-8
    pairs = pa.StructArray.from_arrays([names, _gather(content, *values)], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(pa.array(np.append(0, sums), pa.int32()), pairs, type=HEADERS_TYPE, mask=pa.array(counts == 0))
