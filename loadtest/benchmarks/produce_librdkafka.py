"""librdkafka producers, 1 KB records, acks=1: what users see. The client needs several times the broker's CPU, so on few cores this measures librdkafka."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records, disks_used, make_topic

TOPIC = "bench"
CLIENT = Path(__file__).parent.parent / "generators/librdkafka_producer.py"
WARM_UP_SHARE = 0.05
PATIENCE_SECONDS = 180.0
GB = 1e9


@dataclass(frozen=True)
class ProduceLibrdkafka(Benchmark):
    name: ClassVar[str] = "produce_librdkafka"
    title: ClassVar[str] = "librdkafka producers in processes of their own, records of 1 KB, acks=1, 4 partitions on 2 directories, no compression."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("throughput", "MB/s", at_least=300),
        Figure("broker CPU", "cpu-s/GB", at_most=0.6),
        Figure("acceptor CPU", "cpu-s/GB"),
        Figure("log-writers CPU", "cpu-s/GB"),
        Figure("client CPU", "cpu-s/GB"),
        Figure("records", "/s"),
    )
    short: ClassVar[dict[str, Any]] = {"records": 300_000}

    producers: int = 1
    records: int = 2_000_000
    value_bytes: int = 1024
    partitions: int = 4
    acks: int = 1
    batch_bytes: int = 1_000_000
    linger_ms: int = 5

    @property
    def written_bytes(self) -> int:
        return int(self.records * self.value_bytes * (1 + WARM_UP_SHARE))

    def missing(self) -> str | None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            return "confluent-kafka is not installed; `./install.sh test` installs it"
        return None

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, self.partitions)
        if disks_used(box, TOPIC) < min(len(box.disks), self.partitions):
            raise BenchmarkFailed(f"the {self.partitions} partitions do not use all {len(box.disks)} directories")
        client = self.prepare_client(box.directory)
        warm_up = max(1, int(self.records * WARM_UP_SHARE / self.producers))
        self._produce(box, client, warm_up)
        each = self.records // self.producers
        say(f"{self.producers} producer(s) send {each:,} records each")
        run = self._produce(box, client, each)
        stored, sent = count_records(box, TOPIC), self.producers * (warm_up + each)
        if stored != sent:
            raise BenchmarkFailed(f"{sent:,} records were acknowledged, the logs hold {stored:,}")
        return run

    def prepare_client(self, directory: Path) -> list[str]:
        """The command of a producer, without its arguments."""
        return [sys.executable, str(CLIENT)]

    def client_arguments(self, box: RunningBox, records: int) -> list[str]:
        return [box.bootstrap, TOPIC, *map(str, (self.partitions, records, self.value_bytes, self.acks, self.batch_bytes, self.linger_ms))]

    def _produce(self, box: RunningBox, client: list[str], records: int) -> Run:
        """All producers at once; figures of the time from the first start to the last acknowledgement."""
        arguments = client + self.client_arguments(box, records)
        with ExitStack() as stack:
            generators = [stack.enter_context(LoadGenerator(f"producer@{index}", arguments)) for index in range(self.producers)]
            for generator in generators:
                generator.await_ready()
            observer = Observer(box.pids())
            for generator in generators:
                generator.go()
            ended = {generator.name: generator.finish(PATIENCE_SECONDS) for generator in generators}
            observation = observer.finish({name: finished.cpu_seconds for name, finished in ended.items()})
        reports = [json.loads(finished.output) for finished in ended.values()]
        seconds = (max(report["ended_ns"] for report in reports) - min(report["started_ns"] for report in reports)) / 1e9
        sent = records * self.producers
        gigabytes = sent * self.value_bytes / GB
        acceptor, log_writers = observation.role("acceptor") / gigabytes, observation.role("log-writer") / gigabytes
        figures = {
            "throughput": gigabytes * 1000 / seconds,
            "broker CPU": acceptor + log_writers,
            "acceptor CPU": acceptor,
            "log-writers CPU": log_writers,
            "client CPU": sum(finished.cpu_seconds for finished in ended.values()) / gigabytes,
            "records": sent / seconds,
        }
        return Run(figures, observation, ["MB and GB are those of the values; the client's CPU includes its start."])
