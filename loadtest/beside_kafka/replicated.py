"""Three boxes, every topic with three replicas: produce until all three have it, CPU for all three copies, small produces at a pace, and a follower that
catches up.

CPU is that of all processes of the cluster, its ZooKeeper included, until the last replica has the last byte: with acks=1 followers are still at it when the
producer is done. What is equal is looked at in the files, whose bytes are the same everywhere. Weak spot: three boxes, client and ZooKeeper share
the cores of one machine, so MB/s are CPU-seconds in other words; the ratio is what counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.running_box import eventually
from loadtest.benchmark import BenchmarkFailed
from loadtest.benchmarks.paced import produce_at_a_pace
from loadtest.beside_kafka.clusters import ClusterContender
from loadtest.beside_kafka.contenders import Contender
from loadtest.beside_kafka.rows import Cell, Part, Row, Tools, Turn, turn_of
from loadtest.beside_kafka.throughput import FRAMING, PRODUCERS, produce, topic_of_a_turn
from loadtest.observation import Observation, Observer, process_cpu_seconds, role_of
from loadtest.topics import cluster_of, count_records

BOXES = 3
PARTITIONS = 6
"""Two led by each box."""
RECORDS = {1024: ("1 KB", 400_000), 100: ("100 B", 2_000_000)}
WARM_UP_SHARE = 0.25
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 120.0
FRAME_BYTES = 300
SMALL_WRITTEN = 128 << 20


def log_bytes(disks: Sequence[Path], topic: str) -> int:
    """Of all segments of a topic."""
    return sum(file.stat().st_size for disk in disks for file in disk.glob(f"{topic}-*/*.log"))


def await_copied(cluster: ClusterContender, topic: str) -> None:
    """Until all replicas have as many bytes."""
    eventually(
        lambda: len({log_bytes(member.disks, topic) for member in cluster.members.values()}) == 1, f"{cluster.name}: replicas are equal", PATIENCE_SECONDS
    )


def is_in_sync(cluster: ClusterContender, topic: str) -> bool:
    """Whether every replica is in the ISR, as the metadata says that clients get."""
    with cluster_of(cluster) as client:
        known = client.topic(topic, complete=False).partitions
    return all(set(partition.isr) == set(partition.assigned_replicas) for partition in known)


def await_in_sync(cluster: ClusterContender, topic: str) -> None:
    eventually(lambda: is_in_sync(cluster, topic), f"{cluster.name}: all replicas are in the ISR", PATIENCE_SECONDS)


def as_cluster(contender: Contender) -> ClusterContender:
    assert isinstance(contender, ClusterContender)
    return contender


def cpu_by_role(observation: Observation, gigabytes: float) -> dict[str, float]:
    """CPU-seconds per GB of values by kind of process."""
    roles = dict.fromkeys(map(role_of, observation.box))
    return {role: observation.role(role) / gigabytes for role in roles}


@dataclass(frozen=True)
class ReplicatedProduce(Cell):
    value_bytes: int
    acks: str

    @property
    def name(self) -> str:
        return f"3 replicas, produce {RECORDS[self.value_bytes][0]}, acks={self.acks}"

    @property
    def rows(self) -> tuple[Row, ...]:
        return Row(self.name, "MB/s", True), Row(f"{self.name}: until all have it", "MB/s", True), Row(f"{self.name}: CPU of all three", "cpu-s/GB")

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        cluster = as_cluster(contender)
        records = tools.scaled(RECORDS[self.value_bytes][1]) // PRODUCERS * PRODUCERS
        warm_up = max(PRODUCERS, int(records * WARM_UP_SHARE)) // PRODUCERS * PRODUCERS
        written = int((records + warm_up) * self.value_bytes * FRAMING) * BOXES
        with topic_of_a_turn(cluster, PARTITIONS, written) as topic:
            produce(cluster, tools, topic, warm_up, self.value_bytes, "all", "none", PARTITIONS)
            await_copied(cluster, topic)
            observer = Observer(cluster.pids())
            started = time.monotonic()
            report = produce(cluster, tools, topic, records, self.value_bytes, self.acks, "none", PARTITIONS)
            await_copied(cluster, topic)
            copied = time.monotonic() - started
            observation = observer.finish({"producers": report.cpu_seconds})
            # What followers have counts when the leader has heard so, with their next fetch.
            eventually(
                lambda: count_records(cluster, topic) == records + warm_up, f"{cluster.name}: the logs hold all {records + warm_up:,} acknowledged records"
            )
            if not is_in_sync(cluster, topic):
                raise BenchmarkFailed(f"{cluster.name}: a follower fell out of the ISR")
        gigabytes = records * self.value_bytes / 1e9
        values = (gigabytes * 1000 / report.seconds, gigabytes * 1000 / max(copied, report.seconds), sum(observation.box.values()) / gigabytes)
        turn = turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), observation)
        return turn._replace(details=cpu_by_role(observation, gigabytes))


@dataclass(frozen=True)
class ReplicatedPace(Cell):
    acks: int
    rate: float = 100.0
    connections: int = 10
    seconds: float = 8.0

    @property
    def name(self) -> str:
        return f"3 replicas, {self.rate:g} produces of {FRAME_BYTES} B a second, acks={'all' if self.acks < 0 else self.acks}"

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(Row(f"{self.name}: {quantile}", "ms") for quantile in ("p50", "p99"))

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        cluster, seconds = as_cluster(contender), max(1.0, self.seconds * tools.scale)
        with topic_of_a_turn(cluster, 1, SMALL_WRITTEN, {"retention.ms": "-1"}) as topic:
            with cluster_of(cluster) as client:
                number = client.topic(topic).partitions[0].leader
                address = client.latest.brokers[number]
            leader = (address.host, address.port)
            await_in_sync(cluster, topic)
            produce_at_a_pace(cluster, topic, self.connections, self.rate, max(1.0, seconds / 4), self.acks, leader)
            observer = Observer(cluster.pids())
            paced = produce_at_a_pace(cluster, topic, self.connections, self.rate, seconds, self.acks, leader)
            observation = observer.finish({"paced producer": paced.cpu_seconds})
        return turn_of(dict(zip((row.name for row in self.rows), (paced.p50_us / 1000, paced.p99_us / 1000), strict=True)), observation)


class Watcher(threading.Thread):
    """Looks how many bytes of a topic a box has, until they are `wanted`."""

    def __init__(self, member: Contender, topic: str, wanted: int) -> None:
        super().__init__(daemon=True)
        self._member, self._topic, self._wanted = member, topic, wanted
        self._is_over = threading.Event()
        self.first = log_bytes(member.disks, topic)
        self.grown_at = self.done_at = 0.0

    def run(self) -> None:
        while not self._is_over.is_set():
            size, now = log_bytes(self._member.disks, self._topic), time.monotonic()
            if size > self.first and not self.grown_at:
                self.grown_at = now - LOOK_SECONDS
            if size >= self._wanted:
                self.done_at = now
                return
            self._is_over.wait(LOOK_SECONDS)

    def finish(self) -> None:
        self.join(PATIENCE_SECONDS)
        self._is_over.set()
        if not self.done_at:
            raise BenchmarkFailed(f"a follower did not catch up in {PATIENCE_SECONDS:g} s")


@dataclass(frozen=True)
class CatchUp(Cell):
    records: int = 600_000
    value_bytes: int = 1024
    follower: int = BOXES

    @property
    def name(self) -> str:
        return "3 replicas, catch-up of a restarted follower"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row(self.name, "MB/s", True), Row(f"{self.name}: CPU of all three, its start included", "cpu-s/GB"),
                Row(f"{self.name}: from its start until it is in all ISRs", "s"))  # fmt: skip

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        """CPU of the restarted box counts from its start, its start included."""
        cluster, records = as_cluster(contender), tools.scaled(self.records) // PRODUCERS * PRODUCERS
        follower = cluster.members[self.follower]
        with topic_of_a_turn(cluster, PARTITIONS, int(records * self.value_bytes * FRAMING) * BOXES) as topic:
            await_in_sync(cluster, topic)
            follower.stop()
            produce(cluster, tools, topic, records, self.value_bytes, "all", "none", PARTITIONS)
            wanted = log_bytes(cluster.members[1].disks, topic)
            watcher = Watcher(follower, topic, wanted)
            observer = Observer(cluster.pids())
            started = time.monotonic()
            watcher.start()
            follower.start()
            watcher.finish()
            await_in_sync(cluster, topic)
            in_sync = time.monotonic() - started
            own = cpu_of(follower)
            observation = observer.finish(own)
        missing = (wanted - watcher.first) / 1e9
        used = sum(observation.box.values()) + sum(own.values())
        values = (missing * 1000 / (watcher.done_at - watcher.grown_at), used / missing, in_sync)
        return turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), observation)


def cpu_of(member: Contender) -> dict[str, float]:
    """Since its processes began."""
    return {f"{name} of the follower": process_cpu_seconds(pid) for name, pid in member.pids().items()}


class ReplicatedPart(Part):
    name = "replicated"
    boxes = BOXES
    rounds = 2
    idle_cores = 0.3
    title = f"three boxes on one machine, 3 replicas; {PRODUCERS} librdkafka producers from C, {PARTITIONS} partitions, 2 directories a box, uncompressed"

    @property
    def cells(self) -> Sequence[Cell]:
        produces = [ReplicatedProduce(size, acks) for size in RECORDS for acks in ("all", "1")]
        return [*produces, ReplicatedPace(-1), ReplicatedPace(1), CatchUp()]

    def warm_up(self, contender: Contender, tools: Tools) -> None:
        """So long that a JVM has compiled what it needs."""
        cluster, records = as_cluster(contender), tools.scaled(RECORDS[1024][1]) // PRODUCERS * PRODUCERS
        with topic_of_a_turn(cluster, PARTITIONS, records * 1024 * BOXES * 2) as topic:
            produce(cluster, tools, topic, records, 1024, "1", "none", PARTITIONS)
            produce(cluster, tools, topic, records, 1024, "all", "none", PARTITIONS)
            await_copied(cluster, topic)
