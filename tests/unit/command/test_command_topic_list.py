"""What `millrace topic list` says of a topic."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import BrokerId, LeaderEpoch
from appliance.client.cluster import PartitionMetadata, TopicMetadata
from appliance.command.topic import replicas_text


@pytest.mark.parametrize(("replicas", "text"), [([], "0"), ([3, 3], "3"), ([3, 2, 3], "2-3")])
def test_partitions_with_different_numbers_of_replicas_are_not_hidden(replicas: list[int], text: str) -> None:
    boxes = [tuple(map(BrokerId, range(count))) for count in replicas]
    partitions = tuple(PartitionMetadata(number, BrokerId(0), LeaderEpoch(0), ids, ids, ErrorCode.NONE) for number, ids in enumerate(boxes))
    assert replicas_text(TopicMetadata("t", None, partitions, False, ErrorCode.NONE)) == text
