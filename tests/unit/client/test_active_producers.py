"""Which requests the producers of many partitions take, and what a partition that refuses costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER
from appliance.client import messages
from appliance.client.transactions import PARTITIONS_ASKED, active_producers
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker

REFUSING, LEADERLESS = 3, 4


def producers(request: Any) -> dict[str, Any]:
    """Each partition has one producer with its own number, but one that refuses."""
    one = {"producer_epoch": 0, "last_sequence": 0, "last_timestamp": 5, "coordinator_epoch": 0, "current_txn_start_offset": -1}
    topics = []
    for topic in request.topics:
        partitions = [
            {
                "partition_index": number,
                "error_code": int(ErrorCode.NOT_LEADER_OR_FOLLOWER) if number == REFUSING else 0,
                "error_message": None,
                "active_producers": [] if number == REFUSING else [{"producer_id": number, **one}],
            }
            for number in topic.partition_indexes
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker(partitions=PARTITIONS_ASKED + 50)
    made.answers[messages.DESCRIBE_PRODUCERS] = producers
    made.leaders[LEADERLESS] = NO_LEADER
    yield made
    made.close()


def test_a_leader_is_asked_for_many_partitions_at_once_and_what_refuses_is_left_to_the_caller(broker: FakeKafkaBroker) -> None:
    refused: dict[int, ErrorCode] = {}
    found = active_producers(broker.cluster(), [TOPIC], lambda partition, refusal: refused.update({partition.partition: refusal.code}))
    assert [each.producer_id for each in found] == [each.partition.partition for each in found]
    assert {each.partition.partition for each in found} == set(range(PARTITIONS_ASKED + 50)) - {REFUSING, LEADERLESS}
    assert refused == {REFUSING: ErrorCode.NOT_LEADER_OR_FOLLOWER, LEADERLESS: ErrorCode.LEADER_NOT_AVAILABLE}
    assert [sum(len(topic.partition_indexes) for topic in request.topics) for name, request in broker.requests if name == "describe_producers"] == [200, 49]


def test_without_a_caller_for_refusals_the_first_is_raised(broker: FakeKafkaBroker) -> None:
    with pytest.raises(RequestRefused, match=f"{TOPIC}-{LEADERLESS}"):
        active_producers(broker.cluster(), [TOPIC])
