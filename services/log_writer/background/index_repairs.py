"""Rebuild indexes that the scrubber found wrong, one segment at a time, in a thread.

`turn`, once a second, checks whether the scrubber's report has changed, starts the next rebuild,
and puts a finished one in place if its segment is still there. Each finding is tried once in an
incarnation. Weak spot: a rebuild reads its whole segment at the disk's speed, beside appends.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import OutOfThreads, StorageFailed
from appliance.base.logging import Logger
from appliance.base.model import Offset, TopicPartition
from appliance.ipc.disk_reports import read_report
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.log import Log
from appliance.storage.partition_directory import PinnedDirectory
from appliance.storage.recovery import discard, put_in_place, rebuild_beside
from services.log_writer.background.background_task import BackgroundTask
from services.log_writer.replicas.replicas_of_disk import Replicas

_Segment = tuple[TopicPartition, Offset]


class _Rebuild(NamedTuple):
    """A segment whose indexes are rebuilt, and its log: another log may have its name at the end."""

    segment: _Segment
    log: Log
    directory: PinnedDirectory


class IndexRepairs:
    """The rebuilds of one log directory; at most one is under way."""

    def __init__(self, report_path: str, partitions: Replicas, clock: Clock, counters: Counters, log: Logger) -> None:
        self._report_path = report_path
        self._partitions = partitions
        self._clock = clock
        self._log = log
        self._seen_ns = 0
        self._tried: set[tuple[_Segment, int]] = set()
        self._waiting: list[_Segment] = []
        self._replacements = 0
        self._under_way: _Rebuild | None = None
        self._problem: str | None = None
        self.task = BackgroundTask("index-rebuild", "read or write it")
        self._rebuilt = counters.counter("log_writer.indexes_rebuilt")

    def turn(self) -> None:
        """Read the report, finish a rebuild that is ready, start the next.

        Raises nothing: an index is a hint, and the log works without it.
        """
        if self.task.is_running:
            return
        if self.task.has_ended:
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
        replica = next((one for one in self._partitions.by_row.values() if one.topic_partition == segment[0]), None)
        if replica is None or segment[1] not in replica.log.segment_base_offsets[:-1]:
            return None
        return replica.log

    def _begin(self, segment: _Segment) -> None:
        log = self._hosting_log(segment)
        if log is None:
            return
        try:
            directory = PinnedDirectory(log.directory)
        except OSError as error:
            self._tell_failed(segment, str(file_io.storage_failure("open its directory", error)))
            return
        self._replacements = log.replacements
        interval_bytes = log.config.index_interval_bytes
        self._under_way = _Rebuild(segment, log, directory)
        self.task.start(lambda: rebuild_beside(directory.path, segment[1], interval_bytes, self._clock.wall_ms()), self._on_rebuilt)

    def _on_rebuilt(self, problem: str | None) -> None:
        self._problem = problem

    def _finish(self) -> None:
        rebuild, self._under_way = self._under_way, None
        if rebuild is None:
            return
        segment, log, directory = rebuild
        topic_partition, base_offset = segment
        try:
            self.task.finish()
            problem = self._problem
        except OutOfThreads:  # nothing was done
            directory.close()
            self._waiting.insert(0, segment)
            return
        except StorageFailed as failure:
            problem = str(failure)
        except Exception as failure:  # half an index must not be put in place
            problem = f"{type(failure).__name__}: {failure}"
        is_here = self._hosting_log(segment) is log
        try:
            if problem is None and is_here and log.replacements == self._replacements:  # not compacted meanwhile
                put_in_place(directory.path, base_offset)
                self._rebuilt.add()
                self._log.notice(f"indexes of segment {base_offset} of {topic_partition} were made anew", **topic_partition._asdict())
                return
            discard(directory.path, base_offset)
        except OSError as error:
            problem = str(file_io.storage_failure("put them in place", error))
        finally:
            directory.close()
        if problem is not None and is_here:
            self._tell_failed(segment, problem)

    def _tell_failed(self, segment: _Segment, problem: str) -> None:
        topic_partition, base_offset = segment
        self._log.warning(f"indexes of segment {base_offset} of {topic_partition} could not be made anew: {problem}", **topic_partition._asdict())

    def close(self) -> None:
        """Wait for a rebuild that is under way; what it wrote is swept at the next start."""
        if self.task.join(10) and self._under_way is not None:
            self._under_way.directory.close()
            self._under_way = None
