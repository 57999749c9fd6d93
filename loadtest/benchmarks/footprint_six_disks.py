"""A box as people run it: six disks, 500 partitions that are all written and read, a consumer group, syslog; its memory at its most."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaException, Producer

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.memory import ARENA, MB, SHARED_MEMORY, Memory, is_python, process_memory, sum_of
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

TOPIC = "spread"
VALUE = os.urandom(512) + bytes(512)
LINE = b"<134>1 2026-11-22T03:00:00Z web1 nginx 811 - - " + b"x" * 250 + b"\n"
SAMPLE_SECONDS = 2.0


@dataclass(frozen=True)
class FootprintSixDisks(Benchmark):
    name: ClassVar[str] = "footprint_six_disks"
    title: ClassVar[str] = (
        "Six log directories, 500 partitions that librdkafka writes in turn (1 KB records) and a group reads, syslog lines over TCP meanwhile: the most memory"
        " that all Python processes together took in a sample every 2 s (ZooKeeper's JVM apart)."
    )
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("PSS without arenas", "MB", at_most=400),
        Figure("PSS with arenas", "MB", at_most=1000),
        Figure("PSS if every arena were full", "MB", at_most=1000),
        Figure("PSS without arenas before any load", "MB"),
        Figure("PSS of other shared memory", "MB"),
        Figure("PSS of the JVM", "MB"),
        Figure("processes", ""),
        Figure("ready after", "s"),
    )
    short: ClassVar[dict[str, Any]] = {"partitions": 50, "records": 20_000, "lines": 5_000}
    box_options: ClassVar[dict[str, Any]] = {"disks": 6, "settings": {"host.figures.interval.ms": 10_000}}

    partitions: int = 500
    records: int = 400_000
    lines: int = 100_000

    @property
    def written_bytes(self) -> int:
        return self.records * len(VALUE) + self.lines * 600

    def run(self, box: RunningBox, say: Say) -> Run:
        pids = {name: pid for name, pid in box.pids().items() if is_python(pid)}
        others = {name: pid for name, pid in box.pids().items() if name not in pids}
        idle = sum_of(process_memory(pid) for pid in pids.values())
        make_topic(box, TOPIC, self.partitions)
        say(f"{len(pids)} Python processes, {self.partitions} partitions on {len(box.disks)} disks")
        observer = Observer(box.pids())
        samples = self._sampled(box, pids)
        observation = observer.finish()
        if (stored := count_records(box, TOPIC)) != self.records:
            raise BenchmarkFailed(f"{self.records} records were acknowledged, {stored} are there")
        most = max(samples, key=lambda sample: sum_of(sample.values()).without_arenas)
        totals = [sum_of(sample.values()) for sample in samples]
        without = max(total.without_arenas for total in totals)
        figures = {
            "PSS without arenas": without / MB,
            "PSS with arenas": max(total.total for total in totals) / MB,
            "PSS if every arena were full": (without + arena_bytes(box)) / MB,
            "PSS without arenas before any load": idle.without_arenas / MB,
            "PSS of other shared memory": max(total.other_shared for total in totals) / MB,
            "PSS of the JVM": sum_of(process_memory(pid) for pid in others.values()).total / MB,
            "processes": len(pids),
            "ready after": box.ready_seconds,
        }
        largest = sorted(most, key=lambda name: -most[name].without_arenas)
        return Run(
            figures, observation, ["PSS without arenas by process (MB): " + ", ".join(f"{name} {most[name].without_arenas / MB:.1f}" for name in largest)]
        )

    def _sampled(self, box: RunningBox, pids: dict[str, int]) -> list[dict[str, Memory]]:
        """Load the box until all is written and read; samples meanwhile, and one when it is over."""
        failures: list[str] = []
        loads = [
            threading.Thread(target=_guard, args=(load, failures)) for load in (lambda: self._produce(box), lambda: self._consume(box), lambda: self._log(box))
        ]
        for load in loads:
            load.start()
        samples = []
        while any(load.is_alive() for load in loads):
            samples.append({name: process_memory(pid) for name, pid in pids.items()})
            time.sleep(SAMPLE_SECONDS)
        samples.append({name: process_memory(pid) for name, pid in pids.items()})
        if failures:
            raise BenchmarkFailed("; ".join(failures))
        return samples

    def _produce(self, box: RunningBox) -> None:
        failed: list[str] = []

        def on_delivery(error: object, _message: object) -> None:
            if error is not None:
                failed.append(str(error))

        producer = Producer({"bootstrap.servers": box.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 50_000})
        for number in range(self.records):
            while True:
                try:
                    producer.produce(TOPIC, VALUE, partition=number % self.partitions, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        if producer.flush(120) or failed:
            raise BenchmarkFailed(f"records were not acknowledged: {failed[:1]}")

    def _consume(self, box: RunningBox) -> None:
        consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "footprint", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000})
        consumer.subscribe([TOPIC])
        seen, silent = 0, 0
        try:
            while seen < self.records and silent < 60:
                messages = consumer.consume(10_000, 1.0)
                if any(message.error() for message in messages):
                    raise BenchmarkFailed(f"the consumer received {next(message.error() for message in messages if message.error())}")
                seen += len(messages)
                silent = 0 if messages else silent + 1
        finally:
            consumer.close()
        if seen < self.records:
            raise BenchmarkFailed(f"{seen} of {self.records} records were read")

    def _log(self, box: RunningBox) -> None:
        with socket.create_connection(box.syslog) as sender:
            for _ in range(self.lines // 100):
                sender.sendall(LINE * 100)


def _guard(load: Callable[[], None], failures: list[str]) -> None:
    try:
        load()
    except (BenchmarkFailed, KafkaException, OSError) as failure:
        failures.append(str(failure))


def arena_bytes(box: RunningBox) -> int:
    """What all arenas of the box would take if every page of them were used."""
    prefix = box.layout.shared_memory_prefix.lstrip("/")
    found: dict[str, int] = {}
    for pid in box.pids().values():
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            addresses, *_, name = line.split(None, 5)
            if name.startswith(SHARED_MEMORY) and prefix in name and ARENA in name:
                first, last = addresses.split("-")
                found[name] = max(found.get(name, 0), int(last, 16) - int(first, 16))
    return sum(found.values())
