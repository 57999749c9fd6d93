"""What is there after a clean stop, after the death of everything, and after a power cut; and what consumers see while segments roll."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.base.errors import ErrorCode
from appliance.records.builder import BatchBuilder
from appliance.shm.mapping import list_names, unlink
from appliance.shm.partition_table import PartitionTableReader
from lab.load import AckedProducer, StreamReader
from lab.raw_client import RawClient
from lab.running_box import COMMAND, RunningBox, environment, eventually
from tests.support.stored_batches import stored_batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

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
    records = client.fetch("cut", 0, 0).records + client.fetch("cut", 0, 10).records
    assert b"cut 18" in records and b"cut 20" not in records and b"more" in records
    client.close()
    consumer = Consumer({"bootstrap.servers": second.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("cut", 0, 0)])
    offsets = [message.offset() for message in consumer.consume(11, 20) if message.error() is None]
    consumer.close()
    assert offsets == [*range(10), 20], "a client goes on behind what was lost"


@pytest.mark.parametrize("ends_cleanly", [True, False])
def test_consumers_are_led_over_a_missing_segment_and_learn_of_a_missing_start(start: Start, ends_cleanly: bool) -> None:
    first = start(settings={"log.flush.offset.checkpoint.interval.ms": 1000})
    client = RawClient(first.kafka)
    client.create_topic("holed", 1, segment_bytes=str(1 << 20))
    batches = [_batch(f"{number} " + "x" * 400_000) for number in range(12)]
    assert all(client.produce("holed", 0, batch).error_code == 0 for batch in batches)
    client.close()
    (directory,) = [path for disk in first.box.disks for path in Path(disk.path).glob("holed-0")]
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    assert len(bases) >= 5
    if ends_cleanly:
        first.stop()
    else:
        for name, line in (("recovery-point-offset-checkpoint", "holed 0 12"), ("log-start-offset-checkpoint", "holed 0 0")):
            eventually(lambda file=directory.parent / name, line=line: file.exists() and line in file.read_text(), f"{name} has {line}")
        first.kill_supervisor()
        for name in list_names(first.layout.shared_memory_prefix):
            unlink(name)
    for base in (bases[0], bases[2]):
        (directory / f"{base:020d}.log").unlink()
    second = start()
    assert f"holed-0 of {directory.parent} lacks {bases[1]} offsets at its start, 0 to {bases[1] - 1}" in second.messages
    assert f"lacks {bases[3] - bases[2]} offsets between its segments, {bases[2]} to {bases[3] - 1}" in second.messages
    left = [*range(bases[1], bases[2]), *range(bases[3], 12)]
    found_by = environment() | {"MILLRACE_DATA": str(second.disks[0])}
    line = f"holed-0 lacks offsets {bases[2]} to {bases[3] - 1}: consumers go on behind them"
    status = partial(subprocess.run, [*COMMAND[:-1], "status"], env=found_by, capture_output=True, text=True, timeout=60, check=True)
    eventually(lambda: line in status().stdout, "the log-writer has published what the log lacks")
    for read in (_read_with_librdkafka, _read_with_kafka_python):
        assert read(second, "holed", bases[1], len(left)) == left, f"{read.__name__} skips the hole"
    skipped = second.counters(f"log-reader@{directory.parent.name}").values["log_reader.gaps_skipped"]
    assert skipped >= 2, "each consumer is counted"
    client = RawClient(second.kafka)
    assert client.fetch("holed", 0, 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "clients show this, or reset"
    assert client.produce("holed", 0, _batch("more")).base_offset == 12
    client.close()


def _read_with_librdkafka(box: RunningBox, topic: str, offset: int, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "librdkafka", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    offsets = [message.offset() for message in consumer.consume(count, 20) if message.error() is None]
    consumer.close()
    return [offset for offset in offsets if offset is not None]


def _read_with_kafka_python(box: RunningBox, topic: str, offset: int, count: int) -> list[int]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=box.bootstrap, auto_offset_reset="none", consumer_timeout_ms=20_000)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    offsets = [record.offset for record, _ in zip(consumer, range(count), strict=False)]
    consumer.close()
    return offsets


def test_consumers_follow_a_log_that_rolls_many_segments_a_second(box: RunningBox) -> None:
    client = RawClient(box.kafka)
    client.create_topic("rolling", 2, internal_segment_bytes="20000")
    client.close()
    producer = AckedProducer(box.bootstrap, "rolling", 2, records_a_second=20_000)
    tail, late = (StreamReader(box.bootstrap, "rolling", 2) for _ in range(2))
    producer.start()
    tail.start()
    eventually(lambda: producer.produced > 40_000, "load runs")
    late.start()
    threading.Event().wait(1.0)
    producer.stop()
    for reader in (tail, late):
        eventually(lambda reader=reader: all(producer.acknowledged[partition] <= reader.numbers[partition] for partition in range(2)), "everything is read")
        reader.stop()
        assert reader.errors == []
        reader.check_every_offset_once()
    assert producer.failures == []
    segments = [segment for disk in box.disks for segment in disk.glob("rolling-*/*.log")]
    assert len(segments) > 20
