"""Small produce requests of which none is acknowledged before it was synced, on a disk whose syncs take 3 ms at least.

The box under load is a second one, started with `preloads/slow_sync.c` in LD_PRELOAD: the sync is real, and then waits until its time is over.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox, start_box
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.compiler import HERE, find_compiler
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.generators.replayer import Replayer
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

TOPIC = "bench"
WARM_UP_SECONDS = 1.0


@dataclass(frozen=True)
class FlushAck(Benchmark):
    name: ClassVar[str] = "flush_ack"
    title: ClassVar[str] = 'log.flush.policy = "ack": requests of 300 B with one record each over 50 connections with 5 in flight on each; a sync takes 3 ms.'
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("requests", "/s", at_least=5_000),
        Figure("latency p50", "ms"),
        Figure("latency p99", "ms"),
        Figure("flush rounds", "/s"),
        Figure("requests a round", ""),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3.0}

    seconds: float = 10.0
    sync_us: int = 3_000
    frame_bytes: int = 300
    connections: int = 50
    in_flight: int = 5
    partitions: int = 8

    def missing(self) -> str | None:
        return None if find_compiler() else "there is no C compiler for preloads/slow_sync.c; install gcc"

    def run(self, box: RunningBox, say: Say) -> Run:
        directory = Path(tempfile.mkdtemp(prefix="ack-", dir=box.directory))
        try:
            slow_box = self._start(directory)
            try:
                return self._measure(slow_box, directory, say)
            finally:
                slow_box.stop()
        finally:
            shutil.rmtree(directory)

    def _start(self, directory: Path) -> RunningBox:
        library = directory / "slow_sync.so"
        subprocess.run(
            [str(find_compiler()), "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(HERE.parent / "preloads" / "slow_sync.c"), "-ldl"], check=True
        )
        more = {"LD_PRELOAD": str(library), "SLOW_SYNC_US": str(self.sync_us)}
        os.environ.update(more)
        try:
            return start_box(directory / "box", settings={"log.flush.policy": "ack"})
        finally:
            for name in more:
                del os.environ[name]

    def _measure(self, box: RunningBox, directory: Path, say: Say) -> Run:
        make_topic(box, TOPIC, self.partitions)
        frames = [build_produce_frame(TOPIC, partition, self.frame_bytes, 1) for partition in range(self.partitions)]
        replayer = Replayer(directory)
        warm_up = replayer.run(box.kafka, frames, reply_layout(TOPIC), self.connections, self.in_flight, WARM_UP_SECONDS)
        before = self._rounds(box)
        say(f"the replayer ({replayer.language}) sends for {self.seconds:g} s")
        observer = Observer(box.pids())
        replayed = replayer.run(box.kafka, frames, reply_layout(TOPIC), self.connections, self.in_flight, self.seconds)
        observation = observer.finish({"replayer": replayed.cpu_seconds})
        rounds = self._rounds(box) - before
        stored, answered = count_records(box, TOPIC), warm_up.requests + replayed.requests
        if stored != answered:
            raise BenchmarkFailed(f"{answered:,} requests were acknowledged, the logs hold {stored:,} records")
        if rounds * self.sync_us / 1e6 > replayed.seconds * len(box.disks) * 1.05:
            raise BenchmarkFailed(f"{rounds} rounds in {replayed.seconds:.1f} s: the syncs were not slow")
        figures = {
            "requests": replayed.requests / replayed.seconds,
            "latency p50": replayed.p50_us / 1000,
            "latency p99": replayed.p99_us / 1000,
            "flush rounds": rounds / replayed.seconds,
            "requests a round": replayed.requests / max(1, rounds),
        }
        return Run(figures, observation, [f"{self.partitions} partitions on {len(box.disks)} disks; syncs wait until {self.sync_us} µs are over"])

    def _rounds(self, box: RunningBox) -> int:
        return sum(box.counters(f"log-writer@{disk.name}").values["flush.batch_rounds"] for disk in box.box.disks)
