"""A cleaning run over one log: map the keys of its dirty part, then rewrite the segments below.

Runs in its own process (`services/log_writer/cleaner/__main__.py`), or in a test's. It reads sealed
segments, writes `.cleaned` files, nothing else, and reports each segment that is finished. The
rules are Kafka's (`Cleaner.doClean`). A record stays if it is above the mapped range, or if it is
the newest of its key and either has a value or its batch's delete horizon is in the future. Records
without a key, and records of aborted transactions, are removed. The last batch of a live producer
stays as a header. A transaction's marker stays as long as any record of it does, then until its
horizon. A full map ends the range: the next run continues there.

Weak spots: opening records costs about 4 µs each, so a run handles 100,000 to 200,000 a second;
every run rewrites the clean part too, as Kafka's does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from hashlib import blake2b
from struct import Struct

from appliance.base.model import NO_OFFSET, Offset
from appliance.records.batch import BatchHeader
from appliance.records.compression import CorruptBatch, opened_batch_limit
from appliance.records.retained_batch import delete_horizon_of, empty_batch, open_records, rebuild_batch, slice_records
from appliance.storage import file_io
from appliance.storage.cleaned_segment import CleanedSegment, CleanedTransactions
from appliance.storage.cleaning_plan import (
    DONE,
    FAILED,
    GROUP,
    MAPPED,
    CleanedGroup,
    CleaningJob,
    GroupLimits,
    RunFigures,
    RunReport,
    SegmentFigures,
    group_segments,
)
from appliance.storage.indexes import OFFSET_ENTRY
from appliance.storage.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of_name,
    segment_path,
)
from appliance.storage.segment_scan import SegmentBatches
from appliance.storage.transaction_index import AbortedTxn, read_transaction_index

_FULL = (errno.ENOSPC, errno.EDQUOT)
Report = Callable[[RunReport], None]


class Uncleanable(Exception):
    """The log contains something that the run does not understand, so it must not be rewritten."""


def run_cleaning(job: CleaningJob, report: Report, place: str = "") -> None:
    """Run a job; the last report is DONE or FAILED.

    `place`: a path that leads to the job's directory even if it was renamed since. Failures are
    reported and not raised.
    """
    try:
        CleaningRun(job._replace(directory=place or job.directory), report).run()
    except OSError as error:
        is_full = error.errno in _FULL and not isinstance(error, file_io.SyncFailed)
        report(RunReport(FAILED, reason=str(file_io.storage_failure(f"compact {job.directory}", error)), is_full=is_full))
    except (CorruptBatch, Uncleanable, ValueError) as problem:
        report(RunReport(FAILED, reason=f"{job.directory} cannot be compacted: {problem}"))


class CleaningRun:
    """One run over one log, which reports to `report`."""

    def __init__(self, job: CleaningJob, report: Report) -> None:
        self._job = job
        self._report = report
        self._producers = {producer_id: (epoch, last_offset) for producer_id, epoch, last_offset in job.producers}
        keys_max = job.segments[-1][1] - job.first_dirty_offset
        self._map = OffsetMap(slots_for(job.buffer_bytes, keys_max))
        self._transactions = CleanedTransactions(())
        self._aborted: list[AbortedTxn] = []
        self._read_bytes = self._written_bytes = self._records_read = self._records_kept = 0

    def run(self) -> None:
        """Map the keys, then rewrite each group of segments.

        Raises `Uncleanable`, `CorruptBatch`, OSError.
        """
        self._aborted = self._read_transaction_indexes()
        end_offset = self._map_keys()
        if end_offset <= self._job.first_dirty_offset:
            raise Uncleanable(
                f"the keys of the batch at offset {self._job.first_dirty_offset} do not fit into log.cleaner.dedupe.buffer.size ({self._job.buffer_bytes})"
            )
        self._report(RunReport(MAPPED, end_offset=end_offset))
        self._transactions = CleanedTransactions(self._aborted)
        limits = GroupLimits(self._job.segment_bytes, self._job.segment_index_bytes // OFFSET_ENTRY.size * OFFSET_ENTRY.size)
        for group in group_segments([self._figures(base, end) for base, end in self._job.segments if base < end_offset], limits):
            self._report(RunReport(GROUP, self._clean(group)))
        figures = RunFigures(self._read_bytes, self._written_bytes, self._records_read, self._records_kept)
        self._report(RunReport(DONE, end_offset=end_offset, figures=figures))

    # -- first pass

    def _map_keys(self) -> Offset:
        """Fill the map from the first dirty offset on; where what it covers ends."""
        self._transactions = CleanedTransactions(self._aborted)
        offsets, start = self._map, self._job.first_dirty_offset
        offsets.latest_offset = start - 1
        for base, end in self._job.segments:
            if end <= start:
                continue
            for header, batch in self._batches(base, False):
                if not self._map_batch(header, batch, start):
                    return offsets.latest_offset + 1
                offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
            offsets.latest_offset = max(offsets.latest_offset, end - 1)
        return offsets.latest_offset + 1

    def _map_batch(self, header: BatchHeader, batch: bytes, start: int) -> bool:
        """False: the map is full."""
        if header.is_control:
            self._transactions.is_empty_marker(header, batch)
            return True
        if self._transactions.is_aborted(header) or header.last_offset < start:
            return True
        put, base_offset = self._map.put, header.base_offset
        for record in slice_records(open_records(header, batch, opened_batch_limit(len(batch))), header.records_count):
            offset = base_offset + record.offset_delta
            if record.key is not None and offset >= start and not put(record.key, offset):
                return False
        return True

    # -- second pass

    def _clean(self, group: list[SegmentFigures]) -> CleanedGroup:
        job = self._job
        base = group[0].base_offset
        cleaned = CleanedSegment(job.directory, base, job.index_interval_bytes, job.now_ms)
        is_changed = len(group) > 1
        try:
            for segment in group:
                for header, batch in self._batches(segment.base_offset, True):
                    kept = self._filter(header, batch)
                    is_changed = is_changed or kept is not batch
                    if kept is not None:
                        cleaned.append(kept)
            size_bytes = cleaned.size_bytes
            self._written_bytes += size_bytes
            entries, self._transactions.kept_entries = self._transactions.kept_entries, []
            if is_changed:
                modified_ns = file_io.stat(segment_path(job.directory, group[-1].base_offset, LOG_SUFFIX)).st_mtime_ns
                cleaned.finish(modified_ns, entries)
            else:
                cleaned.abandon()
        except BaseException:
            cleaned.abandon()
            raise
        return CleanedGroup([segment.base_offset for segment in group], size_bytes, is_changed)

    def _filter(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """What stays of a batch: itself, a smaller one, its header, or nothing."""
        horizon_ms = delete_horizon_of(header)
        now_ms = self._job.now_ms
        self._records_read += header.records_count
        is_empty_marker = False
        if header.is_control:
            is_empty_marker = self._transactions.is_empty_marker(header, batch)
            drops_all = is_empty_marker and horizon_ms is not None and horizon_ms <= now_ms
        else:
            drops_all = self._transactions.is_aborted(header)
        if drops_all or not header.records_count:
            return self._without_records(header, batch)
        body = open_records(header, batch, opened_batch_limit(len(batch)))
        records = slice_records(body, header.records_count)
        kept = records
        if not header.is_control:
            keeps_tombstones = horizon_ms is None or now_ms < horizon_ms
            latest, get, base_offset = self._map.latest_offset, self._map.get, header.base_offset
            kept = [
                record
                for record in records
                if base_offset + record.offset_delta > latest
                or (record.key is not None and (record.has_value or keeps_tombstones) and base_offset + record.offset_delta >= get(record.key))
            ]
            if not kept:
                return self._without_records(header, batch)
        self._records_kept += len(kept)
        needs_horizon = horizon_ms is None and (is_empty_marker or (not header.is_control and not all(record.has_value for record in kept)))
        if len(kept) == len(records) and not needs_horizon:
            return batch
        return rebuild_batch(header, body, kept, now_ms + self._job.delete_retention_ms if needs_horizon else None)

    def _without_records(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """The header alone if it is the last that is known of a live producer, else nothing."""
        known = self._producers.get(header.producer_id)
        if header.producer_id < 0 or known is None:
            return None
        producer_epoch, last_offset = known
        is_last = header.last_offset == last_offset if last_offset >= 0 else header.is_control and header.producer_epoch == producer_epoch
        if not is_last:
            return None
        return batch if not header.records_count else empty_batch(header)

    # -- files

    def _batches(self, base: Offset, lets_go: bool) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch of a sealed segment, verified.

        Raises `Uncleanable`. With `lets_go` pages are given up behind: the file is about to go.
        """
        fd = file_io.open_path(segment_path(self._job.directory, base, LOG_SUFFIX), file_io.READ_ONLY)
        try:
            size_bytes = file_io.size_of(fd)
            scan = SegmentBatches(fd, size_bytes)
            yield from scan
            if scan.problem is not None:
                raise Uncleanable(f"segment {base}, byte {scan.valid_end}: {scan.problem}")
            self._read_bytes += size_bytes
            if lets_go:
                file_io.advise(fd, 0, size_bytes, file_io.NOT_NEEDED)
        finally:
            file_io.close(fd)

    def _figures(self, base: Offset, end: Offset) -> SegmentFigures:
        sizes = [file_io.stat(segment_path(self._job.directory, base, suffix)).st_size for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        return SegmentFigures(base, end, *sizes)

    def _read_transaction_indexes(self) -> list[AbortedTxn]:
        """Of the whole log: the marker of an aborted transaction, and so its entry, may lie
        segments behind its records.
        """
        entries: list[AbortedTxn] = []
        for name in file_io.listdir(self._job.directory):
            base_offset = offset_of_name(name, TRANSACTION_INDEX_SUFFIX)
            if base_offset is not None:
                entries += read_transaction_index(self._job.directory, base_offset)
        return entries


DIGEST_BYTES = 16
_OFFSET = Struct("<Q")
_HASH = Struct("<Q")
SLOT_BYTES = DIGEST_BYTES + _OFFSET.size
LOAD_FACTOR = 0.9

assert SLOT_BYTES == 24

_unpack_offset = _OFFSET.unpack_from
_pack_offset = _OFFSET.pack_into
_unpack_hash = _HASH.unpack_from


def slots_for(buffer_bytes: int, keys_max: int) -> int:
    """Return the number of slots of a map of at most `buffer_bytes`, for a range of at most
    `keys_max` keys.
    """
    return max(2, min(buffer_bytes // SLOT_BYTES, int(keys_max / LOAD_FACTOR) + 2))


class OffsetMap:
    """The newest offset of every key in a range of a log, in a fixed amount of memory.

    Keys are kept as 16-byte BLAKE2b digests in one bytearray with open addressing (24 bytes a slot,
    as in Kafka's map; Kafka uses MD5, with which a producer could make two keys collide and so have
    another producer's record removed). An offset is stored plus one, so that an empty slot is
    zeros. Entries are never removed. A full map refuses the next key: the run then cleans up to the
    offset that fitted, and the next run continues there. Weak spot: pages of the bytearray are
    touched at random, so a map uses its whole size once it holds a few ten thousand keys;
    `slots_for` makes it no larger than the range needs.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._memory = bytearray(slots * SLOT_BYTES)
        self.keys_max = max(1, int(slots * LOAD_FACTOR))
        self.count = 0
        self.latest_offset = NO_OFFSET
        """Everything up to this offset (from where the run began) is in the map."""

    def put(self, key: bytes, offset: Offset) -> bool:
        """Store the offset of `key`; offsets ascend.

        Return False, and store nothing, if the map is full.
        """
        digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
        memory = self._memory
        slot = _unpack_hash(digest)[0] % self._slots
        while True:
            position = slot * SLOT_BYTES
            if memory[position : position + DIGEST_BYTES] == digest and _unpack_offset(memory, position + DIGEST_BYTES)[0]:
                break
            if not _unpack_offset(memory, position + DIGEST_BYTES)[0]:
                if self.count >= self.keys_max:
                    return False
                self.count += 1
                memory[position : position + DIGEST_BYTES] = digest
                break
            slot = slot + 1 if slot + 1 < self._slots else 0
        _pack_offset(memory, position + DIGEST_BYTES, offset + 1)
        return True

    def get(self, key: bytes) -> int:
        """Return the offset that was stored last under `key`, -1 if there is none."""
        digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
        memory = self._memory
        slot = _unpack_hash(digest)[0] % self._slots
        while True:
            position = slot * SLOT_BYTES
            stored = int(_unpack_offset(memory, position + DIGEST_BYTES)[0])
            if not stored:
                return -1
            if memory[position : position + DIGEST_BYTES] == digest:
                return stored - 1
            slot = slot + 1 if slot + 1 < self._slots else 0
