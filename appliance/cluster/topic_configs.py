"""Kafka's topic configs as rows: name, type, default, validity, and the broker settings they fall
back to.

Pure; used where topics are created and described. Only configs that differ from Kafka's defaults
are sent (`effective_config`), because each reader knows the defaults. Weak: the rows are Kafka
3.9's, with five of ours; configs that this appliance does not implement yet (remote storage, throttled replicas) are
checked and kept without effect.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from appliance.base.config_numbers import parse_double, parse_integer
from appliance.base.settings import S3_LOCATION

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
CONFIG_BYTES_MAX = 32_000
"""Names and values of one topic together: they are sent as strings of at most 32,767 bytes, in each
command to a log-writer, and in a ZooKeeper node.
"""
SEGMENT_BYTES_MIN = 1 << 20
"""Kafka 4's smallest `segment.bytes` (KIP-1030); Kafka 3 took 14 bytes."""
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka 4's internal config for tests: it takes the place of `segment.bytes` and can be smaller."""
SHOWN_MAX = 200
TABLE_FORMAT, TABLE_LOCATION = "millrace.table.format", "millrace.table.location"
TABLE_INTERVAL, TABLE_BYTES = "millrace.table.interval.ms", "millrace.table.bytes"
TABLE_SCHEMA = "millrace.table.schema"
_BOOLEANS = ("true", "false")


class TopicConfigRow(NamedTuple):
    """One config. `valid` returns why a value is invalid, or None."""

    name: str
    type: str
    default: str
    valid: Callable[[str], str | None]
    broker_settings: tuple[str, ...] = ()
    lowest_new: int | None = None
    """The smallest value that can be set; smaller ones that are stored already stay valid."""

    def new_value_problem(self, value: str) -> str | None:
        """Return why `value` cannot be set, or None."""
        problem = self.valid(value)
        if problem is None and self.lowest_new is not None and int(value) < self.lowest_new:
            return f"value must be at least {self.lowest_new}"
        return problem


def _boolean(value: str) -> str | None:
    return None if value.lower() in _BOOLEANS else "expected true or false"


def _number(low: int, high: int) -> Callable[[str], str | None]:
    def valid(value: str) -> str | None:
        number = parse_integer(value)
        if number is None:
            return "not a number"
        return None if low <= number <= high else f"value must be between {low} and {high}"

    return valid


def _double(low: float, high: float) -> Callable[[str], str | None]:
    def valid(value: str) -> str | None:
        number = parse_double(value)
        if number is None:
            return "not a number"
        return None if low <= number <= high else f"value must be between {low} and {high}"

    return valid


def _one_of(*choices: str) -> Callable[[str], str | None]:
    return lambda value: None if value in choices else f"value must be one of {', '.join(choices)}"


def _cleanup_policy(value: str) -> str | None:
    policies = [policy.strip() for policy in value.split(",")]
    return None if policies and set(policies) <= {"compact", "delete"} else "value must be compact, delete or both"


def _throttled_replicas(value: str) -> str | None:
    if value in ("", "*"):
        return None
    pairs = [pair.strip().split(":") for pair in value.split(",")]
    fine = all(len(pair) == 2 and all(part.isascii() and part.isdigit() for part in pair) for pair in pairs)
    return None if fine else "value must be * or a list of partition:broker"


def _gzip_level(value: str) -> str | None:
    return None if value == "-1" or _number(1, 9)(value) is None else "value must be 1 to 9, or -1"


def _must_be_false(value: str) -> str | None:
    return None if value.lower() == "false" else "tiered storage is not available here; the value must be false"


def _table_location(value: str) -> str | None:
    if not value:
        return None
    if value.startswith("s3://"):
        return None if S3_LOCATION.fullmatch(value) else "value must be s3://BUCKET/PATH, of letters, digits and . _ = -, without . and .. alone"
    if not value.startswith("/") or posixpath.normpath(value) != value or value.startswith("//"):
        return "value must be a whole path, from / on, without .. in it, or s3://BUCKET/PATH"
    return None if value.isprintable() and len(value) <= 1_000 else "value must be at most 1000 printable characters"


def table_problem(topic: str, config: Mapping[str, str | None], allowed: Sequence[str]) -> str | None:
    """Return why these configs must not make a topic a table, or None. `allowed`: directories at or below which tables may be.

    Clients change configs over the network, and the box writes files there: its operator names the directories.
    """
    if (config.get(TABLE_FORMAT) or "none") == "none":
        return None
    location = config.get(TABLE_LOCATION) or ""
    if not location:
        return f"{TABLE_FORMAT} needs {TABLE_LOCATION}, the directory in which the table is"
    if not allowed:
        return "tables are off on this box: set tables.locations in its settings file to the directories that may have some, and restart it"
    if not any(location == directory or location.startswith(directory.rstrip("/") + "/") for directory in allowed):
        return f"{TABLE_LOCATION} is {location[:SHOWN_MAX]}; this box has tables below {', '.join(allowed)} only (setting tables.locations)"
    if topic.startswith(("_", ".")):
        return f"topic {topic} cannot be a table: in a table's directory, names that begin with _ or . have a meaning"
    return None


def _anything(_value: str) -> str | None:
    return None


_LONG = _number(0, LONG_MAX)
_LONG_FROM_ONE = _number(1, LONG_MAX)
_LONG_OR_NONE = _number(-1, LONG_MAX)
_INT = _number(0, INT_MAX)
_MAX = str(LONG_MAX)
_WEEK = "604800000"
_CODECS = _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_STAMPS = _one_of("CreateTime", "LogAppendTime")

TOPIC_CONFIG_ROWS: dict[str, TopicConfigRow] = {
    row.name: row
    for row in (
        TopicConfigRow("cleanup.policy", "list", "delete", _cleanup_policy, ("log.cleanup.policy",)),
        TopicConfigRow("compression.gzip.level", "int", "-1", _gzip_level, ("compression.gzip.level",)),
        TopicConfigRow("compression.lz4.level", "int", "9", _number(1, 17), ("compression.lz4.level",)),
        TopicConfigRow("compression.type", "string", "producer", _CODECS, ("compression.type",)),
        TopicConfigRow("compression.zstd.level", "int", "3", _number(-131072, 22), ("compression.zstd.level",)),
        TopicConfigRow("delete.retention.ms", "long", "86400000", _LONG, ("log.cleaner.delete.retention.ms",)),
        TopicConfigRow("file.delete.delay.ms", "long", "60000", _LONG, ("log.segment.delete.delay.ms",)),
        TopicConfigRow("flush.messages", "long", _MAX, _LONG_FROM_ONE, ("log.flush.interval.messages",)),
        TopicConfigRow("flush.ms", "long", _MAX, _LONG, ("log.flush.interval.ms",)),
        TopicConfigRow("follower.replication.throttled.replicas", "list", "", _throttled_replicas),
        TopicConfigRow("index.interval.bytes", "int", "4096", _INT, ("log.index.interval.bytes",)),
        TopicConfigRow(INTERNAL_SEGMENT_BYTES, "int", "1073741824", _number(14, INT_MAX)),
        TopicConfigRow("leader.replication.throttled.replicas", "list", "", _throttled_replicas),
        TopicConfigRow("local.retention.bytes", "long", "-2", _number(-2, LONG_MAX), ("log.local.retention.bytes",)),
        TopicConfigRow("local.retention.ms", "long", "-2", _number(-2, LONG_MAX), ("log.local.retention.ms",)),
        TopicConfigRow("max.compaction.lag.ms", "long", _MAX, _LONG_FROM_ONE, ("log.cleaner.max.compaction.lag.ms",)),
        TopicConfigRow("max.message.bytes", "int", "1048588", _INT, ("message.max.bytes",)),
        TopicConfigRow("message.downconversion.enable", "boolean", "true", _boolean, ("log.message.downconversion.enable",)),
        TopicConfigRow("message.format.version", "string", "3.0-IV1", _anything, ("log.message.format.version",)),
        TopicConfigRow("message.timestamp.after.max.ms", "long", _MAX, _LONG, ("log.message.timestamp.after.max.ms",)),
        TopicConfigRow("message.timestamp.before.max.ms", "long", _MAX, _LONG, ("log.message.timestamp.before.max.ms",)),
        TopicConfigRow("message.timestamp.difference.max.ms", "long", _MAX, _LONG, ("log.message.timestamp.difference.max.ms",)),
        TopicConfigRow("message.timestamp.type", "string", "CreateTime", _STAMPS, ("log.message.timestamp.type",)),
        TopicConfigRow("millrace.retention.protected.ms", "long", "0", _LONG, ("log.retention.protected.ms",)),
        TopicConfigRow(TABLE_BYTES, "long", "67108864", _number(1 << 20, 1 << 30)),
        TopicConfigRow(TABLE_FORMAT, "string", "none", _one_of("none", "delta", "iceberg")),
        TopicConfigRow(TABLE_INTERVAL, "long", "60000", _number(1_000, 86_400_000)),
        TopicConfigRow(TABLE_LOCATION, "string", "", _table_location),
        TopicConfigRow(TABLE_SCHEMA, "string", "records", _one_of("records", "json")),
        TopicConfigRow("min.cleanable.dirty.ratio", "double", "0.5", _double(0, 1), ("log.cleaner.min.cleanable.ratio",)),
        TopicConfigRow("min.compaction.lag.ms", "long", "0", _LONG, ("log.cleaner.min.compaction.lag.ms",)),
        TopicConfigRow("min.insync.replicas", "int", "1", _number(1, INT_MAX), ("min.insync.replicas",)),
        TopicConfigRow("preallocate", "boolean", "false", _boolean, ("log.preallocate",)),
        TopicConfigRow("remote.log.copy.disable", "boolean", "false", _must_be_false),
        TopicConfigRow("remote.log.delete.on.disable", "boolean", "false", _must_be_false),
        TopicConfigRow("remote.storage.enable", "boolean", "false", _must_be_false),
        TopicConfigRow("retention.bytes", "long", "-1", _number(-LONG_MAX - 1, LONG_MAX), ("log.retention.bytes",)),
        TopicConfigRow("retention.ms", "long", _WEEK, _LONG_OR_NONE, ("log.retention.ms", "log.retention.minutes", "log.retention.hours")),
        TopicConfigRow("segment.bytes", "int", "1073741824", _number(14, INT_MAX), ("log.segment.bytes",), SEGMENT_BYTES_MIN),
        TopicConfigRow("segment.index.bytes", "int", "10485760", _number(4, INT_MAX), ("log.index.size.max.bytes",)),
        TopicConfigRow("segment.jitter.ms", "long", "0", _LONG, ("log.roll.jitter.ms", "log.roll.jitter.hours")),
        TopicConfigRow("segment.ms", "long", _WEEK, _LONG_FROM_ONE, ("log.roll.ms", "log.roll.hours")),
        TopicConfigRow("unclean.leader.election.enable", "boolean", "false", _boolean, ("unclean.leader.election.enable",)),
    )
}


def segment_bytes_config(size_bytes: int) -> tuple[str, str]:
    """Return the config that gives a topic segments of `size_bytes`."""
    return ("segment.bytes" if size_bytes >= SEGMENT_BYTES_MIN else INTERNAL_SEGMENT_BYTES), str(size_bytes)


def config_bytes(config: Mapping[str, str | None]) -> int:
    """Return how many bytes names and values have."""
    return sum(len(name.encode()) + len((value or "").encode()) for name, value in config.items())


def topic_config_problem(config: Mapping[str, str | None], stored: Mapping[str, str] | None = None) -> str | None:
    """Return why these configs cannot be set on a topic, or None; a null value is a problem, too.

    A value that is `stored` stays, also if it could not be set any more.
    """
    if config_bytes(config) > CONFIG_BYTES_MAX:
        return f"the configs of a topic may have at most {CONFIG_BYTES_MAX} bytes"
    nulls = sorted(name for name, value in config.items() if value is None)
    if nulls:
        return f"Null value not supported for topic configs: {', '.join(nulls)[:SHOWN_MAX]}"
    for name, value in config.items():
        row = TOPIC_CONFIG_ROWS.get(name)
        if row is None:
            return f"Unknown topic config name: {name[:SHOWN_MAX]}"
        is_new = stored is None or stored.get(name) != value
        problem = row.new_value_problem(str(value)) if is_new else row.valid(str(value))
        if problem is not None:
            return f"Invalid value {str(value)[:SHOWN_MAX]} for configuration {name}: {problem}"
    lag_min = int(config.get("min.compaction.lag.ms") or 0)
    lag_max = int(config.get("max.compaction.lag.ms") or LONG_MAX)
    if lag_min > lag_max:
        return f"conflict topic config setting min.compaction.lag.ms ({lag_min}) > max.compaction.lag.ms ({lag_max})"
    return None


_UNSET: Mapping[str, object] = {"log.retention.ms": 0, "log.retention.minutes": 0, "log.roll.ms": 0, "log.roll.jitter.ms": 0}
_HOUR_MS = 3_600_000
_MS: Mapping[str, int] = {
    "log.retention.minutes": 60_000,
    "log.retention.hours": _HOUR_MS,
    "log.roll.hours": _HOUR_MS,
    "log.roll.jitter.hours": _HOUR_MS,
}
"""Settings in other units than their topic config."""


def broker_config(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the topic configs that the broker's settings give, where they differ from Kafka's
    defaults.

    A value that is invalid for a topic means unset. Of several settings for one config the first
    that is set counts.
    """
    config = {}
    for row in TOPIC_CONFIG_ROWS.values():
        for name in row.broker_settings:
            value = settings.get(name)
            if value is None or (name in _UNSET and value == _UNSET[name]):
                continue
            if name in _MS and isinstance(value, int):
                value = max(-1, value * _MS[name])
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if text != row.default and row.valid(text) is None:
                config[row.name] = text
            break
    if settings.get("log.flush.policy") == "ack":
        config["flush.messages"] = "1"  # no record is acknowledged before it is synced
    return config


def effective_config(broker: Mapping[str, str], topic: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's configs where they differ from Kafka's defaults: its own before the
    broker's.
    """
    return {**broker, **topic}
