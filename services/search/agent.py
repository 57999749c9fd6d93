"""The search process: answers the request on its socket, and ends.

The console starts it for a search and owns the other end. A request is one line of JSON, the answer
lines of JSON: `search` (what will be read) or `error` first, then `record`, `count` and `progress`,
then `end`, or `error`. The console cancels by killing the process. It has no shared memory of its own; CPU and
disk priority are the lowest that the machine grants. Weak: memory is limited as a whole
(RLIMIT_DATA): a batch that does not fit is left out and named, and a query that exceeds it fails.
"""

from __future__ import annotations

import resource
import socket
import threading
import traceback
from contextlib import closing, suppress
from typing import Any, NamedTuple

import orjson

from appliance.base.clock import SystemClock
from appliance.base.errors import MillraceError
from appliance.base.layout import BoxLayout
from appliance.base.model import INTERNAL_TOPICS, Offset
from appliance.base.settings import Box, load_box
from appliance.cluster.metadata_image import MetadataImage, TopicImage, read_image
from appliance.ipc.disk_reports import mark_searched
from appliance.pipeline.local_rows import LocalRow, find_row_in_box
from appliance.senders.record_query import QueryProblem
from appliance.shm.disk_tables import attach_table
from appliance.shm.mapping import is_held
from appliance.shm.partition_table import DISK_OFFLINE, DISK_STARTING
from appliance.storage import file_io
from appliance.storage.reading import LogReading
from appliance.storage.segment_files import LOG_SUFFIX, segment_path
from services.search.context import CONTEXT_MAX, ContextReader
from services.search.partition_scan import PartitionScan, Wanted
from services.search.search_run import NEWEST, NOTES_MAX, OLDEST, SearchOptions, SearchRun, SearchTotals

REQUEST_BYTES_MAX = 64 << 10
FOLLOW_SECONDS = 0.5
FOLLOW_HOLD_MS = 0
LATEST_MS = 1 << 62
LIMIT_MAX = 1_000_000
BY_MAX = 4
WAITING_SHARE = 8
"""Matches that wait for their order take at most this part of the memory."""


class SearchRefused(MillraceError):
    """The request cannot be carried out. `status`: that of HTTP."""

    def __init__(self, status: int, reason: str, column: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.column = column


class SearchRequest(NamedTuple):
    """A request of the console. Times in ms; `partitions` empty: all."""

    query: str
    topic: str
    since_ms: int = 0
    until_ms: int = LATEST_MS
    limit: int = 0
    order: str = OLDEST
    is_count: bool = False
    by: tuple[str, ...] = ()
    follow: bool = False
    partitions: tuple[int, ...] = ()
    before: int = 0
    after: int = 0

    @classmethod
    def decode(cls, line: bytes) -> SearchRequest:
        """Raises `SearchRefused`."""
        try:
            request = cls(**orjson.loads(line))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise SearchRefused(400, f"not a search request: {error}") from error
        if request.order not in (OLDEST, NEWEST):
            raise SearchRefused(400, f"order is {request.order!r}; it must be {OLDEST} or {NEWEST}")
        if not 0 <= request.limit <= LIMIT_MAX or (request.order == NEWEST and not request.limit):
            raise SearchRefused(400, f"limit is {request.limit}; allowed is 1 to {LIMIT_MAX}, or 0 for all of the oldest")
        if len(request.by) > BY_MAX:
            raise SearchRefused(400, f"by has {len(request.by)} parts; at most {BY_MAX} are possible")
        if request.follow and (request.order == NEWEST or request.is_count or request.by):
            raise SearchRefused(400, "follow goes with neither counts nor the newest records")
        if not (0 <= request.before <= CONTEXT_MAX and 0 <= request.after <= CONTEXT_MAX):
            raise SearchRefused(400, f"before is {request.before} and after {request.after}; allowed is 0 to {CONTEXT_MAX}")
        if (request.before or request.after) and (request.follow or request.is_count or request.by):
            raise SearchRefused(400, "records before and after go with neither counts nor follow")
        return request._replace(by=tuple(request.by), partitions=tuple(dict.fromkeys(request.partitions)))


class SearchAgent:
    """Serves its end of a socket."""

    def __init__(self, layout: BoxLayout, channel: socket.socket) -> None:
        self._layout = layout
        self._channel = channel
        self._clock = SystemClock()
        self._never = threading.Event()

    def serve(self) -> None:
        """Read one line and answer it. Raises OSError if the other end is gone."""
        received = b""
        while not received.endswith(b"\n") and len(received) < REQUEST_BYTES_MAX:
            more = self._channel.recv(REQUEST_BYTES_MAX)
            if not more:
                return
            received += more
        self._answer(received)

    def _emit(self, document: dict[str, Any]) -> None:
        self._channel.sendall(orjson.dumps(document) + b"\n")

    def _answer(self, line: bytes) -> None:
        try:
            self._search(SearchRequest.decode(line))
        except SearchRefused as refused:
            self._emit({"error": {"status": refused.status, "message": str(refused), "column": refused.column}})
        except MemoryError:
            self._emit(
                {
                    "error": {
                        "status": 507,
                        "message": "the search needs more memory than search.memory.bytes; narrow it by time, partition, limit or context",
                    }
                }
            )
        except MillraceError as error:
            self._emit({"error": {"status": 500, "message": str(error)}})
        except ConnectionError:
            raise  # the console has closed its end
        except Exception as error:
            traceback.print_exc()
            self._emit({"error": {"status": 500, "message": f"the search failed: {type(error).__name__}: {error}; the journal of the console has more"}})

    def _search(self, request: SearchRequest) -> None:
        box = load_box(self._layout)
        try:
            wanted = Wanted.of(request.query, request.since_ms, request.until_ms)
            if box.text("search.summaries") == "off":
                wanted = wanted._replace(segments=None)
        except QueryProblem as problem:
            raise SearchRefused(400, str(problem), problem.column) from problem
        image = read_image(self._layout.image_file) or MetadataImage.empty()
        if request.topic in INTERNAL_TOPICS:
            raise SearchRefused(403, f"topic {request.topic} is internal; it is not searched")
        topic = image.topics.get(request.topic)
        if topic is None:
            raise SearchRefused(404, f"there is no topic {request.topic}")
        if unknown := [each for each in request.partitions if not 0 <= each < len(topic.partitions)]:
            raise SearchRefused(404, f"topic {request.topic} has no partition {unknown[0]}; it has {len(topic.partitions)}, counted from 0")
        options = SearchOptions(
            request.limit, request.order, request.is_count, request.by, box.integer("search.threads"),
            box.integer("search.disk.bytes.per.second"), 0 if request.follow else box.integer("search.duration.max.ms"),
            waiting_bytes_max=box.integer("search.memory.bytes") // WAITING_SHARE,
        )  # fmt: skip
        chosen = request.partitions or tuple(range(len(topic.partitions)))
        places = Places(self._layout, box, topic)
        if request.before or request.after:
            options = options._replace(context=ContextReader(places.find, topic.name, wanted, request.before, request.after))
        self._carry_out(places, chosen, wanted, options, request.follow)

    def _carry_out(self, places: Places, chosen: tuple[int, ...], wanted: Wanted, options: SearchOptions, follow: bool) -> None:
        scans, absent = places.scans(chosen, wanted)
        total_bytes = sum(map(_bytes_to_read, scans))
        searched = [scan.partition for scan in scans]
        self._emit({"search": {"topic": places.topic.name, "partitions": searched, "not_searched": absent, "bytes": total_bytes}})
        run = SearchRun(scans, options, self._emit, self._clock, self._pause, total_bytes)
        totals = run.run()
        if wanted.segments is not None:
            with suppress(OSError):
                lacks, broken = any(scan.lacks_summaries for scan in scans), any(scan.has_broken_summaries for scan in scans)
                mark_searched(self._layout, places.topic.topic_id, self._clock.wall_ms(), lacks, broken)
        while follow and totals.stopped is None:
            self._never.wait(FOLLOW_SECONDS)
            self._emit({"progress": {"bytes": totals.scanned_bytes, "matches": totals.matches}})
            offsets = run.next_offsets
            scans, absent = places.scans(chosen, wanted, offsets)
            left = options.limit - totals.matches if options.limit else 0
            run = SearchRun(scans, options._replace(limit=left, hold_ms=FOLLOW_HOLD_MS), self._emit, self._clock, self._pause)
            run.next_offsets = offsets | run.next_offsets
            before, totals = totals, run.run()
            totals = totals.after(before)
        self._emit({"end": _end(totals, absent, run)})

    def _pause(self, milliseconds: int) -> None:
        self._never.wait(milliseconds / 1_000)


def _end(totals: SearchTotals, absent: list[dict[str, Any]], run: SearchRun) -> dict[str, Any]:
    failed = [{"partition": partition, "reason": reason} for partition, reason in sorted(run.failed.items())]
    notes = run.notes[:NOTES_MAX]
    if len(run.notes) > NOTES_MAX:
        notes.append(f"{len(run.notes) - NOTES_MAX} more of this kind")
    return totals._asdict() | {"not_searched": absent + failed, "notes": notes}


class Places:
    """Finds the partitions of a topic on the disks of this box."""

    def __init__(self, layout: BoxLayout, box: Box, topic: TopicImage) -> None:
        self._layout = layout
        self._box = box
        self.topic = topic

    def scans(self, chosen: tuple[int, ...], wanted: Wanted, starts: dict[int, int] | None = None) -> tuple[list[PartitionScan], list[dict[str, Any]]]:
        """Return scans, and the partitions that cannot be searched here. `starts`: offsets to go on
        at, instead of the time range's beginning."""
        scans: list[PartitionScan] = []
        absent: list[dict[str, Any]] = []
        for partition in chosen:
            try:
                found = self.find(partition)
                if isinstance(found, str):
                    absent.append({"partition": partition, "reason": found})
                    continue
                scans.append(PartitionScan(found, self.topic.name, partition, wanted, start_offset=(starts or {}).get(partition)))
            except (MillraceError, OSError) as error:
                absent.append({"partition": partition, "reason": str(error)})
        return scans, absent

    def find(self, partition: int) -> LocalRow | str:
        """Return a partition, or why it cannot be searched here. The caller closes its table."""
        image = self.topic.partitions[partition]
        if self._box.broker_id not in image.replicas:
            return f"it is on {', '.join(f'box {each}' for each in image.replicas)}; search there"
        found = find_row_in_box(self._layout, self._box, self.topic.name, self.topic.topic_id, partition)
        return found if isinstance(found, LocalRow) or image.disk is None else self._why_not_served(image.disk)

    def _why_not_served(self, name: str) -> str:
        """Return words about the disk that holds a partition."""
        disk = next((each for each in self._box.disks if each.name == name), None)
        if disk is None:
            return f"it lies on disk {name}, which this box does not have any more"
        try:
            table = attach_table(self._layout, name)
        except (MillraceError, OSError):
            table = None
        state, is_served = -1, False
        if table is not None:
            with closing(table):
                state, is_served = table.disk_state, is_held(table.shared.name) and not table.is_suspect
        if state == DISK_OFFLINE or not is_served:
            words = "is offline" if state == DISK_OFFLINE else "has no log-writer at the moment"
        else:
            words = "is being read by its log-writer" if state == DISK_STARTING else "does not serve it at the moment"
        return f"disk {name} ({disk.path}), on which it lies, {words}; look at `millrace disk list`"


def _bytes_to_read(scan: PartitionScan) -> int:
    """Return about how many bytes of segments a scan reads."""
    if not scan.range.size:
        return 0
    with suppress(MillraceError, OSError):
        reading = LogReading(scan.directory)
        bases = reading.segments()
        behind = [base for base in bases if base > scan.range.start]
        sizes = [file_io.stat(segment_path(scan.directory, base, LOG_SUFFIX)).st_size for base in behind]
        located = reading.locate(Offset(scan.range.start), Offset(scan.range.end))
        return sum(sizes) + located.segment_size_bytes - located.position
    return 0


def limit_memory(memory_bytes: int) -> None:
    """Limit the memory of this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def run_search(layout: BoxLayout, channel: socket.socket) -> None:
    """Serve the one request of this process."""
    limit_memory(load_box(layout).integer("search.memory.bytes"))
    with suppress(ConnectionError), channel:  # the console has closed its end
        SearchAgent(layout, channel).serve()
