"""The controller's decision to give a topic more partitions: Kafka's codes, and where they go."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.placement import BrokerPool, CreationDefaults, TopicGrowth, plan_topic_growth, spread_replicas

DEFAULTS = CreationDefaults(3, 1, 100)
BROKERS = (1, 2, 3)


@pytest.mark.parametrize("first_broker", [0, 1, 2])
def test_new_partitions_go_where_they_would_have_gone_at_creation(first_broker: int) -> None:
    whole = spread_replicas(BROKERS, 10, 2, first_broker)
    there = {partition: whole[partition] for partition in range(4)}
    assert there | plan_topic_growth(TopicGrowth("t", 10), there, BrokerPool(BROKERS), DEFAULTS) == whole


def test_a_topic_whose_first_leader_is_gone_grows_from_the_first_live_broker_on() -> None:
    added = plan_topic_growth(TopicGrowth("t", 2), {0: (9,)}, BrokerPool(BROKERS), DEFAULTS)
    assert added == {1: (2,)}


def test_a_broker_that_is_emptied_gets_none_of_the_new_ones() -> None:
    added = plan_topic_growth(TopicGrowth("t", 6), {0: (2, 1)}, BrokerPool(BROKERS, closed={2}), DEFAULTS)
    assert {broker for replicas in added.values() for broker in replicas} == {1, 3}


def test_named_brokers_are_taken_in_order() -> None:
    assert plan_topic_growth(TopicGrowth("t", 3, ((3, 1), (2, 3))), {0: (1, 2)}, BrokerPool(BROKERS), DEFAULTS) == {1: (3, 1), 2: (2, 3)}


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (-1, None, ErrorCode.INVALID_PARTITIONS),
        (101, None, ErrorCode.INVALID_PARTITIONS),
        (4, ((1, 2),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 1),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 9),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_kafka_refuses_is_refused_with_its_code(count: int, assignments: tuple[tuple[int, ...], ...] | None, code: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        plan_topic_growth(TopicGrowth("t", count, assignments), {0: (1, 2), 1: (2, 3)}, BrokerPool(BROKERS), DEFAULTS)
    assert refused.value.code == code


def test_more_replicas_than_live_brokers_are_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        plan_topic_growth(TopicGrowth("t", 2), {0: (1, 2)}, BrokerPool((1,)), DEFAULTS)
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
