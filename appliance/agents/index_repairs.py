"""Repairs of one disk's indexes: what the scrubber found to lead astray, the log-writer makes anew from the log, one segment at a time, in a thread.

Owned by the log-writer. `turn`, once a second, looks whether the report has changed, starts the next rebuild, and puts a finished one in place if its
segment is still there. Each finding is tried once in a life. Weak spot: a rebuild reads its whole segment at the disk's speed, beside appends.
"""

from __future__ import annotations

import os
import threading

from appliance.agents.hosted_partitions import HostedPartitions
from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.base.model import TopicPartition
from appliance.ipc.scrub_report import read_report
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.index_rebuild import discard, put_in_place, rebuild_beside
from appliance.storage.log import Log

_Segment = tuple[TopicPartition, int]


class IndexRepairs:
    """The rebuilds of one log directory; at most one is under way."""

    def __init__(self, report_path: str, partitions: HostedPartitions, clock: Clock, counters: Counters, log: Logger) -> None:
        self._report_path = report_path
        self._partitions = partitions
        self._clock = clock
        self._log = log
        self._seen_ns = 0
        self._tried: set[tuple[_Segment, int]] = set()
        self._waiting: list[_Segment] = []
        self._replacements = 0
        self._under_way: _Segment | None = None
        self._thread: threading.Thread | None = None
        self._problem: str | None = None
        self._rebuilt = counters.counter("log_writer.indexes_rebuilt")

    def turn(self) -> None:
        """Look at the report, finish what is ready, begin what is next. Raises nothing: an index is a hint, the log lives without it."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            self._finish()
        self._look_at_report()
        if self._waiting:
            self._begin(self._waiting.pop(0))

    def _look_at_report(self) -> None:
        try:
            changed_ns = os.stat(self._report_path).st_mtime_ns
        except OSError:
            return
        if changed_ns == self._seen_ns:
            return
        self._seen_ns = changed_ns
        for damage in read_report(self._report_path).damages:
            segment = (TopicPartition(damage.topic, damage.partition), damage.base_offset)
            finding = (segment, damage.found_ms)
            if damage.is_rebuildable and finding not in self._tried:
                self._tried.add(finding)
                if segment not in self._waiting:
                    self._waiting.append(segment)

    def _hosting_log(self, segment: _Segment) -> Log | None:
        """The log that has this segment closed; None if it is gone, or appended to again."""
        hosted = next((one for one in self._partitions.by_row.values() if one.topic_partition == segment[0]), None)
        if hosted is None or segment[1] not in hosted.log.segment_base_offsets[:-1]:
            return None
        return hosted.log

    def _begin(self, segment: _Segment) -> None:
        log = self._hosting_log(segment)
        if log is None:
            return
        self._under_way = segment
        self._replacements = log.replacements
        directory, interval_bytes = log.directory, log.config.index_interval_bytes

        def work() -> None:
            try:
                self._problem = rebuild_beside(directory, segment[1], interval_bytes, self._clock.wall_ms())
            except OSError as error:
                self._problem = str(file_io.storage_failure("read or write it", error))

        self._thread = threading.Thread(target=work, name="index-rebuild", daemon=True)
        self._thread.start()

    def _finish(self) -> None:
        segment, self._under_way = self._under_way, None
        problem, self._problem = self._problem, None
        if segment is None:
            return
        topic_partition, base_offset = segment
        log = self._hosting_log(segment)
        try:
            if problem is None and log is not None and log.replacements == self._replacements:  # not compacted meanwhile
                put_in_place(log.directory, base_offset)
                self._rebuilt.add()
                self._log.notice(f"indexes of segment {base_offset} of {topic_partition} were made anew", **topic_partition._asdict())
                return
            if log is not None:
                discard(log.directory, base_offset)
        except OSError as error:
            problem = str(file_io.storage_failure("put them in place", error))
        if problem is not None:
            self._log.warning(f"indexes of segment {base_offset} of {topic_partition} could not be made anew: {problem}", **topic_partition._asdict())

    def close(self) -> None:
        """Wait for a rebuild that is under way; what it wrote is swept at the next start."""
        if self._thread is not None:
            self._thread.join(timeout=10)
