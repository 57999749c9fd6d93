"""librdkafka without a binding: the commands of `generators/librdkafka_client.c` and what they report. Used by benchmarks that produce or consume with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from loadtest.benchmark import BenchmarkFailed
from loadtest.generators.compiler import compile_generator, find_librdkafka
from loadtest.load_generator import LoadGenerator
from loadtest.topics import Broker

PATIENCE_SECONDS = 120.0
PRODUCER_PROPERTIES = {
    "compression.type": "none",
    "batch.num.messages": 1_000_000,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 1 << 20,
    "delivery.report.only.error": "true",
}


class Report(NamedTuple):
    """What a client did between its first and last record, on the monotonic clock, and the CPU of its whole run."""

    records: int
    seconds: float
    cpu_seconds: float


class LibrdkafkaClient:
    """Compiled and ready to be started."""

    def __init__(self, directory: Path) -> None:
        library = find_librdkafka()
        if library is None:
            raise BenchmarkFailed("there is no librdkafka")
        self.command = [str(compile_generator("librdkafka_client", directory)), str(library)]

    def producer(self, box: Broker, topic: str, partitions: int, records: int, value_bytes: int, properties: dict[str, object]) -> list[str]:
        return self._command("produce", box, topic, partitions, records, value_bytes, {**PRODUCER_PROPERTIES, **properties})

    def consumer(self, box: Broker, topic: str, partitions: int, records: int, value_bytes: int, properties: dict[str, object]) -> list[str]:
        return self._command("consume", box, topic, partitions, records, value_bytes, properties)

    def _command(self, verb: str, box: Broker, topic: str, partitions: int, records: int, value_bytes: int, properties: dict[str, object]) -> list[str]:
        numbers = map(str, (partitions, records, value_bytes))
        return [*self.command, verb, box.bootstrap, topic, *numbers, *(f"{name}={value}" for name, value in properties.items())]


def fill_topic(client: LibrdkafkaClient, box: Broker, topic: str, partitions: int, records: int, value_bytes: int, codec: str = "none",
               text: bool = False) -> None:  # fmt: skip
    """Write what is to be read afterwards: one producer, each value beginning with its offset. The rest is log lines if `text`, else zeros."""
    properties = {"acks": 1, "linger.ms": 5, "batch.size": 1_000_000, "compression.type": codec, "text": int(text)}
    command = client.producer(box, topic, partitions, records, value_bytes, properties)
    with LoadGenerator("filling producer", command) as generator:
        generator.await_ready()
        generator.go()
        report = read_report(generator)
    if report.records != records:
        raise BenchmarkFailed(f"{report.records:,} of {records:,} records were written")


def read_report(generator: LoadGenerator) -> Report:
    """Waits for its end. Raises BenchmarkFailed with what it said if a record was missing or wrong."""
    finished = generator.finish(PATIENCE_SECONDS)
    document = json.loads(finished.output.splitlines()[-1])
    return Report(document["records"], (document["ended_ns"] - document["started_ns"]) / 1e9, finished.cpu_seconds)
