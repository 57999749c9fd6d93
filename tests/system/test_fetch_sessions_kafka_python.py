"""kafka-python 3, which reads by fetch sessions: many partitions, records here and there, and a
restart of the acceptor in between.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import pytest

from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in a way that Python means to drop
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.structs import TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.slow]

PARTITIONS = 60


def test_a_reader_of_many_partitions_gets_every_record_once_and_in_order(start: Callable[..., RunningBox]) -> None:
    box = start()
    client = RawClient(box.kafka)
    client.create_topic("many", PARTITIONS)
    eventually(lambda: client.is_served("many", PARTITIONS), "the topic is served")
    client.close()
    producer = KafkaProducer(bootstrap_servers=box.bootstrap, enable_idempotence=False, acks="all", linger_ms=1)
    consumer = KafkaConsumer(bootstrap_servers=box.bootstrap, enable_auto_commit=False, fetch_max_wait_ms=200, auto_offset_reset="earliest")
    consumer.assign([TopicPartition("many", partition) for partition in range(PARTITIONS)])
    consumer.seek_to_beginning()
    expected: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    got: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}

    def take(seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while got != expected and time.monotonic() < deadline:
            for part, records in consumer.poll(timeout_ms=100).items():
                got[part.partition] += [record.value for record in records]
        assert got == expected

    def produce(round_number: int) -> None:
        for number in range(10):
            partition = (round_number * 7 + number * 13) % PARTITIONS
            value = b"%d.%d" % (round_number, number)
            expected[partition].append(value)
            producer.send("many", value, partition=partition)
        producer.flush(20)

    for round_number in range(20):
        produce(round_number)
        take()
    values = box.counters("acceptor@0").values
    assert values["fetch.incremental"] >= 10, "it read by sessions"
    assert values["fetch.sessions"] >= 1
    assert values["fetch.session_errors"] == 0

    old = box.kill("acceptor@0")
    box.await_restart("acceptor@0", old)
    for round_number in range(20, 25):
        produce(round_number)
        take()
    assert box.counters("acceptor@0").values["fetch.incremental"] >= 1, "it made a new session"
    consumer.close()
    producer.close()
