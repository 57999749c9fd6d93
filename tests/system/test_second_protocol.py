"""Kafka 4's Java producer, the only client here that speaks the transactions of KIP-890: partitions join by being written to, every end raises the epoch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lab import client_packages
from lab.running_box import RunningBox
from lab.three_boxes import ThreeBoxes

pytestmark = [pytest.mark.system, pytest.mark.slow]

TRANSACTIONS = 20
SECONDS = 200


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
    assert sorted(_read_committed(box.bootstrap)) == sorted(f"{number}-{record}" for number in range(TRANSACTIONS) if number % 3 != 2 for record in range(4))


@pytest.mark.parametrize(("producers", "transactions", "partitions"), [(1, 40, 2), pytest.param(10, 60, 8, marks=pytest.mark.deep)])
def test_transactions_that_follow_each_other_at_once_are_all_committed(tmp_path: Path, producers: int, transactions: int, partitions: int) -> None:
    """With replicas on three boxes the markers of a transaction are on their way when the first batches of the next one arrive."""
    if reason := client_packages.missing_java4():
        pytest.skip(reason)
    java = shutil.which("java")
    assert java is not None
    boxes = ThreeBoxes(tmp_path)
    try:
        admin = AdminClient({"bootstrap.servers": boxes.bootstrap})
        admin.create_topics([NewTopic("out", partitions, 3)])["out"].result(SECONDS)
        command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", client_packages.class_path_4(), "BackToBackTransactions"]
        sizes = [str(producers), str(transactions), str(partitions)]
        ended = subprocess.run([*command, boxes.bootstrap, "out", *sizes], capture_output=True, text=True, timeout=SECONDS, check=False)
        assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, str(producers * transactions), "")
        sent = (f"back-to-back-{producer}-{number}-{each}" for producer in range(producers) for number in range(transactions) for each in range(partitions))
        assert sorted(_read_committed(boxes.bootstrap, partitions)) == sorted(sent)
    finally:
        boxes.close()


def _read_committed(bootstrap: str, partitions: int = 2) -> list[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("out", partition, 0) for partition in range(partitions)])
    found: list[str] = []
    ends = 0
    while ends < partitions:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            ends += 1
        else:
            found.append(bytes(message.value() or b"").decode())
    consumer.close()
    return found
