"""Plan an append: offsets, stamps, rolls and index entries. Touches no file.

The loop in `plan_append` is the hottest of the log-writer, hence its local variables. It stamps
base offset and leader epoch into the batches in the source's arena: no process reads them before
they are complete, and a copy would cost as much as the write. A plan that is not carried out leaves
its stamps, which the next attempt overwrites.

The rules are Kafka's (`LogSegment.append`, `LogSegment.shouldRoll`). An index entry is due before a
batch if more than index.interval.bytes were written since the last entry. A roll is due before a
batch if the batch does not fit, if the segment is too old, if an index is full, or if the offset
does not fit an index entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import FILE_START, NO_OFFSET, LeaderEpoch, Offset, Position, ProducerId
from appliance.records.batch import (
    BASE_SEQUENCE_AT,
    CONTROL_FLAG,
    LOG_OVERHEAD,
    PRODUCER_EPOCH_AT,
    TRANSACTIONAL_FLAG,
    stamp_log_append_time,
)
from appliance.records.control_batch import read_end_transaction_marker
from appliance.storage.indexes import LARGEST_RELATIVE_OFFSET, OFFSET_ENTRY, TIME_ENTRY
from appliance.storage.log_config import LogConfig
from appliance.storage.producer_state import DuplicateBatch, ProducerStaging
from appliance.storage.segment import NEVER, SegmentTail
from appliance.storage.verification import FIRST_OFFER, NeedsVerification, Offer

# baseOffset, batchLength, partitionLeaderEpoch, (magic, crc), attributes, lastOffsetDelta, (baseTimestamp), maxTimestamp, producerId
_HOT_FIELDS = Struct(">qii5xhi8xqq")
_OF_TRANSACTIONS = TRANSACTIONAL_FLAG | CONTROL_FLAG
_STAMP = Struct(">qii")
_SEQUENCE = Struct(">hi")
assert _HOT_FIELDS.size == PRODUCER_EPOCH_AT and BASE_SEQUENCE_AT == PRODUCER_EPOCH_AT + 2


class RefusedBatch(NamedTuple):
    """A batch that was not appended, with its error code.

    The other batches of the call are not affected.
    """

    error_code: ErrorCode
    base_offset: Offset = NO_OFFSET


AppendResult = tuple[Offset, Offset, int] | RefusedBatch | NeedsVerification
"""(base offset, last offset, log append time in ms or -1) of an appended batch or of the original
of a duplicate; or a refusal, or what must come first."""

_NO_OFFERS: Mapping[int, Offer] = {}


class SegmentPart:
    """What an append writes into one segment: bytes, index entries, and the segment's tail
    afterwards.
    """

    __slots__ = ("buffers", "index_entries", "index_position", "position", "size_bytes", "starts_segment", "tail", "time_entries", "time_position")

    def __init__(self, tail: SegmentTail, starts_segment: bool) -> None:
        self.tail = tail
        self.starts_segment = starts_segment
        self.position = tail.size_bytes
        self.size_bytes = 0
        self.buffers: list[memoryview] = []
        self.index_entries = b""
        self.time_entries = b""
        self.index_position = tail.index_count * OFFSET_ENTRY.size
        self.time_position = tail.time_index_count * TIME_ENTRY.size

    def add_entries(self, last_offset: Offset, position: Position) -> None:
        """Add an offset index entry for the batch at `position`, and a time index entry if the
        largest timestamp grew.
        """
        tail = self.tail
        self.index_entries += OFFSET_ENTRY.pack(last_offset - tail.base_offset, position)
        tail.index_count += 1
        self.add_time_entry()

    def add_time_entry(self) -> None:
        """Add a time index entry if the largest timestamp grew since the last one."""
        tail = self.tail
        entry = tail.final_time_entry()
        if entry:
            self.time_entries += entry
            tail.time_index_count += 1
            tail.last_indexed_timestamp = tail.max_timestamp


class AppendPlan:
    """Parts in order of offset; the first continues the active segment, each further one begins a
    new segment.
    """

    __slots__ = ("first_offset", "first_producer_offset", "next_offset", "parts", "results")

    def __init__(self, part: SegmentPart, next_offset: Offset) -> None:
        self.parts = [part]
        self.results: list[AppendResult] = []
        self.first_offset = next_offset
        self.next_offset = next_offset
        self.first_producer_offset = NO_OFFSET
        """Where the first batch with a producer id goes; -1 if there is none."""

    def base_offset_of(self, offset: Offset) -> Offset:
        """Return the base offset of the segment that an appended offset goes to."""
        return max(part.tail.base_offset for part in self.parts if part.tail.base_offset <= offset)


def plan_append(
    tail: SegmentTail,
    next_offset: Offset,
    config: LogConfig,
    batches: Sequence[memoryview],
    leader_epoch: LeaderEpoch,
    now_ms: int,
    producers: ProducerStaging,
    offers: Mapping[int, Offer] = _NO_OFFERS,
) -> AppendPlan:
    """Plan to append whole, checked batches behind `tail`.

    `leader_epoch` -1: the batches come from a leader and are kept as they are, offsets included;
    `ValueError` if they do not continue the log. Otherwise they get offsets and the epoch. `now_ms`
    is wall time, for LogAppendTime. `offers`: by index in `batches`, how transactional batches and
    markers are offered. The control batches of a leader are a coordinator's markers.
    """
    part = SegmentPart(tail.copy(), False)
    plan = AppendPlan(part, next_offset)
    results = plan.results
    unpack, stamp = _HOT_FIELDS.unpack_from, _STAMP.pack_into
    read_sequence, admit = _SEQUENCE.unpack_from, producers.admit
    stamping = leader_epoch >= 0
    append_time = now_ms if stamping and config.uses_log_append_time else -1
    segment_bytes, interval_bytes = config.segment_bytes, config.index_interval_bytes
    most_entries = config.segment_index_bytes // OFFSET_ENTRY.size
    most_time_entries = config.segment_index_bytes // TIME_ENTRY.size - 1
    tail = part.tail
    position, since_entry, max_timestamp = tail.size_bytes, tail.bytes_since_index_entry, tail.max_timestamp
    roll_timestamp = tail.roll_timestamp(config.segment_ms, now_ms)
    largest_offset = tail.base_offset + LARGEST_RELATIVE_OFFSET
    index_is_full = tail.index_count >= most_entries or tail.time_index_count >= most_time_entries
    buffers = part.buffers
    for batch in batches:
        base_offset, batch_length, _, attributes, last_offset_delta, timestamp, producer_id = unpack(batch)
        size_bytes = batch_length + LOG_OVERHEAD
        if stamping:
            if size_bytes != len(batch) or last_offset_delta < 0:
                results.append(RefusedBatch(ErrorCode.CORRUPT_MESSAGE))
                continue
            if size_bytes > segment_bytes:
                results.append(RefusedBatch(ErrorCode.RECORD_LIST_TOO_LARGE))
                continue
            base_offset = next_offset
            if append_time >= 0:
                timestamp = append_time
        elif size_bytes != len(batch) or last_offset_delta < 0 or base_offset < next_offset:
            raise ValueError(f"a batch of {len(batch)} bytes at offset {base_offset} does not continue a log that ends at {next_offset}")
        if producer_id >= 0:
            if attributes & _OF_TRANSACTIONS or not stamping:
                offer = offers.get(len(results), FIRST_OFFER)
                answer = _admit(producers, batch, base_offset, last_offset_delta, timestamp, producer_id, attributes, stamping, offer, now_ms)
            else:
                producer_epoch, base_sequence = read_sequence(batch, PRODUCER_EPOCH_AT)
                answer = admit(producer_id, producer_epoch, base_sequence, base_offset, base_offset + last_offset_delta, timestamp)
            if answer is not None:
                results.append(_as_result(answer, append_time >= 0))
                continue
            if plan.first_producer_offset < 0:
                plan.first_producer_offset = base_offset
        last_offset = base_offset + last_offset_delta
        if (position and (position + size_bytes > segment_bytes or timestamp > roll_timestamp or index_is_full)) or last_offset > largest_offset:
            tail.size_bytes, tail.bytes_since_index_entry = position, since_entry
            part.add_time_entry()
            part = SegmentPart(SegmentTail(base_offset, now_ms), True)
            plan.parts.append(part)
            tail, buffers = part.tail, part.buffers
            position, since_entry, max_timestamp, roll_timestamp, index_is_full = FILE_START, 0, -1, NEVER, False
            largest_offset = base_offset + LARGEST_RELATIVE_OFFSET
        if stamping:
            if append_time >= 0:
                stamp_log_append_time(batch, 0, size_bytes, append_time)
            stamp(batch, 0, base_offset, batch_length, leader_epoch)
        if timestamp > max_timestamp:
            tail.max_timestamp = max_timestamp = timestamp
            tail.max_timestamp_offset = last_offset
        if since_entry > interval_bytes:
            part.add_entries(last_offset, position)
            since_entry = 0
            index_is_full = tail.index_count >= most_entries or tail.time_index_count >= most_time_entries
        elif not position:
            tail.first_timestamp = timestamp
            if timestamp >= 0:
                roll_timestamp = timestamp + config.segment_ms
        buffers.append(batch)
        position += size_bytes
        since_entry += size_bytes
        next_offset = last_offset + 1
        results.append((base_offset, last_offset, append_time))
    tail.size_bytes, tail.bytes_since_index_entry = position, since_entry
    for each in plan.parts:
        each.size_bytes = each.tail.size_bytes - each.position
    plan.next_offset = next_offset
    return plan


def plan_roll(tail: SegmentTail, log_end_offset: Offset, now_ms: int) -> AppendPlan:
    """Plan to seal the active segment and begin an empty one at the log end, with nothing appended."""
    plan = AppendPlan(SegmentPart(tail.copy(), False), log_end_offset)
    plan.parts[0].add_time_entry()
    plan.parts.append(SegmentPart(SegmentTail(log_end_offset, now_ms), True))
    return plan


def _admit(
    producers: ProducerStaging,
    batch: memoryview,
    base_offset: Offset,
    last_offset_delta: int,
    timestamp: int,
    producer_id: ProducerId,
    attributes: int,
    stamping: bool,
    offer: Offer,
    now_ms: int,
) -> DuplicateBatch | NeedsVerification | ErrorCode | None:
    """What producer state says to a batch of a transaction, or of a leader: None lets it pass (and
    remembers it in the staging).
    """
    producer_epoch, base_sequence = _SEQUENCE.unpack_from(batch, PRODUCER_EPOCH_AT)
    last_offset = base_offset + last_offset_delta
    marker = read_end_transaction_marker(batch) if attributes & CONTROL_FLAG else None
    if not stamping:
        producers.replay_batch(producer_id, producer_epoch, base_sequence, base_offset, last_offset, timestamp, attributes, marker)
        return None
    if not attributes & CONTROL_FLAG:
        return producers.admit_transactional(producer_id, producer_epoch, base_sequence, base_offset, last_offset, timestamp, offer, now_ms)
    if marker is None:
        return ErrorCode.INVALID_RECORD
    return producers.end_transaction(producer_id, producer_epoch, last_offset, timestamp, marker, offer.raises_epoch)


def _as_result(answer: DuplicateBatch | NeedsVerification | ErrorCode, uses_log_append_time: bool) -> AppendResult:
    """A duplicate gets its first answer again."""
    if isinstance(answer, DuplicateBatch):
        return (answer.base_offset, answer.last_offset, answer.timestamp if uses_log_append_time else -1)
    return answer if isinstance(answer, NeedsVerification) else RefusedBatch(answer)
