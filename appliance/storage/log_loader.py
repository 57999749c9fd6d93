"""Opens a partition directory: which segments there are, which of them to scan, what the log, its epochs and its producers then are.

Used by `Log.open` alone; `recovery` does the work on a single segment. What is read is proportional to what was not known: a clean log costs the
last few KiB, one of the same boot what lies behind the given position, others what lies above the recovery point. Weak spot: an
interrupted swap of compacted segments (`.swap`) is refused here until there is compaction.

A hole between two scanned segments (a power cut took the end of one and left the next) ends the log: what is behind a hole is deleted, because
a log must be a prefix. Compacted topics have holes by design, there only a bad batch ends the log.
"""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.storage import file_io
from appliance.storage.indexes import OffsetIndex
from appliance.storage.leader_epoch_cache import LeaderEpochCache
from appliance.storage.log_config import LogConfig
from appliance.storage.producer_snapshots import ProducerSnapshots
from appliance.storage.producer_state import ProducerState
from appliance.storage.recovery import Clean, Disagreement, RecoveredSegment, Recovery, SameBoot, SegmentRecovery, seal
from appliance.storage.segment import OpenSegment, SegmentTail
from appliance.storage.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of_name,
    segment_path,
)
from appliance.storage.segment_scan import SegmentScan

_LEFTOVERS = (".deleted", ".cleaned", ".tmp")
_SWAP = ".swap"


class LoadedLog(NamedTuple):
    """Everything a `Log` starts from."""

    log_start_offset: int
    next_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochCache
    producers: ProducerState
    snapshots: ProducerSnapshots
    sealed: dict[int, int]
    unflushed: list[tuple[int, OpenSegment]]
    """Sealed segments that reach above the recovery point, each with its end offset."""
    active: OpenSegment
    tail: SegmentTail
    cut_bytes: int


def open_recovered(directory: str, base_offset: int, config: LogConfig, now_ms: int) -> tuple[OpenSegment, RecoveredSegment]:
    """Open a segment whose end is believed to be intact; where index and log disagree, it is rebuilt."""
    segment = OpenSegment.open(directory, base_offset)
    try:
        try:
            return segment, SegmentRecovery(segment, config.index_interval_bytes, now_ms).resume(None)
        except Disagreement:
            return segment, SegmentRecovery(segment, config.index_interval_bytes, now_ms).rebuild()
    except OSError:
        segment.close()
        raise


def unlink_segment(directory: str, base_offset: int) -> None:
    """Remove a segment's files, the log first: an index without a log is swept up at the next start."""
    for suffix in SEGMENT_SUFFIXES:
        file_io.unlink_if_there(segment_path(directory, base_offset, suffix))


class LogLoader:
    """One load of one directory."""

    def __init__(self, directory: str, config: LogConfig, clock: Clock, recovery: Recovery, log_start_offset: int) -> None:
        self._directory = directory
        self._config = config
        self._now_ms = clock.wall_ms()
        self._recovery = recovery
        self._log_start_offset = log_start_offset
        self._sealed: dict[int, int] = {}
        self._bases: list[int] = []
        self._scanned_epochs: list[tuple[int, int]] = []
        self._first_producer_offset = -1
        self._cut_bytes = 0

    def load(self) -> LoadedLog:
        names = self._sweep(file_io.listdir(self._directory))
        self._bases = sorted(base for name in names if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
        if not self._bases:
            OpenSegment.create(self._directory, self._log_start_offset).close()
            self._bases = [self._log_start_offset]
        self._complete_indexes(names)
        active, recovered = self._recover()
        try:
            if recovered.next_offset < self._log_start_offset:
                active, recovered = self._start_over(active)
            return self._finish(names, active, recovered)
        except OSError:
            active.close()
            raise

    def _sweep(self, names: list[str]) -> list[str]:
        """Remove what an interrupted action left; the names that remain."""
        kept = []
        bases = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
        for name in names:
            if name.endswith(_SWAP):
                raise OSError(errno.ENOTSUP, f"{name} is left from a compaction that was interrupted; start the broker that wrote it once more to finish it")
            orphaned = name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)) and name.rsplit(".", 1)[0] not in bases
            if orphaned or name.endswith(_LEFTOVERS):
                file_io.unlink_if_there(f"{self._directory}/{name}")
            else:
                kept.append(name)
        return kept

    def _complete_indexes(self, names: list[str]) -> None:
        """Rebuild the indexes of a sealed segment that lost one; its log is not cut, whatever is in it."""
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
            return open_recovered(self._directory, self._bases[-1], self._config, self._now_ms)
        if isinstance(recovery, SameBoot):
            if recovery.active_base_offset in self._bases:
                try:
                    return self._recover_from(self._bases.index(recovery.active_base_offset), recovery)
                except Disagreement:
                    pass
            return self._recover_above(recovery.recovery_point)
        return self._recover_above(recovery.recovery_point)

    def _recover_above(self, recovery_point: int) -> tuple[OpenSegment, RecoveredSegment]:
        below = [number for number, base in enumerate(self._bases) if base <= recovery_point]
        return self._recover_from(below[-1] if below else 0, None)

    def _recover_from(self, first: int, known: SameBoot | None) -> tuple[OpenSegment, RecoveredSegment]:
        """Recover the segments from number `first` on; the one that ends the log is returned open, later ones are deleted."""
        for number in range(first, len(self._bases)):
            segment = OpenSegment.open(self._directory, self._bases[number])
            try:
                recovered = self._recover_segment(segment, known if number == first else None)
                if number + 1 == len(self._bases) or self._ends_log(recovered, self._bases[number + 1]):
                    if recovered.cut_bytes:
                        file_io.sync_all(segment.log_fd)
                    self._delete_behind(number)
                    return segment, recovered
                seal(segment, recovered.tail)
            except BaseException:
                segment.close()
                raise
            segment.close()
        raise AssertionError("a log has at least one segment")

    def _recover_segment(self, segment: OpenSegment, known: SameBoot | None) -> RecoveredSegment:
        recovery = SegmentRecovery(segment, self._config.index_interval_bytes, self._now_ms)
        recovered = recovery.rebuild() if known is None else recovery.resume(known)
        self._cut_bytes += recovered.cut_bytes
        self._scanned_epochs += recovered.leader_epochs
        if self._first_producer_offset < 0:
            self._first_producer_offset = recovered.first_producer_offset
        return recovered

    def _ends_log(self, recovered: RecoveredSegment, next_base_offset: int) -> bool:
        if recovered.problem is not None or recovered.next_offset > next_base_offset:
            return True
        return recovered.next_offset < next_base_offset and "compact" not in self._config.cleanup_policy

    def _delete_behind(self, number: int) -> None:
        """Newest first, so that a crash in between leaves a prefix; synced, so that a power cut brings none of them back."""
        while len(self._bases) > number + 1:
            base = self._bases.pop()
            self._cut_bytes += file_io.stat(segment_path(self._directory, base, LOG_SUFFIX)).st_size
            unlink_segment(self._directory, base)
        file_io.fsync_directory(self._directory)

    def _start_over(self, active: OpenSegment) -> tuple[OpenSegment, RecoveredSegment]:
        """All that is left lies below the log start offset: begin an empty log there."""
        active.close()
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
        )

    def _open_unflushed(self, recovery_point: int) -> list[tuple[int, OpenSegment]]:
        """A former life did not sync these, so the next flush round must."""
        return [(end, OpenSegment.open(self._directory, base)) for base, end in pairwise(self._bases) if end > recovery_point]

    def _load_epochs(self, next_offset: int, recovered: RecoveredSegment) -> LeaderEpochCache:
        cache = LeaderEpochCache(self._directory)
        found = self._scanned_epochs or recovered.leader_epochs
        if not cache.load():
            found = self._epochs_of_all_batches()
        latest = cache.latest
        starts = []
        for leader_epoch, offset in found:
            if leader_epoch > latest:
                latest = leader_epoch
                starts.append((leader_epoch, offset))
        cache.assign_all(starts)
        # In the same boot an epoch that began at the log end stands: it was assigned, and nothing was lost. So opening writes nothing.
        cache.truncate_from_end(next_offset + 1 if isinstance(self._recovery, SameBoot) else next_offset)
        return cache

    def _epochs_of_all_batches(self) -> list[tuple[int, int]]:
        """A power cut can leave a torn checkpoint; the batches know the epochs too."""
        latest, found = -1, []
        for base in self._bases:
            fd = file_io.open_path(segment_path(self._directory, base, LOG_SUFFIX), file_io.READ_ONLY)
            try:
                for _, header in SegmentScan(fd, 0, file_io.size_of(fd), verify=False):
                    if header.partition_leader_epoch > latest:
                        latest = header.partition_leader_epoch
                        found.append((latest, header.base_offset))
            finally:
                file_io.close(fd)
        return found

    def _load_producers(self, names: list[str], next_offset: int) -> tuple[ProducerState, ProducerSnapshots]:
        return load_producers(self._directory, names, self._bases, next_offset, self._now_ms, self._first_producer_offset)


def load_producers(
    directory: str, names: list[str], bases: list[int], end_offset: int, now_ms: int, first_producer_offset: int = -1
) -> tuple[ProducerState, ProducerSnapshots]:
    """The producers of the log in `directory` up to `end_offset`: the newest snapshot, and the batches behind it.

    `first_producer_offset` is where a scan met a batch with a producer id (-1: nowhere); it serves when the snapshots are lost.
    """
    snapshots = ProducerSnapshots(directory, names)
    state = ProducerState()
    snapshot_offset = snapshots.load(state, end_offset)
    replay_from = first_producer_offset if snapshot_offset is None else snapshot_offset
    if replay_from >= 0:
        _replay_producers(directory, bases, state, replay_from)
        state.expire(now_ms)
        if not len(state):
            snapshots.remove_all()
        elif snapshots.latest is None:
            snapshots.write(end_offset, state, ())
    return state, snapshots


def _replay_producers(directory: str, bases: list[int], state: ProducerState, from_offset: int) -> None:
    for number, base in enumerate(bases):
        if number + 1 < len(bases) and bases[number + 1] <= from_offset:
            continue
        log_fd = file_io.open_path(segment_path(directory, base, LOG_SUFFIX), file_io.READ_ONLY)
        try:
            start = _position_at(directory, base, from_offset)
            for _, header in SegmentScan(log_fd, start, file_io.size_of(log_fd), verify=False):
                if header.last_offset >= from_offset:
                    state.replay(header)
        finally:
            file_io.close(log_fd)


def _position_at(directory: str, base_offset: int, offset: int) -> int:
    """Where to start reading for `offset`: the last index entry at or below it."""
    fd = file_io.open_path(segment_path(directory, base_offset, INDEX_SUFFIX), file_io.READ_ONLY)
    try:
        return OffsetIndex(fd, base_offset).lookup(offset).position
    finally:
        file_io.close(fd)
