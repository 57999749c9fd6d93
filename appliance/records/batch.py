"""The record batch, magic 2: its header, the checks of a produced batch, and the leader's stamps.

Pure functions over bytes. `batch_problem` runs in the acceptor for every produced batch, the stamps
run in the log-writer. Both are among the hottest code of the product: they read fields by position
and build no object for a good batch. Weak spot: maxTimestamp is taken from the producer; checking it
would mean opening the batch.

    0 baseOffset  8 batchLength  12 partitionLeaderEpoch  16 magic  17 crc  21 attributes  23 lastOffsetDelta
    27 baseTimestamp  35 maxTimestamp  43 producerId  51 producerEpoch  53 baseSequence  57 recordsCount  61 records

The CRC covers everything from 21 on, so offset and leader epoch are stamped without touching it.
Source: Kafka's DefaultRecordBatch, KIP-98.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_OFFSET, LeaderEpoch, Offset, ProducerId
from appliance.records.compression import Buffer, Codec, opened_batch_limit
from appliance.records.crc32c import crc32c

BATCH_HEADER = Struct(">qiibIhiqqqhii")
MAGIC = 2

BASE_OFFSET_AT = 0
BATCH_LENGTH_AT = BASE_OFFSET_AT + 8
LEADER_EPOCH_AT = BATCH_LENGTH_AT + 4
MAGIC_AT = LEADER_EPOCH_AT + 4
CRC_AT = MAGIC_AT + 1
ATTRIBUTES_AT = CRC_AT + 4
LAST_OFFSET_DELTA_AT = ATTRIBUTES_AT + 2
BASE_TIMESTAMP_AT = LAST_OFFSET_DELTA_AT + 4
MAX_TIMESTAMP_AT = BASE_TIMESTAMP_AT + 8
PRODUCER_ID_AT = MAX_TIMESTAMP_AT + 8
PRODUCER_EPOCH_AT = PRODUCER_ID_AT + 8
BASE_SEQUENCE_AT = PRODUCER_EPOCH_AT + 2
RECORDS_COUNT_AT = BASE_SEQUENCE_AT + 4
RECORDS_AT = RECORDS_COUNT_AT + 4

LOG_OVERHEAD = LEADER_EPOCH_AT
"""Bytes of a batch that its batchLength does not count."""

CODEC_MASK = 0x07
RECORD_BYTES_MIN = 7
"""A record with neither key nor value nor headers."""
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

assert BATCH_HEADER.size == RECORDS_AT == 61
assert LOG_OVERHEAD == 12 and ATTRIBUTES_AT == 21

_unpack_header = BATCH_HEADER.unpack_from
_CRC = Struct(">I")
_OFFSET_LENGTH_EPOCH = Struct(">qii")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")
_LENGTH = Struct(">i")
_PRODUCER = Struct(">qhi")


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records, in the order of the wire."""

    base_offset: Offset
    batch_length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def uses_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)


def read_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; nothing is checked beyond its 61 bytes being there (struct.error
    otherwise).
    """
    return BatchHeader._make(_unpack_header(buffer, position))


def batch_crc(buffer: Buffer, position: int, size_bytes: int) -> int:
    """CRC-32C over what the stored checksum covers."""
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size_bytes])


def batch_problem(buffer: Buffer, position: int, limit: int, max_message_bytes: int) -> tuple[ErrorCode, str] | None:
    """Why a producer's batch at buffer[position:limit] must be refused, or None.

    It must be exactly one batch.
    """
    size_bytes = limit - position
    if size_bytes < RECORDS_AT:
        return _short_problem(buffer, position, limit)
    (
        base_offset,
        batch_length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        _,
        _,
        producer_id,
        _,
        base_sequence,
        records_count,
    ) = _unpack_header(buffer, position)
    if magic != MAGIC:
        return ErrorCode.INVALID_RECORD, f"record batches must have magic {MAGIC}, this one has {magic}"
    if batch_length + LOG_OVERHEAD != size_bytes:
        return _length_problem(batch_length, size_bytes)
    if base_offset:
        return ErrorCode.INVALID_RECORD, f"a produced batch must have base offset 0, this one has {base_offset}"
    if size_bytes > max_message_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size_bytes} bytes is larger than the limit of {max_message_bytes}"
    if crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : limit]) != crc:
        return ErrorCode.CORRUPT_MESSAGE, f"the batch's checksum does not match its bytes (stored {crc:#010x})"
    if records_count != last_offset_delta + 1 or records_count <= 0 or attributes & ~0x17 or attributes & CODEC_MASK > Codec.ZSTD:
        return _content_problem(attributes, last_offset_delta, records_count)
    if records_count > size_bytes >> 2 and records_count * RECORD_BYTES_MIN > (opened_batch_limit(size_bytes) if attributes & CODEC_MASK else size_bytes):
        # its offsets are used up, and one of 2^31 begins a segment
        return ErrorCode.INVALID_RECORD, f"a batch of {size_bytes} bytes counts {records_count} records"
    if producer_id >= 0 and base_sequence < 0:
        return ErrorCode.INVALID_RECORD, f"a batch of producer id {producer_id} has no sequence ({base_sequence})"
    return None


def _short_problem(buffer: Buffer, position: int, limit: int) -> tuple[ErrorCode, str]:
    size_bytes = limit - position
    if size_bytes > MAGIC_AT and memoryview(buffer)[position + MAGIC_AT] < MAGIC:
        return ErrorCode.INVALID_RECORD, f"record batches must have magic {MAGIC}"
    if size_bytes <= 0:
        return ErrorCode.INVALID_RECORD, "a produce request must hold exactly one record batch, this one holds none"
    return ErrorCode.CORRUPT_MESSAGE, f"{size_bytes} bytes are too few for a record batch"


def _length_problem(batch_length: int, size_bytes: int) -> tuple[ErrorCode, str]:
    claimed = batch_length + LOG_OVERHEAD
    if claimed < RECORDS_AT:
        return ErrorCode.CORRUPT_MESSAGE, f"a batch claims {claimed} bytes, its header alone has {RECORDS_AT}"
    if claimed > size_bytes:
        return ErrorCode.CORRUPT_MESSAGE, f"a batch claims {claimed} bytes, {size_bytes} are there"
    return ErrorCode.INVALID_RECORD, f"a produce request must hold exactly one record batch, {size_bytes - claimed} bytes follow the first"


def _content_problem(attributes: int, last_offset_delta: int, records_count: int) -> tuple[ErrorCode, str]:
    if attributes & CONTROL_FLAG:
        return ErrorCode.INVALID_RECORD, "clients must not write control batches"
    if attributes & LOG_APPEND_TIME_FLAG:
        return ErrorCode.INVALID_TIMESTAMP, "a client must not send a batch with the timestamp type LogAppendTime"
    if attributes & CODEC_MASK > Codec.ZSTD:
        return ErrorCode.INVALID_RECORD, f"compression codec {attributes & CODEC_MASK} is unknown"
    if records_count != last_offset_delta + 1 or records_count <= 0:
        return ErrorCode.INVALID_RECORD, f"a batch counts {records_count} records and has last offset delta {last_offset_delta}"
    return ErrorCode.INVALID_RECORD, f"batch attributes {attributes & 0xFFFF:#06x} have bits that a client must not set"


def stored_batch_problem(buffer: Buffer, position: int, limit: int) -> str | None:
    """Why buffer[position:limit] does not begin with a whole, intact batch of a log, or None.

    `limit` may lie behind the batch.
    """
    available = limit - position
    if available < RECORDS_AT:
        return f"{available} bytes are too few for a record batch"
    _, batch_length, _, magic, crc, _, last_offset_delta, _, _, _, _, _, _ = _unpack_header(buffer, position)
    size_bytes = batch_length + LOG_OVERHEAD
    if size_bytes < RECORDS_AT or size_bytes > available:
        return f"a batch claims {size_bytes} bytes, {available} are there"
    if magic != MAGIC:
        return f"a batch has magic {magic}"
    if last_offset_delta < 0:
        return f"a batch has last offset delta {last_offset_delta}"
    if crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size_bytes]) != crc:
        return f"a batch's checksum does not match its bytes (stored {crc:#010x})"
    return None


def stamp_batch(buffer: bytearray | memoryview, position: int, base_offset: Offset, leader_epoch: LeaderEpoch) -> None:
    """Write base offset and leader epoch in place; the CRC does not cover them."""
    (batch_length,) = _LENGTH.unpack_from(buffer, position + BATCH_LENGTH_AT)
    _OFFSET_LENGTH_EPOCH.pack_into(buffer, position, base_offset, batch_length, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, position: int, size_bytes: int, timestamp_ms: int) -> None:
    """Set the timestamp type LogAppendTime and maxTimestamp in place, and the CRC anew.

    Records stay as they are: readers take the batch's maxTimestamp for every record of such a
    batch.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_FLAG)
    _TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(buffer, position + CRC_AT, batch_crc(buffer, position, size_bytes))


def stamp_producer(buffer: bytearray | memoryview, producer_id: ProducerId, producer_epoch: int, base_sequence: int, is_transactional: bool) -> None:
    """Write producer id, epoch and sequence into the one batch in `buffer`, and its new CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, ATTRIBUTES_AT, attributes | TRANSACTIONAL_FLAG if is_transactional else attributes & ~TRANSACTIONAL_FLAG)
    _PRODUCER.pack_into(buffer, PRODUCER_ID_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(buffer, CRC_AT, batch_crc(buffer, 0, len(buffer)))


def as_produced(buffer: bytearray | memoryview) -> None:
    """Take off what a log stamped on the one batch in `buffer`: it may be offered again, anywhere.

    The CRC is wrong after that; `stamp_producer` sets it.
    """
    (batch_length,) = _LENGTH.unpack_from(buffer, BATCH_LENGTH_AT)
    _OFFSET_LENGTH_EPOCH.pack_into(buffer, 0, 0, batch_length, -1)
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, ATTRIBUTES_AT, attributes & ~(LOG_APPEND_TIME_FLAG | DELETE_HORIZON_FLAG))


_OFFSET_AND_LENGTH = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")


class WholeBatches(NamedTuple):
    """Where the last whole batch of a run of batches in memory ends, and the offset that follows.

    The log-reader uses it on what it read for an acceptor, so that the next read starts exactly at
    a batch. `size_bytes` 0: the first batch, of `first_batch_bytes` (0: its head is incomplete), is
    not whole. Weak spot: one Python step of 0.2 µs for each batch; a MiB of batches with one tiny
    record each takes 3 ms.
    """

    size_bytes: int
    next_offset: Offset
    first_batch_bytes: int


def whole_batches(parts: list[memoryview]) -> WholeBatches | None:
    """Look at neighbouring parts that begin with a batch. None: these are no batches."""
    unpack = _OFFSET_AND_LENGTH.unpack_from
    end = sum(map(len, parts))
    part, number, start = parts[0], 0, 0
    stop = len(part)
    position = last = first_batch_bytes = 0
    while position + RECORDS_AT <= end:
        while position >= stop:
            number += 1
            part, start = parts[number], stop
            stop += len(part)
        _, length = unpack(part, position - start) if position + RECORDS_AT <= stop else unpack(_head(parts, position))
        size_bytes = length + LOG_OVERHEAD
        if size_bytes < RECORDS_AT:
            return None
        if not first_batch_bytes:
            first_batch_bytes = size_bytes
        if position + size_bytes > end:
            break
        last = position
        position += size_bytes
    if not position:
        return WholeBatches(0, NO_OFFSET, first_batch_bytes)
    head = _head(parts, last)
    next_offset = unpack(head)[0] + _LAST_OFFSET_DELTA.unpack_from(head, LAST_OFFSET_DELTA_AT)[0] + 1
    return WholeBatches(position, next_offset, first_batch_bytes)


def _head(parts: list[memoryview], position: int) -> bytes:
    """The head of a batch, wherever parts meet."""
    head = b""
    for part in parts:
        if position < len(part):
            head += part[position : position + RECORDS_AT - len(head)]
            position = 0
            if len(head) == RECORDS_AT:
                break
        else:
            position -= len(part)
    return head
