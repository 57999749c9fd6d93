"""Topics of a box under test: made before a run, counted after it by asking for their end offsets, as any client would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from appliance.base.model import TopicPartition
from appliance.client.address import Address
from appliance.client.admin import LATEST_TIMESTAMP, create_topic, list_offsets
from appliance.client.cluster import ClusterClient
from tests.support.running_box import RunningBox


@contextmanager
def cluster_of(box: RunningBox) -> Iterator[ClusterClient]:
    with ClusterClient([Address(box.kafka.host, box.kafka.port)]) as cluster:
        yield cluster


def make_topic(box: RunningBox, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    """Returns when every partition has a leader."""
    with cluster_of(box) as cluster:
        create_topic(cluster, name, partitions=partitions, configs=configs)
        cluster.topic(name)


def count_records(box: RunningBox, name: str) -> int:
    """Sum of the end offsets of a topic that began empty."""
    with cluster_of(box) as cluster:
        topic = cluster.topic(name)
        ends = list_offsets(cluster, [TopicPartition(name, known.partition) for known in topic.partitions], LATEST_TIMESTAMP)
    return sum(end.offset for end in ends.values())


def disks_used(box: RunningBox, name: str) -> int:
    """How many log directories hold a partition of the topic."""
    return sum(any(entry.name.rpartition("-")[0] == name for entry in disk.iterdir()) for disk in box.disks)
