"""Appends and fetches where 0 to 50 GB are stored already: what lies in the logs must not cost those who write and read now.

A box of its own, which is stopped at each step and gets more closed segments planted (`generators/planted_logs.py`): holes with whole indexes, which no
client that appends, or fetches at the end, ever reads.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from appliance.base.model import TopicPartition
from appliance.storage import checkpoints
from lab.running_box import RunningBox, start_box
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.benchmarks.growing import CONNECTIONS, MEASURES, NO_RETENTION, Prober, figures_from, figures_of_growth
from loadtest.generators.compiler import find_compiler
from loadtest.generators.planted_logs import plant_sealed
from loadtest.growth_chart import draw_growth, steps_of
from loadtest.topics import make_topic

TOPIC = "bench"


@dataclass(frozen=True)
class GrowthStored(Benchmark):
    name: ClassVar[str] = "growth_stored"
    title: ClassVar[str] = f"Small produces, large produces and fetches at the end of {CONNECTIONS} partitions in which 0 to 50 GB are stored (planted)."
    figures: ClassVar[tuple[Figure, ...]] = figures_of_growth()
    short: ClassVar[dict[str, Any]] = {"gigabytes": "0 1", "seconds": 0.5, "repeats": 1}
    runs_to_record: ClassVar[int] = 1

    gigabytes: str = "0 10 20 30 40 50"
    seconds: float = 1.0
    repeats: int = 3
    segment_bytes: int = 100_000_000

    @property
    def written_bytes(self) -> int:
        return 6 * 10**9

    def missing(self) -> str | None:
        return None if find_compiler() else "there is no C compiler for generators/replay.c; install gcc"

    def run(self, box: RunningBox, say: Say) -> Run:
        steps = [float(word) for word in self.gigabytes.split()]
        partitions = [TopicPartition(TOPIC, number) for number in range(CONNECTIONS)]
        found: dict[float, dict[str, float]] = {}
        for step in steps:
            directory = Path(tempfile.mkdtemp(prefix="stored-", dir=box.directory))
            try:
                stored = self._prepared(directory / "box", partitions, step)
                say(f"{_stored_bytes(stored) / 1e9:.1f} GB are stored")
                try:
                    found[step], observation = Prober(stored, directory, self.seconds, self.repeats).probe(partitions)
                finally:
                    stored.stop()
            finally:
                shutil.rmtree(directory)
        return Run(figures_from(found), observation, [f"segments of {self.segment_bytes:,} bytes, which are holes; a fresh box at each step"])

    def _prepared(self, directory: Path, partitions: list[TopicPartition], gigabytes: float) -> RunningBox:
        """A box that starts with so much in its logs."""
        box = start_box(directory)
        make_topic(box, TOPIC, CONNECTIONS, NO_RETENTION)
        count = round(gigabytes * 1e9 / self.segment_bytes / len(partitions))
        if not count:
            return box
        box.stop()
        for disk in box.disks:
            points = checkpoints.read_offsets(str(disk / checkpoints.RECOVERY_POINTS))
            for name in partitions:
                if (disk / str(name)).exists():
                    points[name] = plant_sealed(disk / str(name), count, self.segment_bytes)
            checkpoints.write_offsets(str(disk / checkpoints.RECOVERY_POINTS), points)
        return start_box(directory)

    def picture(self, document: Mapping[str, Any]) -> str:
        return draw_growth(MEASURES, steps_of(document, MEASURES), "GB stored")


def _stored_bytes(box: RunningBox) -> int:
    return sum(file.stat().st_size for disk in box.disks for file in disk.glob(f"{TOPIC}-*/*.log"))
