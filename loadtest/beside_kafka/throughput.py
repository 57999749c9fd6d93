"""Produce and consume as fast as it goes: librdkafka called from C, the same program and settings for every contender, and the CPU that the broker uses.

Values are log lines, all different (`text=1`), so that lz4 has something to do. Every turn has a topic of its own, with warm memory for its page cache, and
removes it; what the broker counts at the end must be what was acknowledged. Weak spot: on few cores the clients are the limit, and the CPU row
says more of the broker than the MB/s do.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lab.running_box import eventually
from loadtest.benchmark import BenchmarkFailed
from loadtest.beside_kafka.contenders import Contender
from loadtest.beside_kafka.rows import Cell, Part, Row, Tools, Turn, turn_of
from loadtest.librdkafka import Report, read_report
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records, disks_used, make_topic, remove_topic
from loadtest.warm_memory import WarmMemory

PARTITIONS = 4
PRODUCERS = 2
SIZES = {100: ("100 B", 6_000_000), 1024: ("1 KB", 1_500_000), 10240: ("10 KB", 150_000)}
"""Value size: what it is called, and how many are sent in a turn."""
CODECS = ("none", "lz4")
WARM_UP_SHARE = 0.1
FRAMING = 1.3
PRODUCER = {"linger.ms": 5, "batch.size": 1_000_000, "text": 1}
CONSUMER: dict[str, object] = {
    "places": 1,
    "group.id": "beside",  # librdkafka wants a name; nothing is subscribed or committed
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 << 10,
    "fetch.queue.backoff.ms": 5,
    "fetch.message.max.bytes": 1 << 20,
}
_numbers = itertools.count()


@contextmanager
def topic_of_a_turn(contender: Contender, partitions: int, written_bytes: int, configs: dict[str, str] | None = None) -> Iterator[str]:
    """A topic that is gone at the end, with its files; dirty pages are on the disk then, so that the next turn finds it idle."""
    name = f"turn{next(_numbers):05}"
    with WarmMemory(written_bytes) as memory:
        make_topic(contender, name, partitions, configs, contender.replication_factor)
        # Kafka 4 reports a partition's leader before it has made its directory.
        directories = min(len(contender.disks), partitions * contender.replication_factor)
        eventually(lambda: disks_used(contender, name) == directories, f"{contender.name}: the partitions use all log directories")
        memory.feed()
        yield name
    remove_topic(contender, name)
    contender.await_no_files_of(name)
    os.sync()


def produce(contender: Contender, tools: Tools, topic: str, records: int, value_bytes: int, acks: object, codec: str,
            partitions: int = PARTITIONS, client_id: str = "") -> Report:  # fmt: skip
    """All producers at once: what they did together, from the start to the last acknowledgement."""
    properties = {**PRODUCER, "acks": acks, "compression.type": codec, **contender.client_options, **_named(client_id)}
    command = tools.librdkafka.producer(contender, topic, partitions, records // PRODUCERS, value_bytes, properties)
    with ExitStack() as stack:
        generators = [stack.enter_context(LoadGenerator(f"producer@{index}", command)) for index in range(PRODUCERS)]
        for generator in generators:
            generator.await_ready()
        for generator in generators:
            generator.go()
        return together([read_report(generator) for generator in generators])


def together(reports: Sequence[Report]) -> Report:
    """The slowest one's time; all began at once."""
    return Report(sum(report.records for report in reports), max(report.seconds for report in reports), sum(report.cpu_seconds for report in reports))


def _named(client_id: str) -> dict[str, object]:
    return {"client.id": client_id} if client_id else {}


def consume(contender: Contender, tools: Tools, topic: str, records: int, value_bytes: int, client_id: str = "") -> Report:
    properties = {**CONSUMER, **contender.client_options, **_named(client_id)}
    command = tools.librdkafka.consumer(contender, topic, PARTITIONS, records, value_bytes, properties)
    with LoadGenerator("consumer", command) as generator:
        generator.await_ready()
        generator.go()
        return read_report(generator)


def fill(contender: Contender, tools: Tools, topic: str, records: int, value_bytes: int, codec: str) -> None:
    """One producer, so that a value says its offset and the consumer can check it."""
    properties = {**PRODUCER, "acks": 1, "compression.type": codec, **contender.client_options}
    with LoadGenerator("filling producer", tools.librdkafka.producer(contender, topic, PARTITIONS, records, value_bytes, properties)) as generator:
        generator.await_ready()
        generator.go()
        read_report(generator)


@dataclass(frozen=True)
class Produce(Cell):
    value_bytes: int
    acks: str
    codec: str
    over: str = ""

    @property
    def name(self) -> str:
        return f"{self.over}produce {SIZES[self.value_bytes][0]}, acks={self.acks}, {self.codec}"

    @property
    def rows(self) -> tuple[Row, ...]:
        return Row(self.name, "MB/s", True), Row(f"{self.name}: broker CPU", "cpu-s/GB")

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        records = tools.scaled(SIZES[self.value_bytes][1]) // PRODUCERS * PRODUCERS
        warm_up = max(PRODUCERS, int(records * WARM_UP_SHARE)) // PRODUCERS * PRODUCERS
        written = int((records + warm_up) * self.value_bytes * FRAMING)
        with topic_of_a_turn(contender, PARTITIONS, written) as topic:
            produce(contender, tools, topic, warm_up, self.value_bytes, self.acks, self.codec)
            observer = Observer(contender.pids())
            report = produce(contender, tools, topic, records, self.value_bytes, self.acks, self.codec)
            observation = observer.finish({"producers": report.cpu_seconds})
            if (stored := count_records(contender, topic)) != records + warm_up:
                raise BenchmarkFailed(f"{contender.name}: {records + warm_up:,} records were acknowledged, the logs hold {stored:,}")
        gigabytes = records * self.value_bytes / 1e9
        speed, cpu = self.rows
        return turn_of({speed.name: gigabytes * 1000 / report.seconds, cpu.name: sum(observation.box.values()) / gigabytes}, observation)


@dataclass(frozen=True)
class Consume(Cell):
    value_bytes: int
    codec: str
    over: str = ""

    @property
    def name(self) -> str:
        return f"{self.over}consume {SIZES[self.value_bytes][0]}, {self.codec}"

    @property
    def rows(self) -> tuple[Row, ...]:
        return Row(self.name, "MB/s", True), Row(f"{self.name}: broker CPU", "cpu-s/GB")

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        records = tools.scaled(SIZES[self.value_bytes][1])
        with topic_of_a_turn(contender, PARTITIONS, int(records * self.value_bytes * FRAMING)) as topic:
            fill(contender, tools, topic, records, self.value_bytes, self.codec)
            consume(contender, tools, topic, int(records * WARM_UP_SHARE), self.value_bytes)
            observer = Observer(contender.pids())
            report = consume(contender, tools, topic, records, self.value_bytes)
            observation = observer.finish({"consumer": report.cpu_seconds})
        gigabytes = records * self.value_bytes / 1e9
        speed, cpu = self.rows
        return turn_of({speed.name: gigabytes * 1000 / report.seconds, cpu.name: sum(observation.box.values()) / gigabytes}, observation)


class _Streams(Part):
    def warm_up(self, contender: Contender, tools: Tools) -> None:
        """Twice a turn of 1 KB, produced and read."""
        records = tools.scaled(SIZES[1024][1])
        with topic_of_a_turn(contender, PARTITIONS, records * 1024 * 2) as topic:
            fill(contender, tools, topic, records, 1024, "none")
            consume(contender, tools, topic, records, 1024)
            produce(contender, tools, topic, records, 1024, "all", "lz4")


class ProducePart(_Streams):
    name = "produce"
    title = f"{PRODUCERS} librdkafka producers from C, {PARTITIONS} partitions on 2 directories, batches of 1 MB, linger 5 ms"

    @property
    def cells(self) -> Sequence[Cell]:
        return [Produce(size, acks, codec) for size in SIZES for acks in ("1", "all") for codec in CODECS]


class ConsumePart(_Streams):
    name = "consume"
    title = f"a librdkafka consumer from C without a group, {PARTITIONS} partitions on 2 directories, out of the page cache; each record is checked"

    @property
    def cells(self) -> Sequence[Cell]:
        return [Consume(size, codec) for size in SIZES for codec in CODECS]


class TlsPart(_Streams):
    name = "tls"
    title = "as produce and consume, over TLS 1.3"
    has_tls = True

    @property
    def cells(self) -> Sequence[Cell]:
        return [Produce(1024, "all", "none", "TLS: "), Consume(1024, "none", "TLS: ")]
