"""Small produce requests replayed without a client library: what one request costs the broker, and how many it can take."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.produce_frame import API_VERSION, build_produce_frame, reply_layout
from loadtest.generators.replayer import Replayer
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

TOPIC = "bench"
WARM_UP_SECONDS = 1.0
EXPECTED_REQUESTS_PER_SECOND = 60_000
"""For the warm memory only."""


@dataclass(frozen=True)
class ReplaySmall(Benchmark):
    name: ClassVar[str] = "replay_small"
    title: ClassVar[str] = f"Produce v{API_VERSION} requests of 300 B with one record each, acks=1, replayed over 50 connections with 5 in flight on each."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("requests", "/s", at_least=40_000),
        Figure("broker CPU", "µs a request", at_most=25),
        Figure("acceptor CPU", "µs a request"),
        Figure("log-writers CPU", "µs a request"),
        Figure("generator CPU", "µs a request"),
        Figure("latency p50", "µs"),
        Figure("latency p99", "µs"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 3.0}

    seconds: float = 10.0
    frame_bytes: int = 300
    connections: int = 50
    in_flight: int = 5
    partitions: int = 4
    acks: int = 1
    generator: str = "C"

    @property
    def written_bytes(self) -> int:
        return int((WARM_UP_SECONDS + self.seconds) * EXPECTED_REQUESTS_PER_SECOND * self.frame_bytes)

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, self.partitions)
        frames = [build_produce_frame(TOPIC, partition, self.frame_bytes, self.acks) for partition in range(self.partitions)]
        reply = reply_layout(TOPIC)
        directory = Path(tempfile.mkdtemp(prefix="replay-", dir=box.directory))
        try:
            replayer = Replayer(directory, want_c=self.generator == "C")
            warm_up = replayer.run(box.kafka, frames, reply, self.connections, self.in_flight, WARM_UP_SECONDS)
            say(f"the replayer ({replayer.language}) sends for {self.seconds:g} s")
            observer = Observer(box.pids())
            replayed = replayer.run(box.kafka, frames, reply, self.connections, self.in_flight, self.seconds)
            observation = observer.finish({"replayer": replayed.cpu_seconds})
        finally:
            shutil.rmtree(directory)
        stored, answered = count_records(box, TOPIC), warm_up.requests + replayed.requests
        if stored != answered:
            raise BenchmarkFailed(f"{answered:,} requests were acknowledged, the logs hold {stored:,} records")
        per_request = 1e6 / replayed.requests
        acceptor, log_writers = observation.role("acceptor") * per_request, observation.role("log-writer") * per_request
        figures = {
            "requests": replayed.requests / replayed.seconds,
            "broker CPU": acceptor + log_writers,
            "acceptor CPU": acceptor,
            "log-writers CPU": log_writers,
            "generator CPU": replayed.cpu_seconds * per_request,
            "latency p50": replayed.p50_us,
            "latency p99": replayed.p99_us,
        }
        note = f"generator in {replayer.language}, {replayed.requests_per_send:.1f} requests a send; latencies are of full windows, not of a quiet broker"
        return Run(figures, observation, [note])
