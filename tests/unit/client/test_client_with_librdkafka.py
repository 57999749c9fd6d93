"""The client against librdkafka's mock cluster: three brokers of independent code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import Consumer as TheirConsumer
from confluent_kafka import Producer as TheirProducer
from confluent_kafka import TopicPartition as TheirPartition

from appliance.client.address import parse_addresses
from appliance.client.admin import describe_topic
from appliance.client.cluster import ClusterClient
from appliance.client.fetch import StartAt, TopicTail
from appliance.client.producer import BatchProducer, RecordProducer, new_identity
from appliance.records.compression import Codec
from appliance.records.keys import partition_of_key

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    mock = TheirProducer({"test.mock.num.brokers": 3, "log_level": 0})
    brokers = mock.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(parse_addresses(bootstrap)) as made:
        yield made


def write(cluster: ClusterClient, topic: str, count: int, codec: Codec = Codec.NONE) -> None:
    producer = RecordProducer(BatchProducer(cluster, new_identity(cluster)), topic, codec=codec, batch_bytes=4096)
    for number in range(count):
        producer.send(b"%d" % number, b"key-%d" % (number % 7), headers=[("n", b"%d" % number), ("nothing", None)], timestamp_ms=1_700_000_000_000 + number)
    producer.send(None, b"tombstone")
    producer.send(b"", None, partition=0)
    producer.flush()
    producer.close()
    assert producer.acknowledged == count + 2


@pytest.mark.parametrize("codec", list(Codec))
def test_librdkafka_reads_what_the_producer_wrote(bootstrap: str, cluster: ClusterClient, codec: Codec) -> None:
    topic = f"written-{codec.name.lower()}"
    write(cluster, topic, 2000, codec)
    consumer = TheirConsumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "check.crcs": True})
    consumer.assign([TheirPartition(topic, partition, OFFSET_BEGINNING) for partition in range(len(cluster.topic(topic).partitions))])
    found = []
    while len(found) < 2002:
        messages = consumer.consume(2002, 10)
        assert messages, "nothing came"
        assert not [message.error() for message in messages if message.error()]
        found += messages
    consumer.close()
    assert sorted(int(message.value()) for message in found if message.value()) == list(range(2000))
    one = next(message for message in found if message.value() == b"77")
    assert (one.key(), one.headers(), one.timestamp()[1]) == (b"key-0", [("n", b"77"), ("nothing", None)], 1_700_000_000_077)
    assert [message.key() for message in found if message.value() is None] == [b"tombstone"]
    assert sum(message.value() == b"" for message in found) == 1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_tail_reads_what_librdkafka_wrote(bootstrap: str, cluster: ClusterClient, codec: str) -> None:
    topic = f"read-{codec}"
    theirs = TheirProducer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5})
    for number in range(2000):
        theirs.produce(topic, b"%d" % number, key=b"key-%d" % (number % 7), headers=[("n", b"x")])
    assert theirs.flush(10) == 0
    tail = TopicTail(cluster, topic, start_at=StartAt.EARLIEST)
    found = []
    while len(found) < 2000:
        got = tail.poll(10_000)
        assert got, "nothing came"
        found += [record for _, records in got for record in records]
    tail.close()
    assert sorted(int(record.value or b"") for record in found) == list(range(2000))
    assert all(record.headers == (("n", b"x"),) for record in found)
    described = describe_topic(cluster, topic)
    assert sum((partition.end_offset or 0) - (partition.log_start_offset or 0) for partition in described.partitions) == 2000


def test_keys_go_where_librdkafka_with_the_java_partitioner_sends_them(bootstrap: str, cluster: ClusterClient) -> None:
    theirs = TheirProducer({"bootstrap.servers": bootstrap, "partitioner": "murmur2", "linger.ms": 5})
    placed: dict[bytes, int] = {}
    for number in range(200):
        theirs.produce("placed", b"", key=b"key-%d" % number, on_delivery=lambda error, message: placed.update({message.key(): message.partition()}))
    assert theirs.flush(10) == 0
    count = len(cluster.topic("placed").partitions)
    assert placed == {b"key-%d" % number: partition_of_key(b"key-%d" % number, count) for number in range(200)}
