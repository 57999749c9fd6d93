"""Clients of three installed boxes, from a machine of their own, and the judge of what the boxes made of their records.

A plain and an idempotent producer (acks=all, librdkafka) and a reader of each, on topics with three replicas of which two must be in sync; a probe measures how
long partitions take no acks=all. `check` reports violations, once the producers have stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from lab.cluster_history import acknowledged_findings, reader_findings
from lab.cluster_load import AllAcks, Reader, read_all
from lab.installed_box import DISKS
from lab.installed_cluster import InstalledCluster
from lab.pause_probe import PauseProbe
from lab.replica_comparison import differences, replica_directories
from lab.running_box import eventually

PARTITIONS, REPLICAS = 3, 3
IN_SYNC_SECONDS = 60.0
NEWS_SECONDS = 60.0
NO_CONFIG: Mapping[str, str] = MappingProxyType({})


class ClusterLoad:
    """What runs, and its counts. `name` begins the names of its topics, which have `config`."""

    def __init__(self, cluster: InstalledCluster, name: str, config: Mapping[str, str]) -> None:
        self._cluster = cluster
        self.plain, self.idempotent, self.probed = (f"{name}-{kind}" for kind in ("plain", "idempotent", "probed"))
        self._topics = [self.plain, self.idempotent, self.probed]
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "socket.timeout.ms": 20_000})
        wanted = [NewTopic(topic, PARTITIONS, REPLICAS, config={"min.insync.replicas": "2", **config}) for topic in self._topics]
        for made in self._admin.create_topics(wanted, operation_timeout=20).values():
            made.result(30)
        self.await_in_sync()
        self.producers = [AllAcks(cluster.bootstrap, self.plain, PARTITIONS, False), AllAcks(cluster.bootstrap, self.idempotent, PARTITIONS, True)]
        self.readers = [Reader(cluster.bootstrap, producer.topic, PARTITIONS) for producer in self.producers]
        for client in (*self.producers, *self.readers):
            client.start()
        self.probe = PauseProbe([machine.address for machine in cluster.machines.values()], self.probed, range(PARTITIONS))
        try:
            self.await_news("before anything is done")
        except BaseException:
            self.stop()
            raise

    def await_news(self, when: str) -> None:
        """Until both producers have had something acknowledged on every partition after this moment."""
        now = time.monotonic()
        for producer in self.producers:
            acknowledged = producer.acknowledged_at
            eventually(
                lambda acknowledged=acknowledged: len(acknowledged) == PARTITIONS and all(times[-1] > now for times in list(acknowledged.values())),  # type: ignore[misc]
                f"{producer.topic} is acknowledged: {when}",
                NEWS_SECONDS,
            )

    def pause(self, since: float) -> float:
        """The longest time without acks=all of any partition since then, in seconds; waits until the probe has each of them again."""

        def seconds() -> list[float] | None:
            each = [pause.seconds for pause in self.probe.pauses(since, time.monotonic())]
            return None if None in each else [second or 0.0 for second in each]

        return float(max(eventually(seconds, "the probe is acknowledged on every partition", NEWS_SECONDS)))

    def leaders(self) -> dict[str, list[int]]:
        """Topic → the leader of each partition."""
        told = self._admin.list_topics(timeout=10).topics
        return {topic: [int(partition.leader) for _, partition in sorted(told[topic].partitions.items())] for topic in self._topics}

    def lead_by(self, number: int, how_many: int = 1) -> None:
        """Until a box leads some of the probed partitions again, as its units leave off: by election, not by waiting for the automatic return."""
        machine = self._cluster.machines[number]
        machine.millrace("topic", "elect", self.probed)
        eventually(lambda: self.leaders()[self.probed].count(number) >= how_many, f"box {number} leads {how_many} of {self.probed}")

    def await_in_sync(self, seconds: float = IN_SYNC_SECONDS) -> None:
        """Until every replica of every partition is in sync."""

        def missing() -> list[str]:
            told = self._admin.list_topics(timeout=10).topics
            rows = [(topic, p) for topic in self._topics if topic in told for p in told[topic].partitions.values()]
            found = [f"{topic}-{p.id}: leader {p.leader}, ISR {p.isrs} of {p.replicas}" for topic, p in rows if len(p.isrs) < REPLICAS or p.leader < 0]
            return found if len(rows) == PARTITIONS * len(self._topics) else [f"{len(rows)} partitions", *found]

        try:
            eventually(lambda: not missing(), "all replicas are in sync", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {missing()}") from None

    def stop(self) -> None:
        for client in (*self.producers, *self.readers):
            client.stop()
        self.probe.stop()

    def check(self) -> None:
        """Nothing acknowledged is lost or moved, an idempotent producer has no duplicate, readers saw the same, and replicas are equal byte for byte."""
        self.stop()
        for producer in self.producers:
            producer.join()
        self.await_in_sync()
        finals = read_all(self._cluster.bootstrap, [(producer.topic, "read_uncommitted") for producer in self.producers], PARTITIONS)
        found: list[str] = []
        for producer, reader, final in zip(self.producers, self.readers, finals, strict=True):
            reader.join()
            findings = acknowledged_findings(producer.sent, final, may_double=not producer.is_idempotent) + reader_findings([final, reader.seen])
            found += [f"{producer.topic}: {finding}" for finding in findings] + [f"{producer.topic}: {words}" for words in producer.broken]
            found += self._compare(producer.topic, final)
            acknowledged = sum(len(times) for times in producer.acknowledged_at.values())
            print(f"{producer.topic}: {acknowledged} acknowledged, {sum(map(len, final.values()))} stored, errors {dict(producer.errors)}")
        assert found == [], found[:10]
        self._admin.delete_topics(self._topics)

    def _compare(self, topic: str, final: dict[int, list[tuple[int, str]]]) -> list[str]:
        places = {number: [machine.box.path(disk) for disk in DISKS] for number, machine in self._cluster.machines.items()}
        words = []
        for partition, records in final.items():
            replicas = replica_directories(places, topic, partition)
            words += [] if len(replicas) == REPLICAS else [f"{topic}-{partition} lies on {sorted(replicas)}"]
            words += differences(replicas, records[-1][0] + 1 if records else 0)
        return words


@contextmanager
def load_on_cluster(cluster: InstalledCluster, name: str, config: Mapping[str, str] = NO_CONFIG) -> Iterator[ClusterLoad]:
    """On topics called after `name`, with `config`, until the block ends; then it is judged."""
    with cluster.clients():
        load = ClusterLoad(cluster, name, config)
        try:
            yield load
        except BaseException:
            load.stop()
            raise
        load.check()
