"""Whether one connection that pushes large produces through a full pipeline starves many small ones."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.benchmarks.paced import produce_at_a_pace
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import make_topic

PROGRAM = Path(__file__).parent.parent / "generators" / "pipelining_producer.py"
SMALL, LARGE = "small", "large"
MIB = 1 << 20
LEAD_SECONDS = 2.0
"""The pipeline runs for longer than the small ones at both ends."""
EXPECTED_BYTES_PER_SECOND = 400 * MIB
"""For the warm memory only."""


@dataclass(frozen=True)
class Fairness(Benchmark):
    name: ClassVar[str] = "fairness"
    title: ClassVar[str] = (
        "50 connections of small produces at a steady rate, alone and beside one with 64 MiB of produces of 1 MiB on their way to the same disk."
    )
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("p99 alone", "µs"),
        Figure("p99 beside", "µs"),
        Figure("p50 alone", "µs"),
        Figure("p50 beside", "µs"),
        Figure("longest beside", "µs"),
        Figure("large connection", "MB/s"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 2.0}

    seconds: float = 5.0
    connections: int = 50
    rate: float = 500.0
    window_mib: int = 64
    request_kib: int = 1000

    @property
    def written_bytes(self) -> int:
        return int((self.seconds + LEAD_SECONDS) * EXPECTED_BYTES_PER_SECOND)

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, SMALL, 1)
        make_topic(box, LARGE, len(box.disks))
        partition = same_disk(box, SMALL, LARGE)
        produce_at_a_pace(box, SMALL, self.connections, self.rate, 1.0)
        alone = produce_at_a_pace(box, SMALL, self.connections, self.rate, self.seconds)
        layout, frame_file = reply_layout(LARGE), box.directory / "large-frame"
        frame_file.write_bytes(build_produce_frame(LARGE, partition, self.request_kib * 1024))
        numbers = [self.window_mib * MIB, self.seconds + LEAD_SECONDS, layout.size_bytes, layout.error_at]
        arguments = [sys.executable, str(PROGRAM), box.kafka.host, str(box.kafka.port), *map(str, numbers), str(frame_file)]
        with LoadGenerator("pipelining producer", arguments) as large:
            large.await_ready()
            observer = Observer(box.pids())
            large.go()
            beside = produce_at_a_pace(box, SMALL, self.connections, self.rate, self.seconds)
            finished = large.finish(60.0)
        observation = observer.finish({"pipelining producer": finished.cpu_seconds, "paced producer": beside.cpu_seconds})
        document = json.loads(finished.output.splitlines()[-1])
        figures = {
            "p99 alone": alone.p99_us,
            "p99 beside": beside.p99_us,
            "p50 alone": alone.p50_us,
            "p50 beside": beside.p50_us,
            "longest beside": beside.max_us,
            "large connection": document["requests"] * self.request_kib * 1024 / document["seconds"] / 1e6,
        }
        note = f"{document['errors']} of {document['requests']} large requests were refused (retriable: the disk's budget)"
        return Run(figures, observation, [note])


def same_disk(box: RunningBox, small: str, large: str) -> int:
    """The partition of `large` that lies on the disk of the first partition of `small`: there they have a log-writer in common too."""
    disk = next(disk for disk in box.disks if (disk / f"{small}-0").exists())
    return min(int(entry.name.rpartition("-")[2]) for entry in disk.iterdir() if entry.name.rpartition("-")[0] == large)
