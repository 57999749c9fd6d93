"""Configs of topics, brokers and groups for DescribeConfigs: values, sources, synonyms in order of
precedence, types, texts.

Pure; used by the controller process. Weak: a value that the settings file has and that equals the
default is reported as a default. The texts are maintained by hand beside `topic_configs`; a test
compares the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.cluster.broker_configs import DYNAMIC_BROKER_CONFIGS, BrokerConfig
from appliance.cluster.group_configs import GROUP_CONFIG_ROWS
from appliance.cluster.topic_configs import (
    INTERNAL_SEGMENT_BYTES,
    TABLE_BYTES,
    TABLE_FORMAT,
    TABLE_INTERVAL,
    TABLE_LOCATION,
    TABLE_SCHEMA,
    TOPIC_CONFIG_ROWS,
    TopicConfigRow,
)
from appliance.protocol.config_apis import CONFIG_TYPES, ConfigSource, ConfigSynonym, DescribedConfig

_TEXTS: Final[dict[str, str]] = {
    "cleanup.policy": "How old segments are treated: deleted, compacted by key, or both.",
    "compression.gzip.level": "The level for gzip where the broker compresses.",
    "compression.lz4.level": "The level for lz4 where the broker compresses.",
    "compression.type": "The codec in which batches are stored; 'producer' keeps the one in which they were sent.",
    "compression.zstd.level": "The level for zstd where the broker compresses.",
    "delete.retention.ms": "How long tombstones are kept in a compacted topic.",
    "file.delete.delay.ms": "How long a deleted segment's files stay on the disk.",
    "flush.messages": "After how many records the log is synced to the disk; with 1, none is acknowledged before.",
    "flush.ms": "After how many milliseconds the log is synced to the disk.",
    "follower.replication.throttled.replicas": "Followers whose replication is throttled: partition:broker,… or * for all.",
    "index.interval.bytes": "How many bytes of the log lie between two index entries.",
    INTERNAL_SEGMENT_BYTES: "For tests: takes the place of segment.bytes and can be smaller than its minimum.",
    "leader.replication.throttled.replicas": "Leaders whose replication is throttled: partition:broker,… or * for all.",
    "local.retention.bytes": "With tiered storage: how many bytes of a partition stay on this disk; -2 is retention.bytes.",
    "local.retention.ms": "With tiered storage: how long records stay on this disk; -2 is retention.ms.",
    "max.compaction.lag.ms": "The longest time a record stays uncompacted.",
    "max.message.bytes": "The largest record batch that is taken, as it is sent (after compression).",
    "message.downconversion.enable": "Whether records are converted to older formats for clients that ask for those.",
    "message.format.version": "The version of the record format; deprecated and passed over.",
    "message.timestamp.after.max.ms": "How far a record's time may lie after the broker's when it arrives.",
    "message.timestamp.before.max.ms": "How far a record's time may lie before the broker's when it arrives.",
    "message.timestamp.difference.max.ms": "How far a record's time and the broker's may differ; deprecated.",
    "message.timestamp.type": "Which clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
    TABLE_BYTES: "About how many bytes of records make a commit of the table before its interval is over, and at most make one.",
    TABLE_FORMAT: "delta: the box keeps the topic as a Delta table; none: it does not.",
    TABLE_INTERVAL: "How often new records are committed to the table.",
    TABLE_LOCATION: "The directory in which the table is, in a directory with the topic's name; below one of the setting tables.locations.",
    TABLE_SCHEMA: "Columns of the table: records (as they are, or the fields that ingest writes), or json (the fields of JSON objects).",
    "millrace.retention.protected.ms": "Segments younger than this are never deleted for free space; writes are refused instead.",
    "min.cleanable.dirty.ratio": "Which share of a log must be uncompacted before it is compacted.",
    "min.compaction.lag.ms": "The shortest time a record stays uncompacted.",
    "min.insync.replicas": "How many replicas must be in sync for a produce with acks=all.",
    "preallocate": "Whether segment files are made at their full size.",
    "remote.log.copy.disable": "With tiered storage: stop copying segments away.",
    "remote.log.delete.on.disable": "With tiered storage: delete what was copied away when it is switched off.",
    "remote.storage.enable": "Tiered storage; not available here.",
    "retention.bytes": "How many bytes of a partition are kept; -1 is no limit.",
    "retention.ms": "How long records are kept; -1 is for ever.",
    "segment.bytes": "A segment is closed before it grows beyond this.",
    "segment.index.bytes": "The largest index of a segment; a segment whose index is full is closed.",
    "segment.jitter.ms": "The most by which segment.ms is shortened at random, so that segments do not all close at once.",
    "segment.ms": "A segment is closed when its first record is this old.",
    "unclean.leader.election.enable": "Whether a replica that was not in sync may lead when no other can, at the price of lost records.",
}

EFFECTIVE: Final = frozenset(
    {
        "delete.retention.ms",
        "max.compaction.lag.ms",
        "millrace.retention.protected.ms",
        TABLE_BYTES,
        TABLE_FORMAT,
        TABLE_INTERVAL,
        TABLE_LOCATION,
        TABLE_SCHEMA,
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "cleanup.policy",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        INTERNAL_SEGMENT_BYTES,
        "max.message.bytes",
        "message.downconversion.enable",
        "message.timestamp.type",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Configs that are implemented; the others are checked and stored."""


def topic_config_documentation(name: str) -> str:
    return _TEXTS[name] if name in EFFECTIVE else f"{_TEXTS[name]} Checked and kept; it has no effect in this release."


PASSWORD = "password"  # noqa: S105  a type
POLICY_BEFORE = {"flush.messages": "log.flush.policy"}
"""Settings of ours that give a topic config its value, before those that Kafka has for it."""


class BrokerSide(NamedTuple):
    """The values that a topic inherits from its broker.

    `values`: what the settings give for topics where that differs from Kafka's defaults, by the
    topic configs' names and in their units. `configs`: the broker's own configs, as they are
    described themselves.
    """

    values: Mapping[str, str]
    configs: Mapping[str, BrokerConfig]
    own: Mapping[str, str] = {}
    """Dynamic configs of this broker."""
    for_all: Mapping[str, str] = {}
    """Dynamic configs of all brokers."""


def describe_topic(topic: Mapping[str, str], broker: BrokerSide, with_synonyms: bool, with_documentation: bool) -> list[DescribedConfig]:
    """Return every topic config, the internal one only where it is set. `topic`: the configs that
    are set on it.
    """
    rows = [row for row in TOPIC_CONFIG_ROWS.values() if row.name != INTERNAL_SEGMENT_BYTES or row.name in topic]
    return [_topic_config(row, topic, broker, with_synonyms, with_documentation) for row in rows]


def _topic_config(row: TopicConfigRow, topic: Mapping[str, str], broker: BrokerSide, with_synonyms: bool, with_documentation: bool) -> DescribedConfig:
    synonyms = _topic_synonyms(row, topic, broker)
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    return DescribedConfig(
        row.name,
        topic.get(row.name, broker.values.get(row.name, row.default)),
        is_default=source == ConfigSource.DEFAULT,
        config_source=source,
        synonyms=synonyms if with_synonyms else (),
        config_type=CONFIG_TYPES[row.type],
        documentation=topic_config_documentation(row.name) if with_documentation else None,
    )


def _topic_synonyms(row: TopicConfigRow, topic: Mapping[str, str], broker: BrokerSide) -> tuple[ConfigSynonym, ...]:
    """Return the topic's own value, then the broker's configs by their names and in their units:
    set ones, then defaults.

    They equal what describing the broker returns, so that the two never contradict each other.
    """
    synonyms = [ConfigSynonym(row.name, topic[row.name], ConfigSource.TOPIC)] if row.name in topic else []
    names = [POLICY_BEFORE[row.name], *row.broker_settings] if row.name in POLICY_BEFORE and row.name in broker.values else row.broker_settings
    for values, source in ((broker.own, ConfigSource.DYNAMIC_BROKER), (broker.for_all, ConfigSource.DYNAMIC_DEFAULT_BROKER)):
        synonyms += [ConfigSynonym(name, values[name], source) for name in names if name in values]
    known = [broker.configs[name] for name in names if name in broker.configs]
    synonyms += [ConfigSynonym(config.name, config.value, ConfigSource.STATIC_BROKER) for config in known if not config.is_default]
    if row.broker_settings and not known:  # a setting that this broker does not have: Kafka's default holds
        synonyms.append(ConfigSynonym(row.broker_settings[0], row.default, ConfigSource.DEFAULT))
    synonyms += [ConfigSynonym(config.name, config.default, ConfigSource.DEFAULT) for config in known if config.default is not None]
    return tuple(synonyms)


def describe_dynamic(
    own: Mapping[str, str],
    for_all: Mapping[str, str],
    settings: Mapping[str, BrokerConfig],
    with_synonyms: bool,
    with_documentation: bool,
    only_set: bool = False,
) -> list[DescribedConfig]:
    """Return the configs that can be set while this broker runs: its own value, then that of all
    brokers, then `settings`.

    With `only_set` only those that are set.
    """
    described = []
    for config in DYNAMIC_BROKER_CONFIGS.values():
        synonyms = [ConfigSynonym(config.name, own[config.name], ConfigSource.DYNAMIC_BROKER)] if config.name in own else []
        if config.name in for_all:
            synonyms.append(ConfigSynonym(config.name, for_all[config.name], ConfigSource.DYNAMIC_DEFAULT_BROKER))
        if only_set and not synonyms:
            continue
        if config.name in settings and not settings[config.name].is_default:
            synonyms.append(ConfigSynonym(config.name, settings[config.name].value, ConfigSource.STATIC_BROKER))
        if config.default is not None:
            synonyms.append(ConfigSynonym(config.name, config.default, ConfigSource.DEFAULT))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        described.append(
            DescribedConfig(
                config.name,
                synonyms[0].value if synonyms else None,
                is_default=source == ConfigSource.DEFAULT,
                config_source=source,
                synonyms=tuple(synonyms) if with_synonyms else (),
                config_type=CONFIG_TYPES[config.type],
                documentation=config.documentation if with_documentation else None,
            )
        )
    return described


def describe_group(own: Mapping[str, str], settings: Mapping[str, BrokerConfig], with_synonyms: bool, with_documentation: bool) -> list[DescribedConfig]:
    """Return every config of a group: its own value, then what the settings say for all groups."""
    described = []
    for row in GROUP_CONFIG_ROWS.values():
        setting = settings.get(row.setting)
        synonyms = [ConfigSynonym(row.name, own[row.name], ConfigSource.GROUP)] if row.name in own else []
        if setting is not None and not setting.is_default:
            synonyms.append(ConfigSynonym(setting.name, setting.value, ConfigSource.STATIC_BROKER))
        default = setting.default if setting is not None else row.default
        synonyms.append(ConfigSynonym(row.setting or row.name, default, ConfigSource.DEFAULT))
        described.append(
            DescribedConfig(
                row.name,
                synonyms[0].value,
                is_default=row.name not in own,
                config_source=synonyms[0].source,
                synonyms=tuple(synonyms) if with_synonyms else (),
                config_type=CONFIG_TYPES[row.type],
                documentation=row.documentation if with_documentation else None,
            )
        )
    return described


def describe_broker(configs: Mapping[str, BrokerConfig], with_synonyms: bool, with_documentation: bool) -> list[DescribedConfig]:
    """Return every config of this broker that is read at its start."""
    return [_broker_config(config, with_synonyms, with_documentation) for config in configs.values()]


def _broker_config(config: BrokerConfig, with_synonyms: bool, with_documentation: bool) -> DescribedConfig:
    is_sensitive = config.type == PASSWORD
    value = None if is_sensitive else config.value
    synonyms = [] if config.is_default else [ConfigSynonym(config.name, value, ConfigSource.STATIC_BROKER)]
    if config.default is not None:
        synonyms.append(ConfigSynonym(config.name, None if is_sensitive else config.default, ConfigSource.DEFAULT))
    source = ConfigSource.DEFAULT if config.is_default else ConfigSource.STATIC_BROKER
    return DescribedConfig(
        config.name,
        value,
        read_only=True,
        is_default=config.is_default,
        config_source=source,
        is_sensitive=is_sensitive,
        synonyms=tuple(synonyms) if with_synonyms else (),
        config_type=CONFIG_TYPES[config.type],
        documentation=config.documentation if with_documentation else None,
    )
