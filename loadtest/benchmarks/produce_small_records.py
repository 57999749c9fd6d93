"""librdkafka producers with records of 100 B: how many records a second, whatever their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Figure
from loadtest.benchmarks.produce_librdkafka import TOPIC, ProduceLibrdkafka
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.librdkafka import PRODUCER_PROPERTIES, LibrdkafkaClient


@dataclass(frozen=True)
class ProduceSmallRecords(ProduceLibrdkafka):
    name: ClassVar[str] = "produce_small_records"
    title: ClassVar[str] = "librdkafka producers called from C (no binding between), records of 100 B, acks=1, 4 partitions on 2 directories, no compression."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("records", "/s", at_least=800_000),
        Figure("throughput", "MB/s"),
        Figure("broker CPU", "cpu-s/GB"),
        Figure("acceptor CPU", "cpu-s/GB"),
        Figure("log-writers CPU", "cpu-s/GB"),
        Figure("client CPU", "cpu-s/GB"),
    )
    short: ClassVar[dict[str, Any]] = {"records": 1_000_000}

    producers: int = 2
    records: int = 8_000_000
    value_bytes: int = 100

    @property
    def written_bytes(self) -> int:
        return int(super().written_bytes * 1.2)  # the framing of a record is 8 B

    def missing(self) -> str | None:
        return missing_for_librdkafka()

    def prepare_client(self, directory: Path) -> list[str]:
        return LibrdkafkaClient(directory).command

    def client_arguments(self, box: RunningBox, records: int) -> list[str]:
        properties = {**PRODUCER_PROPERTIES, "acks": self.acks, "linger.ms": self.linger_ms, "batch.size": self.batch_bytes}
        numbers = map(str, (self.partitions, records, self.value_bytes))
        return ["produce", box.bootstrap, TOPIC, *numbers, *(f"{name}={value}" for name, value in properties.items())]
