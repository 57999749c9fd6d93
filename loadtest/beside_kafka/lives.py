"""Starts, stops, deaths and memory: each contender alone, from empty directories, one after the other.

A start lasts from the first process that is started, ZooKeeper included, until every partition of a topic has acknowledged a produce (`probe.py`). Weak
spots: formatting Kafka 4's directories is not counted, being done once; the page cache is not dropped, so jars and modules are in it for all; and what
a broker does after it serves is not seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from loadtest.benchmark import BenchmarkFailed
from loadtest.beside_kafka.contenders import Contender
from loadtest.beside_kafka.probe import await_produces
from loadtest.beside_kafka.requests import FRAME_BYTES, NO_RETENTION
from loadtest.beside_kafka.rows import Cell, Part, Row, Tools, Turn, turn_of
from loadtest.beside_kafka.throughput import PARTITIONS, consume, fill, produce
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.generators.replayer import Replayed
from loadtest.memory import MB
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic
from loadtest.warm_memory import WarmMemory

PROBED = "probed"
PATIENCE_SECONDS = 120.0
SETTLE_SECONDS = 4.0
FILL_SECONDS = 0.5
QUIET_SECONDS = 1.0
"""Long enough to see whether others use the machine."""


@contextmanager
def a_life(contender: Contender) -> Iterator[None]:
    """Started now; nothing is left of it at the end."""
    try:
        contender.start()
        yield
    finally:
        contender.remove()
        for disk in contender.disks:
            disk.mkdir(parents=True)
        os.sync()


def seconds_to_serve(contender: Contender, topic: str, partitions: int) -> float:
    """Starts it and waits until it takes produces to all partitions."""
    started = time.monotonic()
    contender.start()
    await_produces(contender.kafka, topic, partitions, PATIENCE_SECONDS)
    return time.monotonic() - started


def seconds_to_stop(contender: Contender) -> float:
    started = time.monotonic()
    contender.stop()
    return time.monotonic() - started


@dataclass(frozen=True)
class StartAndMemory(Cell):
    records: int = 1_000_000

    @property
    def name(self) -> str:
        return "start and memory"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row("start after an orderly stop", "s"), Row("orderly stop", "s"), Row("idle CPU", "% of a core"), Row("memory (PSS) after the start", "MB"),
                Row("memory (PSS) after a load", "MB"))  # fmt: skip

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        with a_life(contender), WarmMemory(int(self.records * tools.scale * 3000)) as memory:
            make_topic(contender, PROBED, PARTITIONS, NO_RETENTION)
            await_produces(contender.kafka, PROBED, PARTITIONS, PATIENCE_SECONDS)
            contender.stop()
            start = seconds_to_serve(contender, PROBED, PARTITIONS)
            time.sleep(SETTLE_SECONDS)
            observer = Observer(contender.pids())
            time.sleep(SETTLE_SECONDS)
            idle = observer.finish()
            after_start = contender.pss_bytes() / MB
            memory.feed()
            self._load(contender, tools)
            after_load = contender.pss_bytes() / MB
            stop = seconds_to_stop(contender)
        values = (start, stop, 100 * sum(idle.box.values()) / idle.seconds, after_start, after_load)
        return turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), idle)

    def _load(self, contender: Contender, tools: Tools) -> None:
        """About 2 GB in, 1 GB out, and small requests."""
        records = tools.scaled(self.records)
        make_topic(contender, "loaded", PARTITIONS, NO_RETENTION)
        fill(contender, tools, "loaded", records, 1024, "none")
        consume(contender, tools, "loaded", records, 1024)
        produce(contender, tools, "loaded", records, 1024, "all", "lz4")
        frames = [build_produce_frame("loaded", partition, FRAME_BYTES) for partition in range(PARTITIONS)]
        tools.replayer.run(contender.kafka, frames, reply_layout("loaded"), 50, 5, 3 * tools.scale)


@dataclass(frozen=True)
class RestartAfterKill(Cell):
    gigabytes: float = 10.0
    value_bytes: int = 1024

    @property
    def name(self) -> str:
        return f"restart after kill -9 with {self.gigabytes:g} GB"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row(self.name, "s"),)

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        """Nothing that was acknowledged may be lost: the page cache survives a process."""
        records = tools.scaled(int(self.gigabytes * 1e9 / self.value_bytes)) // 2 * 2
        with a_life(contender), WarmMemory(int(records * self.value_bytes * 1.1)) as memory:
            make_topic(contender, PROBED, PARTITIONS, NO_RETENTION)
            memory.feed()
            produce(contender, tools, PROBED, records, self.value_bytes, 1, "none")
            os.sync()
            observer = Observer(contender.pids())
            time.sleep(QUIET_SECONDS)
            before = observer.finish()
            contender.kill()
            seconds = seconds_to_serve(contender, PROBED, PARTITIONS)
            if (stored := count_records(contender, PROBED)) < records + PARTITIONS:
                raise BenchmarkFailed(f"{contender.name}: {records + PARTITIONS:,} records were acknowledged, the logs hold {stored:,}")
        return turn_of({self.name: seconds}, before)


@dataclass(frozen=True)
class ManyPartitions(Cell):
    partitions: int = 1000
    connections: int = 50
    records_first: int = 30
    seconds: float = 6.0

    @property
    def name(self) -> str:
        return f"{self.partitions:,} partitions"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row(f"{self.name}: created and written to", "s"), Row(f"{self.name}: the first {self.records_first} small produces to each", "s"),
                Row(f"{self.name}: small produces to all in turn after that", "/s", True),
                Row(f"{self.name}: broker CPU of those", "µs a request"), Row(f"{self.name}: memory (PSS)", "MB"), Row(f"{self.name}: orderly stop", "s"),
                Row(f"{self.name}: start after an orderly stop", "s"), Row(f"{self.name}: restart after kill -9", "s"))  # fmt: skip

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        with a_life(contender):
            started = time.monotonic()
            make_topic(contender, PROBED, self.partitions, NO_RETENTION)
            await_produces(contender.kafka, PROBED, self.partitions, PATIENCE_SECONDS)
            created = time.monotonic() - started
            frames = [build_produce_frame(PROBED, partition, FRAME_BYTES) for partition in range(self.partitions)]
            load = (contender.kafka, frames, reply_layout(PROBED), self.connections, 5)
            filled = self._fill_each(partial(tools.replayer.run, *load, FILL_SECONDS, self.connections), tools.scaled(self.records_first))
            observer = Observer(contender.pids())
            replayed = tools.replayer.run(*load, self.seconds * tools.scale, self.connections)
            observation = observer.finish({"replayer": replayed.cpu_seconds})
            memory = contender.pss_bytes() / MB
            stop = seconds_to_stop(contender)
            start = seconds_to_serve(contender, PROBED, self.partitions)
            contender.kill()
            restart = seconds_to_serve(contender, PROBED, self.partitions)
        cpu_us = sum(observation.box.values()) * 1e6 / replayed.requests
        values = (created, filled, replayed.requests / replayed.seconds, cpu_us, memory, stop, start, restart)
        return turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), observation)

    def _fill_each(self, load: Callable[[], Replayed], records: int) -> float:
        """Seconds until each has so many records. After its first 4 KiB a log gets index entries: 6 ms of CPU with Kafka, whose indexes are mapped (seen)."""
        started, requests = time.monotonic(), 0
        while requests < records * self.partitions:
            requests += load().requests
        return time.monotonic() - started


class _Alone(Part):
    lives_are_shared = False


class StartPart(_Alone):
    name = "start"
    rounds = 2
    title = "from the first process until each of 4 partitions has acknowledged a produce; memory of all processes, heaps and arenas as far as touched"

    @property
    def cells(self) -> Sequence[Cell]:
        return [StartAndMemory()]


class RestartPart(_Alone):
    name = "restart"
    rounds = 1
    title = "every process killed, the page cache stays and is clean; until each of 4 partitions has acknowledged a produce, nothing lost"

    @property
    def cells(self) -> Sequence[Cell]:
        return [RestartAfterKill()]


class PartitionsPart(_Alone):
    name = "partitions"
    rounds = 1
    title = "one topic with 1,000 partitions on 2 directories"

    @property
    def cells(self) -> Sequence[Cell]:
        return [ManyPartitions()]
