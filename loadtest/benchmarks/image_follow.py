"""How soon every box's metadata shows a change: three boxes with an ensemble of their own, some partitions in the image, and a leadership that goes round.

Each change is a preferred election (one conditional write, after an order that puts another replica first). Three connections, one to each box, ask for that
topic's metadata every few milliseconds and note when the new leader is in it. The time counts from the moment at which the request for the election is sent,
so the write in ZooKeeper, the change log, every controller's image and every acceptor's view are in it. Weak spots: three boxes, three JVMs and the watchers
share the machine's cores; the watchers' own round (2 to 4 ms) is in each figure.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.boxes import elect_leaders, reassign
from appliance.client.cluster import ClusterClient, PartitionMetadata, read_metadata
from appliance.client.connection import ClientConnection
from lab.cluster import KAFKA_PORT, Cluster
from lab.machine import address_of, why_not
from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.fail_over import STOCK, percentile
from loadtest.machine import load_average
from loadtest.observation import Observer

TOPIC, PARTITION = "goes-round", ("goes-round", 0)
LOOK_SECONDS = 0.002
PATIENCE_SECONDS = 20.0


class Watch(threading.Thread):
    """What one box says of the partition, again and again."""

    def __init__(self, address: Address) -> None:
        super().__init__(daemon=True)
        self._connection = ClientConnection(address)
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        self._seen: PartitionMetadata | None = None
        self._led_since: dict[int, float] = {}
        """Leader epoch → when it was first seen."""

    def run(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            found = read_metadata(self._connection, [TOPIC]).topics[TOPIC].partitions
            now = time.monotonic()
            if found and found[0] != self._seen:
                with self._changed:
                    self._seen = found[0]
                    self._led_since.setdefault(found[0].leader_epoch, now)
                    self._changed.notify()

    def await_replicas(self, replicas: tuple[int, ...]) -> int:
        """Until it shows them in this order, all in sync; the leader epoch."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._seen is not None and self._seen.assigned_replicas == replicas and len(self._seen.isr) == 3, PATIENCE_SECONDS
            ):
                raise BenchmarkFailed(f"the replicas are not {replicas} after {PATIENCE_SECONDS:g} s, but {self._seen}")
            assert self._seen is not None
            return self._seen.leader_epoch

    def led_since(self, leader_epoch: int, leader: int) -> float:
        """When a larger leader epoch than that was first seen, which is `leader`'s."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._seen is not None and self._seen.leader_epoch > leader_epoch, PATIENCE_SECONDS):
                raise BenchmarkFailed(f"no other leader after {PATIENCE_SECONDS:g} s: {self._seen}")
            assert self._seen is not None
            if self._seen.leader != leader:
                raise BenchmarkFailed(f"broker {leader} was to be elected: {self._seen}")
            return self._led_since[self._seen.leader_epoch]

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        self._connection.close()


@contextmanager
def watches(addresses: list[Address]) -> Iterator[list[Watch]]:
    made = [Watch(address) for address in addresses]
    for watch in made:
        watch.start()
    try:
        yield made
    finally:
        for watch in made:
            watch.stop()


@dataclass(frozen=True)
class ImageFollow(Benchmark):
    name: ClassVar[str] = "image_follow"
    title: ClassVar[str] = "A change of leader: until every box's Metadata shows it; three boxes in namespaces, stock settings."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("asked for, until all boxes tell: p50", "ms"),
        Figure("asked for, until all boxes tell: p99", "ms", at_most=200),
        Figure("asked for, until all boxes tell: longest", "ms"),
        Figure("answered, until all boxes tell: p99", "ms"),
        Figure("from the first box to the last: p99", "ms"),
        Figure("load average", ""),
    )
    short: ClassVar[dict[str, Any]] = {"changes": 10, "partitions": 50}
    runs_to_record: ClassVar[int] = 1

    changes: int = 200
    partitions: int = 500
    """That are in the image besides."""

    def missing(self) -> str | None:
        return why_not() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        observer = Observer({})
        with tempfile.TemporaryDirectory(prefix="image-follow-", dir=box.directory) as scratch:
            cluster = Cluster(Path(scratch), settings=STOCK)
            try:
                cluster.start()
                with cluster.clients():
                    load = load_average()
                    waits = self._measure([Address(address_of(number), KAFKA_PORT) for number in cluster.boxes], say)
                left = cluster.stop()
            finally:
                cluster.end()
        until_all = [max(seen) - asked for asked, _, seen in waits]
        after_answer = [max(0.0, max(seen) - answered) for _, answered, seen in waits]
        apart = [max(seen) - min(seen) for _, _, seen in waits]
        figures = {
            **{f"asked for, until all boxes tell: p{share:g}": 1000 * percentile(until_all, share / 100) for share in (50, 99)},
            "asked for, until all boxes tell: longest": 1000 * max(until_all),
            "answered, until all boxes tell: p99": 1000 * percentile(after_answer, 0.99),
            "from the first box to the last: p99": 1000 * percentile(apart, 0.99),
            "load average": load,
        }
        notes = [f"{self.changes} changes beside {self.partitions} partitions"]
        return Run(figures, observer.finish(), notes + ([f"boxes left behind at their clean end: {', '.join(left)}"] if left else []))

    def _measure(self, addresses: list[Address], say: Say) -> list[tuple[float, float, list[float]]]:
        """(asked, answered, when each box showed it) for each change."""
        client = ClusterClient(addresses)
        try:
            create_topic(client, "others", partitions=self.partitions, replication_factor=1)
            create_topic(client, TOPIC, partitions=1, replication_factor=3)
            with watches(addresses) as boxes:
                waits = []
                for number in range(self.changes):
                    first = number % 3
                    replicas = tuple((first + step) % 3 + 1 for step in range(3))
                    waits.append(self._change(client, boxes, replicas))
                    if number % 50 == 49:
                        say(f"{number + 1} of {self.changes} changes")
                return waits
        finally:
            client.close()

    def _change(self, client: ClusterClient, boxes: list[Watch], replicas: tuple[int, ...]) -> tuple[float, float, list[float]]:
        if refusals := reassign(client, {PARTITION: replicas}):
            raise BenchmarkFailed(f"not reassigned: {refusals}")
        leader_epoch = max(box.await_replicas(replicas) for box in boxes)
        asked = time.monotonic()
        results = elect_leaders(client, [PARTITION], False)
        answered = time.monotonic()
        if results.get(PARTITION) is not None:
            raise BenchmarkFailed(f"not elected: {results}")
        return asked, answered, [box.led_since(leader_epoch, replicas[0]) for box in boxes]
