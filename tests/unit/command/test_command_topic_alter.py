from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import messages
from appliance.command.failures import UsageProblem
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
    yield made
    made.close()


def add_partitions(broker: FakeKafkaBroker, request: Any) -> dict[str, Any]:
    broker.leaders = dict.fromkeys(range(request.topics[0].count), 1)
    return {"throttle_time": 0, "results": [{"name": TOPIC, "error_code": 0, "error_message": None}]}


def test_settings_go_first_and_each_change_is_printed(broker: FakeKafkaBroker, capsys: pytest.CaptureFixture[str]) -> None:
    alter(TOPIC, partitions=5, setting=["retention.ms=1000", "cleanup.policy=a=b"], unset=["min.insync.replicas"], bootstrap=str(broker.address))
    assert capsys.readouterr().out.splitlines() == [
        "altered topic numbers: retention.ms=1000, cleanup.policy=a=b, min.insync.replicas back to its default",
        "altered topic numbers: 5 partitions",
    ]
    asked = [name for name, _ in broker.requests if name in ("create_partitions", "incremental_alter_configs")]
    assert asked == ["incremental_alter_configs", "create_partitions"]


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
