from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client import messages
from appliance.client.admin import (
    EARLIEST_TIMESTAMP,
    add_partitions,
    alter_topic_settings,
    create_topic,
    delete_topic,
    describe_topic,
    list_offsets,
)
from appliance.client.errors import BrokerUnreachable
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker(partitions=2)
    yield made
    made.close()


def answer_create(code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    result = {"name": TOPIC, "topic_id": None, "error_code": code, "error_message": message, "topic_config_error_code": 0, "num_partitions": 2,
              "replication_factor": 1, "configs": []}  # fmt: skip
    return {"throttle_time": 0, "topics": [result]}


def test_creating_asks_for_what_was_said_and_the_default_of_the_rest(broker: FakeKafkaBroker) -> None:
    broker.answers[messages.CREATE_TOPICS] = lambda request: answer_create(ErrorCode.NONE)
    create_topic(broker.cluster(), TOPIC, partitions=2, configs={"retention.ms": "1000"})
    asked = broker.requests[-1][1].topics[0]
    assert (asked.num_partitions, asked.replication_factor) == (2, -1)
    assert [(config.name, config.value) for config in asked.configs] == [("retention.ms", "1000")]


def test_a_topic_that_exists_is_said_in_plain_words(broker: FakeKafkaBroker) -> None:
    broker.answers[messages.CREATE_TOPICS] = lambda request: answer_create(ErrorCode.TOPIC_ALREADY_EXISTS)
    with pytest.raises(RequestRefused, match="could not create topic 'numbers': a topic of that name exists already"):
        create_topic(broker.cluster(), TOPIC)
    assert broker.count_of("create_topics") == 1


def test_the_brokers_own_words_go_before_ours(broker: FakeKafkaBroker) -> None:
    broker.answers[messages.CREATE_TOPICS] = lambda request: answer_create(ErrorCode.INVALID_CONFIG, "retention.ms must be a number")
    with pytest.raises(RequestRefused, match=r"retention.ms must be a number \(INVALID_CONFIG\)"):
        create_topic(broker.cluster(), TOPIC)


def test_a_name_that_cannot_be_a_topics_is_not_even_asked(broker: FakeKafkaBroker) -> None:
    with pytest.raises(RequestRefused, match="letters, digits"):
        create_topic(broker.cluster(), "a b")
    assert broker.requests == []


def test_creating_waits_for_a_controller(broker: FakeKafkaBroker) -> None:
    codes = [ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, ErrorCode.NONE]
    broker.answers[messages.CREATE_TOPICS] = lambda request: answer_create(codes.pop(0))
    create_topic(broker.cluster(), TOPIC)
    assert codes == []


def test_a_topic_just_created_is_waited_for_where_it_is_not_heard_of_yet(broker: FakeKafkaBroker) -> None:
    """The controller answered; the box that is asked next follows some milliseconds later."""
    unheard = iter([3, 3])
    ordinary = broker.metadata

    def lagging(request: Any) -> dict[str, Any]:
        answer = ordinary(request)
        for topic in answer["topics"]:
            topic["error_code"] = next(unheard, 0)
        return answer

    broker.answers[messages.METADATA] = lagging
    assert len(broker.cluster().topic(TOPIC, is_new=True).partitions) == 2
    unheard = iter([3])
    with pytest.raises(RequestRefused, match="there is no such topic"):
        broker.cluster().topic(TOPIC)


def test_deleting_an_unknown_topic_fails_at_once(broker: FakeKafkaBroker) -> None:
    unknown = {"name": TOPIC, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "error_message": None}
    broker.answers[messages.DELETE_TOPICS] = lambda request: {"throttle_time": 0, "responses": [unknown]}
    with pytest.raises(RequestRefused, match="could not delete topic 'numbers': there is no such topic"):
        delete_topic(broker.cluster(), TOPIC)
    assert broker.count_of("delete_topics") == 1


def answer_offsets(broker: FakeKafkaBroker, codes: list[ErrorCode]) -> None:
    """Partition 1 answers with `codes` in turn; partition 0 always with its offset."""

    def answer(request: Any) -> dict[str, Any]:
        whole = broker.list_offsets(request)
        for partition in whole["topics"][0]["partitions"]:
            partition["offset"] = 40 + partition["partition_index"]
            if partition["partition_index"] == 1:
                partition["error_code"] = codes.pop(0) if len(codes) > 1 else codes[0]
        return whole

    broker.answers[messages.LIST_OFFSETS] = answer


def test_only_partitions_that_did_not_answer_are_asked_again(broker: FakeKafkaBroker) -> None:
    answer_offsets(broker, [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE])
    wanted = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
    found = list_offsets(broker.cluster(), wanted, EARLIEST_TIMESTAMP)
    assert {partition.partition: place.offset for partition, place in found.items()} == {0: 40, 1: 41}
    asked = [[partition.partition_index for partition in request.topics[0].partitions] for name, request in broker.requests if name == "list_offsets"]
    assert asked == [[0, 1], [1]]


def test_a_description_does_not_wait_for_a_partition_in_trouble(broker: FakeKafkaBroker) -> None:
    answer_offsets(broker, [ErrorCode.KAFKA_STORAGE_ERROR])
    described = describe_topic(broker.cluster(), TOPIC)
    assert [(partition.log_start_offset, partition.end_offset) for partition in described.partitions] == [(40, 40), (None, None)]
    assert broker.count_of("list_offsets") == 2


def test_a_kept_connection_that_the_broker_closed_is_replaced(broker: FakeKafkaBroker) -> None:
    cluster = broker.cluster()
    cluster.metadata()
    broker.hang_up_all()
    assert cluster.metadata().controller_id == 1


def test_every_address_that_was_tried_is_named(broker: FakeKafkaBroker) -> None:
    cluster = broker.cluster()
    broker.stop()
    with pytest.raises(BrokerUnreachable, match=f"no broker at {broker_address(cluster)}: connection refused"):
        cluster.metadata()


def broker_address(cluster: Any) -> str:
    return str(cluster.bootstrap[0])


def answer_partitions(code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {"throttle_time": 0, "results": [{"name": TOPIC, "error_code": code, "error_message": message}]}


def answer_alter(code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {"throttle_time": 0, "responses": [{"error_code": code, "error_message": message, "resource_type": 2, "resource_name": TOPIC}]}


@pytest.mark.parametrize("version", range(messages.CREATE_PARTITIONS.version_max + 1))
def test_partitions_are_added_wherever_the_broker_likes(broker: FakeKafkaBroker, version: int) -> None:
    broker.max_versions[messages.CREATE_PARTITIONS] = version
    broker.answers[messages.CREATE_PARTITIONS] = lambda request: answer_partitions(ErrorCode.NONE)
    add_partitions(broker.cluster(), TOPIC, 8)
    asked = broker.requests[-1][1]
    assert [(topic.name, topic.count, topic.assignments) for topic in asked.topics] == [(TOPIC, 8, None)]
    assert asked.validate_only is False


def test_fewer_partitions_are_refused_in_the_brokers_words(broker: FakeKafkaBroker) -> None:
    broker.answers[messages.CREATE_PARTITIONS] = lambda request: answer_partitions(ErrorCode.INVALID_PARTITIONS, "the topic has 2 partitions already")
    with pytest.raises(RequestRefused, match=r"could not give topic 'numbers' 1 partitions: the topic has 2 partitions already"):
        add_partitions(broker.cluster(), TOPIC, 1)
    assert broker.count_of("create_partitions") == 1


@pytest.mark.parametrize("version", range(messages.INCREMENTAL_ALTER_CONFIGS.version_max + 1))
def test_settings_are_set_and_unset_in_one_request(broker: FakeKafkaBroker, version: int) -> None:
    broker.max_versions[messages.INCREMENTAL_ALTER_CONFIGS] = version
    broker.answers[messages.INCREMENTAL_ALTER_CONFIGS] = lambda request: answer_alter(ErrorCode.NONE)
    alter_topic_settings(broker.cluster(), TOPIC, {"retention.ms": "1000"}, ["cleanup.policy"])
    (resource,) = broker.requests[-1][1].resources
    assert (resource.resource_type, resource.resource_name) == (2, TOPIC)
    assert [(config.name, config.config_operation, config.value) for config in resource.configs] == [("retention.ms", 0, "1000"), ("cleanup.policy", 1, None)]


def test_a_setting_that_there_is_not_is_refused_once(broker: FakeKafkaBroker) -> None:
    broker.answers[messages.INCREMENTAL_ALTER_CONFIGS] = lambda request: answer_alter(ErrorCode.INVALID_CONFIG, "there is no topic setting x")
    with pytest.raises(RequestRefused, match="could not alter topic 'numbers': there is no topic setting x"):
        alter_topic_settings(broker.cluster(), TOPIC, {"x": "1"}, [])
    assert broker.count_of("incremental_alter_configs") == 1


def test_altering_waits_for_a_controller(broker: FakeKafkaBroker) -> None:
    codes = [ErrorCode.NOT_CONTROLLER, ErrorCode.NONE]
    broker.answers[messages.INCREMENTAL_ALTER_CONFIGS] = lambda request: answer_alter(codes.pop(0))
    alter_topic_settings(broker.cluster(), TOPIC, {"retention.ms": "1000"}, [])
    assert codes == []
