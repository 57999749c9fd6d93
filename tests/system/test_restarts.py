"""What is there after a clean stop, after the death of everything, and after a power cut; and what consumers see while segments roll."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.records.builder import BatchBuilder
from appliance.shm.mapping import list_names, unlink
from appliance.shm.partition_table import PartitionTableReader
from lab.load import AckedProducer, StreamReader
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually
from tests.support.stored_batches import stored_batches

pytestmark = [pytest.mark.system, pytest.mark.slow]

Start = Callable[..., RunningBox]


def _batch(text: str) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, text.encode())
    return builder.build()


def _fill(box: RunningBox, topic: str, count: int) -> None:
    client = RawClient(box.kafka)
    client.create_topic(topic, 2)
    for number in range(count):
        assert client.produce(topic, number % 2, _batch(f"{topic} {number}")).error_code == 0
    client.close()


def _check(box: RunningBox, topic: str, count: int) -> None:
    client = RawClient(box.kafka)
    for partition in range(2):
        records = client.fetch(topic, partition, 0).records
        for number in range(partition, count, 2):
            assert f"{topic} {number}".encode() in records
        assert client.list_offset(topic, partition, -1) == count // 2
    client.close()


def _leader_epochs(box: RunningBox) -> dict[tuple[bytes, int], int]:
    epochs = {}
    for disk in box.box.disks:
        for name in list_names(box.layout.shared_memory_name("table", disk.name)):
            table = PartitionTableReader.attach(name)
            epochs.update({(row.topic_id, row.partition): row.leader_epoch for _, row in table.rows()})
            table.close()
    return epochs


def test_after_a_clean_stop_everything_is_there_and_nothing_is_scanned(start: Start) -> None:
    first = start()
    _fill(first, "kept", 40)
    first.stop()
    second = start()
    _check(second, "kept", 40)
    assert second.messages.count("after a clean stop") == 2
    client = RawClient(second.kafka)
    assert client.produce("kept", 0, _batch("more")).base_offset == 20
    client.close()


def test_after_the_death_of_all_processes_the_last_state_is_recovered(start: Start) -> None:
    first = start()
    _fill(first, "kept", 40)
    epochs = _leader_epochs(first)
    first.kill_supervisor()
    second = start()
    _check(second, "kept", 40)
    assert second.messages.count("after its process died") == 2
    assert {key: epoch for key, epoch in _leader_epochs(second).items() if key in epochs} == epochs


def test_after_a_power_cut_torn_tails_are_cut_and_every_leader_epoch_goes_up(start: Start) -> None:
    """Shared memory is gone and the last write is torn, as after a power cut; files themselves are whole here (the disk is another test's)."""
    first = start()
    _fill(first, "kept", 40)
    epochs = _leader_epochs(first)
    first.kill_supervisor()
    for name in list_names(first.layout.shared_memory_prefix):
        unlink(name)
    for disk in first.disks:
        for segment in disk.glob("kept-*/*.log"):
            with open(segment, "ab") as file:
                file.write(_batch("torn")[:50])
    second = start()
    _check(second, "kept", 40)
    assert second.messages.count("after an unclean boot") == 2
    assert sum(int(count) for count in re.findall(r"cut (\d+) bytes", second.messages)) == 2 * 50
    after = _leader_epochs(second)
    assert all(after[key] == epoch + 1 for key, epoch in epochs.items())
    client = RawClient(second.kafka)
    assert client.produce("kept", 0, _batch("more")).base_offset == 20
    assert client.fetch("kept", 0, 20, leader_epoch=1).error_code == 0
    assert client.fetch("kept", 0, 20, leader_epoch=0).error_code == 74
    client.close()
    assert [header.partition_leader_epoch for header in stored_batches(second, "kept", 0)] == [0] * 20 + [1]


def test_offsets_of_a_log_that_was_cut_during_a_stop_are_reported_and_not_given_again(start: Start) -> None:
    first = start()
    _fill(first, "cut", 40)
    first.stop()
    (segment,) = [path for disk in first.box.disks for path in Path(disk.path).glob("cut-0/*.log")]
    os.truncate(segment, segment.stat().st_size // 2)
    second = start()
    assert "lacks 10 offsets at its end, 10 to 19" in second.messages
    client = RawClient(second.kafka)
    eventually(lambda: client.produce("cut", 0, _batch("more")).base_offset == 20, "the log goes on behind what was lost")
    records = client.fetch("cut", 0, 0).records
    assert b"cut 18" in records and b"cut 20" not in records and b"more" in records
    client.close()
    consumer = Consumer({"bootstrap.servers": second.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("cut", 0, 0)])
    offsets = [message.offset() for message in consumer.consume(11, 20) if message.error() is None]
    consumer.close()
    assert offsets == [*range(10), 20], "a client goes on behind what was lost"


def test_consumers_follow_a_log_that_rolls_many_segments_a_second(box: RunningBox) -> None:
    client = RawClient(box.kafka)
    client.create_topic("rolling", 2, internal_segment_bytes="20000")
    client.close()
    producer = AckedProducer(box.bootstrap, "rolling", 2, records_a_second=20_000)
    tail, late = (StreamReader(box.bootstrap, "rolling", 2) for _ in range(2))
    producer.start()
    tail.start()
    eventually(lambda: producer.produced > 40_000, "load runs", 20)
    late.start()
    threading.Event().wait(1.0)
    producer.stop()
    for reader in (tail, late):
        eventually(lambda reader=reader: all(producer.acknowledged[partition] <= reader.numbers[partition] for partition in range(2)), "everything is read", 20)
        reader.stop()
        assert reader.errors == []
        reader.check_every_offset_once()
    assert producer.failures == []
    segments = [segment for disk in box.disks for segment in disk.glob("rolling-*/*.log")]
    assert len(segments) > 20
