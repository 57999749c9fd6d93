"""Find sealed segments that were changed beside the log-writer, before a log is used.

`LogLoader` uses it at a clean start and, below the recovery point, after an unclean boot. A file
that is as the list of the last clean stop says costs one stat. Of any other the end is read: from
its last index entry on, and the whole file if that does not agree. A segment that holds a damaged
batch is cut there, after a copy of it was put aside (`*.damaged`). What the segments that are left
do not hold is returned as lost ranges. Of a compacted log only files that are missing, shorter or
damaged count, because its batches have gaps by design. Weak spot: damage before the last index
entry of a file of the old size is left to the scrubber.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from appliance.base.model import Offset
from appliance.storage import file_io
from appliance.storage.known_segments import NONE_KNOWN, KnownSegments, look_at_segment
from appliance.storage.log_config import LogConfig
from appliance.storage.log_damage import LostRange
from appliance.storage.recovery import Disagreement, SegmentRecovery, seal
from appliance.storage.segment import OpenSegment
from appliance.storage.segment_files import LOG_SUFFIX, SEGMENT_SUFFIXES, segment_path

DAMAGED_SUFFIX = ".damaged"
"""Of what was put aside: a copy of a segment that was cut, or a whole one. An operator removes it."""


def unlink_segment(directory: str, base_offset: Offset) -> None:
    """Remove a segment's files, the log first: an index without a log is removed at the next start.

    Raises OSError.
    """
    for suffix in SEGMENT_SUFFIXES:
        file_io.unlink_if_there(segment_path(directory, base_offset, suffix))


def free_damaged_path(directory: str, base_offset: Offset) -> str:
    """Return a path for what is put aside; nothing that is there is overwritten."""
    path = segment_path(directory, base_offset, LOG_SUFFIX)
    number = 1
    while file_io.exists(free := f"{path}{'' if number == 1 else f'.{number}'}{DAMAGED_SUFFIX}"):
        number += 1
    return free


def put_segment_aside(directory: str, base_offset: Offset) -> None:
    """Rename the log of a segment to `*.damaged` and remove its indexes. Raises OSError."""
    path = segment_path(directory, base_offset, LOG_SUFFIX)
    if file_io.stat(path).st_size:
        file_io.rename(path, free_damaged_path(directory, base_offset))
    unlink_segment(directory, base_offset)
    file_io.fsync_directory(directory)


class SealedEnd(NamedTuple):
    """Where a sealed segment ends, and whether a part of it had to be cut off."""

    offset: Offset
    was_cut: bool


class SegmentCheck:
    """`is_clean`: after a clean stop, when nothing but `known` may be there."""

    def __init__(
        self, directory: str, config: LogConfig, now_ms: int, known: KnownSegments = NONE_KNOWN, is_clean: bool = True, is_compacted: bool = False
    ) -> None:
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._known = known
        self._known_next = dict(pairwise(known))
        self._is_clean = is_clean
        self._is_compacted = is_compacted
        self.lost: list[LostRange] = []

    def check(self, bases: list[Offset], sealed_below: Offset) -> list[Offset]:
        """Check each segment that the next one ends at or below `sealed_below`.

        Return the base offsets that are left; `lost` has what lies between them. Raises OSError.
        """
        gone: list[Offset] = []
        for base, next_base in pairwise(bases):
            if next_base > sealed_below:
                break
            lost_from = self._check_one(base, next_base)
            if lost_from is not None and lost_from < next_base:
                self.lost.append(LostRange(lost_from, next_base))
                if lost_from == base:
                    gone.append(base)
        for base in gone:
            put_segment_aside(self._directory, base)
        return [base for base in bases if base not in gone]

    def check_start(self, first_base: Offset, log_start_offset: Offset) -> None:
        """Add what a log lacks that began at `log_start_offset`, or at the first known segment."""
        started = max(log_start_offset, min(self._known, default=log_start_offset)) if self._is_clean else log_start_offset
        if first_base > started:
            self.lost = [LostRange(started, first_base), *(each for each in self.lost if each.first >= first_base)]

    def _check_one(self, base: Offset, next_base: Offset) -> Offset | None:
        """Return the first offset that is missing before `next_base`; None if none is."""
        is_as_known = base in self._known and look_at_segment(self._directory, base) == self._known[base]
        if is_as_known and self._known_next.get(base) == next_base:
            return None
        if not self._is_compacted:
            return self._end_of(base).offset
        if not self._is_clean:
            return None
        end = SealedEnd(next_base, False) if is_as_known else self._end_of(base)
        is_shorter = base in self._known and look_at_segment(self._directory, base).size_bytes < self._known[base].size_bytes
        if end.was_cut or is_shorter:
            return end.offset
        return min((other for other in self._known if base < other < next_base), default=None)

    def _end_of(self, base: Offset) -> SealedEnd:
        segment = OpenSegment.open(self._directory, base)
        try:
            recovery = SegmentRecovery(segment, self._config.index_interval_bytes, self._now_ms, cut=False)
            try:
                return SealedEnd(recovery.resume(None).next_offset, False)
            except Disagreement:
                found = SegmentRecovery(segment, self._config.index_interval_bytes, self._now_ms, cut=False).rebuild()
            if found.cut_bytes and found.tail.size_bytes:
                file_io.copy_file(segment.log_fd, free_damaged_path(self._directory, base))
                file_io.ftruncate(segment.log_fd, found.tail.size_bytes)
            if found.tail.size_bytes:
                seal(segment, found.tail)
                for fd in segment.files:
                    file_io.sync_data(fd)
            return SealedEnd(found.next_offset, bool(found.cut_bytes))
        finally:
            segment.close()
