"""How long a log-writer is away: killed under load, after a power cut, after a clean stop.

A box of its own with one disk. Old data is planted (`generators/planted_logs.py`): nothing is ever read of it, or this fails. After the
power cut (no table of a former incarnation, no clean marker) 200 MB of real batches lie above the recovery points.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from appliance.base.model import TopicId, TopicPartition
from appliance.storage import checkpoints
from appliance.storage.directory_identity import CLEAN_SHUTDOWN_MARKER, read_topic_id
from lab.running_box import RunningBox, start_box
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.planted_logs import append, plant_sealed
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.generators.replayer import Replayer
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

TOPIC = "bench"
LOG_WRITER = "log-writer@d0"


@dataclass(frozen=True)
class RecoveryTime(Benchmark):
    name: ClassVar[str] = "recovery"
    title: ClassVar[str] = "Time until a log-writer serves again, from the start of its process (killed: from the kill)."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("killed under load", "s", at_most=1),
        Figure("after a power cut", "s", at_most=3),
        Figure("after a clean stop", "s", at_most=1),
        Figure("box ready after a power cut", "s"),
        Figure("box ready after a clean stop", "s"),
    )
    short: ClassVar[dict[str, Any]] = {"segments": 400, "unflushed_bytes": 40_000_000, "load_seconds": 3.0}

    segments: int = 2_000
    segment_bytes: int = 10_485_760
    unflushed_bytes: int = 200_000_000
    batch_bytes: int = 1_000
    partitions: int = 10
    busy_segment_bytes: int = 1_000_000_000
    load_seconds: float = 5.0

    def run(self, box: RunningBox, say: Say) -> Run:
        directory = Path(tempfile.mkdtemp(prefix="recovery-", dir=box.directory))
        observer = Observer(box.pids())
        try:
            figures, notes = self._measure(directory, say)
        finally:
            shutil.rmtree(directory)
        return Run(figures, observer.finish({}), notes)

    def _measure(self, directory: Path, say: Say) -> tuple[dict[str, float], list[str]]:
        busy = self._prepared(directory / "busy", 1, self.busy_segment_bytes, 1, say)
        try:
            killed = self._kill_under_load(busy, directory, say)
        finally:
            busy.stop()
        cut = self._prepared(directory / "cut", self.segments // self.partitions, self.segment_bytes, self.unflushed_bytes // self.partitions, say)
        notes = [words.split("opened ")[1] for words in cut.messages.splitlines() if "opened " in words and "unclean" in words]
        records, power_cut, cut_ready = count_records(cut, TOPIC), _start_seconds(cut), cut.ready_seconds
        cut.stop()
        clean = start_box(directory / "cut", disks=1)
        clean_stop, clean_ready, kept = _start_seconds(clean), clean.ready_seconds, count_records(clean, TOPIC)
        clean.stop()
        if kept != records:
            raise BenchmarkFailed(f"{records:,} records before the clean stop, {kept:,} after it")
        names = ("killed under load", "after a power cut", "after a clean stop", "box ready after a power cut", "box ready after a clean stop")
        return dict(zip(names, (killed, power_cut, clean_stop, cut_ready, clean_ready), strict=True)), notes

    def _prepared(self, directory: Path, sealed: int, segment_bytes: int, unflushed_bytes: int, say: Say) -> RunningBox:
        """A box that starts after a power cut on planted logs."""
        box = start_box(directory, disks=1)
        make_topic(box, TOPIC, self.partitions)
        disk = box.disks[0]
        box.stop()
        say(f"plants {self.partitions * sealed:,} segments of {segment_bytes:,} bytes, and {self.partitions * unflushed_bytes:,} bytes of batches")
        points = checkpoints.read_offsets(str(disk / checkpoints.RECOVERY_POINTS))
        ends = {}
        for partition in range(self.partitions):
            name = TopicPartition(TOPIC, partition)
            topic_id = read_topic_id(str(disk / str(name)))
            assert isinstance(topic_id, TopicId)
            # One above the active segment's base: a recovery point at it has the last closed segment looked at, too, and that is a hole.
            points[name] = plant_sealed(disk / str(name), sealed, segment_bytes) + 1
            ends[name] = append(disk / str(name), name, topic_id, segment_bytes, unflushed_bytes, self.batch_bytes)
        checkpoints.write_offsets(str(disk / checkpoints.RECOVERY_POINTS), points)
        (disk / CLEAN_SHUTDOWN_MARKER).unlink()
        started = start_box(directory, disks=1)
        kept, wanted = count_records(started, TOPIC), sum(ends.values())
        if kept != wanted:
            started.stop()
            raise BenchmarkFailed(f"recovery kept {kept:,} records of {wanted:,}")
        return started

    def _kill_under_load(self, box: RunningBox, directory: Path, say: Say) -> float:
        """The replayer stops at the first error reply, so its end is not looked at: the kill is under its load, and that is all it is for."""
        frames = [build_produce_frame(TOPIC, partition, 300, 1) for partition in range(self.partitions)]
        replayer = Replayer(directory)

        def load() -> None:
            try:
                replayer.run(box.kafka, frames, reply_layout(TOPIC), 20, 5, self.load_seconds)
            except BenchmarkFailed:
                pass

        before = count_records(box, TOPIC)
        thread = threading.Thread(target=load)
        thread.start()
        time.sleep(self.load_seconds / 2)
        if not thread.is_alive():
            raise BenchmarkFailed("the load ended before the kill")
        say("kills the log-writer")
        killed_at = time.monotonic()
        box.await_restart(LOG_WRITER, box.kill(LOG_WRITER))
        seconds = time.monotonic() - killed_at
        thread.join()
        if count_records(box, TOPIC) <= before:
            raise BenchmarkFailed("nothing was stored under load")
        return seconds


def _start_seconds(box: RunningBox) -> float:
    """From the start of the log-writer's process until it served, to a tenth of a second: its supervisor says so."""
    return float(re.findall(rf"{LOG_WRITER} serves after ([0-9.]+) s", box.messages)[-1])
