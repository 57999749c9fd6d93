"""Kafka 4's Java producer, the only client here that speaks the transactions of KIP-890: partitions join by being written to, every end raises the epoch."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import client_packages
from tests.support.running_box import RunningBox

pytestmark = [pytest.mark.system, pytest.mark.slow]

TRANSACTIONS = 20
SECONDS = 60


def test_every_end_of_a_transaction_raises_the_epoch_and_aborted_ones_stay_hidden(box: RunningBox) -> None:
    if reason := client_packages.missing_java4():
        pytest.skip(reason)
    java = shutil.which("java")
    assert java is not None
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    admin.create_topics([NewTopic("out", 2)])["out"].result(SECONDS)
    command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", client_packages.class_path_4(), "TransactionClient"]
    ended = subprocess.run([*command, box.bootstrap, "out", str(TRANSACTIONS)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    level, epoch, offset = map(int, ended.stdout.split())
    assert (level, epoch) == (2, TRANSACTIONS)
    assert offset == max(number for number in range(TRANSACTIONS) if number % 3 != 2)
    assert sorted(_read_committed(box)) == sorted(f"{number}-{record}" for number in range(TRANSACTIONS) if number % 3 != 2 for record in range(4))


def _read_committed(box: RunningBox) -> list[str]:
    settings = {"bootstrap.servers": box.bootstrap, "group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("out", partition, 0) for partition in range(2)])
    found: list[str] = []
    ends = 0
    while ends < 2:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            ends += 1
        else:
            found.append(bytes(message.value() or b"").decode())
    consumer.close()
    return found
