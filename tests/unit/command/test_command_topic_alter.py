from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.client import messages
from appliance.command.failures import PartlyDone, UsageProblem, exit_code
from appliance.command.topic import describe
from appliance.command.topic_alter import alter, require_something_to_do
from tests.unit.client.fake_kafka_broker import TOPIC, FakeKafkaBroker


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    made = FakeKafkaBroker(partitions=2)
    made.answers[messages.CREATE_PARTITIONS] = lambda request: add_partitions(made, request)
    made.answers[messages.INCREMENTAL_ALTER_CONFIGS] = lambda request: {
        "throttle_time": 0,
        "responses": [{"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": TOPIC}],
    }
    made.answers[messages.DESCRIBE_CONFIGS] = lambda request: {"throttle_time": 0, "results": [described(request)]}
    yield made
    made.close()


def described(request: Any) -> dict[str, Any]:
    def config(name: str, value: str, source: int) -> dict[str, Any]:
        rest = {"synonyms": (), "config_type": 5, "documentation": None}
        return {"name": name, "value": value, "read_only": False, "config_source": source, "is_sensitive": False, **rest}

    configs = (config("retention.ms", "77", 1), config("min.insync.replicas", "1", 5), config("cleanup.policy", "compact", 1))
    return {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": request.resources[0].resource_name, "configs": configs}


def add_partitions(broker: FakeKafkaBroker, request: Any) -> dict[str, Any]:
    broker.leaders = dict.fromkeys(range(request.topics[0].count), 1)
    return {"throttle_time": 0, "results": [{"name": TOPIC, "error_code": 0, "error_message": None}]}


def test_settings_go_first_and_each_change_is_printed(broker: FakeKafkaBroker, capsys: pytest.CaptureFixture[str]) -> None:
    alter(TOPIC, partitions=5, setting=["retention.ms=1000", "cleanup.policy=a=b"], unset=["min.insync.replicas"], bootstrap=str(broker.address))
    assert capsys.readouterr().out.splitlines() == [
        "altered topic numbers: retention.ms=1000, cleanup.policy=a=b, min.insync.replicas back to its default",
        "altered topic numbers: 5 partitions",
    ]
    assert changes_asked(broker) == [("create_partitions", True), ("incremental_alter_configs", False), ("create_partitions", False)]


def changes_asked(broker: FakeKafkaBroker) -> list[tuple[str, bool]]:
    """Name, and whether it is only to be validated."""
    return [(name, asked.validate_only) for name, asked in broker.requests if name in ("create_partitions", "incremental_alter_configs")]


def refuse_partitions(broker: FakeKafkaBroker, code: ErrorCode, also_when_validating: bool) -> None:
    def answer(request: Any) -> dict[str, Any]:
        error = code if also_when_validating or not request.validate_only else ErrorCode.NONE
        return {"throttle_time": 0, "results": [{"name": TOPIC, "error_code": int(error), "error_message": "no"}]}

    broker.answers[messages.CREATE_PARTITIONS] = answer


def test_partitions_that_are_refused_leave_the_settings_alone(broker: FakeKafkaBroker) -> None:
    refuse_partitions(broker, ErrorCode.INVALID_PARTITIONS, also_when_validating=True)
    with pytest.raises(RequestRefused) as refused:
        alter(TOPIC, partitions=2, setting=["retention.ms=77"], bootstrap=str(broker.address))
    assert exit_code(refused.value) == 2 and changes_asked(broker) == [("create_partitions", True)]


def test_a_failure_of_the_partitions_after_the_settings_has_its_own_error(broker: FakeKafkaBroker) -> None:
    refuse_partitions(broker, ErrorCode.INVALID_PARTITIONS, also_when_validating=False)
    with pytest.raises(PartlyDone, match="the settings are altered, but the partitions are not") as partly:
        alter(TOPIC, partitions=3, setting=["retention.ms=77"], bootstrap=str(broker.address))
    assert exit_code(partly.value) == 1


def test_what_is_no_setting_cannot_be_unset(broker: FakeKafkaBroker) -> None:
    with pytest.raises(UsageProblem, match=r"topic numbers has no setting retention\.msec; did you mean retention\.ms"):
        alter(TOPIC, unset=["cleanup.policy", "retention.msec"], bootstrap=str(broker.address))
    assert changes_asked(broker) == []


def answer_offsets(request: Any) -> dict[str, Any]:
    topics = [
        {"name": topic.name, "partitions": [{"partition_index": asked.partition_index, "error_code": 0, "timestamp": -1, "offset": 5, "leader_epoch": 0}
                                            for asked in topic.partitions]}
        for topic in request.topics
    ]  # fmt: skip
    return {"throttle_time": 0, "topics": topics}


def test_a_description_shows_the_topics_own_settings(broker: FakeKafkaBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers[messages.LIST_OFFSETS] = answer_offsets
    describe(TOPIC, bootstrap=str(broker.address))
    assert capsys.readouterr().out.splitlines()[0].endswith("  2 partitions  cleanup.policy=compact  retention.ms=77")
    describe(TOPIC, as_json=True, bootstrap=str(broker.address))
    document = json.loads(capsys.readouterr().out)
    assert document["topic"] == TOPIC and document["settings"] == {"cleanup.policy": "compact", "retention.ms": "77"}
    shown = [(each["partition"], each["leader"], each["log_start_offset"], each["end_offset"]) for each in document["partitions"]]
    assert shown == [(0, 1, 5, 5), (1, 1, 5, 5)]


def test_partitions_alone_ask_for_partitions_alone(broker: FakeKafkaBroker) -> None:
    alter(TOPIC, partitions=3, bootstrap=str(broker.address))
    assert broker.count_of("incremental_alter_configs") == 0


@pytest.mark.parametrize(
    ("partitions", "values", "defaults", "words"),
    [
        (None, {}, [], "nothing to change"),
        (None, {"a": "1"}, ["a"], "both name a"),
        (3, {}, ["a=1"], "the name of a setting alone"),
        (3, {}, [""], "the name of a setting alone"),
    ],
)
def test_what_cannot_be_meant_is_not_asked(partitions: int | None, values: dict[str, str], defaults: list[str], words: str) -> None:
    with pytest.raises(UsageProblem, match=words):
        require_something_to_do(partitions, values, defaults)
