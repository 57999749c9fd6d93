"""Topic configs: Kafka's names, Kafka's bounds, and how the broker's settings show through."""

from __future__ import annotations

import pytest

from appliance.base.errors import RequestRefused
from appliance.base.setting_rows import SETTING_ROWS
from appliance.cluster.topic_configs import (
    TABLE_FORMAT,
    TABLE_LOCATION,
    TOPIC_CONFIG_ROWS,
    broker_config,
    effective_config,
    segment_bytes_config,
    table_problem,
    topic_config_problem,
)
from appliance.storage.log_config import LogConfig
from services.controller.zookeeper.config_changes import SET, ConfigOperation, altered, replaced


def test_there_are_kafkas_thirty_six_configs_and_an_internal_one_and_their_defaults_are_valid() -> None:
    assert len([name for name in TOPIC_CONFIG_ROWS if not name.startswith(("millrace.", "internal."))]) == 36
    assert topic_config_problem({row.name: row.default for row in TOPIC_CONFIG_ROWS.values()}) is None


@pytest.mark.parametrize(
    ("name", "fine", "wrong"),
    [
        ("cleanup.policy", ["compact", "delete", "compact,delete", "delete, compact"], ["", "shred", "compact,shred"]),
        ("compression.type", ["zstd", "producer", "uncompressed"], ["none", "brotli"]),
        ("retention.ms", ["-1", "0", "9223372036854775807"], ["-2", "1.5", "soon", "9223372036854775808"]),
        ("retention.bytes", ["-1", "-7"], ["many"]),
        ("segment.bytes", ["1048576", "2147483647"], ["14", "1048575", "2147483648"]),
        ("internal.segment.bytes", ["14", "2147483647"], ["13", "2147483648"]),
        ("min.insync.replicas", ["1", "3"], ["0"]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime"]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["1.1", "-0.1", "nan"]),
        ("preallocate", ["true", "False"], ["yes", "1"]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10"]),
        ("leader.replication.throttled.replicas", ["*", "0:1,1:2", ""], ["0", "a:b"]),
        ("remote.storage.enable", ["false"], ["true"]),
        ("millrace.table.format", ["delta", "iceberg", "none"], ["hudi", ""]),
        ("millrace.table.location", ["", "/srv/tables"], ["tables", "/srv/../etc", "/srv/tables/", "//srv", "/srv/a\nb"]),
        ("millrace.table.location", ["s3://logs", "s3://logs.a/b_c/d=1"], ["s3://", "s3://a/../b", "s3://aaa/b/", "s3://aaa/b?c", "s3://aaa//b", "gs://aaa"]),
    ],
)
def test_values_are_held_to_kafkas_bounds(name: str, fine: list[str], wrong: list[str]) -> None:
    assert [topic_config_problem({name: value}) for value in fine] == [None] * len(fine)
    assert all(name in (topic_config_problem({name: value}) or "") for value in wrong)


def test_unknown_names_and_null_values_are_refused_by_name() -> None:
    assert "no.such" in (topic_config_problem({"no.such": "1"}) or "")
    assert "retention.ms" in (topic_config_problem({"retention.ms": None}) or "")


@pytest.mark.parametrize(
    ("topic", "location", "allowed", "words"),
    [
        ("syslog", "/srv/tables", ["/srv/tables"], None),
        ("syslog", "/srv/tables/logs", ["/data", "/srv/tables"], None),
        ("syslog", "/srv/tables", [], "set tables.locations"),
        ("syslog", "/srv/tables2", ["/srv/tables"], "below /srv/tables only"),
        ("syslog", "/etc", ["/srv/tables"], "below /srv/tables only"),
        ("syslog", "", ["/srv/tables"], "needs millrace.table.location"),
        ("_delta_log", "/srv/tables", ["/srv/tables"], "begin with _"),
        ("__consumer_offsets", "/srv/tables", ["/srv/tables"], "begin with _"),
    ],
)
def test_a_topic_becomes_a_table_only_below_directories_that_the_operator_named(topic: str, location: str, allowed: list[str], words: str | None) -> None:
    problem = table_problem(topic, {TABLE_FORMAT: "delta", TABLE_LOCATION: location}, allowed)
    assert problem is None if words is None else words in (problem or "")
    assert table_problem(topic, {TABLE_LOCATION: location}, allowed) is None, "without a format nothing is written"


def test_compaction_lags_must_not_cross() -> None:
    assert topic_config_problem({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}) is not None
    assert topic_config_problem({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"}) is None


def test_a_broker_with_default_settings_adds_nothing() -> None:
    assert broker_config({name: row.default for name, row in SETTING_ROWS.items()}) == {}


def test_settings_of_the_broker_hold_for_topics_that_do_not_say_otherwise() -> None:
    broker = broker_config({"log.segment.bytes": 1_048_576, "min.insync.replicas": 2, "log.flush.interval.ms": -1})
    assert broker == {"segment.bytes": "1048576", "min.insync.replicas": "2"}
    assert effective_config(broker, {"segment.bytes": "100", "retention.ms": "5"}) == {"segment.bytes": "100", "min.insync.replicas": "2", "retention.ms": "5"}


def test_a_small_segment_that_is_stored_already_stays_until_it_is_changed() -> None:
    stored = {"segment.bytes": "16384"}
    assert topic_config_problem({"segment.bytes": "16384", "retention.ms": "5"}, stored) is None
    assert "at least 1048576" in (topic_config_problem({"segment.bytes": "16385"}, stored) or "")
    assert "at least 1048576" in (topic_config_problem({"segment.bytes": "16384"}, {}) or "")
    change = altered({}, [ConfigOperation("retention.ms", SET, "5")])
    assert change(stored) == {"segment.bytes": "16384", "retention.ms": "5"}
    with pytest.raises(RequestRefused, match="at least 1048576"):
        altered({}, [ConfigOperation("segment.bytes", SET, "20000")])(stored)
    with pytest.raises(RequestRefused, match="at least 1048576"):
        replaced({"segment.bytes": "20000"})(stored)


def test_a_box_still_gives_its_topics_the_small_segments_of_its_settings_file() -> None:
    assert broker_config({"log.segment.bytes": 65_536}) == {"segment.bytes": "65536"}


def test_the_internal_config_takes_the_place_of_the_segments_size() -> None:
    assert segment_bytes_config(1 << 20) == ("segment.bytes", "1048576") and segment_bytes_config(1 << 19) == ("internal.segment.bytes", "524288")
    assert LogConfig.from_topic_config({"segment.bytes": "1048576", "internal.segment.bytes": "500"}).segment_bytes == 500
