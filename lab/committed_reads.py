"""What a reader of committed records sees of a topic, by librdkafka."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition


def read_committed(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Key and value of every record, by partition, from the first to the end as it is now."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": isolation, "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        numbers = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found: dict[int, list[tuple[bytes | None, bytes | None]]] = {number: [] for number in numbers}
        unfinished = set(numbers)
        while unfinished:
            message = consumer.poll(10)
            assert message is not None, f"no end of {topic}, partitions {sorted(unfinished)}"
            partition = message.partition()
            assert partition is not None
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard(partition)
            else:
                found[partition].append((message.key(), message.value()))
        return found
    finally:
        consumer.close()
