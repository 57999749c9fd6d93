"""From the bytes of a fetch response to batches that a producer may send. Pure.

Batches travel as they are stored: header fields of the log are taken off, and the producer stamps its
own (`records.batch.stamp_producer`); records are neither opened nor compressed again. Control batches
and batches of aborted transactions are left out (read_committed, KIP-98). A batch is opened and built
anew only if a broker would refuse it or a reader would see other timestamps: compaction has removed
some of its records, the position is inside it, or the log stamped the time of the append on it. Small
batches that follow each other are joined, because a producer sends one for each round trip.
Weak spot: formats 0 and 1, which brokers before Kafka 3.0 may still store, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import error as StructError
from typing import NamedTuple, Protocol

from appliance.base.errors import ProtocolViolation
from appliance.base.model import Offset
from appliance.records.batch import MAGIC, RECORDS_AT, BatchHeader, as_produced, read_batch_header, stored_batch_problem
from appliance.records.compression import CorruptBatch, opened_batch_limit
from appliance.records.control_batch import read_end_transaction_marker
from appliance.records.retained_batch import joined_batch, open_records, produced_batch, slice_records

OFFSET_MAX = 1 << 62
"""Below what a request can carry, with any delta."""


class AbortedSince(Protocol):
    """`client.messages.AbortedProducer`."""

    @property
    def producer_id(self) -> int: ...

    @property
    def first_offset(self) -> int: ...


class CopiedBatch(NamedTuple):
    """A batch without a producer; its checksum is wrong until one is stamped on it."""

    source_offset: Offset
    """of its first record"""
    encoded: bytearray
    records_count: int
    is_dense: bool
    """True if record n of the batch has offset `source_offset` + n in the source."""
    is_rebuilt: bool


class CopiedBatches(NamedTuple):
    batches: list[CopiedBatch]
    next_offset: Offset
    """to fetch from; behind what was left out, too"""
    aborted_records: int


def copy_fetched(fetched: bytes, fetch_offset: Offset, aborted: Iterable[AbortedSince], joins: bool = True) -> CopiedBatches:
    """Return the committed batches at or after `fetch_offset`; a last batch that is cut off is passed over.

    `aborted`: of the same response. `joins`: whether small batches become one.
    Raises ProtocolViolation for bytes that are no batches, and for batches that are damaged.
    """
    try:
        copied = _copy_fetched(fetched, fetch_offset, aborted)
    except StructError as error:
        raise ProtocolViolation("fetched_batch", f"a batch behind offset {fetch_offset} has numbers that no producer writes: {error}") from error
    return copied._replace(batches=join_small(copied.batches)) if joins else copied


def _copy_fetched(fetched: bytes, fetch_offset: Offset, aborted: Iterable[AbortedSince]) -> CopiedBatches:
    transactions = sorted(((each.first_offset, each.producer_id) for each in aborted), reverse=True)
    aborted_producers: set[int] = set()
    batches: list[CopiedBatch] = []
    next_offset, position, aborted_records = fetch_offset, 0, 0
    while position + RECORDS_AT <= len(fetched):
        header = _checked_header(fetched, position)
        if header is None:
            break
        end = position + header.size_bytes
        while transactions and transactions[-1][0] <= header.last_offset:
            aborted_producers.add(transactions.pop()[1])
        if header.is_control:
            marker = read_end_transaction_marker(memoryview(fetched)[position:end])
            if marker is not None and not marker.is_commit:
                aborted_producers.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborted_producers:
            aborted_records += header.records_count
        elif header.last_offset >= next_offset and header.records_count:
            copied = _copy(header, fetched[position:end], next_offset)
            if copied is not None:
                batches.append(copied)
        next_offset = max(next_offset, header.last_offset + 1)
        position = end
    return CopiedBatches(batches, next_offset, aborted_records)


def _checked_header(fetched: bytes, position: int) -> BatchHeader | None:
    """None: the batch is not whole."""
    header = read_batch_header(fetched, position)
    if header.magic != MAGIC:
        raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} has format {header.magic}, a mirror reads format {MAGIC}")
    if header.size_bytes > len(fetched) - position:
        return None
    if not 0 <= header.base_offset < OFFSET_MAX:
        raise ProtocolViolation("fetched_batch", f"a batch claims offset {header.base_offset}")
    if (problem := stored_batch_problem(fetched, position, len(fetched))) is not None:
        raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} is damaged: {problem}")
    return header


def _copy(header: BatchHeader, batch: bytes, next_offset: Offset) -> CopiedBatch | None:
    is_whole = header.base_offset >= next_offset and header.records_count == header.last_offset_delta + 1
    if is_whole and not header.uses_log_append_time:
        encoded = bytearray(batch)
        as_produced(encoded)
        return CopiedBatch(header.base_offset, encoded, header.records_count, True, False)
    try:
        body = open_records(header, batch, opened_batch_limit(len(batch)))
        kept = [each for each in slice_records(body, header.records_count) if header.base_offset + each.offset_delta >= next_offset]
    except CorruptBatch as error:
        raise ProtocolViolation("fetched_batch", f"the batch at offset {header.base_offset} is damaged: {error}") from error
    if not kept:
        return None
    first, last = kept[0].offset_delta, kept[-1].offset_delta
    is_dense = last - first + 1 == len(kept)
    return CopiedBatch(header.base_offset + first, bytearray(produced_batch(header, body, kept)), len(kept), is_dense, True)


SMALL_BYTES = 4 * 1024
JOINED_BYTES_MAX = 64 * 1024
"""Of records that are not compressed."""


def join_small(batches: list[CopiedBatch]) -> list[CopiedBatch]:
    """Return the batches, with neighbours of at most SMALL_BYTES and the same codec as one."""
    joined: list[CopiedBatch] = []
    run: list[tuple[CopiedBatch, BatchHeader, bytes]] = []
    size_bytes = 0

    def close_run() -> None:
        nonlocal size_bytes
        joined.extend([run[0][0]] if len(run) == 1 else [_join(run)] if run else [])
        run.clear()
        size_bytes = 0

    for batch in batches:
        opened = _open_small(batch)
        if opened is None:
            close_run()
            joined.append(batch)
            continue
        if run and (size_bytes + len(opened[1]) > JOINED_BYTES_MAX or run[0][1].codec != opened[0].codec):
            close_run()
        run.append((batch, *opened))
        size_bytes += len(opened[1])
    close_run()
    return joined


def _open_small(batch: CopiedBatch) -> tuple[BatchHeader, bytes] | None:
    """None: it is large, or what it holds cannot be read, which is for its readers to find."""
    if len(batch.encoded) > SMALL_BYTES:
        return None
    header = read_batch_header(batch.encoded)
    try:
        body = open_records(header, batch.encoded, JOINED_BYTES_MAX)
        slice_records(body, header.records_count)
    except CorruptBatch:
        return None
    return header, body


def _join(run: list[tuple[CopiedBatch, BatchHeader, bytes]]) -> CopiedBatch:
    first, last = run[0][0], run[-1][0]
    count = sum(batch.records_count for batch, _, _ in run)
    is_dense = last.source_offset + last.records_count - first.source_offset == count and all(batch.is_dense for batch, _, _ in run)
    return CopiedBatch(first.source_offset, bytearray(joined_batch([(header, body) for _, header, body in run])), count, is_dense, True)


# ---- offsets of the source and of the target


RUNS_MAX = 256
SAMPLES_MAX = 10

Run = tuple[int, int, int]
"""First offset in the source, first offset in the target, records."""


class OffsetRuns:
    """Which offset a record has in the target, for one partition: runs of records that follow each other in both.

    If there are too many runs, every second of the older half is dropped; `translate` returns lower offsets there, never higher ones.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = list(runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def add(self, source_offset: int, target_offset: int, records: int) -> None:
        """Note that `records` records from `source_offset` on are at `target_offset` in the target."""
        if self._runs:
            first, there, count = self._runs[-1]
            if source_offset < first + count or target_offset < there + count:
                self._runs.clear()  # one of the topics is another one
            elif (source_offset, target_offset) == (first + count, there + count):
                self._runs[-1] = (first, there, count + records)
                return
            elif not count and first == source_offset:
                self._runs.pop()  # a marker of a transaction is between
        self._runs.append((source_offset, target_offset, records))
        if len(self._runs) > RUNS_MAX:
            half = RUNS_MAX // 2
            self._runs[:half] = self._runs[:half:2]

    def sample(self) -> tuple[Run, ...]:
        """Return at most SAMPLES_MAX runs: the newest, ever fewer of the older ones, and the oldest."""
        chosen, back = {0, len(self._runs) - 1}, 1
        while len(chosen) < SAMPLES_MAX and back < len(self._runs):
            chosen.add(len(self._runs) - 1 - back)
            back *= 2
        return tuple(self._runs[number] for number in sorted(chosen)) if self._runs else ()

    def translate(self, committed: int) -> int | None:
        """Return the target offset from which a reader misses nothing if it has read the source up to `committed`; None if that is not known.

        It may read some records again: those between two runs, of a dropped run, or of a batch with gaps.
        """
        found = None
        for first, there, count in self._runs:
            if first > committed:
                break
            found = there + min(committed - first, count)
        return found
