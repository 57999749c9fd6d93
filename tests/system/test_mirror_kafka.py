"""Mirrors between a real Kafka and a box, in both directions, killed on the way; read with librdkafka on both sides."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from lab.committed_reads import read_committed
from lab.real_kafka import skip_without_kafka
from lab.running_box import RunningBox, eventually
from loadtest.beside_kafka.kafka_contender import KAFKA_3, KAFKA_4, Heap, KafkaContender, Release
from tests.system.test_mirror import RunningMirror, commit, committed, create, end_of, mirror, produce, produce_in_transactions  # noqa: F401  mirror: a fixture

pytestmark = [pytest.mark.system, pytest.mark.deep]

SMALL = Heap(("-Xmx400m",), "small")


@pytest.fixture(scope="module", params=[KAFKA_3, KAFKA_4], ids=["kafka3", "kafka4"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaContender]:
    skip_without_kafka()
    release: Release = request.param
    broker = KafkaContender("kafka", tmp_path_factory.mktemp("kafka"), release, SMALL)
    broker.start()
    yield broker
    broker.stop()
    broker.remove()


@pytest.mark.parametrize("direction", ["kafka to box", "box to kafka"])
def test_each_record_is_copied_once_with_its_time(
    kafka: KafkaContender,
    start: Callable[..., RunningBox],
    mirror: Callable[..., RunningMirror],  # noqa: F811
    direction: str,
) -> None:
    box = start(settings={"group.initial.rebalance.delay.ms": 0})
    source, target = (kafka, box) if direction == "kafka to box" else (box, kafka)
    topics = {"plain": 3, "stamped": 1, "compacted": 1}
    name = direction.replace(" ", "-")
    create(source, f"{name}.plain", 3, retention_ms="777000")
    create(source, f"{name}.stamped", message_timestamp_type="LogAppendTime")
    create(source, f"{name}.compacted", cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", delete_retention_ms="0")
    running = mirror("m", str(target.kafka), {"s": str(source.kafka)}, topics=[f"{name}\\..*"], groups=["readers"])
    for turn, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        for topic, count in topics.items():
            for partition in range(count):
                produce(source, f"{name}.{topic}", [b"%s %d" % (codec.encode(), number) for number in range(200)], partition, **{"compression.type": codec})
        produce_in_transactions(source, f"{name}.plain", [b"in transaction %d %d" % (turn, number) for number in range(60)], 3, 10)
        eventually(lambda: any(each["records"] for each in running.partitions(f"{name}.plain")), f"records are copied in turn {turn}", 60)
        running.end(signal.SIGKILL)
        running.start()
    for topic, count in topics.items():
        end = end_of(source, f"{name}.{topic}", count)
        eventually(lambda topic=topic, end=end: running.has_copied(f"{name}.{topic}", end), f"{topic} is copied", 60)
    reads = [str(each.kafka) for each in (source, target)]
    assert read_committed(reads[1], f"s.{name}.plain") == read_committed(reads[0], f"{name}.plain")
    assert timed(reads[1], f"s.{name}.stamped") == timed(reads[0], f"{name}.stamped")
    latest = [dict(read_committed(each, topic)[0]) for each, topic in zip(reads, (f"{name}.compacted", f"s.{name}.compacted"), strict=True)]
    assert latest[0] == latest[1]
    commit(reads[0], "readers", f"{name}.stamped", 500)
    eventually(lambda: committed(reads[1], "readers", f"s.{name}.stamped") is not None, "the group's offset is translated", 60)
    there = committed(reads[1], "readers", f"s.{name}.stamped")
    assert there is not None
    left = [value for _, value in timed(reads[1], f"s.{name}.stamped", there)]
    assert left[-500:] == [value for _, value in timed(reads[0], f"{name}.stamped", 500)]
    assert running.end() == 0


def timed(bootstrap: str, topic: str, first: int = 0) -> list[tuple[int, bytes | None]]:
    """Time and value of each record of partition 0 from an offset on."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer(settings)
    try:
        consumer.assign([Place(topic, 0, first)])
        found = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            found.append((message.timestamp()[1], message.value()))
        return found
    finally:
        consumer.close()
