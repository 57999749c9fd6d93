"""Many small requests, and how long one takes: raw Produce v9 frames, from C over 50 connections, or paced; librdkafka from end to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.benchmark import BenchmarkFailed
from loadtest.benchmarks.paced import produce_at_a_pace
from loadtest.beside_kafka.contenders import Contender
from loadtest.beside_kafka.probe import await_produces
from loadtest.beside_kafka.rows import Cell, Part, Row, Tools, Turn, turn_of
from loadtest.beside_kafka.throughput import topic_of_a_turn
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records

FRAME_BYTES = 300
NO_RETENTION = {"retention.ms": "-1"}
"""Replayed records are of 2023."""
SMALL_WRITTEN = 1 << 30
END_TO_END = Path(__file__).parent.parent / "generators" / "end_to_end.py"
SERVES_SECONDS = 30.0


@contextmanager
def topic_that_serves(contender: Contender, partitions: int, written_bytes: int) -> Iterator[str]:
    """With a record in each partition: raw loads do not try again where a broker names a leader that does not lead yet."""
    with topic_of_a_turn(contender, partitions, written_bytes, NO_RETENTION) as topic:
        await_produces(contender.kafka, topic, partitions, SERVES_SECONDS)
        yield topic


@dataclass(frozen=True)
class SmallRequests(Cell):
    connections: int = 50
    in_flight: int = 5
    partitions: int = 4
    seconds: float = 6.0

    @property
    def name(self) -> str:
        return f"produces of {FRAME_BYTES} B, {self.connections} connections, {self.in_flight} in flight on each"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row(self.name, "/s", True), Row(f"{self.name}: broker CPU", "µs a request"), Row(f"{self.name}: p50", "ms"), Row(f"{self.name}: p99", "ms"))

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        with topic_that_serves(contender, self.partitions, SMALL_WRITTEN) as topic:
            frames = [build_produce_frame(topic, partition, FRAME_BYTES) for partition in range(self.partitions)]
            load = (contender.kafka, frames, reply_layout(topic), self.connections, self.in_flight)
            warm_up = tools.replayer.run(*load, self.seconds * tools.scale / 4)
            observer = Observer(contender.pids())
            replayed = tools.replayer.run(*load, self.seconds * tools.scale)
            observation = observer.finish({"replayer": replayed.cpu_seconds})
            stored, answered = count_records(contender, topic), self.partitions + warm_up.requests + replayed.requests
            if stored != answered:
                raise BenchmarkFailed(f"{contender.name}: {answered:,} requests were acknowledged, the logs hold {stored:,} records")
        values = (replayed.requests / replayed.seconds, sum(observation.box.values()) * 1e6 / replayed.requests, replayed.p50_us / 1000, replayed.p99_us / 1000)
        return turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), observation)


@dataclass(frozen=True)
class PacedProduces(Cell):
    rate: float = 1000.0
    connections: int = 10
    seconds: float = 8.0

    @property
    def name(self) -> str:
        return f"{self.rate:g} produces of {FRAME_BYTES} B a second"

    @property
    def rows(self) -> tuple[Row, ...]:
        quantiles = (Row(f"{self.name}: {quantile}", "ms") for quantile in ("p50", "p99", "p99.9"))
        return (*quantiles, Row(f"{self.name}: broker CPU", "µs a request"))

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        seconds = max(1.0, self.seconds * tools.scale)
        with topic_that_serves(contender, 4, 64 << 20) as topic:
            produce_at_a_pace(contender, topic, self.connections, self.rate, seconds / 6)
            observer = Observer(contender.pids())
            paced = produce_at_a_pace(contender, topic, self.connections, self.rate, seconds)
            observation = observer.finish({"paced producer": paced.cpu_seconds})
        cpu_us = sum(observation.box.values()) * 1e6 / paced.requests
        values = (paced.p50_us / 1000, paced.p99_us / 1000, paced.p999_us / 1000, cpu_us)
        return turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), observation)


@dataclass(frozen=True)
class EndToEnd(Cell):
    rate: float = 300.0
    seconds: float = 8.0

    @property
    def name(self) -> str:
        return f"{self.rate:g} records a second, produced and consumed by librdkafka"

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(Row(f"{self.name}: {quantile}", "ms") for quantile in ("p50", "p99", "p99.9"))

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        seconds = max(1.0, self.seconds * tools.scale)
        with topic_that_serves(contender, 2, 64 << 20) as topic:
            arguments = [sys.executable, str(END_TO_END), contender.bootstrap, topic, str(self.rate), str(seconds)]
            with LoadGenerator("end to end", arguments) as generator:
                generator.await_ready()
                observer = Observer(contender.pids())
                generator.go()
                finished = generator.finish(seconds + 60)
            observation = observer.finish({"end to end": finished.cpu_seconds})
        document = json.loads(finished.output.splitlines()[-1])
        values = (document["p50_us"] / 1000, document["p99_us"] / 1000, document["p999_us"] / 1000)
        return turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), observation)


class _Requests(Part):
    def warm_up(self, contender: Contender, tools: Tools) -> None:
        """So long that a JVM has compiled what small requests need."""
        with topic_that_serves(contender, 4, SMALL_WRITTEN) as topic:
            frames = [build_produce_frame(topic, partition, FRAME_BYTES) for partition in range(4)]
            tools.replayer.run(contender.kafka, frames, reply_layout(topic), 50, 5, max(1.0, 12 * tools.scale))


class RequestsPart(_Requests):
    name = "requests"
    title = "one record a request, acks=1, replayed from C; every reply is checked"

    @property
    def cells(self) -> Sequence[Cell]:
        return [SmallRequests()]


class LatencyPart(_Requests):
    name = "latency"
    title = "from the moment a request is due to its reply, over 10 connections, and from produce to poll; a quiet broker at a steady rate, acks=1"

    @property
    def cells(self) -> Sequence[Cell]:
        return [PacedProduces(), EndToEnd()]
