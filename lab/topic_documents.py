"""The JSON documents that a topic of a running box holds, read with librdkafka from its beginning."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from lab.running_box import RunningBox


def read_documents(box: RunningBox, topic: str, seconds: float = 60.0) -> list[dict[str, Any]]:
    """Everything up to the ends that the topic has now; each partition's in its order."""
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "test", "enable.auto.commit": False, "fetch.wait.max.ms": 50})
    try:
        starts = [TopicPartition(topic, partition, 0) for partition in consumer.list_topics(topic, 10).topics[topic].partitions]
        wanted = sum(consumer.get_watermark_offsets(start, 10)[1] for start in starts)
        consumer.assign(starts)
        documents: list[dict[str, Any]] = []
        deadline = time.monotonic() + seconds
        while len(documents) < wanted:
            assert time.monotonic() < deadline, f"{len(documents)} of {wanted} records of {topic} came"
            for message in consumer.consume(1000, 0.1):
                value = message.value()
                assert message.error() is None and value is not None, message.error()
                documents.append(json.loads(value))
        return documents
    finally:
        consumer.close()
