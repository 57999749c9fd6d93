"""Open a partition directory: its segments, which of them to scan, and the log's state from that.

`Log.open` uses it; `recovery` works on a single segment. What is read is proportional to what is
not known: a log that was closed cleanly costs the last few KiB, one of the same boot what is behind
the position in its row, others what is above the recovery point (from the last index entry below it
on, past the page cache if a sync may have failed). An interrupted swap of compacted
segments is finished first (`segment_swap.py`).

A hole between two scanned segments ends the log: a power cut lost the end of one and kept the next.
What is behind the hole is deleted, because a log must be a prefix of what was appended: a follower
or consumer that read past the hole would miss records without noticing. Compacted topics have holes
by design; there only a bad batch ends the log.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.model import FILE_START, FIRST_OFFSET, NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset, Position
from appliance.storage import file_io
from appliance.storage.indexes import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from appliance.storage.leader_epoch_cache import LeaderEpochCache
from appliance.storage.log_config import LogConfig
from appliance.storage.log_damage import LostRange
from appliance.storage.producer_loading import load_producers, producers_at
from appliance.storage.producer_snapshots import ProducerSnapshots
from appliance.storage.producer_state import PRODUCER_EXPIRATION_MS, ProducerState
from appliance.storage.recovery import Clean, Disagreement, RecoveredSegment, Recovery, SameBoot, SegmentRecovery, Unclean, seal
from appliance.storage.segment import OpenSegment, SegmentTail
from appliance.storage.segment_check import SegmentCheck, free_damaged_path, put_segment_aside, unlink_segment
from appliance.storage.segment_files import (
    COMPACTED,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    START_SUFFIX,
    SUMMARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of_name,
    segment_name,
    segment_path,
)
from appliance.storage.segment_scan import SegmentScan
from appliance.storage.segment_swap import finish_swaps
from appliance.storage.transaction_index import end_of_aborted

_LEFTOVERS = (".deleted", ".cleaned", ".tmp")


class LoadedLog(NamedTuple):
    """The state that a `Log` starts from."""

    log_start_offset: Offset
    next_offset: Offset
    recovery_point: Offset
    leader_epochs: LeaderEpochCache
    producers: ProducerState
    snapshots: ProducerSnapshots
    sealed: dict[Offset, int]
    unflushed: list[tuple[Offset, OpenSegment]]
    """Sealed segments that reach above the recovery point, each with its end offset."""
    active: OpenSegment
    tail: SegmentTail
    cut_bytes: int
    aborted_end_offset: Offset
    lost: tuple[LostRange, ...] = ()
    """Offsets between the log start and the log end that no segment has, and that were there."""
    is_marked_compacted: bool = False


def open_recovered(directory: str, base_offset: Offset, config: LogConfig, now_ms: int, keeps_damaged: bool = False) -> tuple[OpenSegment, RecoveredSegment]:
    """Open a segment whose end is believed to be intact; if index and log disagree, rebuild the
    index. `keeps_damaged`: if that cuts the log, copy it aside first. Raises OSError.
    """
    segment = OpenSegment.open(directory, base_offset)
    try:
        try:
            return segment, SegmentRecovery(segment, config.index_interval_bytes, now_ms).resume(None)
        except Disagreement:
            if keeps_damaged and SegmentRecovery(segment, config.index_interval_bytes, now_ms, cut=False).rebuild().cut_bytes:
                file_io.copy_file(segment.log_fd, free_damaged_path(directory, base_offset))
            return segment, SegmentRecovery(segment, config.index_interval_bytes, now_ms).rebuild()
    except OSError:
        segment.close()
        raise


class LogLoader:
    """Loads one partition directory once."""

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        clock: Clock,
        recovery: Recovery,
        log_start_offset: Offset,
        on_scanned: Callable[[int], None] = lambda _: None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        """`on_scanned` hears of the bytes as they are read."""
        self._producer_expiration_ms = producer_expiration_ms
        self._on_scanned = on_scanned
        self._directory = directory
        self._config = config
        self._now_ms = clock.wall_ms()
        self._recovery = recovery
        self._log_start_offset = log_start_offset
        self._sealed: dict[Offset, int] = {}
        self._bases: list[Offset] = []
        self._scanned_epochs: list[tuple[LeaderEpoch, Offset]] = []
        self._first_producer_offset = NO_OFFSET
        self._scanned_markers_from = NO_OFFSET
        """Where transaction indexes may not be believed: above the recovery point, if a scan of
        whole segments met the end of a transaction."""
        self._hole_at = NO_OFFSET
        """Where a compacted log has a gap above the recovery point: no compaction made it.
        Snapshots behind it tell of producers whose batches are gone."""
        self._cut_bytes = 0
        self._lost: list[LostRange] = []
        self._is_compacted = "compact" in config.cleanup_policy

    def load(self) -> LoadedLog:
        """Finish interrupted actions, recover the segments and load epochs and producers.

        Raises OSError.
        """
        names = self._sweep(finish_swaps(self._directory, file_io.listdir(self._directory)))
        self._bases = sorted(base for name in names if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
        self._is_compacted = self._is_compacted or COMPACTED in names
        names = self._finish_removal(names)
        if not self._bases:
            OpenSegment.create(self._directory, self._log_start_offset).close()
            self._bases = [self._log_start_offset]
        self._complete_indexes(names)
        self._check_sealed()
        active, recovered = self._recover()
        try:
            if recovered.next_offset < self._log_start_offset:
                active, recovered = self._start_over(names, active, recovered.next_offset)
                names = file_io.listdir(self._directory)
            return self._finish(names, active, recovered)
        except OSError:
            active.close()
            raise

    def _sweep(self, names: list[str]) -> list[str]:
        """Remove what an interrupted action left; the names that remain.

        A `N.start` above the log start offset on record counts as the record.
        """
        kept = []
        recorded = self._log_start_offset
        self._log_start_offset = max(recorded, *(offset_of_name(name, START_SUFFIX) or FIRST_OFFSET for name in names), FIRST_OFFSET)
        bases = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
        for name in names:
            orphaned = name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SUMMARY_SUFFIX)) and name.rsplit(".", 1)[0] not in bases
            start = offset_of_name(name, START_SUFFIX)
            if orphaned or name.endswith(_LEFTOVERS) or (start is not None and start <= recorded):
                file_io.unlink_if_there(f"{self._directory}/{name}")
            else:
                kept.append(name)
        return kept

    def _finish_removal(self, names: list[str]) -> list[str]:
        """Remove segments that lie wholly below the log start offset, oldest first: a removal was
        interrupted. A power cut may have left a hole among them, so this comes before anything is
        scanned. The names that remain.
        """
        gone = [base for base, end in pairwise(self._bases) if end <= self._log_start_offset]
        if not gone:
            return names
        first = self._bases[len(gone)]
        self._keep_producers(names, gone, first)
        for base in gone:
            unlink_segment(self._directory, base)
        self._bases = self._bases[len(gone) :]
        prefixes = tuple(f"{base:020d}." for base in gone)
        kept = [name for name in names if not name.startswith(prefixes) or name.endswith(SNAPSHOT_SUFFIX)]
        snapshot = segment_name(first, SNAPSHOT_SUFFIX)
        return [*kept, snapshot] if snapshot not in names and file_io.exists(f"{self._directory}/{snapshot}") else kept

    def _check_sealed(self) -> None:
        """Find what is missing of segments that nothing has changed since they were synced."""
        recovery = self._recovery
        if isinstance(recovery, SameBoot):
            return
        is_clean = isinstance(recovery, Clean)
        if not (recovery.segments if isinstance(recovery, Clean) else recovery.knows_start):
            return
        check = SegmentCheck(self._directory, self._config, self._now_ms, recovery.segments, is_clean, self._is_compacted)
        # The segment that ends right at the recovery point was perhaps sealed after it was synced.
        self._bases = check.check(self._bases, self._bases[-1] if isinstance(recovery, Clean) else Offset(recovery.recovery_point - 1))
        if is_clean or self._holds_bytes():
            check.check_start(self._bases[0], self._log_start_offset)
        self._lost += check.lost

    def _holds_bytes(self) -> bool:
        """False for a log that was begun anew at its leader's start, and has nothing yet."""
        return len(self._bases) > 1 or file_io.stat(segment_path(self._directory, self._bases[0], LOG_SUFFIX)).st_size > 0

    def _keep_producers(self, names: list[str], gone: list[Offset], first: Offset) -> None:
        """What these segments say of producers stands in the snapshot of the one behind them, as a
        rule: not if it was begun above the log start offset and its snapshot not synced.
        """
        snapshots = ProducerSnapshots(self._directory, names)
        state = ProducerState()
        if snapshots.load_older(state, first) == first:
            snapshots.make_durable(first)
        elif snapshots.latest is not None or isinstance(self._recovery, Unclean):
            snapshots.overwrite(first, producers_at(self._directory, gone, first, snapshots, is_indexed=False))

    def _complete_indexes(self, names: list[str]) -> None:
        """Rebuild the indexes of a sealed segment that lost one; its log is not cut, whatever is in
        it.
        """
        present = set(names)
        for base in self._bases[:-1]:
            if f"{base:020d}{INDEX_SUFFIX}" not in present or f"{base:020d}{TIME_INDEX_SUFFIX}" not in present:
                segment = OpenSegment.open(self._directory, base)
                try:
                    recovered = SegmentRecovery(segment, self._config.index_interval_bytes, self._now_ms, cut=False).rebuild()
                    seal(segment, recovered.tail)
                finally:
                    segment.close()

    def _recover(self) -> tuple[OpenSegment, RecoveredSegment]:
        recovery = self._recovery
        if isinstance(recovery, Clean):
            return open_recovered(self._directory, self._bases[-1], self._config, self._now_ms, keeps_damaged=True)
        if isinstance(recovery, SameBoot):
            if recovery.active_base_offset in self._bases:
                try:
                    return self._recover_from(self._bases.index(recovery.active_base_offset), recovery)
                except Disagreement:
                    pass
            return self._recover_above(recovery.recovery_point)
        return self._recover_above(recovery.recovery_point)

    def _recover_above(self, recovery_point: Offset) -> tuple[OpenSegment, RecoveredSegment]:
        """From the segment that holds the recovery point; one that ends right there was perhaps
        sealed after it was synced.
        """
        below = [number for number, base in enumerate(self._bases) if base < recovery_point]
        return self._recover_from(below[-1] if below else 0, None, recovery_point)

    def _recover_from(self, first: int, known: SameBoot | None, recovery_point: Offset = FIRST_OFFSET) -> tuple[OpenSegment, RecoveredSegment]:
        """Recover the segments from number `first` on; the one that ends the log is returned open,
        later ones are deleted.
        """
        for number in range(first, len(self._bases)):
            segment = OpenSegment.open(self._directory, self._bases[number])
            try:
                recovered = self._recover_segment(segment, known if number == first else None, recovery_point if number == first else FIRST_OFFSET)
                if number + 1 == len(self._bases) or self._ends_log(recovered, self._bases[number + 1]):
                    if recovered.cut_bytes:
                        file_io.sync_all(segment.log_fd)
                    self._delete_behind(number, keeps=recovered.next_offset < self._synced_until)
                    return segment, recovered
                if self._hole_at < 0 and recovered.next_offset < self._bases[number + 1] > recovery_point:
                    self._hole_at = recovered.next_offset
                if seal(segment, recovered.tail) and self._bases[number + 1] <= recovery_point:
                    file_io.sync_data(segment.time_index_fd)  # no flush round would
            except BaseException:
                segment.close()
                raise
            segment.close()
        raise AssertionError("a log has at least one segment")

    def _recover_segment(self, segment: OpenSegment, known: SameBoot | None, recovery_point: Offset) -> RecoveredSegment:
        recovered = self._scan_segment(segment, known, recovery_point)
        self._cut_bytes += recovered.cut_bytes
        self._scanned_epochs += recovered.leader_epochs
        if self._first_producer_offset < 0:
            self._first_producer_offset = recovered.first_producer_offset
        if recovered.has_markers and known is None and self._scanned_markers_from < 0:
            recovery_point = FIRST_OFFSET if isinstance(self._recovery, Clean) else self._recovery.recovery_point
            self._scanned_markers_from = max(segment.base_offset, recovery_point)
        return recovered

    def _scan_segment(self, segment: OpenSegment, known: SameBoot | None, recovery_point: Offset) -> RecoveredSegment:
        """No more than is not known: what lies behind `known`, or above the recovery point where
        the files agree; else the whole segment.
        """
        recovery = SegmentRecovery(segment, self._config.index_interval_bytes, self._now_ms, read=self._read)
        if known is not None:
            return recovery.resume(known)
        if recovery_point > segment.base_offset:
            try:
                return recovery.resume_above(recovery_point)
            except Disagreement:
                pass
        return self._rebuild(segment)

    def _rebuild(self, segment: OpenSegment) -> RecoveredSegment:
        """Scan the whole segment and cut it at the first bad batch. If that is below what was
        synced, a copy is put aside first.
        """
        recovered = SegmentRecovery(segment, self._config.index_interval_bytes, self._now_ms, cut=False, read=self._read).rebuild()
        if recovered.cut_bytes:
            if recovered.next_offset < self._synced_until:
                file_io.copy_file(segment.log_fd, free_damaged_path(self._directory, segment.base_offset))
            file_io.ftruncate(segment.log_fd, recovered.tail.size_bytes)
        return recovered

    @property
    def _synced_until(self) -> Offset:
        return self._recovery.recovery_point if isinstance(self._recovery, Unclean) else FIRST_OFFSET

    def _read(self, fd: int, position: Position, size_bytes: int) -> bytes:
        self._on_scanned(size_bytes)
        return file_io.pread_wanted(fd, position, size_bytes)

    def _ends_log(self, recovered: RecoveredSegment, next_base_offset: Offset) -> bool:
        if recovered.next_offset < min(next_base_offset, self._synced_until) and recovered.tail.size_bytes and (recovered.cut_bytes or not self._is_compacted):
            self._lost.append(LostRange(recovered.next_offset, next_base_offset))  # no power cut takes what was synced
            return False
        if recovered.problem is not None or recovered.next_offset > next_base_offset:
            return True
        return recovered.next_offset < next_base_offset and not self._is_compacted

    def _delete_behind(self, number: int, keeps: bool) -> None:
        """Newest first, so that a crash in between leaves a prefix; synced, so that a power cut
        brings none of them back. `keeps`: put them aside, because no power cut explains the end.
        """
        while len(self._bases) > number + 1:
            base = self._bases.pop()
            self._cut_bytes += file_io.stat(segment_path(self._directory, base, LOG_SUFFIX)).st_size
            (put_segment_aside if keeps else unlink_segment)(self._directory, base)
        file_io.fsync_directory(self._directory)

    def _start_over(self, names: list[str], active: OpenSegment, end_offset: Offset) -> tuple[OpenSegment, RecoveredSegment]:
        """All that is left lies below the log start offset: begin an empty log there, which still
        knows its producers.
        """
        active.close()
        producers, snapshots = self._load_producers(names, end_offset)
        if len(producers):
            snapshots.overwrite(self._log_start_offset, producers)
        self._first_producer_offset = self._scanned_markers_from = self._hole_at = NO_OFFSET
        while self._bases:
            unlink_segment(self._directory, self._bases.pop())
        self._bases = [self._log_start_offset]
        segment = OpenSegment.create(self._directory, self._log_start_offset)
        return segment, SegmentRecovery(segment, self._config.index_interval_bytes, self._now_ms).rebuild()

    def _finish(self, names: list[str], active: OpenSegment, recovered: RecoveredSegment) -> LoadedLog:
        next_offset = recovered.next_offset
        for base in self._bases[:-1]:
            self._sealed[base] = file_io.stat(segment_path(self._directory, base, LOG_SUFFIX)).st_size
        epochs = self._load_epochs(next_offset, recovered)
        producers, snapshots = self._load_producers(names, next_offset)
        recovery_point = next_offset if isinstance(self._recovery, Clean) else min(next_offset, self._recovery.recovery_point)
        aborted_end_offset = end_of_aborted(self._directory)
        return LoadedLog(
            max(self._log_start_offset, self._bases[0]),
            next_offset,
            recovery_point,
            epochs,
            producers,
            snapshots,
            self._sealed,
            self._open_unflushed(recovery_point),
            active,
            recovered.tail,
            self._cut_bytes,
            aborted_end_offset,
            tuple(self._lost),
            COMPACTED in names,
        )

    def _open_unflushed(self, recovery_point: Offset) -> list[tuple[Offset, OpenSegment]]:
        """Return sealed segments that an earlier incarnation may not have synced.

        One that ends at the recovery point counts too: it may have been sealed after its last sync.
        """
        unflushed: list[tuple[Offset, OpenSegment]] = []
        synced_end = recovery_point if isinstance(self._recovery, Clean) else recovery_point - 1
        try:
            for base, end in pairwise(self._bases):
                if end > synced_end:
                    unflushed.append((end, OpenSegment.open(self._directory, base)))
        except OSError:
            for _, segment in unflushed:
                segment.close()
            raise
        return unflushed

    def _load_epochs(self, next_offset: Offset, recovered: RecoveredSegment) -> LeaderEpochCache:
        cache = LeaderEpochCache(self._directory)
        found = self._scanned_epochs or recovered.leader_epochs
        is_readable = cache.load()
        # The last batch carries the largest epoch that began below the log end. A checkpoint that names a larger one is damaged:
        # believed, it would keep the partition without a leader until the controller's epochs have grown beyond it.
        largest = max((entry.leader_epoch for entry in cache.entries if entry.start_offset < next_offset), default=NO_LEADER_EPOCH)
        if not is_readable or (found and largest > found[-1][0]):
            cache = LeaderEpochCache(self._directory)
            found = self._epochs_of_all_batches()
        latest = cache.latest
        starts: list[tuple[LeaderEpoch, Offset]] = []
        for leader_epoch, offset in found:
            if leader_epoch > latest:
                latest = leader_epoch
                starts.append((leader_epoch, offset))
        cache.assign_all(starts)
        # In the same boot an epoch that began at the log end stands: it was assigned, and nothing was lost. So opening writes nothing.
        cache.truncate_from_end(next_offset + 1 if isinstance(self._recovery, SameBoot) else next_offset)
        return cache

    def _epochs_of_all_batches(self) -> list[tuple[LeaderEpoch, Offset]]:
        """A power cut can leave a torn checkpoint; the batches know the epochs too."""
        latest, found = NO_LEADER_EPOCH, []
        for base in self._bases:
            fd = file_io.open_path(segment_path(self._directory, base, LOG_SUFFIX), file_io.READ_ONLY)
            try:
                for _, header in SegmentScan(fd, FILE_START, file_io.size_of(fd), verify=False):
                    if header.partition_leader_epoch > latest:
                        latest = header.partition_leader_epoch
                        found.append((latest, header.base_offset))
            finally:
                file_io.close(fd)
        return found

    def _load_producers(self, names: list[str], next_offset: Offset) -> tuple[ProducerState, ProducerSnapshots]:
        scanned = (self._first_producer_offset, self._scanned_markers_from)
        return load_producers(
            self._directory,
            names,
            self._bases,
            next_offset,
            self._now_ms,
            *scanned,
            hole_at=self._hole_at,
            scanned_from=self._recovery.recovery_point if isinstance(self._recovery, Unclean) else NO_OFFSET,
            expiration_ms=self._producer_expiration_ms,
        )


def open_truncated(directory: str, base_offset: Offset, offset: Offset, config: LogConfig, now_ms: int) -> tuple[OpenSegment, RecoveredSegment]:
    """Truncate the segment of `base_offset` so that it ends at or below `offset`, and open it for
    appending. The whole batch that holds the offset is removed: first from the file, then from its
    indexes; a short scan finds the new end."""
    segment = OpenSegment.open(directory, base_offset)
    try:
        _cut(segment, offset)
    finally:
        segment.close()
    return open_recovered(directory, base_offset, config, now_ms)


def _cut(segment: OpenSegment, offset: Offset) -> None:
    index = OffsetIndex(segment.index_fd, segment.base_offset)
    start = index.lookup(offset - 1).position if offset > segment.base_offset else FILE_START
    for position, header in SegmentScan(segment.log_fd, start, file_io.size_of(segment.log_fd), verify=False):
        if header.last_offset >= offset:
            file_io.ftruncate(segment.log_fd, position)
            file_io.sync_all(segment.log_fd)
            file_io.ftruncate(segment.index_fd, index.count_at_or_before(position - 1) * OFFSET_ENTRY.size)
            time_index = TimeIndex(segment.time_index_fd, segment.base_offset)
            file_io.ftruncate(segment.time_index_fd, time_index.count_below(header.base_offset) * TIME_ENTRY.size)
            return
