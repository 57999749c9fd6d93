"""Appends and fetches while 50 GB come to lie in the logs: what is stored must not cost those who write and read now."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from appliance.base.model import TopicPartition
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.benchmarks.growing import CONNECTIONS, MEASURES, NO_RETENTION, Prober, figures_from, figures_of_growth, grow
from loadtest.generators.compiler import find_compiler
from loadtest.growth_chart import draw_growth, steps_of
from loadtest.topics import make_topic
from tests.support.running_box import RunningBox

TOPIC = "bench"
FILL_FRAME_BYTES = 1_000_000
FILL_SECONDS = 2.0


@dataclass(frozen=True)
class GrowthStored(Benchmark):
    name: ClassVar[str] = "growth_stored"
    title: ClassVar[str] = f"Small produces, large produces and fetches at the end of {CONNECTIONS} partitions while 0 to 50 GB are stored in them."
    figures: ClassVar[tuple[Figure, ...]] = figures_of_growth()
    short: ClassVar[dict[str, Any]] = {"gigabytes": "0 1", "seconds": 0.5, "repeats": 1}
    runs_to_record: ClassVar[int] = 1

    gigabytes: str = "0 10 20 30 40 50"
    seconds: float = 1.5
    repeats: int = 3

    @property
    def written_bytes(self) -> int:
        return 8 * 10**9

    def missing(self) -> str | None:
        return None if find_compiler() else "there is no C compiler for generators/replay.c; install gcc"

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, CONNECTIONS, NO_RETENTION)
        partitions = [TopicPartition(TOPIC, number) for number in range(CONNECTIONS)]
        prober = Prober(box, box.directory, self.seconds, self.repeats)

        def reach(gigabytes: float) -> Sequence[TopicPartition]:
            while _stored_bytes(box) < gigabytes * 1e9:
                prober.append_large(partitions, FILL_FRAME_BYTES, FILL_SECONDS)
            os.sync()  # what is written back later would be work beside the next step's
            say(f"{_stored_bytes(box) / 1e9:.1f} GB are stored")
            return partitions

        steps = [float(word) for word in self.gigabytes.split()]
        found, observation = grow(prober, steps, reach)
        return Run(figures_from(found), observation, [f"at the end {_stored_bytes(box) / 1e9:.1f} GB in {CONNECTIONS} partitions"])

    def picture(self, document: Mapping[str, Any]) -> str:
        return draw_growth(MEASURES, steps_of(document, MEASURES), "GB stored")


def _stored_bytes(box: RunningBox) -> int:
    return sum(file.stat().st_size for disk in box.disks for file in disk.glob(f"{TOPIC}-*/*.log"))
