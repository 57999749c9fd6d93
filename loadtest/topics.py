"""Topics of a box under test: made before a run, counted after it by asking for their end offsets, as any client would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client.address import Address
from appliance.client.admin import create_topic, delete_topic, list_offsets
from appliance.client.cluster import ClusterClient
from appliance.protocol.offset_apis import LATEST_TIMESTAMP
from lab.running_box import Address as Listener

KNOWN_SECONDS = 10.0


class Broker(Protocol):
    """What a load has to know of the box, or of another broker, that it goes to."""

    @property
    def directory(self) -> Path: ...
    @property
    def kafka(self) -> Listener: ...
    @property
    def bootstrap(self) -> str: ...
    @property
    def disks(self) -> list[Path]: ...


@contextmanager
def cluster_of(box: Broker) -> Iterator[ClusterClient]:
    with ClusterClient([Address(box.kafka.host, box.kafka.port)]) as cluster:
        yield cluster


def make_topic(box: Broker, name: str, partitions: int, configs: dict[str, str] | None = None, replication_factor: int | None = None) -> None:
    """Returns when every partition has a leader. Kafka 4 says that a topic is made before its broker knows it."""
    deadline = time.monotonic() + KNOWN_SECONDS
    with cluster_of(box) as cluster:
        create_topic(cluster, name, partitions=partitions, replication_factor=replication_factor, configs=configs)
        while True:
            try:
                cluster.topic(name)
                return
            except RequestRefused as refused:
                if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def count_records(box: Broker, name: str) -> int:
    """Sum of the end offsets of a topic that began empty."""
    with cluster_of(box) as cluster:
        topic = cluster.topic(name)
        ends = list_offsets(cluster, [TopicPartition(name, known.partition) for known in topic.partitions], LATEST_TIMESTAMP)
    return sum(end.offset for end in ends.values())


def disks_used(box: Broker, name: str) -> int:
    """How many log directories hold a partition of the topic."""
    return sum(any(entry.name.rpartition("-")[0] == name for entry in disk.iterdir()) for disk in box.disks)


def remove_topic(box: Broker, name: str) -> None:
    """Returns when it is gone for clients; its files follow."""
    with cluster_of(box) as cluster:
        delete_topic(cluster, name)
