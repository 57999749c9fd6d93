"""Retention and DeleteRecords in a real box, asked for by real clients."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from appliance.records.builder import BatchBuilder
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python's own, raised while kafka-python reads its schemas
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as Partition
    from kafka.admin import NewTopic
    from kafka.errors import PolicyViolationError

pytestmark = [pytest.mark.system, pytest.mark.slow]

SETTINGS = {"log.retention.check.interval.ms": 200, "log.segment.bytes": 64 * 1024, "log.segment.delete.delay.ms": 500}
OFFSET_OUT_OF_RANGE = 1
EARLIEST, LATEST = -2, -1


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    box = start_shared(tmp_path_factory.mktemp("keeper") / "box", disks=1, settings=SETTINGS)
    yield box
    box.stop()
    assert box.leftovers() == []


def _batch(size_bytes: int = 16_000) -> bytes:
    builder = BatchBuilder()
    builder.append(time.time_ns() // 1_000_000, None, os.urandom(size_bytes))
    return builder.build()


def _files(box: RunningBox, topic: str) -> list[str]:
    return sorted(name for name in os.listdir(box.disks[0] / f"{topic}-0") if re.match(r"\d{20}", name))


def _alter(admin: AdminClient, topic: str, **configs: str) -> None:
    entries = [ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    for future in admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)]).values():
        future.result(30)


def test_records_go_by_a_topics_retention_as_soon_as_it_is_altered_and_by_delete_records(keeper: RunningBox) -> None:
    admin = AdminClient({"bootstrap.servers": keeper.bootstrap})
    client = RawClient(keeper.kafka)
    client.create_topic("old", 1)
    for _ in range(20):
        assert client.produce("old", 0, _batch()).error_code == 0
    assert (client.list_offset("old", 0, EARLIEST), client.list_offset("old", 0, LATEST)) == (0, 20)

    # DeleteRecords by librdkafka: from the middle of a segment on; before that, as Kafka does, the offset is out of range
    deleted = admin.delete_records([Position("old", 0, 10)])
    assert [future.result(30).low_watermark for future in deleted.values()] == [10]
    assert client.list_offset("old", 0, EARLIEST) == 10
    assert client.fetch("old", 0, 9).error_code == OFFSET_OUT_OF_RANGE and client.fetch("old", 0, 10).error_code == 0
    eventually(lambda: _files(keeper, "old")[0].startswith(f"{8:020d}"), "segments below the log start offset go, files and all")
    for offset in (21, 10**6):
        with pytest.raises(KafkaException) as refused:
            next(iter(admin.delete_records([Position("old", 0, offset)]).values())).result(30)
        assert refused.value.args[0].code() == OFFSET_OUT_OF_RANGE

    # a size that is altered without a restart
    _alter(admin, "old", retention_bytes="70000")
    eventually(lambda: client.list_offset("old", 0, EARLIEST) >= 12, "what is over the size goes")

    # a consumer that waits at the log end while everything behind it goes
    _alter(admin, "old", retention_ms="1")
    eventually(lambda: client.list_offset("old", 0, EARLIEST) == 20, "everything is too old")
    eventually(lambda: not any("deleted" in name for name in _files(keeper, "old")), "files go after their delay")
    _alter(admin, "old", retention_ms="3600000")
    assert client.fetch("old", 0, 20).error_code == 0
    assert client.produce("old", 0, _batch(10)).base_offset == 20
    fetched = client.fetch("old", 0, 20)
    assert fetched.error_code == 0 and len(fetched.records) > 10
    # and a power cut of processes brings nothing back
    keeper.await_restart("log-writer@d0", keeper.kill("log-writer@d0"))
    eventually(lambda: client.fetch("old", 0, 20).error_code == 0, "it leads again")
    assert (client.list_offset("old", 0, EARLIEST), client.list_offset("old", 0, LATEST)) == (20, 21)
    client.close()


def test_a_compacted_topic_refuses_delete_records(keeper: RunningBox) -> None:
    admin = KafkaAdminClient(bootstrap_servers=keeper.bootstrap)
    admin.create_topics([NewTopic("keys", 1, 1, topic_configs={"cleanup.policy": "compact"}), NewTopic("lines", 1, 1)])
    client = RawClient(keeper.kafka)
    for _ in range(3):
        eventually(lambda: client.produce("lines", 0, _batch(10)).error_code == 0, "the topic is there")
    assert admin.delete_records({Partition("lines", 0): 2})[Partition("lines", 0)]["low_watermark"] == 2
    with pytest.raises(PolicyViolationError):
        admin.delete_records({Partition("keys", 0): 0})
    admin.close()
    client.close()


def test_a_slow_reader_gets_the_rest_of_a_segment_that_was_deleted_under_it(start: Callable[..., RunningBox]) -> None:
    """The answer is larger than all socket buffers; the segment is deleted after its first bytes, and its files stay for the delay."""
    box = start(disks=1, settings=SETTINGS | {"log.segment.bytes": 32 << 20, "log.segment.delete.delay.ms": 20_000})
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    client = RawClient(box.kafka)
    client.create_topic("slow", 1)
    for _ in range(40):
        assert client.produce("slow", 0, _batch(900_000)).error_code == 0
    body = struct.pack(">iiiib", -1, 1000, 1, 60 << 20, 0) + struct.pack(">i", 1) + _string("slow") + struct.pack(">iiqi", 1, 0, 0, 60 << 20)
    request = struct.pack(">hhi", 1, 4, 7) + _string("slow reader") + body
    with socket.create_connection(box.kafka) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", reader.recv(4, socket.MSG_WAITALL))
        assert size > 20 << 20
        next(iter(admin.delete_records([Position("slow", 0, 40)]).values())).result(30)
        eventually(lambda: any(name.endswith(".log.deleted") for name in _files(box, "slow")), "the segment is deleted")
        assert client.fetch("slow", 0, 0).error_code == OFFSET_OUT_OF_RANGE
        received = 0
        while received < size:
            received += len(reader.recv(1 << 20))
    client.close()


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def test_a_disk_below_its_reserve_loses_its_oldest_segments_and_stays_writable(tmp_path: Path, start: Callable[..., RunningBox]) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        box = start(data=[disk / "d0"], settings=SETTINGS | {"log.segment.bytes": 1 << 20, "log.disk.reserve.percent": 25})
        client = RawClient(box.kafka)
        client.create_topic("flood", 1)
        (disk / "ballast").write_bytes(bytes(24 << 20))
        # 18 MB where there are 16, at a pace that leaves time for the checks of the free space.
        for _ in range(45):
            assert client.produce("flood", 0, _batch(400_000)).error_code == 0
            eventually(lambda: shutil.disk_usage(disk).free > 8 << 20, "most of the reserve is free")
        assert client.list_offset("flood", 0, LATEST) == 45 and 0 < client.list_offset("flood", 0, EARLIEST) < 45
        assert "deleted before their time" in box.messages and "writes are refused" not in box.messages
        client.close()
        box.stop()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
