"""The scrubber of one disk: reads every closed segment now and then, slowly, and reports damage.

It runs in a thread of the log-reader, reads past the page cache and keeps to a rate. A pass starts when
the pause since the last one is over, and continues after a restart. Damage is confirmed by a second
read, and a segment that was replaced meanwhile is checked from its start: retention, compaction and
truncation change files at any time.

Findings go to a report on tmpfs (`ipc/disk_reports.py`), to counters and to the log. The log-writer
rebuilds a wrong index (`services/log_writer/background/index_repairs.py`). A damaged batch is fetched
from a box that has it intact (`services/replica_fetcher/replica_repairs.py`) and written in its place.
A segment with findings that was written to is checked again before the pass continues, and what is
intact now leaves the report.

A place where a reader found a damaged batch (a follower that received it, a load) is checked at once,
also in a segment that grows. If the disk has the batch intact, the page cache has not: it is dropped
there. Weak spots: after a reboot a pass starts with the first log; the rate is the same day and night.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from itertools import pairwise

from appliance.base.clock import Clock
from appliance.base.layout import Disk
from appliance.base.logging import Logger, Severity
from appliance.base.model import FIRST_OFFSET, Offset, TopicPartition
from appliance.ipc.disk_reports import FoundDamage, ScrubReport, read_report, write_report
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.partition_directory import parse_partition_name
from appliance.storage.scrub import CHECKSUM, INDEX, OFFSETS, REBUILDABLE, TIME_INDEX, UNREADABLE, Damage, SegmentScrub
from services.log_reader.damaged_places import DamagedPlaces, bases_in, inodes_of, unreadable

PUBLISH_MS = 10_000
IDLE_SECONDS = 1.0
REPAIRED_BYTES_PER_SECOND = 8 << 20
"""Where nothing else is scrubbed."""
LOOKS_MAX = 1_000
TIMES_ARE_LATE_MS = 10
"""A file's times are those of the kernel's last tick."""
_KINDS = (CHECKSUM, OFFSETS, UNREADABLE, INDEX, TIME_INDEX)


class Scrubber:
    """`step` it, or `maybe_start` its thread. `bytes_per_second` 0: check reported places only."""

    def __init__(self, disk: Disk, report_path: str, clock: Clock, counters: Counters, log: Logger, bytes_per_second: int, pause_ms: int) -> None:
        self._disk = disk
        self._report_path = report_path
        self._clock = clock
        self._log = log
        self._makes_passes = bytes_per_second > 0
        self._bytes_per_second = bytes_per_second or REPAIRED_BYTES_PER_SECOND
        self._pause_ms = pause_ms
        self._report = read_report(report_path)
        self._pass: Iterator[int] | None = None
        self._again: Iterator[int] | None = None
        """A segment that was repaired is being checked."""
        self._looked_ms = 0
        self._published_ms = 0
        self._places = DamagedPlaces(disk)
        self._looks: dict[tuple[TopicPartition, Offset], None] = {}
        """Places where a reader found damage. Two threads use it, with atomic operations only."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: BackgroundThread | None = None
        self._passes = counters.counter("scrub.passes")
        self._bytes = counters.counter("scrub.bytes")
        self._segments = counters.counter("scrub.segments")
        self._looked = counters.counter("scrub.looks")
        self._damages = {kind: counters.counter(f'scrub.damages{{kind="{kind}"}}') for kind in _KINDS}

    def maybe_start(self) -> None:
        """Start the thread if it does not run. Called regularly, because a start may fail."""
        if self._thread is None and not self._stop.is_set() and (self._makes_passes or self._looks):
            thread = BackgroundThread(self._run, "scrubber")
            try:
                thread.start()
            except ThreadRefused:  # it is counted and logged
                return
            self._thread = thread

    def look_at(self, topic_partition: TopicPartition, offset: Offset) -> None:
        """Queue a place where a reader found a damaged batch. For the log-reader's thread."""
        if len(self._looks) < LOOKS_MAX:
            self._looks[topic_partition, offset] = None
        self._wake.set()
        if not self._makes_passes:
            self.maybe_start()

    def close(self) -> None:
        """Ask the thread to end, and wait for up to half a second: on a hung disk it cannot end."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=0.5)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._wake.wait(self.step()):
                self._wake.clear()

    def step(self) -> float:
        """Read one piece; return how many seconds to wait before the next."""
        now_ms = self._clock.wall_ms()
        if self._looks:
            self._look(*self._looks.popitem()[0])
            return 0.0
        if self._again is not None or self._pass is None or abs(now_ms - self._looked_ms) >= IDLE_SECONDS * 1000:
            size_bytes = self._see_to_repaired(now_ms)
            if size_bytes is not None:
                self._bytes.add(size_bytes)
                return size_bytes / self._bytes_per_second
        if self._pass is None:
            if not self._makes_passes:
                return IDLE_SECONDS
            if self._report.ended_ms and 0 <= now_ms - self._report.ended_ms < self._pause_ms:
                return IDLE_SECONDS
            if not self._report.partition:
                self._report = self._report._replace(began_ms=now_ms, ended_ms=0, checked_bytes=0, damages=())
            self._pass = self._check_all()
        size_bytes = next(self._pass, None)
        if size_bytes is None:
            self._pass = None
            self._passes.add()
            self._report = self._report._replace(passes=self._report.passes + 1, ended_ms=now_ms, partition="", base_offset=FIRST_OFFSET)
            self._publish(now_ms)
            return IDLE_SECONDS
        self._bytes.add(size_bytes)
        self._report = self._report._replace(checked_bytes=self._report.checked_bytes + size_bytes)
        if now_ms - self._published_ms > PUBLISH_MS:
            self._publish(now_ms)
        return size_bytes / self._bytes_per_second

    def _check_all(self) -> Iterator[int]:
        """Check all closed segments of the disk from the report's position on; yield the bytes
        read.
        """
        begin = (self._report.partition, self._report.base_offset)
        for name in self._partition_names():
            topic_partition = parse_partition_name(name)
            if topic_partition is None or name < begin[0]:
                continue
            bases = bases_in(f"{self._disk.path}/{name}")
            for base_offset, end_offset in pairwise(bases):
                if (name, base_offset) >= begin:
                    self._report = self._report._replace(partition=name, base_offset=base_offset)
                    yield from self._check(topic_partition, base_offset, end_offset)
                    self._segments.add()

    def _check(self, topic_partition: TopicPartition, base_offset: Offset, end_offset: Offset) -> Iterator[int]:
        for damage in (yield from self._find(topic_partition, base_offset, end_offset)):
            self._tell(topic_partition, damage)

    def _find(self, topic_partition: TopicPartition, base_offset: Offset, end_offset: Offset) -> Generator[int, None, list[Damage]]:
        """Return the damage of one segment, none if the segment is gone; yield the bytes read."""
        directory = f"{self._disk.path}/{topic_partition}"
        found: list[Damage] | None = None
        while True:
            files = inodes_of(directory, base_offset)
            scrub = SegmentScrub(directory, base_offset, end_offset)
            try:
                yield from scrub
                damages = scrub.damages
            except FileNotFoundError:
                return []
            except OSError as error:
                damages = [unreadable(base_offset, error)]
            if not damages:
                return []
            bases = bases_in(f"{self._disk.path}/{topic_partition}")
            behind = bases[bases.index(base_offset) + 1 :] if base_offset in bases else []
            if not behind:
                return []  # no longer what it was
            if inodes_of(directory, base_offset) != files or behind[0] != end_offset:
                found, end_offset = None, behind[0]  # compaction put another one under the name: begin it anew
            elif found is None:
                found = damages
            else:
                return [damage for damage in damages if damage in found]

    def _tell(self, topic_partition: TopicPartition, damage: Damage) -> None:
        now_ms = self._clock.wall_ms()
        self._damages[damage.kind].add()
        found = _found(topic_partition, damage, now_ms)
        path = f"{self._disk.path}/{topic_partition}/{damage.file}"
        words = f"disk {self._disk.name}: damage in {topic_partition} at offset {damage.offset}, {path} at byte {damage.position}: {damage.words}"
        severity = Severity.WARNING if found.is_rebuildable else Severity.CRITICAL  # an index is made anew from its log
        self._log.log(severity, words, **topic_partition._asdict(), disk=self._disk.name, reason=damage.kind)
        self._report = self._report._replace(damages=(*self._report.damages, found))
        self._publish(now_ms)

    # -- reported places

    def _look(self, topic_partition: TopicPartition, offset: Offset) -> None:
        self._looked.add()
        look = self._places.look(topic_partition, offset)
        self._bytes.add(look.read_bytes)
        known = {(_segment(damage), damage.position) for damage in self._report.damages}
        for damage in look.damages:
            if ((topic_partition, damage.base_offset), damage.position) not in known:
                self._tell(topic_partition, damage)
        if look.is_sound:
            words = "the disk has it as it was written, so it is taken out of the page cache"
            text = f"disk {self._disk.name}: a reader found a damaged batch in {topic_partition} at offset {offset}; {words}"
            self._log.warning(text, **topic_partition._asdict(), disk=self._disk.name)

    # -- what was repaired

    def _see_to_repaired(self, now_ms: int) -> int | None:
        """Check one piece of a repaired segment; return its bytes, None if there is nothing to
        check.
        """
        if self._again is None:
            self._looked_ms = now_ms
            self._forget_rebuilt()
            segment = next((_segment(damage) for damage in self._report.damages if not damage.is_rebuildable and self._is_rewritten(damage)), None)
            if segment is None:
                return None
            self._again = self._check_again(*segment, now_ms)
        size_bytes = next(self._again, None)
        if size_bytes is None:
            self._again = None
        return size_bytes

    def _check_again(self, topic_partition: TopicPartition, base_offset: Offset, began_ms: int) -> Iterator[int]:
        """Check a segment again.

        Findings that remain are dated `began_ms`, so a later repair triggers another check.
        """
        bases = bases_in(f"{self._disk.path}/{topic_partition}")
        behind = bases[bases.index(base_offset) + 1 :] if base_offset in bases else []
        if base_offset in bases and not behind:
            self._check_places_again(topic_partition, base_offset)
            return
        damages = (yield from self._find(topic_partition, base_offset, behind[0])) if behind else []
        segment = (topic_partition, base_offset)
        known = {(damage.kind, damage.position) for damage in self._report.damages if _segment(damage) == segment}
        left = [damage for damage in self._report.damages if _segment(damage) != segment]
        left += [_found(topic_partition, damage, began_ms) for damage in damages if (damage.kind, damage.position) in known]
        self._report = self._report._replace(damages=tuple(left))
        self._publish(self._clock.wall_ms())
        for damage in damages:
            if (damage.kind, damage.position) not in known:
                self._tell(topic_partition, damage)

    def _check_places_again(self, topic_partition: TopicPartition, base_offset: Offset) -> None:
        """Check the findings of an active segment again.

        It is written to all the time, so findings that remain keep their date.
        """
        left = []
        for damage in self._report.damages:
            if _segment(damage) != (topic_partition, base_offset) or damage.is_rebuildable:
                left.append(damage)
            elif any((each.kind, each.position) == (damage.kind, damage.position) for each in self._places.look(topic_partition, damage.offset).damages):
                left.append(damage)
        if len(left) < len(self._report.damages):
            self._report = self._report._replace(damages=tuple(left))
            self._publish(self._clock.wall_ms())

    def _forget_rebuilt(self) -> None:
        """Remove indexes from the report that were rebuilt since."""
        left = tuple(damage for damage in self._report.damages if not (damage.is_rebuildable and self._is_rewritten(damage)))
        if left != self._report.damages:
            self._report = self._report._replace(damages=left)
            self._publish(self._clock.wall_ms())

    def _is_rewritten(self, damage: FoundDamage) -> bool:
        """Return whether the file was written to since the finding, or is gone."""
        try:
            modified_ms = file_io.stat(f"{self._disk.path}/{damage.topic}-{damage.partition}/{damage.file}").st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return not damage.is_rebuildable
        except OSError:
            return False
        if damage.is_rebuildable:
            return modified_ms >= damage.found_ms
        return damage.found_ms - TIMES_ARE_LATE_MS <= modified_ms <= self._clock.wall_ms()  # a time to come is of a clock that was wrong: it says nothing

    def _partition_names(self) -> list[str]:
        try:
            return sorted(file_io.listdir(self._disk.path))
        except OSError:
            return []  # the log-writer reports a directory that cannot be read

    def _publish(self, now_ms: int) -> None:
        self._published_ms = now_ms
        try:
            write_report(self._report_path, self._report)
        except OSError as error:
            self._log.warning(f"could not write {self._report_path}: {os.strerror(error.errno or 0).lower()}", disk=self._disk.name)

    @property
    def report(self) -> ScrubReport:
        """The progress and the findings of the current pass."""
        return self._report


def _segment(damage: FoundDamage) -> tuple[TopicPartition, Offset]:
    return TopicPartition(damage.topic, damage.partition), damage.base_offset


def _found(topic_partition: TopicPartition, damage: Damage, found_ms: int) -> FoundDamage:
    return FoundDamage(**topic_partition._asdict(), **damage._asdict(), found_ms=found_ms, is_rebuildable=damage.kind in REBUILDABLE)
