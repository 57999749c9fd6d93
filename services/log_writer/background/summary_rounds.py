"""Have summaries made of sealed segments, for the searches of topics that are searched.

The duty cycle looks every `LOOK_NS` for partitions that rolled, or whose topic a search found
without summaries, and starts one process (`services/search/summarizer.py`) for some of them. It
reads and writes at the lowest priority; a summary is a hint, so no failure of it concerns the log.
If no topic is searched, no process is started. Weak: a partition whose run failed is taken up when
its next segment is sealed, or its topic searched again.
"""

from __future__ import annotations

from contextlib import suppress

import orjson

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.model import INTERNAL_TOPICS, Offset, TopicId
from appliance.base.settings import Box
from appliance.ipc.disk_reports import SEARCHED_MS, SearchedTopic, read_searched
from appliance.shm.counters import Counters
from services.log_writer.helper_processes import SummaryProcess
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

LOOK_NS = 5_000_000_000
PARTITIONS_MAX = 64
"""Of one process; the next look takes the others."""
NEVER_SEARCHED = SearchedTopic(0, False)
_State = tuple[Offset, SearchedTopic]


class SummaryRounds:
    """The summaries of one disk; at most one process runs."""

    def __init__(self, partitions: Replicas, clock: Clock, counters: Counters, box: Box, layout: BoxLayout, log: Logger) -> None:
        self._partitions = partitions
        self._clock = clock
        self._layout = layout
        self._log = log
        self._mode = box.text("search.summaries")
        self._share_percent = box.integer("search.summaries.data.percent")
        self._bytes_per_second = box.integer("search.disk.bytes.per.second")
        self._next_look_ns = clock.monotonic_ns()
        self._done: dict[tuple[TopicId, int], _State] = {}
        self._process: SummaryProcess | None = None
        self._made = counters.counter("summaries.made")
        self._failures = counters.counter("summaries.failures")
        self._read_bytes = counters.counter("summaries.read_bytes")
        self._written_bytes = counters.counter("summaries.written_bytes")

    def turn(self, disk: str) -> None:
        """Once a second. Raises nothing."""
        now_ns = self._clock.monotonic_ns()
        if self._process is not None:
            self._poll(self._process, disk)
        elif self._mode != "off" and now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_NS
            self._look(disk)

    def _look(self, disk: str) -> None:
        searched: dict[TopicId, SearchedTopic] = {}
        with suppress(OSError):
            searched = read_searched(self._layout, self._clock.wall_ms() - SEARCHED_MS)
        if not searched and self._mode != "all":
            return
        chosen: list[tuple[Replica, _State]] = []
        for replica in self._partitions.by_row.values():
            mark = searched.get(replica.topic_id, NEVER_SEARCHED if self._mode == "all" else None)
            bases = replica.log.segment_base_offsets
            if mark is None or replica.topic_partition.topic in INTERNAL_TOPICS or len(bases) < 2 or replica.is_moving or replica.log.failed is not None:
                continue
            state = bases[-1], mark
            if self._done.get(_key(replica)) != state:
                chosen.append((replica, state))
        if chosen:
            self._start(chosen[:PARTITIONS_MAX], disk)

    def _start(self, chosen: list[tuple[Replica, _State]], disk: str) -> None:
        partitions = [
            {
                "directory": replica.log.directory,
                "topic_id": replica.topic_id.hex(),
                "bases": replica.log.segment_base_offsets[:-1],
                "checks_pages": mark.checks_pages,
            }
            for replica, (_, mark) in chosen
        ]
        job = {"share_percent": self._share_percent, "bytes_per_second": self._bytes_per_second, "partitions": partitions}
        try:
            self._process = SummaryProcess(orjson.dumps(job), disk)
        except OSError as error:
            self._failures.add()
            self._log.warning(f"could not start making summaries: {(error.strerror or str(error)).lower()}; retrying", disk=disk)
            return
        here = {_key(replica) for replica in self._partitions.by_row.values()}
        self._done = {key: state for key, state in self._done.items() if key in here}
        self._done |= {_key(replica): state for replica, state in chosen}

    def _poll(self, process: SummaryProcess, disk: str) -> None:
        for report in map(orjson.loads, process.poll()):
            if problem := report.get("problem"):
                self._failures.add()
                self._log.warning(f"could not make the summary of a segment: {problem}; searches read it without", disk=disk)
                continue
            self._made.add(report["written_bytes"] > 0)
            self._read_bytes.add(report["read_bytes"])
            self._written_bytes.add(report["written_bytes"])
        if process.status is None:
            return
        if process.status:
            self._failures.add()
            self._log.warning(f"the summarizer ended with {process.status}; searches read the segments without a summary", disk=disk)
        process.close()
        self._process = None

    def close(self) -> None:
        """End a process that runs, without waiting for it."""
        if self._process is not None:
            self._process.kill()


def _key(replica: Replica) -> tuple[TopicId, int]:
    return replica.topic_id, replica.topic_partition.partition
