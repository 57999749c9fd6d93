"""Decide what is compacted: which log of a disk, which offsets of it, which segments become one.

Touches no file. Used by the log-writer (which log is due) and by the cleaning run (groups). The
rules are Kafka's (`LogCleanerManager`, `Cleaner.groupSegmentsBySize`): never the active segment,
nothing at or above the last stable offset, nothing younger than min.compaction.lag.ms. The log with
the largest share of uncompacted bytes comes first, if that is above min.cleanable.dirty.ratio, or
if it holds anything older than max.compaction.lag.ms.

One rule is ours: nothing above the recovery point in the checkpoint, because a start after a power
cut takes a hole in what it scans for the end of the log. Weak spot: a log without appends keeps its
active segment uncompacted, and an expired tombstone is removed only when new records make the log
dirty.

`CleaningJob` and `RunReport` are the messages between log-writer and run, as lines of JSON. A run
reports each segment as soon as its files are whole and synced, and the log-writer swaps it in while
the run continues: so a run never needs more space than its largest segment. Weak spot: a log with
tens of thousands of live producers makes a job of a few MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from appliance.base.model import NO_OFFSET, Offset, ProducerId
from appliance.storage.indexes import LARGEST_RELATIVE_OFFSET
from appliance.storage.log_config import LogConfig

NEVER_MS = 2**63 - 1


class CleanableSegment(NamedTuple):
    """A sealed segment.

    Timestamps in ms, -1 unknown; they are used only if a compaction lag is configured.
    """

    base_offset: Offset
    end_offset: Offset
    """Base offset of the next segment."""
    size_bytes: int
    first_timestamp: int = -1
    largest_timestamp: int = -1


class CleaningCandidate(NamedTuple):
    """A compacted log.

    `first_uncleanable_offset`: the minimum of high watermark, last stable offset, recovery point
    and the active segment's base offset.
    """

    segments: tuple[CleanableSegment, ...]
    first_dirty_offset: Offset
    first_uncleanable_offset: Offset
    config: LogConfig


class CleaningPlan(NamedTuple):
    """Segments below `end_offset` may be rewritten; keys are mapped from `first_dirty_offset` on."""

    segments: tuple[CleanableSegment, ...]
    first_dirty_offset: Offset
    end_offset: Offset
    dirty_bytes: int
    dirty_ratio: float
    is_due: bool


def plan_cleaning(candidate: CleaningCandidate, now_ms: int) -> CleaningPlan | None:
    """Return what a run over this log would do at wall time `now_ms`, or None if there is nothing
    to clean.
    """
    config = candidate.config
    end_offset = candidate.first_uncleanable_offset
    segments = []
    for segment in candidate.segments:
        is_young = config.min_compaction_lag_ms > 0 and segment.largest_timestamp > now_ms - config.min_compaction_lag_ms
        if segment.end_offset > end_offset or (is_young and segment.end_offset > candidate.first_dirty_offset):
            break
        segments.append(segment)
    if not segments:
        return None
    end_offset = segments[-1].end_offset
    first_dirty = max(candidate.first_dirty_offset, segments[0].base_offset)
    if first_dirty >= end_offset:
        return None
    dirty = [segment for segment in segments if segment.end_offset > first_dirty]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return None
    total_bytes = sum(segment.size_bytes for segment in segments)
    ratio = dirty_bytes / total_bytes
    is_overdue = False
    if config.max_compaction_lag_ms < NEVER_MS:
        stamps = [segment.first_timestamp for segment in dirty if segment.first_timestamp > 0]
        is_overdue = bool(stamps) and now_ms - min(stamps) > config.max_compaction_lag_ms
    return CleaningPlan(tuple(segments), first_dirty, end_offset, dirty_bytes, ratio, is_overdue or ratio > config.min_cleanable_dirty_ratio)


def filthiest(plans: Iterable[tuple[int, CleaningPlan]]) -> tuple[int, CleaningPlan] | None:
    """Return the due plan with the largest dirty ratio, with the row of its log; None if none is
    due.
    """
    due = [(row, plan) for row, plan in plans if plan.is_due]
    return max(due, key=lambda each: each[1].dirty_ratio, default=None)


class GroupLimits(NamedTuple):
    """The limits of one segment in bytes: `segment.bytes` and `segment.index.bytes`, the latter in
    whole entries.
    """

    segment_bytes: int
    index_bytes: int


class SegmentFigures(NamedTuple):
    """A segment's sizes on disk, for grouping."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(segments: Sequence[SegmentFigures], limits: GroupLimits) -> list[list[SegmentFigures]]:
    """Group adjacent segments that fit into one segment.

    The order is kept, and each is in exactly one group.
    """
    groups: list[list[SegmentFigures]] = []
    size_bytes = index_bytes = time_index_bytes = 0
    for segment in segments:
        size_bytes += segment.size_bytes
        index_bytes += segment.index_bytes
        time_index_bytes += segment.time_index_bytes
        fits = (
            bool(groups)
            and size_bytes <= limits.segment_bytes
            and index_bytes <= limits.index_bytes
            and time_index_bytes <= limits.index_bytes
            and segment.end_offset - 1 - groups[-1][0].base_offset <= LARGEST_RELATIVE_OFFSET
        )
        if fits:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes, index_bytes, time_index_bytes = segment.size_bytes, segment.index_bytes, segment.time_index_bytes
    return groups


DIRECTORY_FD = 3
"""The run's descriptor of the log's directory."""
MAPPED = "mapped"
GROUP = "group"
DONE = "done"
FAILED = "failed"


class CleaningJob(NamedTuple):
    """The input of a run.

    `segments` are (base offset, end offset), ascending, all sealed and below the first uncleanable
    offset. `producers` are (producer id, producer epoch, last data offset or -1). Times in ms.
    """

    directory: str
    segments: list[tuple[Offset, Offset]]
    first_dirty_offset: Offset
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    buffer_bytes: int
    producers: list[tuple[ProducerId, int, Offset]]

    def encode(self) -> bytes:
        """Return the job as one JSON document."""
        return orjson.dumps(self._asdict())

    @classmethod
    def decode(cls, document: bytes) -> CleaningJob:
        """Parse what `encode` returned. Raises `ValueError`."""
        return cls(**orjson.loads(document))


class CleanedGroup(NamedTuple):
    """Segments that became one: the `.cleaned` files of `bases[0]` are complete, synced and have
    `size_bytes` of log. If `is_changed` is False, no file was written.
    """

    bases: list[Offset]
    size_bytes: int
    is_changed: bool


class RunFigures(NamedTuple):
    """Bytes and records of a run, for the counters `cleaner.…`."""

    read_bytes: int = 0
    written_bytes: int = 0
    records_read: int = 0
    records_kept: int = 0


class RunReport(NamedTuple):
    """One report of a run to its log-writer, a line of JSON.

    `kind` is MAPPED, GROUP, DONE or FAILED.
    """

    kind: str
    group: CleanedGroup | None = None
    end_offset: Offset = NO_OFFSET
    """MAPPED, DONE: below it the log is clean once every group is swapped in."""
    reason: str = ""
    is_full: bool = False
    """FAILED for want of space: nothing is wrong with the log."""
    figures: RunFigures = RunFigures()

    def encode(self) -> bytes:
        """Return the report as a line of JSON."""
        return orjson.dumps(self._asdict() | {"group": self.group and self.group._asdict(), "figures": self.figures._asdict()}) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> RunReport:
        """Parse what `encode` returned. Raises `ValueError`."""
        fields: dict[str, Any] = orjson.loads(line)
        group = fields["group"]
        return cls(**fields | {"group": CleanedGroup(**group) if group else None, "figures": RunFigures(**fields["figures"])})
