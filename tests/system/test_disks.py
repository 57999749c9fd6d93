"""Disks as boxes have them: one more is added, names collide, a segment holds what cannot be opened."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from appliance.records.batch import ATTRIBUTES_AT, CRC_AT
from appliance.records.builder import BatchBuilder
from appliance.records.crc32c import crc32c
from lab.load import AckedProducer, StreamReader
from lab.raw_client import RawClient
from lab.running_box import RunningBox, environment, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]


COMMAND = [sys.executable, "-P", "-m", "appliance.command.main"]


def _batch(text: str, timestamp: int = 1_700_000_000_000) -> bytes:
    builder = BatchBuilder()
    builder.append(timestamp, None, text.encode())
    return builder.build()


def _batch_that_claims_gzip() -> bytes:
    """Valid header and CRC; its body is no gzip stream, which only a reader that decompresses it
    detects.
    """
    batch = bytearray(_batch("not gzip"))
    batch[ATTRIBUTES_AT + 1] |= 1
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return bytes(batch)


def test_a_disk_whose_name_collides_can_be_added_and_every_partition_stays_served(
    start: Callable[..., RunningBox], start_shared: Callable[..., RunningBox]
) -> None:
    first = start()
    client = RawClient(first.kafka)
    client.create_topic("kept", 4)
    for partition in range(4):
        assert client.produce("kept", partition, _batch(f"record {partition}")).error_code == 0
    client.close()
    first.stop()
    second = start_shared(first.directory, data=[first.directory / "other" / "d0", first.directory / "d0", first.directory / "d1"])
    try:
        client = RawClient(second.kafka)
        for partition in range(4):
            fetched = client.fetch("kept", partition, 0)
            assert (fetched.error_code, f"record {partition}".encode() in fetched.records) == (0, True)
            assert client.produce("kept", partition, _batch("more")).base_offset == 1
        client.close()
    finally:
        second.stop()
    assert second.leftovers() == []


def test_a_batch_that_cannot_be_decompressed_is_an_error_only_for_requests_that_need_it(shared_box: RunningBox) -> None:
    client = RawClient(shared_box.kafka)
    client.create_topic("odd", 1)
    client.create_topic("even", 4)
    assert client.produce("odd", 0, _batch_that_claims_gzip()).error_code == 0
    pids = shared_box.pids()
    with pytest.raises(AssertionError, match="2"):
        client.list_offset("odd", 0, 1_600_000_000_000)
    for partition in range(4):
        assert client.produce("even", partition, _batch("sound")).error_code == 0
        assert client.list_offset("even", partition, 1_600_000_000_000) == 0
    assert shared_box.pids() == pids
    client.close()


def _disk_of(box: RunningBox, topic: str, partition: int) -> str:
    return next(disk.name for disk in box.box.disks if (box.directory / disk.name / f"{topic}-{partition}").exists())


def test_a_hung_log_writer_is_answered_for_and_what_stands_behind_it_goes_on(shared_box: RunningBox) -> None:
    client = RawClient(shared_box.kafka)
    client.create_topic("both", 4)
    hung = _disk_of(shared_box, "both", 0)
    sound = next(partition for partition in range(1, 4) if _disk_of(shared_box, "both", partition) != hung)
    assert client.produce("both", 0, _batch("before")).base_offset == 0
    shared_box.kill(f"log-writer@{hung}", signal.SIGSTOP)
    client.send_produce("both", 0, _batch("hangs"), timeout_seconds=1)
    client.send_produce("both", sound, _batch("goes on"), timeout_seconds=20)
    assert client.receive_produce().error_code == 7
    assert client.receive_produce().error_code == 0
    shared_box.kill(f"log-writer@{hung}", signal.SIGCONT)
    assert client.produce("both", 0, _batch("after")).base_offset == 2
    client.close()


def test_the_space_of_a_deleted_topic_is_not_kept_by_an_open_segment(shared_box: RunningBox) -> None:
    client = RawClient(shared_box.kafka)
    client.create_topic("short-lived", 1)
    assert client.produce("short-lived", 0, _batch("x" * 100_000)).error_code == 0
    assert client.fetch("short-lived", 0, 0).records
    pid = shared_box.pid("acceptor@0")
    assert _open_segments(pid, "short-lived") == 1
    admin = AdminClient({"bootstrap.servers": shared_box.bootstrap})
    admin.delete_topics(["short-lived"])["short-lived"].result(60)
    eventually(lambda: _open_segments(pid, "short-lived") == 0, "the acceptor lets go of it")
    client.close()


def _open_segments(pid: int, topic: str) -> int:
    count = 0
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += topic in os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:
            continue
    return count


def test_a_fetch_of_a_thousand_partitions_gets_them_all(shared_box: RunningBox) -> None:
    client = RawClient(shared_box.kafka)
    client.create_topic("wide", 1000)
    client.close()
    producer = AckedProducer(shared_box.bootstrap, "wide", 1000, records_a_second=20_000)
    producer.start()
    eventually(lambda: len(producer.acknowledged) == 1000, "every partition has a record")
    producer.stop()
    reader = StreamReader(shared_box.bootstrap, "wide", 1000)
    reader.start()
    eventually(lambda: all(numbers <= reader.numbers[partition] for partition, numbers in producer.acknowledged.items()), "everything is read")
    reader.stop()
    reader.check_every_offset_once()
    assert sum(count for label, count in shared_box.counters("acceptor@0").values.items() if label.startswith("log_reader.unanswered")) == 0


def _millrace(box: RunningBox, *arguments: str) -> str:
    ran = subprocess.run(
        [*COMMAND, *arguments], env=environment() | {"MILLRACE_DATA": str(box.disks[0])}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran
    return ran.stdout


def test_the_old_logs_of_an_added_disk_take_no_partition_out_of_service(shared_box: RunningBox) -> None:
    client = RawClient(shared_box.kafka)
    client.create_topic("again", 2)
    assert client.produce("again", 0, _batch("before")).error_code == 0
    disk = _disk_of(shared_box, "again", 0)
    old = shared_box.directory / "old"
    (shared_box.directory / disk).rename(old)
    eventually(lambda: "offline" in _millrace(shared_box, "disk", "list"), "the disk is missed")
    _millrace(shared_box, "disk", "replace", disk, "--accept-data-loss", "--force", "missing,root-filesystem,same-device")
    eventually(lambda: client.produce("again", 0, _batch("anew")).error_code == 0, "it is served again, empty")
    _millrace(shared_box, "disk", "add", str(old), "--force", "root-filesystem,same-device")
    eventually(lambda: "logs of disk old are orphans" in shared_box.messages, "the old logs are open")
    assert "old/again-0" in _millrace(shared_box, "disk", "orphans")
    for _ in range(3):
        assert client.produce("again", 0, _batch("after")).error_code == 0
    fetched = client.fetch("again", 0, 0)
    assert fetched.error_code == 0 and b"anew" in fetched.records and b"before" not in fetched.records
    problems = {topic["name"]: topic["problems"] for topic in json.loads(_millrace(shared_box, "status", "--json"))["topics"]}
    assert not any(problems.values()), problems
    assert "holds nothing to move, but" in _millrace(shared_box, "disk", "drain", "old")
    assert "stay in that directory" in _millrace(shared_box, "disk", "remove", "old")
    assert (old / "again-0").is_dir() and client.produce("again", 0, _batch("later")).error_code == 0
    client.close()
