"""Appends and fetches while a box gets 2,000 partitions: those that are idle, and those that share the load, must not cost.

Loads are short, as nothing is deleted between the steps: all that they write must fit into memory that was touched before. On a virtual machine a page
that is used for the first time costs three times a write, which the later steps alone would pay (seen with ten partitions and no others, too).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from appliance.base.model import TopicPartition
from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.benchmarks.growing import MEASURES, NO_RETENTION, Prober, figures_from, figures_of_growth, grow
from loadtest.generators.compiler import find_compiler
from loadtest.growth_chart import draw_growth, steps_of
from loadtest.topics import make_topic


@dataclass(frozen=True)
class GrowthPartitions(Benchmark):
    name: ClassVar[str] = "growth_partitions"
    title: ClassVar[str] = "Small produces to 10 to 2,000 partitions in turn, large produces to and fetches from ten of them."
    figures: ClassVar[tuple[Figure, ...]] = figures_of_growth()
    short: ClassVar[dict[str, Any]] = {"partitions": "10 50", "seconds": 0.5, "repeats": 1}
    runs_to_record: ClassVar[int] = 1

    partitions: str = "10 100 500 1000 2000"
    seconds: float = 0.4
    repeats: int = 3

    @property
    def written_bytes(self) -> int:
        return 8 * 10**9

    def missing(self) -> str | None:
        return None if find_compiler() else "there is no C compiler for generators/replay.c; install gcc"

    def run(self, box: RunningBox, say: Say) -> Run:
        prober = Prober(box, box.directory, self.seconds, self.repeats)
        partitions: list[TopicPartition] = []

        def reach(count: float) -> Sequence[TopicPartition]:
            topic, more = f"grows{len(partitions):05}", int(count) - len(partitions)
            make_topic(box, topic, more, NO_RETENTION)
            partitions.extend(TopicPartition(topic, number) for number in range(more))
            say(f"{len(partitions):,} partitions")
            return partitions

        steps = [float(word) for word in self.partitions.split()]
        found, observation = grow(prober, steps, reach)
        return Run(figures_from(found), observation, [f"each small produce goes to the next of all {len(partitions):,} partitions"])

    def picture(self, document: Mapping[str, Any]) -> str:
        return draw_growth(MEASURES, steps_of(document, MEASURES), "partitions")
