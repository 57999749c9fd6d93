"""One search: partitions in parallel, results in time order, counts, progress.

A thread reads one window of one partition; the partitions that are furthest behind come first, so
all advance together. A match is passed on when every partition is `HOLD_MS` past its time, or when
the waiting ones exceed their memory. Owned by the search process. Weak: records that are more than
`HOLD_MS` older than their neighbours in the log come out of order, which the end of the results
counts.
"""

from __future__ import annotations

import base64
import heapq
from collections import Counter as Tally
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import MillraceError
from appliance.pipeline.local_segments import NotReadHere
from services.search.context import CHUNK_MATCHES, ContextReader
from services.search.matching import Document
from services.search.partition_scan import Match, PartitionScan, Window

HOLD_MS = 60_000
WAITING_BYTES_MAX = 32 << 20
PROGRESS_MS = 250
GROUPS_MAX = 10_000
GROUP_CHARACTERS_MAX = 200
NOTES_MAX = 20
FIELDS_SHOWN = 30
LEAVE_SECONDS = 1.0
"""How long a search that was stopped waits for its threads; one that reads a hung disk is left."""
TIME_FORMATS = {"second": "%Y-%m-%dT%H:%M:%SZ", "minute": "%Y-%m-%dT%H:%MZ", "hour": "%Y-%m-%dT%HZ", "day": "%Y-%m-%d"}
OLDEST, NEWEST = "oldest", "newest"

Emit = Callable[[dict[str, Any]], None]
"""Takes one document of the answer; raises OSError if its reader is gone."""


class SearchOptions(NamedTuple):
    """What is done with the matches. `limit` 0: all; `order`: which end of the time range counts;
    `context` reads the records around each."""

    limit: int = 0
    order: str = OLDEST
    is_count: bool = False
    by: tuple[str, ...] = ()
    threads: int = 2
    bytes_per_second: int = 0
    duration_ms_max: int = 0
    hold_ms: int = HOLD_MS
    waiting_bytes_max: int = WAITING_BYTES_MAX
    context: ContextReader | None = None


class SearchTotals(NamedTuple):
    """How a search ended. `stopped`: why before its end, if so."""

    matches: int
    scanned_bytes: int
    opened_bytes: int
    skipped_bytes: int
    milliseconds: int
    unordered: int
    stopped: str | None

    def after(self, earlier: SearchTotals) -> SearchTotals:
        """Return the totals of both."""
        return SearchTotals(
            self.matches + earlier.matches,
            self.scanned_bytes + earlier.scanned_bytes,
            self.opened_bytes + earlier.opened_bytes,
            self.skipped_bytes + earlier.skipped_bytes,
            self.milliseconds + earlier.milliseconds,
            self.unordered + earlier.unordered,
            self.stopped,
        )


def record_document(match: Match) -> dict[str, Any]:
    """Return a match for the answer; a value that is not UTF-8 is in base 64."""
    found: dict[str, Any] = {"partition": match.partition, "offset": match.offset, "timestamp": match.timestamp_ms}
    try:
        found["value"] = match.value.decode()
    except UnicodeDecodeError:
        found["value_base64"] = base64.b64encode(match.value).decode()
    for name, around in (("before", match.before), ("after", match.after)):
        if around:
            found[name] = [record_document(each) for each in around]
    return found


class SearchRun:
    """Searches the given partitions once. `total_bytes` is what they have to read."""

    def __init__(
        self, scans: Sequence[PartitionScan], options: SearchOptions, emit: Emit, clock: Clock, pause: Callable[[int], None], total_bytes: int = 0
    ) -> None:
        """`pause` waits for some milliseconds."""
        self._scans = scans
        self._options = options
        self._emit = emit
        self._clock = clock
        self._pause = pause
        self._total_bytes = total_bytes
        self._started_ms = clock.monotonic_ms()
        self._progress_ms = self._started_ms
        self._waiting: list[Match] = []
        self._waiting_bytes = 0
        self._last_ms = -1
        self._matches = self._passed = self._unordered = 0
        self._scanned = self._opened = 0
        self._groups: Tally[tuple[Any, ...]] = Tally()
        self._stopped: str | None = None
        self._is_left = False
        self._dropped = 0
        """Of the newest records, those without space."""
        self._bare = 0
        """Matches whose surroundings were not read."""
        self._unread: dict[int, str] = {}
        """Partitions of which no surroundings are read any more, and why."""
        self.next_offsets: dict[int, int] = {scan.partition: scan.range.start for scan in scans}
        self.notes: list[str] = []
        self.failed: dict[int, str] = {}
        """Partitions that could not be read to their end, and why."""

    def run(self) -> SearchTotals:
        """Search until the end, the limit, or the longest duration."""
        pool = ThreadPoolExecutor(max(self._options.threads, 1), thread_name_prefix="search")
        try:
            self._run(pool)
            if self._stopped is None or self._options.order == NEWEST:
                self._pass_on(None, pool)
        finally:
            pool.shutdown(wait=not self._is_left, cancel_futures=True)
        for each in self._counts() if self._options.is_count or self._options.by else ():
            self._emit({"count": each})
        if self._dropped:
            self.notes.append(f"the newest {self._passed} records only: {self._dropped} more do not fit in search.memory.bytes")
        if self._bare:
            reasons = [f"partition {partition}: {reason}" for partition, reason in sorted(self._unread.items())] or ["the search ended first"]
            self.notes.append(f"the records around {self._bare} of the matches were not read; {'; '.join(reasons[:NOTES_MAX])}")
        for scan in self._scans:
            self.notes += scan.notes
        if not self._matches and self._stopped is None:
            self.notes += absent_fields(self._scans)
        elapsed_ms = self._clock.monotonic_ms() - self._started_ms
        matches = self._matches if self._options.is_count or self._options.by else self._passed
        return SearchTotals(matches, self._scanned, self._opened, self._skipped, elapsed_ms, self._unordered, self._stopped)

    def _run(self, pool: ThreadPoolExecutor) -> None:
        idle = [(-1, scan.partition, scan.windows()) for scan in {scan.partition: scan for scan in self._scans}.values()]
        heapq.heapify(idle)
        running: dict[Future[Window | None], tuple[int, int, Generator[Window, None, None]]] = {}
        while (idle or running) and self._stopped is None:
            while idle and len(running) < self._options.threads:
                entry = heapq.heappop(idle)
                running[pool.submit(_next_window, entry[2])] = entry
            done, _ = wait(running, PROGRESS_MS / 1_000, FIRST_COMPLETED)
            for future in done:
                frontier_ms, partition, windows = running.pop(future)
                try:
                    window = future.result()
                except (NotReadHere, MillraceError, OSError) as error:
                    self.failed[partition] = str(error)
                    continue
                if window is not None:
                    self._take(window, partition)
                    heapq.heappush(idle, (max(frontier_ms, window.frontier_ms), partition, windows))
            frontiers = [frontier for frontier, *_ in [*idle, *running.values()]]
            self._pass_on(min(frontiers) - self._options.hold_ms if frontiers else None, pool)
            self._report()
            self._pace()
        for future in running:
            future.cancel()
        _, busy = wait(running, LEAVE_SECONDS)
        self._is_left = self._is_left or bool(busy)
        for future in busy if self._stopped == "duration" else ():
            self.failed[running[future][1]] = "its disk had not answered when the search ended"
        for _, _, windows in [*idle, *(entry for future, entry in running.items() if future not in busy)]:
            windows.close()

    def _take(self, window: Window, partition: int) -> None:
        self._scanned += window.scanned_bytes
        self._opened += window.opened_bytes
        self._matches += len(window.matches)
        self.next_offsets[partition] = window.next_offset
        options = self._options
        if options.by:
            for match in window.matches:
                self._count(match)
        elif not options.is_count:
            for match in window.matches:
                self._hold(match)

    def _hold(self, match: Match) -> None:
        heapq.heappush(self._waiting, match)
        self._waiting_bytes += match.size_bytes
        if self._options.order == NEWEST:
            while len(self._waiting) > 1 and (len(self._waiting) > self._options.limit > 0 or self._waiting_bytes > self._options.waiting_bytes_max):
                self._dropped += not len(self._waiting) > self._options.limit > 0
                self._waiting_bytes -= heapq.heappop(self._waiting).size_bytes

    def _pass_on(self, before_ms: int | None, pool: ThreadPoolExecutor) -> None:
        """Pass on the matches before a time, or all; none while the newest ones are sought."""
        waiting, limit = self._waiting, self._options.limit
        if self._options.order == NEWEST and before_ms is not None:
            return
        is_full = self._waiting_bytes > self._options.waiting_bytes_max
        ready: list[Match] = []
        while waiting and (before_ms is None or waiting[0].timestamp_ms < before_ms or is_full):
            match = heapq.heappop(waiting)
            self._waiting_bytes -= match.size_bytes
            is_full = self._waiting_bytes > self._options.waiting_bytes_max
            self._unordered += match.timestamp_ms < self._last_ms
            self._last_ms = max(self._last_ms, match.timestamp_ms)
            self._passed += 1
            ready.append(match)
            if self._passed == limit:
                self._stopped = "limit"
                break
            if self._options.context is None or len(ready) == CHUNK_MATCHES:
                self._emit_records(ready, pool)
                ready = []
        self._emit_records(ready, pool)

    def _emit_records(self, matches: list[Match], pool: ThreadPoolExecutor) -> None:
        for match in self._with_context(matches, pool) if self._options.context is not None and matches else matches:
            self._emit({"record": record_document(match)})

    def _with_context(self, matches: list[Match], pool: ThreadPoolExecutor) -> list[Match]:
        """Return matches with the records around them, as far as these can be read before the longest duration ends."""
        context, now_ms = self._options.context, self._clock.monotonic_ms
        assert context is not None
        end_ms = self._started_ms + self._options.duration_ms_max if self._options.duration_ms_max else None
        own: dict[int, list[Match]] = {}
        for match in matches:
            own.setdefault(match.partition, []).append(match)
        readable = own.keys() - self._unread.keys() if end_ms is None or now_ms() < end_ms else ()
        running = {pool.submit(context.surround, partition, own[partition]): partition for partition in readable}
        pending = set(running)
        found: dict[tuple[int, int], Match] = {}
        while pending and (end_ms is None or now_ms() < end_ms):
            done, pending = wait(pending, PROGRESS_MS / 1_000, FIRST_COMPLETED)
            for future in done:
                try:
                    found |= {(match.partition, match.offset): match for match in future.result()}
                except (NotReadHere, MillraceError, OSError) as error:
                    self._unread[running[future]] = str(error)
            self._report()
        self._unread |= {running[future]: "the search ended first" for future in pending}
        self._is_left = self._is_left or bool(pending)
        self._bare += sum((match.partition, match.offset) not in found for match in matches)
        return [found.get((match.partition, match.offset), match) for match in matches]

    def _count(self, match: Match) -> None:
        document: Document | None = None
        key: list[Any] = []
        for name in self._options.by:
            if name in TIME_FORMATS:
                key.append(_time_text(match.timestamp_ms, TIME_FORMATS[name]))
                continue
            document = document or Document(match.value)
            found = document.field(name)
            key.append(found if found is None or isinstance(found, int | float) else str(found)[:GROUP_CHARACTERS_MAX])
        group = tuple(key)
        if group not in self._groups and len(self._groups) >= GROUPS_MAX:
            group = tuple("(others)" for _ in key)
        self._groups[group] += 1

    def _counts(self) -> Iterable[dict[str, Any]]:
        if not self._options.by:
            return [{"by": [], "count": self._matches}]
        return [{"by": list(group), "count": count} for group, count in sorted(self._groups.items(), key=lambda each: [str(part) for part in each[0]])]

    @property
    def _skipped(self) -> int:
        return sum(scan.skipped_bytes for scan in self._scans)

    def _report(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._progress_ms >= PROGRESS_MS:
            self._progress_ms = now_ms
            rate = self._scanned * 1000 // max(now_ms - self._started_ms, 1)
            total_bytes = max(self._total_bytes - self._skipped, self._scanned)
            left_ms = (total_bytes - self._scanned) * 1000 // rate if rate else None
            progress = {
                "bytes": self._scanned,
                "of": total_bytes,
                "bytes_per_second": rate,
                "left_ms": left_ms,
                "matches": self._matches,
            }
            self._emit({"progress": progress})
        if self._options.duration_ms_max and now_ms - self._started_ms > self._options.duration_ms_max and self._stopped is None:
            self._stopped = "duration"

    def _pace(self) -> None:
        """Wait so long that the mean rate of the search stays below its limit."""
        rate = self._options.bytes_per_second
        if rate:
            ahead_ms = self._scanned * 1000 // rate - (self._clock.monotonic_ms() - self._started_ms)
            for waited_ms in range(0, max(ahead_ms, 0), PROGRESS_MS):
                if self._stopped is not None:
                    return
                self._pause(min(PROGRESS_MS, ahead_ms - waited_ms))
                self._report()


def absent_fields(scans: Iterable[PartitionScan]) -> list[str]:
    """Return a note about each field of the query that none of the first records has."""
    looked_at = sum(scan.sampled_records for scan in scans)
    known = set().union(*(scan.sampled_fields for scan in scans))
    wanted = dict.fromkeys(name for scan in scans for name in scan.wanted_fields)
    there = ", ".join(sorted(known)[:FIELDS_SHOWN]) or "no JSON"
    return [f"none of the first {looked_at} records has a field {name}; they have {there}" for name in wanted if looked_at and name not in known]


def _time_text(timestamp_ms: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "(no time)"  # a producer may write any number


def _next_window(windows: Generator[Window, None, None]) -> Window | None:
    return next(windows, None)
