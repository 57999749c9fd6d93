"""What `millrace topic list` says of topics and cluster, and `topic create` of a controller that ends meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import BrokerId, LeaderEpoch, TopicPartition
from appliance.client import messages
from appliance.client.admin import find_unserved
from appliance.client.cluster import PartitionMetadata, TopicMetadata
from appliance.command.failures import run_app
from appliance.command.topic import cluster_troubles, create, replicas_text, topic_state
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker


@pytest.mark.parametrize(("replicas", "text"), [([], "0"), ([3, 3], "3"), ([3, 2, 3], "2-3")])
def test_partitions_with_different_numbers_of_replicas_are_not_hidden(replicas: list[int], text: str) -> None:
    boxes = [tuple(map(BrokerId, range(count))) for count in replicas]
    partitions = tuple(PartitionMetadata(number, BrokerId(0), LeaderEpoch(0), ids, ids, ErrorCode.NONE) for number, ids in enumerate(boxes))
    assert replicas_text(TopicMetadata("t", None, partitions, False, ErrorCode.NONE)) == text


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker(partitions=3)
    yield made
    made.close()


def test_partitions_whose_leader_does_not_serve_them_are_counted_with_the_reason(broker: FakeKafkaBroker) -> None:
    """Metadata names a leader that is registered; only the leader knows that its disk hangs."""
    broker.leaders[2] = -1

    def answer(request: Any) -> dict[str, Any]:
        whole = broker.list_offsets(request)
        assert len(whole["topics"][0]["partitions"]) == 2, "a partition without a leader is not asked for"
        whole["topics"][0]["partitions"][1]["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
        return whole

    broker.answers[messages.LIST_OFFSETS] = answer
    cluster = broker.cluster()
    topic = cluster.metadata(None).topics[TOPIC]
    unserved = find_unserved(cluster, [topic])
    assert unserved == {TopicPartition(TOPIC, 1): "KAFKA_STORAGE_ERROR"}
    assert topic_state(topic, list(unserved.values())) == "1 without leader, 1 not served (KAFKA_STORAGE_ERROR)"
    assert topic_state(topic._replace(partitions=topic.partitions[:2]), []) == "ok"


def test_a_leader_that_does_not_answer_serves_nothing(broker: FakeKafkaBroker) -> None:
    cluster = broker.cluster()
    topics = cluster.metadata(None).topics.values()
    broker.stop()
    assert set(find_unserved(cluster, topics).values()) == {"broker 1 does not answer"}


def test_missing_boxes_and_controllers_are_named(broker: FakeKafkaBroker) -> None:
    found = broker.cluster().metadata(None)
    assert cluster_troubles(found) == []
    without = found._replace(brokers={BrokerId(2): broker.address})
    assert [words.partition(":")[0] for words in cluster_troubles(without)] == ["box 1 is missing", "no box is the controller"]


def answer_creation(broker: FakeKafkaBroker, was_there: bool, is_there: bool, code: ErrorCode) -> None:
    known = [was_there]

    def metadata(request: Any) -> dict[str, Any]:
        answer = broker.metadata(request)
        if not known[0]:
            answer["topics"] = [topic | {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partitions": []} for topic in answer["topics"]]
        return answer

    def created(request: Any) -> dict[str, Any]:
        known[0] = is_there
        result = {"name": TOPIC, "topic_id": None, "error_code": code, "error_message": None, "topic_config_error_code": 0, "num_partitions": 3,
                  "replication_factor": 1, "configs": []}  # fmt: skip
        return {"throttle_time": 0, "topics": [result]}

    broker.answers[messages.METADATA] = metadata
    broker.answers[messages.CREATE_TOPICS] = created


@pytest.mark.parametrize(
    ("was_there", "is_there", "code", "words"),
    [
        (False, True, ErrorCode.TOPIC_ALREADY_EXISTS, "the controller restarted before it answered, and now there is topic numbers with 3 partitions"),
        (False, True, ErrorCode.UNKNOWN_SERVER_ERROR, "the controller restarted before it answered, and now there is topic numbers with 3 partitions"),
        (False, False, ErrorCode.REQUEST_TIMED_OUT, "it may still be created: look with: millrace topic list"),
        (True, True, ErrorCode.TOPIC_ALREADY_EXISTS, "a topic of that name exists already (TOPIC_ALREADY_EXISTS)"),
        (False, False, ErrorCode.INVALID_CONFIG, "(INVALID_CONFIG)"),
    ],
)
def test_a_creation_that_a_controllers_end_cut_off_is_said_as_it_is(
    broker: FakeKafkaBroker, capsys: pytest.CaptureFixture[str], was_there: bool, is_there: bool, code: ErrorCode, words: str
) -> None:
    answer_creation(broker, was_there, is_there, code)
    if words.startswith("the controller"):
        create(TOPIC, bootstrap=str(broker.address))
        assert capsys.readouterr().out == f"{words}\n"
    else:
        with pytest.raises(SystemExit):
            run_app(lambda: create(TOPIC, bootstrap=str(broker.address)))
        assert capsys.readouterr().err.endswith(f"{words}\n")
