"""Remove records from a stored batch: how a compacted log is rewritten, or copied (`produced_batch`).

Pure functions over bytes, used by the cleaning run and by mirrors. Records that stay are copied unchanged: offset
deltas are relative to the base offset, which never changes. Base offset, last offset delta,
producer id, epoch and sequence are kept, so offsets and sequences keep their meaning. Setting the
delete horizon moves the base timestamp and rewrites the deltas, so that absolute timestamps stay
(Kafka's `DefaultRecordBatch`, KIP-534). Weak spot: one tuple per record, about 2 µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from appliance.base.model import FIRST_OFFSET, NO_LEADER_EPOCH, NO_PRODUCER_ID
from appliance.records.batch import ATTRIBUTES_AT, BATCH_HEADER, CODEC_MASK, DELETE_HORIZON_FLAG, LOG_OVERHEAD, MAGIC, RECORDS_AT, BatchHeader
from appliance.records.compression import Buffer, Codec, CorruptBatch, compress, decompress
from appliance.records.crc32c import crc32c
from appliance.records.record import decode_varint, encode_varint

NO_TIMESTAMP = -1


class RecordSlice(NamedTuple):
    """Where a record lies in its batch's (decompressed) records, and what decides whether it stays."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def open_records(header: BatchHeader, batch: Buffer, limit_bytes: int) -> bytes:
    """The decompressed records of a batch, at most `limit_bytes`. Raises `CorruptBatch`."""
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise CorruptBatch(f"compression codec {header.attributes & CODEC_MASK} is unknown")
    records = memoryview(batch)[RECORDS_AT:]
    return bytes(decompress(header.codec, records, limit_bytes)) if header.records_count else b""


def slice_records(body: bytes, count: int) -> list[RecordSlice]:
    """The records that `open_records` gave, in order. Raises `CorruptBatch`."""
    slices = []
    position = 0
    body_bytes = len(body)
    for _ in range(count):
        start = position
        length, position = decode_varint(body, position)
        end = position + length
        if length < 0 or end > body_bytes:
            raise CorruptBatch(f"a record claims {length} bytes, {body_bytes - position} are left")
        timestamp_delta, position = decode_varint(body, position + 1)
        offset_delta, position = decode_varint(body, position)
        key_length, position = decode_varint(body, position)
        key = None
        if key_length >= 0:
            key = body[position : position + key_length]
            position += key_length
        value_length, position = decode_varint(body, position) if position < end else (end, end)
        if position + max(0, value_length) > end:
            raise CorruptBatch(f"key and value do not fit into the {length} bytes of their record")
        slices.append(RecordSlice(start, end, timestamp_delta, offset_delta, key, value_length >= 0))
        position = end
    if position != body_bytes:
        raise CorruptBatch(f"{body_bytes - position} bytes follow the last record")
    return slices


def delete_horizon_of(header: BatchHeader) -> int | None:
    """From when on the batch's tombstones (or its transaction marker) may go; None if that was not
    decided yet.
    """
    return header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None


def rebuild_batch(header: BatchHeader, body: bytes, kept: Sequence[RecordSlice], new_horizon_ms: int | None) -> bytes:
    """The batch with the records `kept` (at least one); with `new_horizon_ms` it gets that delete
    horizon.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if new_horizon_ms is None:
        records = b"".join([body[each.start : each.end] for each in kept])
    else:
        shift_ms = base_timestamp - new_horizon_ms
        records = b"".join([_with_timestamp_delta(body, each, each.timestamp_delta + shift_ms) for each in kept])
        attributes |= DELETE_HORIZON_FLAG
    max_timestamp = header.max_timestamp
    if not header.uses_log_append_time:
        max_timestamp = base_timestamp + max(each.timestamp_delta for each in kept)
    if new_horizon_ms is not None:
        base_timestamp = new_horizon_ms
    if header.codec is not Codec.NONE:
        records = compress(header.codec, records)
    return _assemble(header, attributes, base_timestamp, max_timestamp, len(kept), records)


def _with_timestamp_delta(body: bytes, record: RecordSlice, timestamp_delta: int) -> bytes:
    _, position = decode_varint(body, record.start)
    _, behind = decode_varint(body, position + 1)
    content = body[position : position + 1] + encode_varint(timestamp_delta) + body[behind : record.end]
    return encode_varint(len(content)) + content


def produced_batch(header: BatchHeader, body: bytes, kept: Sequence[RecordSlice]) -> bytes:
    """Return the records `kept` (at least one) as a producer may send them: numbered from 0, without
    producer, in the same codec, with the timestamps that readers of the stored batch see.
    """
    base_timestamp = header.max_timestamp if header.uses_log_append_time else header.base_timestamp
    deltas = [0 if header.uses_log_append_time else each.timestamp_delta for each in kept]
    records = b"".join([_renumbered(body, each, deltas[number], number) for number, each in enumerate(kept)])
    if header.codec is not Codec.NONE:
        records = compress(header.codec, records)
    return _sent(header, base_timestamp, max(deltas), len(kept), records)


def joined_batch(batches: Sequence[tuple[BatchHeader, bytes]]) -> bytes:
    """Return one batch with the records of several (header and opened records), which a producer may
    send: in their order, with their timestamps, in the codec of the first. None may have the
    timestamp type LogAppendTime. Raises `CorruptBatch`.
    """
    first, _ = batches[0]
    records: list[bytes] = []
    deltas: list[int] = []
    for header, body in batches:
        shift_ms = header.base_timestamp - first.base_timestamp
        for each in slice_records(body, header.records_count):
            deltas.append(each.timestamp_delta + shift_ms)
            records.append(_renumbered(body, each, deltas[-1], len(records)))
    joined = b"".join(records)
    if first.codec is not Codec.NONE:
        joined = compress(first.codec, joined)
    return _sent(first, first.base_timestamp, max(deltas), len(records), joined)


def _sent(header: BatchHeader, base_timestamp: int, latest_delta: int, count: int, records: bytes) -> bytes:
    sent = header._replace(
        base_offset=FIRST_OFFSET,
        partition_leader_epoch=NO_LEADER_EPOCH,
        last_offset_delta=count - 1,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
    )
    return _assemble(sent, header.attributes & CODEC_MASK, base_timestamp, base_timestamp + latest_delta, count, records)


def _renumbered(body: bytes, record: RecordSlice, timestamp_delta: int, offset_delta: int) -> bytes:
    _, position = decode_varint(body, record.start)
    _, behind = decode_varint(body, position + 1)
    _, behind = decode_varint(body, behind)
    content = body[position : position + 1] + encode_varint(timestamp_delta) + encode_varint(offset_delta) + body[behind : record.end]
    return encode_varint(len(content)) + content


def empty_batch(header: BatchHeader) -> bytes:
    """The header alone: it keeps a producer's last sequence, or its epoch, in the log."""
    return _assemble(header, header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG), NO_TIMESTAMP, header.max_timestamp, 0, b"")


def gap_batch(offsets: int) -> bytes:
    """A batch without records that takes `offsets` offsets (1 to 2^31): consumers go on behind it, as
    behind a batch that compaction has emptied.
    """
    header = BatchHeader(FIRST_OFFSET, 0, NO_LEADER_EPOCH, MAGIC, 0, 0, offsets - 1, NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID, -1, -1, 0)
    return _assemble(header, 0, NO_TIMESTAMP, NO_TIMESTAMP, 0, b"")


def _assemble(header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, records: bytes) -> bytes:
    changed = header._replace(
        batch_length=RECORDS_AT - LOG_OVERHEAD + len(records),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        records_count=count,
        crc=0,
    )
    front = BATCH_HEADER.pack(*changed)
    crc = crc32c(records, crc32c(front[ATTRIBUTES_AT:]))
    return BATCH_HEADER.pack(*changed._replace(crc=crc)) + records
