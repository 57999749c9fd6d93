"""How long one small produce takes on a quiet broker: a client with one connection, one request at a time, at a steady rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.paced import FRAME_BYTES, produce_at_a_pace
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

TOPIC = "quiet"
WARM_UP_SECONDS = 2.0


@dataclass(frozen=True)
class Latency(Benchmark):
    name: ClassVar[str] = "latency"
    title: ClassVar[str] = f"100 produces a second of {FRAME_BYTES} B with a batch each, acks=1, one connection; from the moment a request is due to its reply."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("p50", "ms", at_most=1),
        Figure("p99", "ms", at_most=10),
        Figure("longest", "ms"),
        Figure("acceptor CPU", "µs a request"),
        Figure("log-writers CPU", "µs a request"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3.0}

    seconds: float = 15.0
    rate: float = 100.0

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, 1)
        warm_up = produce_at_a_pace(box, TOPIC, 1, self.rate, WARM_UP_SECONDS)
        say(f"one client produces {self.rate:g} times a second for {self.seconds:g} s")
        observer = Observer(box.pids())
        paced = produce_at_a_pace(box, TOPIC, 1, self.rate, self.seconds)
        observation = observer.finish({"paced producer": paced.cpu_seconds})
        stored, answered = count_records(box, TOPIC), warm_up.requests + paced.requests
        if stored != answered:
            raise BenchmarkFailed(f"{answered:,} requests were acknowledged, the log holds {stored:,} records")
        figures = {
            "p50": paced.p50_us / 1000,
            "p99": paced.p99_us / 1000,
            "longest": paced.max_us / 1000,
            "acceptor CPU": observation.role("acceptor") * 1e6 / paced.requests,
            "log-writers CPU": observation.role("log-writer") * 1e6 / paced.requests,
        }
        return Run(figures, observation, [f"{paced.requests:,} requests; CPU per request has what an idle box uses in it"])
