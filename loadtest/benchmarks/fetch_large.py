"""Large Fetch requests without a client library: the broker's own ceiling for those who read much, and what a byte costs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.generators.fetch_frame import API_VERSION, build_fetch_frame, fetch_layout
from loadtest.generators.large_fetcher import LargeFetcher
from loadtest.librdkafka import LibrdkafkaClient, fill_topic
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

TOPIC = "bench"
VALUE_BYTES = 1024
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class FetchLarge(Benchmark):
    name: ClassVar[str] = "fetch_large"
    title: ClassVar[str] = f"Fetch v{API_VERSION} requests of 8 MiB out of the page cache, one in flight on each of 2 connections, a directory each."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("throughput", "GB/s", at_least=1.5),
        Figure("broker CPU", "cpu-s/GiB"),
        Figure("acceptor CPU", "cpu-s/GiB"),
        Figure("generator CPU", "cpu-s/GiB"),
        Figure("reply", "MiB"),
    )
    short: ClassVar[dict[str, Any]] = {"seconds": 2.0, "records": 200_000}

    seconds: float = 5.0
    records: int = 1_000_000
    connections: int = 2
    partitions: int = 2
    fetch_mib: int = 8

    @property
    def written_bytes(self) -> int:
        return self.records * VALUE_BYTES

    def missing(self) -> str | None:
        return missing_for_librdkafka()

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, self.partitions)
        fill_topic(LibrdkafkaClient(box.directory), box, TOPIC, self.partitions, self.records, VALUE_BYTES)
        stored = count_records(box, TOPIC)
        fetcher, fetch_bytes, layout = LargeFetcher(box.directory), self.fetch_mib * MIB, fetch_layout(TOPIC)
        frames = [build_fetch_frame(TOPIC, partition, fetch_bytes) for partition in range(self.partitions)]
        whole = fetcher.run(box.kafka, frames, layout, self.partitions, fetch_bytes, 0)
        if not whole.records == stored == self.records:
            raise BenchmarkFailed(f"{self.records:,} records were acknowledged, the logs hold {stored:,}, {whole.records:,} were read")
        say(f"all {whole.records:,} records were there with right checksums; the fetcher reads for {self.seconds:g} s")
        observer = Observer(box.pids())
        fetched = fetcher.run(box.kafka, frames, layout, self.connections, fetch_bytes, self.seconds)
        observation = observer.finish({"fetcher": fetched.cpu_seconds})
        gibibytes = fetched.record_bytes / GIB
        figures = {
            "throughput": fetched.record_bytes / fetched.seconds / 1e9,
            "broker CPU": observation.role("acceptor", "log-reader") / gibibytes,
            "acceptor CPU": observation.role("acceptor") / gibibytes,
            "generator CPU": fetched.cpu_seconds / gibibytes,
            "reply": fetched.record_bytes / fetched.replies / MIB,
        }
        note = f"{fetched.record_bytes / fetched.receives / 1024:.0f} KiB a recv of the generator, which has them copied into memory of its own"
        return Run(figures, observation, [note])
