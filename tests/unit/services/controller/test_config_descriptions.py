"""Configs of topics and of their broker, described side by side: each refers to the other
consistently.
"""

from __future__ import annotations

from typing import Any

import pytest

from appliance.base.layout import Disk
from appliance.base.settings import Box
from appliance.cluster.broker_configs import broker_configs
from appliance.cluster.topic_configs import broker_config
from appliance.protocol.config_apis import CONFIG_TYPES, ConfigSource, DescribedConfig
from services.controller.admin.config_descriptions import BrokerSide, describe_broker, describe_topic
from services.controller.admin.configs import _broker_refusal

SETTINGS: list[dict[str, Any]] = [
    {},
    {"log.retention.hours": -1},
    {"log.retention.ms": -1, "log.retention.hours": 24},
    {"log.retention.minutes": 5},
    {"log.cleanup.policy": "compact", "log.message.downconversion.enable": False, "log.cleaner.min.cleanable.ratio": "0.25"},
    {"log.flush.policy": "ack"},
    {"log.roll.hours": 2, "log.roll.jitter.hours": 1, "unclean.leader.election.enable": True},
    {"log.roll.ms": 7000, "log.roll.hours": 2, "log.roll.jitter.ms": 5, "log.roll.jitter.hours": 1},
    {"log.flush.policy": "interval", "log.flush.interval.ms": 1000},
]


def described(settings: dict[str, Any], topic: dict[str, str]) -> tuple[dict[str, DescribedConfig], dict[str, DescribedConfig]]:
    box = Box("test", 7, [Disk("d0", "/a")], "/state", "::", "me", 9092, 1, 1, settings=settings, zookeeper="z:2181")
    configs = broker_configs(box)
    side = BrokerSide(broker_config(settings), configs)
    of_topic, of_broker = describe_topic(topic, side, True, True), describe_broker(configs, True, True)
    return {config.name: config for config in of_topic}, {config.name: config for config in of_broker}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_topics_synonyms_are_what_the_broker_says_of_itself(settings: dict[str, Any]) -> None:
    topic, broker = described(settings, {"segment.ms": "7000"})
    shown = 0
    for config in topic.values():
        for synonym in config.synonyms:
            if synonym.source != ConfigSource.TOPIC and synonym.name in broker:
                shown += 1
                assert synonym in broker[synonym.name].synonyms, config.name
        assert config.config_source == (config.synonyms[0].source if config.synonyms else ConfigSource.DEFAULT)
    assert shown > 20 and topic["segment.ms"].synonyms[0] == ("segment.ms", "7000", ConfigSource.TOPIC)


def test_retention_falls_back_as_kafkas_does() -> None:
    topic, broker = described({}, {})
    assert topic["retention.ms"].synonyms == (("log.retention.hours", "168", ConfigSource.DEFAULT),) and topic["retention.ms"].value == "604800000"
    assert broker["log.retention.ms"].value is None
    topic, _ = described({"log.retention.minutes": 5, "log.retention.hours": 24}, {})
    assert topic["retention.ms"].value == "300000" and topic["retention.ms"].config_source == ConfigSource.STATIC_BROKER
    assert [synonym[:2] for synonym in topic["retention.ms"].synonyms] == [
        ("log.retention.minutes", "5"),
        ("log.retention.hours", "24"),
        ("log.retention.hours", "168"),
    ]


def test_rolls_fall_back_as_kafkas_do() -> None:
    topic, broker = described({}, {})
    assert (topic["segment.ms"].value, topic["segment.jitter.ms"].value, topic["unclean.leader.election.enable"].value) == ("604800000", "0", "false")
    assert broker["log.roll.ms"].value is None and broker["log.roll.jitter.ms"].value is None
    topic, _ = described(SETTINGS[6], {})
    assert (topic["segment.ms"].value, topic["segment.jitter.ms"].value, topic["unclean.leader.election.enable"].value) == ("7200000", "3600000", "true")
    topic, _ = described(SETTINGS[7], {})
    assert (topic["segment.ms"].value, topic["segment.jitter.ms"].value) == ("7000", "5")


def test_settings_that_give_topics_their_values_do_so_and_have_kafkas_types() -> None:
    topic, broker = described(SETTINGS[4], {})
    names = ("cleanup.policy", "message.downconversion.enable", "min.cleanable.dirty.ratio")
    assert [topic[name].value for name in names] == ["compact", "false", "0.25"]
    assert broker["log.cleaner.min.cleanable.ratio"].config_type == CONFIG_TYPES["double"] and broker["log.cleanup.policy"].config_type == CONFIG_TYPES["list"]


def test_the_settings_file_is_advised_only_for_what_it_has() -> None:
    assert "change log.retention.ms in its settings file" in _broker_refusal(["log.retention.ms"])
    assert "change ssl.keystore.location in its settings file" in _broker_refusal(["ssl.keystore.location"])
    assert "metric.reporters would change nothing" in _broker_refusal(["metric.reporters"])
    both = _broker_refusal(["log.preallocate", "log.retention.ms"])
    assert "change log.retention.ms in" in both and "has no setting log.preallocate" in both
    assert "change" not in _broker_refusal(["no.such"])
