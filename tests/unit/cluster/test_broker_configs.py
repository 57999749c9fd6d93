"""What a broker shows of itself: its settings, its options, what is always so; and that every topic config has a text."""

from __future__ import annotations

from appliance.base.layout import Disk
from appliance.base.setting_rows import SETTING_ROWS
from appliance.base.settings import Box
from appliance.cluster.broker_configs import ALWAYS, DYNAMIC_BROKER_CONFIGS, DYNAMIC_TOPIC_DEFAULTS, broker_configs, dynamic_config_problem, dynamic_settings
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
    known_to_the_tabler = {f"millrace.table.{name}" for name in ("bytes", "format", "interval.ms", "location", "schema")}
    assert known_to_logs | known_elsewhere | known_to_the_tabler >= EFFECTIVE


def test_what_topics_fall_back_to_can_be_altered_within_the_settings_bounds() -> None:
    fine = {"log.retention.ms": "-1", "message.max.bytes": "5000000", "log.cleanup.policy": "delete, compact", "unclean.leader.election.enable": "True"}
    assert dynamic_config_problem(fine) is None
    assert dynamic_settings(fine) == {
        "log.retention.ms": -1,
        "message.max.bytes": 5_000_000,
        "log.cleanup.policy": "compact,delete",
        "unclean.leader.election.enable": True,
    }
    wrong = ({"log.retention.ms": "0"}, {"log.roll.ms": "0"}, {"log.retention.ms": "soon"}, {"min.insync.replicas": "0"}, {"log.cleanup.policy": "shred"})
    assert all(next(iter(config)) in (dynamic_config_problem(config) or "") for config in wrong)
    assert dynamic_settings({"min.insync.replicas": "many", "num.partitions": "3"}) == {}


def test_values_that_contradict_the_settings_file_are_refused() -> None:
    assert "socket.request.max.bytes" in (dynamic_config_problem({"message.max.bytes": str(64 << 20)}) or "")
    assert dynamic_config_problem({"message.max.bytes": str(64 << 20)}, {}, {"socket.request.max.bytes": 64 << 20}) is None
    assert dynamic_config_problem({"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "9"}) is not None
    assert dynamic_config_problem({"log.cleaner.min.cleanable.ratio": "2"}) is not None
    assert dynamic_config_problem({"log.flush.interval.ms": "1000"}) is None


def test_small_segments_cannot_be_set_for_all_topics_but_stay_if_they_are_stored() -> None:
    assert dynamic_config_problem({"log.segment.bytes": "65536"}) is not None
    assert dynamic_config_problem({"log.segment.bytes": "65536"}, {"log.segment.bytes": "65536"}) is None


def test_each_dynamic_setting_is_one_of_a_topics_fallbacks() -> None:
    fallbacks = {name for row in TOPIC_CONFIG_ROWS.values() for name in row.broker_settings}
    assert set(DYNAMIC_TOPIC_DEFAULTS) <= fallbacks & SETTING_ROWS.keys() and DYNAMIC_BROKER_CONFIGS.keys() >= set(DYNAMIC_TOPIC_DEFAULTS)
