"""The small produces of `replay_small` over few and many connections: what a request costs then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.compiler import missing_for_c
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.generators.replayer import Replayer
from loadtest.observation import Observation, Observer
from loadtest.topics import count_records, make_topic

TOPIC = "bench"
COUNTS = (1, 10, 100, 1000)
WARM_UP_SECONDS = 0.5
EXPECTED_REQUESTS_PER_SECOND = 60_000
"""For the warm memory only."""


@dataclass(frozen=True)
class Connections(Benchmark):
    name: ClassVar[str] = "connections"
    title: ClassVar[str] = "The produces of replay_small over 1, 10, 100 and 1,000 connections, one after the other on the same box, 5 in flight on each."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("requests at 1", "/s"),
        Figure("requests at 10", "/s", at_least=40_000),
        Figure("requests at 100", "/s", at_least=40_000),
        Figure("requests at 1,000", "/s", at_least=40_000),
        *(Figure(f"acceptor CPU at {count:,}", "µs a request") for count in COUNTS),
        *(Figure(f"log-writers CPU at {count:,}", "µs a request") for count in COUNTS),
        *(Figure(f"p99 at {count:,}", "µs") for count in COUNTS),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 1.0}

    seconds: float = 4.0
    frame_bytes: int = 300
    in_flight: int = 5
    partitions: int = 4

    @property
    def written_bytes(self) -> int:
        return int(len(COUNTS) * (WARM_UP_SECONDS + self.seconds) * EXPECTED_REQUESTS_PER_SECOND * self.frame_bytes)

    def missing(self) -> str | None:
        return missing_for_c()

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, self.partitions)
        frames = [build_produce_frame(TOPIC, partition, self.frame_bytes) for partition in range(self.partitions)]
        reply, replayer = reply_layout(TOPIC), Replayer(box.directory)
        figures: dict[str, float] = {}
        observations: dict[int, Observation] = {}
        answered = 0
        for count in COUNTS:
            warm_up = replayer.run(box.kafka, frames, reply, count, self.in_flight, WARM_UP_SECONDS)
            observer = Observer(box.pids(), f"{count} connections")
            replayed = replayer.run(box.kafka, frames, reply, count, self.in_flight, self.seconds)
            observations[count] = observation = observer.finish({"replayer": replayed.cpu_seconds})
            say(f"{count:,} connections: {replayed.requests / replayed.seconds:,.0f} requests/s; {observation.what_limits()}")
            answered += warm_up.requests + replayed.requests
            figures |= {
                f"requests at {count:,}": replayed.requests / replayed.seconds,
                f"acceptor CPU at {count:,}": observation.role("acceptor") * 1e6 / replayed.requests,
                f"log-writers CPU at {count:,}": observation.role("log-writer") * 1e6 / replayed.requests,
                f"p99 at {count:,}": replayed.p99_us,
            }
        stored = count_records(box, TOPIC)
        if stored != answered:
            raise BenchmarkFailed(f"{answered:,} requests were acknowledged, the logs hold {stored:,} records")
        notes = [f"at {count:,}: {observation.what_limits()}" for count, observation in observations.items()]
        return Run(figures, observations[COUNTS[-1]], [*notes, "CPU seconds and limit above are those with 1,000 connections"])
