"""Which of the oldest segments of a log are deleted: by time, size, start offset and free space.

Policies are pure: they decide over facts about segments and touch no file. The log-writer collects
the facts and carries the plans out (`services/log_writer/background/retention_rounds.py`);
`SegmentTimes` reads timestamps in its thread. The first three policies are Kafka's
(`UnifiedLog.deletableSegments`): segments go oldest first, up to the first one that stays; nothing
above the high watermark goes; the active segment goes only when all go, and then a new one is
rolled first. A new policy is a class with a name and a `count`; `TOPIC_POLICIES` lists those that
apply to every log. Weak spot: time is what producers say (the largest timestamp of a segment), so
one record stamped far in the future keeps its segment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from appliance.base.model import FILE_START, Offset
from appliance.storage import file_io
from appliance.storage.indexes import TimeIndex
from appliance.storage.log_config import LogConfig
from appliance.storage.segment_files import LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentScan


class SegmentFacts(NamedTuple):
    """One segment. `end_offset` (exclusive) is the next one's base offset, or the log end."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    is_active: bool = False


class LogFacts(NamedTuple):
    """One log at one moment; `segments` ascending, the last one is active."""

    segments: tuple[SegmentFacts, ...]
    log_start_offset: Offset
    high_watermark: Offset
    config: LogConfig

    @property
    def deletes(self) -> bool:
        """Whether old records may be deleted, because the cleanup policy is not only `compact`."""
        return self.config.deletes


LargestTimestamp = Callable[[SegmentFacts], int]
"""The largest timestamp (ms) in a segment; where its records have none, when its file was last
written."""


class RetentionPolicy(Protocol):
    """One rule that deletes the oldest segments of a log."""

    @property
    def name(self) -> str:
        """The policy's name in counters and log lines."""

    def count(self, log: LogFacts, largest_timestamp: LargestTimestamp, now_ms: int) -> int:
        """Return how many of the oldest segments the policy deletes at wall time `now_ms`."""


def _leading(log: LogFacts, goes: Callable[[SegmentFacts], bool]) -> int:
    """How many segments go, from the oldest on, within the high watermark; an empty active segment
    never does.
    """
    count = 0
    for segment in log.segments:
        if segment.end_offset > log.high_watermark or (segment.is_active and not segment.size_bytes) or not goes(segment):
            break
        count += 1
    return count


class LogStartOffsetRetention:
    """Segments wholly below the log start offset, which no consumer can read any more."""

    name = "log_start_offset"

    def count(self, log: LogFacts, largest_timestamp: LargestTimestamp, now_ms: int) -> int:
        """Return how many sealed segments end at or below the log start offset."""
        return _leading(log, lambda segment: not segment.is_active and segment.end_offset <= log.log_start_offset)


class SizeRetention:
    """retention.bytes: deletes the oldest segments while the rest is at least that large; a
    negative value is no limit.
    """

    name = "size"

    def count(self, log: LogFacts, largest_timestamp: LargestTimestamp, now_ms: int) -> int:
        """Return how many of the oldest segments are above the limit."""
        limit_bytes = log.config.retention_bytes
        if limit_bytes < 0 or not log.deletes:
            return 0
        excess_bytes = sum(segment.size_bytes for segment in log.segments) - limit_bytes

        def goes(segment: SegmentFacts) -> bool:
            nonlocal excess_bytes
            excess_bytes -= segment.size_bytes
            return excess_bytes >= 0

        return _leading(log, goes)


class TimeRetention:
    """retention.ms: deletes segments whose youngest record is older; a negative value is no limit."""

    name = "time"

    def count(self, log: LogFacts, largest_timestamp: LargestTimestamp, now_ms: int) -> int:
        """Return how many of the oldest segments are older than the limit."""
        retention_ms = log.config.retention_ms
        if retention_ms < 0 or not log.deletes:
            return 0
        return _leading(log, lambda segment: now_ms - largest_timestamp(segment) > retention_ms)


TOPIC_POLICIES: tuple[RetentionPolicy, ...] = (LogStartOffsetRetention(), SizeRetention(), TimeRetention())
"""What logs are held to, in Kafka's order."""
TIMELESS_POLICIES: tuple[RetentionPolicy, ...] = tuple(policy for policy in TOPIC_POLICIES if not isinstance(policy, TimeRetention))
"""The same while the clocks disagree."""


class RetentionPlan(NamedTuple):
    """Delete the first `gone` segments, which end at `end_offset`.

    `reasons`: (policy, segments, bytes) in the order of the policies.
    """

    gone: int
    end_offset: Offset
    rolls: bool
    """All segments go, so a new one has to be there first."""
    reasons: tuple[tuple[str, int, int], ...]


def plan_retention(log: LogFacts, policies: Sequence[RetentionPolicy], largest_timestamp: LargestTimestamp, now_ms: int) -> RetentionPlan | None:
    """Return the deletions that the policies together require, None if there are none.

    `now_ms` is wall time.
    """
    count = 0
    reasons = []
    for policy in policies:
        wanted = policy.count(log, largest_timestamp, now_ms)
        if wanted > count:
            gone = log.segments[count:wanted]
            reasons.append((policy.name, len(gone), sum(segment.size_bytes for segment in gone)))
            count = wanted
    return _plan(log, count, tuple(reasons)) if count else None


def _plan(log: LogFacts, count: int, reasons: tuple[tuple[str, int, int], ...]) -> RetentionPlan:
    last = log.segments[count - 1]
    return RetentionPlan(count, last.end_offset, last.is_active, reasons)


class FreeSpaceReserve:
    """Deletes the oldest segments of all partitions while a disk has less than the reserve free,
    regardless of the topics' retention.

    It never deletes an active segment, one of a topic that is only compacted, or one that is
    younger than its topic's `millrace.retention.protected.ms`; callers leave internal topics out.
    The reserve is `reserve_bytes`, or `percent` of the disk if that is less; 0 disables it.
    """

    name = "free_space_reserve"

    def __init__(self, reserve_bytes: int, percent: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._percent = percent

    def reserve_bytes(self, total_bytes: int) -> int:
        """Return the reserve of a disk of `total_bytes`."""
        return min(self._reserve_bytes, total_bytes * self._percent // 100)

    def missing_bytes(self, total_bytes: int, free_bytes: int) -> int:
        """Return how many bytes must become free, 0 if there are enough."""
        return max(0, self.reserve_bytes(total_bytes) - free_bytes)

    def plan(
        self,
        logs: Sequence[LogFacts],
        missing_bytes: int,
        largest_timestamp: Callable[[int, SegmentFacts], int],
        appended_ms: Callable[[int, SegmentFacts], int],
        now_ms: int,
    ) -> tuple[dict[int, RetentionPlan], dict[int, int]]:
        """Return plans by the log's index in `logs`, and the largest timestamp of what each
        deletes.

        `largest_timestamp(index, segment)` is called for the oldest segments only, and so is
        `appended_ms`, the time of the last append. Protection counts from that: a
        producer's timestamps could protect a segment for ever or not at all. `now_ms` is wall time; 0
        protects all segments of topics with a protection.
        """
        counts: dict[int, int] = {}
        youngest: dict[int, int] = {}
        heads: list[tuple[int, int]] = []

        def offer(place: int, count: int) -> None:
            segment = logs[place].segments[count]
            if not segment.is_active and segment.end_offset <= logs[place].high_watermark:
                timestamp = largest_timestamp(place, segment)
                protected_ms = logs[place].config.millrace_retention_protected_ms
                if not protected_ms or now_ms - appended_ms(place, segment) >= protected_ms:
                    heapq.heappush(heads, (timestamp, place))

        for place, log in enumerate(logs):
            if log.deletes:
                offer(place, 0)
        while heads and missing_bytes > 0:
            timestamp, place = heapq.heappop(heads)
            youngest[place] = max(timestamp, youngest.get(place, 0))
            count = counts.get(place, 0)
            missing_bytes -= logs[place].segments[count].size_bytes
            counts[place] = count + 1
            offer(place, count + 1)
        return {place: _plan(logs[place], count, (self._reason(logs[place], count),)) for place, count in counts.items()}, youngest

    def _reason(self, log: LogFacts, count: int) -> tuple[str, int, int]:
        return self.name, count, sum(segment.size_bytes for segment in log.segments[:count])


YOUNGEST = 2**63 - 1


class SegmentTimes:
    """The largest timestamps of one log's segments, by Kafka's rule
    (`LogSegment.largestTimestamp`).

    For a sealed segment it is the last entry of the time index, for the active one the known
    maximum; if records have no timestamps, the time of the file's last write. Each question reads
    twelve bytes.
    """

    def __init__(self, directory: str, active_max_timestamp: int) -> None:
        self._directory = directory
        self._active_max_timestamp = active_max_timestamp

    def largest(self, segment: SegmentFacts) -> int:
        """Return the largest timestamp of a segment in ms.

        Raises OSError, FileNotFoundError if the segment was removed meanwhile.
        """
        timestamp = self._active_max_timestamp if segment.is_active else self._of_sealed(segment.base_offset)
        if timestamp >= 0:
            return timestamp
        return file_io.stat(segment_path(self._directory, segment.base_offset, LOG_SUFFIX)).st_mtime_ns // 1_000_000

    def largest_if_there(self, segment: SegmentFacts) -> int:
        """Return the largest timestamp in ms; a removed segment counts as the youngest of all.

        Raises OSError.
        """
        try:
            return self.largest(segment)
        except FileNotFoundError:
            return YOUNGEST

    def appended(self, segment: SegmentFacts) -> int:
        """Return when a segment was last written to, in ms; a removed one counts as the youngest.

        A copy (a move, a replica) was written when it was copied, so it is protected for longer.
        Raises OSError.
        """
        try:
            return file_io.stat(segment_path(self._directory, segment.base_offset, LOG_SUFFIX)).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return YOUNGEST

    def _of_sealed(self, base_offset: Offset) -> int:
        fd = file_io.open_path(segment_path(self._directory, base_offset, TIME_INDEX_SUFFIX), file_io.READ_ONLY)
        try:
            return TimeIndex(fd, base_offset).last().timestamp
        finally:
            file_io.close(fd)


def lag_times(directory: str, base_offset: Offset) -> tuple[int, int]:
    """Return (maxTimestamp of the first batch or -1, largest timestamp) of a sealed segment in ms,
    for the compaction lags. Raises OSError.
    """
    fd = file_io.open_path(segment_path(directory, base_offset, LOG_SUFFIX), file_io.READ_ONLY)
    try:
        first = next((header.max_timestamp for _, header in SegmentScan(fd, FILE_START, file_io.size_of(fd), verify=False)), -1)
    finally:
        file_io.close(fd)
    return first, SegmentTimes(directory, -1).largest(SegmentFacts(base_offset, base_offset, 0, False))
