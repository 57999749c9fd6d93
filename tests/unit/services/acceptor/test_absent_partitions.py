"""The error that clients receive for a partition without a row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.shm.partition_table import DISK_OFFLINE, DISK_ONLINE


def error_for(partition: PartitionImage, disk_state: int | None = DISK_ONLINE) -> ErrorCode:
    table = None if disk_state is None else SimpleNamespace(disk_state=disk_state)
    view = MetadataCache(1, cast(Any, SimpleNamespace(by_disk={"d0": SimpleNamespace(table=table)})))
    view.set_image(MetadataImage(1, "c", 1, {}, {"t": TopicImage("t", TopicId(bytes(range(16))), (partition,), {})}))
    return view.why_absent("t", 0)


@pytest.mark.parametrize(
    ("partition", "disk_state", "code"),
    [
        (PartitionImage(1, 0, (1,), (1,), "d0"), DISK_ONLINE, ErrorCode.KAFKA_STORAGE_ERROR),
        (PartitionImage(1, 0, (1,), (1,), "d0"), DISK_OFFLINE, ErrorCode.KAFKA_STORAGE_ERROR),
        (PartitionImage(1, 0, (1,), (1,), "d0"), None, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (PartitionImage(2, 0, (1, 2), (2,), None), DISK_ONLINE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (PartitionImage(1, 0, (1,), (1,), "d0", "d1"), DISK_ONLINE, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # it is between two disks
    ],
)
def test_a_partition_that_will_return_has_another_error_than_a_lost_one(partition: PartitionImage, disk_state: int | None, code: ErrorCode) -> None:
    assert error_for(partition, disk_state) is code


def test_an_unknown_partition_does_not_exist() -> None:
    view = MetadataCache(1, cast(Any, SimpleNamespace(by_disk={})))
    assert view.why_absent("t", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
