"""A librdkafka consumer that reads 1 KB records out of the page cache: what a user's consumer reaches, and what it costs the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.librdkafka import LibrdkafkaClient, Report, fill_topic, read_report
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

TOPIC = "bench"
WARM_UP_SHARE = 0.1
GB = 1e9
PROPERTIES: dict[str, object] = {
    "places": 1,
    # librdkafka assigns nothing without a name; no group comes of it, because nothing is subscribed or committed.
    "group.id": "bench",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 << 10,
    # librdkafka asks again only so long after a full queue; a second by default.
    "fetch.queue.backoff.ms": 5,
}


@dataclass(frozen=True)
class Consume(Benchmark):
    name: ClassVar[str] = "consume"
    title: ClassVar[str] = "A librdkafka consumer called from C, assigned to 4 partitions on 2 directories without a group; 1 KB records out of the page cache."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("throughput", "MB/s", at_least=400),
        Figure("records", "/s"),
        Figure("broker CPU", "cpu-s/GB"),
        Figure("acceptor CPU", "cpu-s/GB"),
        Figure("log-readers CPU", "cpu-s/GB"),
        Figure("client CPU", "cpu-s/GB"),
    )
    short: ClassVar[dict[str, Any]] = {"records": 300_000}

    records: int = 2_000_000
    value_bytes: int = 1024
    partitions: int = 4
    fetch_bytes: int = 1 << 20

    @property
    def written_bytes(self) -> int:
        return self.records * self.value_bytes

    def missing(self) -> str | None:
        return missing_for_librdkafka()

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, self.partitions)
        client = LibrdkafkaClient(box.directory)
        fill_topic(client, box, TOPIC, self.partitions, self.records, self.value_bytes)
        if (stored := count_records(box, TOPIC)) != self.records:
            raise BenchmarkFailed(f"{self.records:,} records were acknowledged, the logs hold {stored:,}")
        self._consume(client, box, int(self.records * WARM_UP_SHARE))
        say(f"the consumer reads {self.records:,} records")
        observer = Observer(box.pids())
        read = self._consume(client, box, self.records)
        observation = observer.finish({"consumer": read.cpu_seconds})
        if read.records != stored:
            raise BenchmarkFailed(f"the logs hold {stored:,} records, {read.records:,} were read")
        gigabytes = read.records * self.value_bytes / GB
        acceptor, log_readers = observation.role("acceptor") / gigabytes, observation.role("log-reader") / gigabytes
        figures = {
            "throughput": gigabytes * 1000 / read.seconds,
            "records": read.records / read.seconds,
            "broker CPU": acceptor + log_readers,
            "acceptor CPU": acceptor,
            "log-readers CPU": log_readers,
            "client CPU": read.cpu_seconds / gigabytes,
        }
        note = "every record was read once, in order, with the value that was written at its offset; MB and GB are those of the values"
        return Run(figures, observation, [note])

    def _consume(self, client: LibrdkafkaClient, box: RunningBox, records: int) -> Report:
        properties = {**PROPERTIES, "fetch.message.max.bytes": self.fetch_bytes}
        with LoadGenerator("consumer", client.consumer(box, TOPIC, self.partitions, records, self.value_bytes, properties)) as generator:
            generator.await_ready()
            generator.go()
            return read_report(generator)
