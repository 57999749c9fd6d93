"""DescribeLogDirs over real tables and counters; disks are named, none is there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.layout import Disk
from appliance.base.model import TopicId
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.ipc.disk_reports import COPYING, MoveProgress, moves_file, write_moves
from appliance.protocol.log_dir_apis import (
    DESCRIBE_LOG_DIRS_REQUEST,
    DESCRIBE_LOG_DIRS_RESPONSE,
    UNKNOWN_BYTES,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirPartition,
    LogDirResult,
    LogDirTopic,
    LogDirTopicToDescribe,
)
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_OFFLINE, DISK_ONLINE, ROLE_LEADER, PartitionTableReader, PartitionTableWriter, Row
from lab.scratch_layout import scratch_layout
from services.acceptor.handlers.describe_log_dirs import DescribeLogDirsHandler

TOPIC_ID = TopicId(bytes(range(16)))
DISK = Disk("d0", "/srv/d0")


class Described:
    """A handler over one disk with partitions 0 and 1 of topic `t`."""

    def __init__(self, layout: Any) -> None:
        self.table = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.table.set_disk_state(DISK_ONLINE)
        for partition in range(2):
            row = Row(bytes(TOPIC_ID), partition, 0, ROLE_LEADER, 0, 0, 10, 10, 10, 1, 1, 0, 0, 100 + partition, 0, 100 + partition, 1)
            index, _ = self.table.add_row(row)
            self.table.store_sealed_bytes(index, 1000)
        self.counters = Counters.create_or_adopt(layout, "log-writer@d0", 1)
        reader = PartitionTableReader.attach(self.table.shared.name)
        self.proxy = SimpleNamespace(disk="d0", table=reader, is_hung=False)
        proxies = cast(Any, SimpleNamespace(by_disk={"d0": self.proxy}))
        self.layout = layout
        self.view = view = MetadataCache(1, proxies)
        partitions = tuple(PartitionImage(1, 0, (1,), (1,), "d0") for _ in range(2))
        view.set_image(MetadataImage(1, "cluster", 1, {}, {"t": TopicImage("t", TOPIC_ID, partitions, {}, False, 0)}))
        self.handler = DescribeLogDirsHandler(view, proxies, layout, lambda: [DISK], lambda _connection: None)

    def ask(self, request: DescribeLogDirsRequest | None = None) -> LogDirResult:
        return self.handler.describe(DISK, request or DescribeLogDirsRequest())


@pytest.fixture
def described() -> Iterator[Described]:
    with scratch_layout() as layout:
        made = Described(layout)
        yield made
        if made.proxy.table is not None:
            made.proxy.table.close()
        made.table.close()
        made.counters.close()


def test_sizes_include_all_segments_and_free_space_comes_from_the_counters(described: Described) -> None:
    assert described.ask().total_bytes == UNKNOWN_BYTES, "nothing is counted yet"
    described.counters.counter("disk.total_bytes").set(5000)
    described.counters.counter("disk.free_bytes").set(3000)
    partitions = (LogDirPartition(0, 1100), LogDirPartition(1, 1101))
    assert described.ask() == LogDirResult(0, "/srv/d0", (LogDirTopic("t", partitions),), 5000, 3000)


def test_only_requested_partitions_are_described(described: Described) -> None:
    wanted = (LogDirTopicToDescribe("t", (1, 7)), LogDirTopicToDescribe("other", (0,)))
    assert [topic.partitions for topic in described.ask(DescribeLogDirsRequest(wanted)).topics] == [(LogDirPartition(1, 1101),)]
    assert described.ask(DescribeLogDirsRequest(())).topics == ()


def test_what_is_being_moved_to_a_disk_is_a_future_replica_there(described: Described) -> None:
    topic = TopicImage("t", TOPIC_ID, (PartitionImage(1, 0, (1,), (1,), "d1", "d0"), PartitionImage(1, 0, (1,), (1,), "d0")), {}, False, 0)
    described.view.set_image(MetadataImage(2, "cluster", 1, {}, {"t": topic}))
    move = MoveProgress("t", 0, str(TOPIC_ID), "d1", "d0", COPYING, 40, 700, 100, 900)
    arrived = move._replace(partition=1)
    of_another_topic = move._replace(topic_id=str(TopicId(bytes(16))))
    write_moves(moves_file(described.layout, "d0"), [of_another_topic, move, arrived])
    (told,) = described.ask().topics
    assert told.partitions == (LogDirPartition(0, 700, 60, True), LogDirPartition(0, 1100), LogDirPartition(1, 1101))
    (told,) = described.ask(DescribeLogDirsRequest((LogDirTopicToDescribe("t", (1,)),))).topics
    assert told.partitions == (LogDirPartition(1, 1101),)


@pytest.mark.parametrize("trouble", ["offline", "hung", "away"])
def test_a_failed_disk_is_described_with_its_error(described: Described, trouble: str) -> None:
    if trouble == "offline":
        described.table.set_disk_state(DISK_OFFLINE)
    elif trouble == "hung":
        described.proxy.is_hung = True
    else:
        described.proxy.table.close()
        described.proxy.table = None
    assert described.ask() == LogDirResult(ErrorCode.KAFKA_STORAGE_ERROR, "/srv/d0")


def test_version_0_has_the_bytes_of_version_1() -> None:
    request = DescribeLogDirsRequest((LogDirTopicToDescribe("t", (0, 1)),))
    assert DESCRIBE_LOG_DIRS_REQUEST.encode(0, request) == DESCRIBE_LOG_DIRS_REQUEST.encode(1, request)
    response = DescribeLogDirsResponse(7, 0, (LogDirResult(0, "/srv/d0", (LogDirTopic("t", (LogDirPartition(0, 5),)),)),))
    assert DESCRIBE_LOG_DIRS_RESPONSE.encode(0, response) == DESCRIBE_LOG_DIRS_RESPONSE.encode(1, response)
