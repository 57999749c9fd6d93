"""Stored batches made by hand, and what the slow reader says of them: what the pipeline's decoder is held to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from appliance.pipeline.opened_batches import StoredBatch
from appliance.pipeline.record_columns import ColumnDecoder, RecordColumns, WantedColumns
from appliance.records.batch import ATTRIBUTES_AT, CRC_AT, LOG_APPEND_TIME_FLAG, batch_crc, read_batch_header, stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from appliance.records.record import Record, iterate_records
from appliance.records.retained_batch import open_records, rebuild_batch, slice_records

LIMIT = 1 << 24
Given = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
ALL = WantedColumns(keys=True, values=True, headers=True)


def made(base_offset: int, values: Iterable[bytes | None], codec: Codec = Codec.NONE, producer_id: int = -1) -> bytes:
    """A batch with these values, a millisecond apart; of a transaction if it has a producer."""
    return made_of(base_offset, [(1000 + number, None, value, ()) for number, value in enumerate(values)], codec, producer_id)


def made_of(base_offset: int, records: Sequence[Given], codec: Codec = Codec.NONE, producer_id: int = -1) -> bytes:
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(*record)
    return stamped(builder.build(producer_id, 0 if producer_id >= 0 else -1), base_offset)


def stamped(batch: bytes, base_offset: int, attributes: int = 0) -> bytes:
    """With its place in a log, and perhaps more attributes."""
    changed = bytearray(batch)
    stamp_batch(changed, 0, base_offset, 3)
    changed[ATTRIBUTES_AT + 1] |= attributes
    changed[CRC_AT : CRC_AT + 4] = batch_crc(changed, 0, len(changed)).to_bytes(4, "big")
    return bytes(changed)


def with_append_time(batch: bytes) -> bytes:
    return stamped(batch, read_batch_header(batch).base_offset, LOG_APPEND_TIME_FLAG)


def compacted(batch: bytes, keep: Sequence[int]) -> bytes:
    """The batch with only some of its records (by their number), as compaction leaves it."""
    header = read_batch_header(batch)
    body = open_records(header, batch, LIMIT)
    slices = slice_records(body, header.records_count)
    return rebuild_batch(header, body, [slices[number] for number in keep], None)


def marker(offset: int, producer_id: int, is_commit: bool) -> bytes:
    """The end of a transaction."""
    return stamped(bytes(build_end_transaction_batch(producer_id, 0, EndTransactionMarker(is_commit, 0), 2000)), offset)


def stored(memory: bytes) -> list[StoredBatch]:
    """All batches of some memory."""
    found = []
    position = 0
    while position < len(memory):
        found.append(StoredBatch(read_batch_header(memory, position), position))
        position = found[-1].end
    return found


def slow_records(memory: bytes, start: int = 0, end: int = 2**62) -> list[Record]:
    """Record by record."""
    return [record for batch in stored(memory) for record in iterate_records(memory[batch.position : batch.end], LIMIT) if start <= record.offset < end]


def fast_records(memory: bytes, start: int = 0, end: int = 2**62) -> list[Record]:
    """The same by columns."""
    return [record for columns in ColumnDecoder(ALL).decode(memoryview(memory), stored(memory), start, end) for record in rows(columns)]


def rows(columns: RecordColumns) -> list[Record]:
    assert columns.keys is not None and columns.values is not None and columns.headers is not None
    headers = [tuple((header["key"], header["value"]) for header in found or ()) for found in columns.headers.to_pylist()]
    fields = (columns.offsets.tolist(), columns.timestamps_ms.tolist(), columns.keys.to_pylist(), columns.values.to_pylist(), headers)
    return [Record(*each) for each in zip(*fields, strict=True)]
