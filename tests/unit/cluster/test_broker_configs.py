"""What a broker shows of itself: its settings, its options, what is always so; and that every topic config has a text."""

from __future__ import annotations

from appliance.base.layout import Disk
from appliance.base.setting_rows import SETTING_ROWS
from appliance.base.settings import Box
from appliance.cluster.broker_configs import ALWAYS, broker_configs
from appliance.cluster.topic_configs import TOPIC_CONFIG_ROWS
from appliance.protocol.config_apis import CONFIG_TYPES
from appliance.storage.log_config import LogConfig
from services.controller.admin.config_descriptions import EFFECTIVE, topic_config_documentation

BOX = Box("test", 7, [Disk("d0", "/a"), Disk("d1", "/b")], "/state", "::", "me", 9092, 1, 1, settings={"log.segment.bytes": 50_000}, zookeeper="z:2181/x")


def test_the_boxs_settings_and_options_are_shown_with_their_real_values() -> None:
    configs = broker_configs(BOX)
    assert (configs["log.segment.bytes"].value, configs["log.segment.bytes"].is_default) == ("50000", False)
    assert (configs["auto.create.topics.enable"].value, configs["auto.create.topics.enable"].type) == ("true", "boolean")
    assert [configs[name].value for name in ("broker.id", "node.id", "log.dirs", "log.dir", "zookeeper.connect")] == ["7", "7", "/a,/b", "/a", "z:2181/x"]
    assert [configs[name].value for name in ("listeners", "advertised.listeners")] == ["PLAINTEXT://[::]:9092", "PLAINTEXT://me:9092"]
    assert configs.keys() >= SETTING_ROWS.keys() and list(configs) == sorted(configs)


def test_types_are_kafkas_and_everything_is_explained() -> None:
    configs = broker_configs(BOX).values()
    assert {config.type for config in configs} <= CONFIG_TYPES.keys() and all(config.documentation for config in configs)
    assert {config.name: config.type for config in configs if config.name in ("log.roll.ms", "message.max.bytes")} == {
        "log.roll.ms": "long",
        "message.max.bytes": "int",
    }
    assert all(config.value is None for config in configs if config.type == "password")


def test_no_setting_is_also_listed_as_constant() -> None:
    always = [config.name for config in ALWAYS]
    assert not SETTING_ROWS.keys() & set(always) and len(always) == len(set(always))


def test_every_topic_config_is_explained_and_only_those_that_a_log_the_controller_or_an_acceptor_reads_have_an_effect() -> None:
    assert all(topic_config_documentation(name) for name in TOPIC_CONFIG_ROWS) and {row.type for row in TOPIC_CONFIG_ROWS.values()} <= CONFIG_TYPES.keys()
    known_to_logs = {field.replace("_", ".") for field in LogConfig._fields}
    known_elsewhere = {"unclean.leader.election.enable", "message.downconversion.enable", "internal.segment.bytes"}
    assert known_to_logs | known_elsewhere >= EFFECTIVE
