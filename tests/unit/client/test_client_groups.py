"""Lags of many groups in few requests, and where a group would go on (`client/groups.py`), with a broker in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import RequestRefused
from appliance.base.model import Offset, TopicPartition
from appliance.client import messages
from appliance.client.groups import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    ResetTo,
    group_lags,
    partitions_to_reset,
    plan_reset,
    require_no_members,
)
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker

COMMITTED = {"ahead": {0: 25}, "behind": {0: 10, 1: 12}, "empty": {}, "gone": {0: 5}, "millrace-mirror.m.a": {0: 7}}
AT_TIME_MS = 1_000


class Broker(FakeKafkaBroker):
    """Two partitions with the offsets 5 to 19, and the offsets that groups committed; `gone` read a topic that is deleted."""

    def __init__(self) -> None:
        super().__init__(partitions=2)
        self.answers[messages.OFFSET_FETCH] = self.offset_fetch

    def list_offsets(self, request: Any) -> dict[str, Any]:
        places = {EARLIEST_TIMESTAMP: 5, LATEST_TIMESTAMP: 20, AT_TIME_MS: 9}
        answers = [
            {"partition_index": each.partition_index, "error_code": 0, "timestamp": -1, "offset": places.get(each.timestamp, -1), "leader_epoch": 0}
            for topic in request.topics
            for each in topic.partitions
        ]
        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": answers}]}

    def offset_fetch(self, request: Any) -> dict[str, Any]:
        groups = []
        for asked in request.groups:
            offsets = [
                {"partition_index": number, "committed_offset": offset, "committed_leader_epoch": -1, "metadata": "", "error_code": 0}
                for number, offset in COMMITTED[asked.group_id].items()
            ]
            topics = [{"name": "deleted" if asked.group_id == "gone" else TOPIC, "partitions": offsets}] if offsets else []
            groups.append({"group_id": asked.group_id, "topics": topics, "error_code": 16 if asked.group_id == "moved" else 0})
        return {"throttle_time": 0, "groups": groups}


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def test_lags_of_all_groups_of_a_coordinator_take_one_request(broker: Broker) -> None:
    listed = [GroupListing(name, "Stable", "classic", "consumer", 1) for name in COMMITTED]
    listed.append(GroupListing("elsewhere", "Stable", "classic", "consumer", 9))
    cluster = broker.cluster()
    cluster.metadata([])
    assert group_lags(cluster, listed) == {"ahead": 0, "behind": 18, "empty": 0, "gone": None, "millrace-mirror.m.a": None}, (
        "positions of a mirror are offsets of its source"
    )
    assert (broker.count_of("offset_fetch"), broker.count_of("list_offsets")) == (1, 1)


@pytest.mark.parametrize(
    ("to", "targets"),
    [
        (ResetTo("earliest"), [5, 5]), (ResetTo("latest"), [20, 20]), (ResetTo("time", AT_TIME_MS), [9, 9]), (ResetTo("time", AT_TIME_MS + 1), [20, 20]),
        (ResetTo("offset", 7), [7, 7]), (ResetTo("offset", 1), [5, 5]), (ResetTo("offset", 99), [20, 20]), (ResetTo("shift", -4), [6, 8]),
        (ResetTo("shift", 100), [20, 20]),
    ],
)  # fmt: skip
def test_a_reset_is_planned_between_the_ends_of_a_partition(broker: Broker, to: ResetTo, targets: list[int]) -> None:
    committed = {TopicPartition(TOPIC, number): CommittedOffset(Offset(offset), "") for number, offset in COMMITTED["behind"].items()}
    cluster = broker.cluster()
    partitions = partitions_to_reset(cluster, [], committed)
    planned = plan_reset(cluster, to, partitions, committed)
    assert [(plan.committed, plan.target, plan.end) for plan in planned.values()] == [(10, targets[0], 20), (12, targets[1], 20)]


def test_a_partition_that_is_not_there_or_has_no_offset_is_named(broker: Broker) -> None:
    cluster = broker.cluster()
    assert partitions_to_reset(cluster, [(TOPIC, ())], {}) == [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
    with pytest.raises(RequestRefused, match="has no partition 7; it has 2"):
        partitions_to_reset(cluster, [(TOPIC, (0, 7))], {})
    with pytest.raises(RequestRefused, match=f"no offset of {TOPIC}-0 to go on from"):
        plan_reset(cluster, ResetTo("shift", 1), [TopicPartition(TOPIC, 0)], {})


def test_offsets_of_a_share_group_are_not_set_by_a_reset() -> None:
    with pytest.raises(RequestRefused, match=r"workers is a share group: kafka-share-groups\.sh"):
        require_no_members(GroupDescription("workers", "Empty", "share", "simple", ()))
    require_no_members(GroupDescription("readers", "Empty", "consumer", "uniform", ()))
