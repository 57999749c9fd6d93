"""Log levels that Kafka's own tool sets on a real box."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from lab.real_kafka import kafka_configs, skip_without_kafka
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

LOGGERS = ("--entity-type", "broker-loggers", "--entity-name", "1")
TOLD = "topic seen has new configs"


def test_a_level_that_kafkas_tool_sets_is_seen_in_the_messages(start: Callable[..., RunningBox]) -> None:
    skip_without_kafka()
    box = start(disks=1, settings={"log.severity": "warning"})
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    for name in ("unseen", "seen"):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    values = itertools.count(1_000)

    def alter(topic: str) -> None:
        entry = ConfigEntry("retention.ms", str(next(values)), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    def is_told() -> bool:
        alter("seen")
        return TOLD in box.messages

    alter("unseen")
    kafka_configs(box.bootstrap, *LOGGERS, "--alter", "--add-config", "millrace.controller=INFO")
    eventually(is_told, "the controller's process follows the level")
    assert "topic unseen has new configs" not in box.messages
    described = kafka_configs(box.bootstrap, *LOGGERS, "--describe")
    assert "millrace.controller=INFO " in described and "millrace.acceptor=WARN " in described and "root=WARN " in described
