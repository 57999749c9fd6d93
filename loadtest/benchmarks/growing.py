"""What appends and fetches cost on a box that grows: the same small loads at each step, so that steps compare.

At each step, over ten connections with one request in flight on each: small produces, one partition after the other through all that there are; large
produces to ten of them; fetches of what these have just written. The median of several short loads counts. CPU time is that of acceptor and
log-writers (append) and of acceptor and log-readers (fetch), which noise of other processes hardly touches. Before each load everything is synced: else
the later steps would wait for the disk to take what the earlier ones wrote, and show its speed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from appliance.base.model import TopicPartition
from appliance.client.admin import list_offsets
from appliance.protocol.offset_apis import LATEST_TIMESTAMP
from lab.running_box import RunningBox
from loadtest.benchmark import Figure
from loadtest.generators.fetch_frame import build_fetch_frame, fetch_layout
from loadtest.generators.large_fetcher import LargeFetcher
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.generators.replayer import Replayer
from loadtest.observation import Observation, Observer
from loadtest.topics import cluster_of

CONNECTIONS = 10
SMALL_BYTES, LARGE_BYTES, FETCH_BYTES = 300, 128 << 10, 256 << 10
NO_RETENTION = {"retention.ms": "-1"}
"""Replayed records are of 2023."""


class Measure(NamedTuple):
    """One curve. `ratio_max`: how much worse the last step may be than the first."""

    name: str
    unit: str
    ratio_max: float
    more_is_better: bool = False

    def worsening(self, first: float, last: float) -> float:
        return first / last if self.more_is_better else last / first


MEASURES = (
    Measure("append CPU", "µs a request", 1.25),
    Measure("append p50", "µs", 1.25),
    Measure("append p99", "µs", 2.0),
    Measure("append", "MB/s", 1.25, True),
    Measure("fetch CPU", "µs a request", 1.25),
    Measure("fetch p50", "µs", 1.25),
    Measure("fetch p99", "µs", 2.0),
    Measure("fetch", "MB/s", 1.25, True),
)


def figures_of_growth() -> tuple[Figure, ...]:
    """The first and the last step of each curve, and how much worse that is."""
    return tuple(
        figure
        for measure in MEASURES
        for figure in (Figure(f"{measure.name} worse by", "", at_most=measure.ratio_max), Figure(f"{measure.name} first", measure.unit),
                       Figure(f"{measure.name} last", measure.unit))
    )  # fmt: skip


def figures_from(steps: Mapping[float, Mapping[str, float]]) -> dict[str, float]:
    """Values of `figures_of_growth`, and every step's as "measure @ step"."""
    first, last = next(iter(steps.values())), list(steps.values())[-1]
    figures = {f"{name} @ {step:g}": value for step, values in steps.items() for name, value in values.items()}
    for measure in MEASURES:
        figures[f"{measure.name} worse by"] = measure.worsening(first[measure.name], last[measure.name])
        figures[f"{measure.name} first"], figures[f"{measure.name} last"] = first[measure.name], last[measure.name]
    return figures


class Prober:
    """The loads of one step."""

    def __init__(self, box: RunningBox, directory: Path, seconds: float, repeats: int) -> None:
        self.replayer = Replayer(directory)
        self._box = box
        self._fetcher = LargeFetcher(directory)
        self._seconds = seconds
        self._repeats = repeats

    def probe(self, partitions: Sequence[TopicPartition]) -> tuple[dict[str, float], Observation]:
        """Values by the names of `MEASURES`, and how busy the machine was at the last fetches. Topics' names are equally long."""
        found = [self._probe_once(partitions) for _ in range(self._repeats)]
        return {measure.name: statistics.median(values[measure.name] for values, _ in found) for measure in MEASURES}, found[-1][1]

    def _probe_once(self, partitions: Sequence[TopicPartition]) -> tuple[dict[str, float], Observation]:
        os.sync()
        layout, pids = reply_layout(partitions[0].topic), self._box.pids()
        some = partitions[:: max(1, len(partitions) // CONNECTIONS)][:CONNECTIONS]
        small = [build_produce_frame(part.topic, part.partition, SMALL_BYTES) for part in partitions]
        observer = Observer(pids)
        appended = self.replayer.run(self._box.kafka, small, layout, CONNECTIONS, 1, self._seconds, CONNECTIONS)
        append_cpu = observer.finish().role("acceptor", "log-writer") / appended.requests * 1e6
        ends = self._ends(some)
        written = self.append_large(some, LARGE_BYTES, self._seconds)
        fetches = [build_fetch_frame(part.topic, part.partition, FETCH_BYTES, ends[part]) for part in some]
        observer = Observer(pids)
        fetched = self._fetcher.run(self._box.kafka, fetches, fetch_layout(some[0].topic), len(some), FETCH_BYTES, self._seconds)
        observation = observer.finish({"fetcher": fetched.cpu_seconds})
        values = (append_cpu, appended.p50_us, appended.p99_us, written, observation.role("acceptor", "log-reader") / fetched.replies * 1e6,
                  fetched.p50_us, fetched.p99_us, fetched.record_bytes / fetched.seconds / 1e6)  # fmt: skip
        return {measure.name: float(value) for measure, value in zip(MEASURES, values, strict=True)}, observation

    def append_large(self, partitions: Sequence[TopicPartition], frame_bytes: int, seconds: float) -> float:
        """MB/s."""
        frames = [build_produce_frame(part.topic, part.partition, frame_bytes) for part in partitions]
        written = self.replayer.run(self._box.kafka, frames, reply_layout(partitions[0].topic), CONNECTIONS, 1, seconds)
        return written.requests * frame_bytes / written.seconds / 1e6

    def _ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        with cluster_of(self._box) as cluster:
            for topic in {part.topic for part in partitions}:
                cluster.topic(topic)
            return {part: end.offset for part, end in list_offsets(cluster, list(partitions), LATEST_TIMESTAMP).items()}


def grow(prober: Prober, steps: Sequence[float], reach: Callable[[float], Sequence[TopicPartition]]) -> tuple[dict[float, dict[str, float]], Observation]:
    """`reach` makes the box as large as a step says; returns what it was probed with there."""
    found = {}
    for step in steps:
        found[step], observation = prober.probe(reach(step))
    return found, observation
