"""Configs of topics and brokers as DescribeConfigs tells them: values, sources, synonyms in order of precedence, types, texts.

Pure; used by the controller process. Weak spot: a value that stands in the settings file as the default is told as a default.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.metadata.broker_configs import BrokerConfig
from appliance.metadata.topic_config_texts import topic_config_documentation
from appliance.metadata.topic_configs import TOPIC_CONFIG_ROWS, TopicConfigRow
from appliance.protocol.config_resources import CONFIG_TYPES, ConfigSource
from appliance.protocol.describe_configs import ConfigSynonym, DescribedConfig

PASSWORD = "password"


def describe_topic(topic: Mapping[str, str], broker: Mapping[str, str], with_synonyms: bool, with_documentation: bool) -> list[DescribedConfig]:
    """Every topic config. `topic`: what is set on it; `broker`: what the broker's settings give for topics where it differs from the defaults."""
    return [_topic_config(row, topic, broker, with_synonyms, with_documentation) for row in TOPIC_CONFIG_ROWS.values()]


def _topic_config(row: TopicConfigRow, topic: Mapping[str, str], broker: Mapping[str, str], with_synonyms: bool, with_documentation: bool) -> DescribedConfig:
    synonyms = _topic_synonyms(row, topic, broker)
    value, source = (synonyms[0].value, synonyms[0].source) if synonyms else (row.default, ConfigSource.DEFAULT)
    return DescribedConfig(
        row.name,
        value,
        is_default=source == ConfigSource.DEFAULT,
        config_source=source,
        synonyms=synonyms if with_synonyms else (),
        config_type=CONFIG_TYPES[row.type],
        documentation=topic_config_documentation(row.name) if with_documentation else None,
    )


def _topic_synonyms(row: TopicConfigRow, topic: Mapping[str, str], broker: Mapping[str, str]) -> tuple[ConfigSynonym, ...]:
    """The topic's own value under its name, then the broker's and the default under the broker's name."""
    synonyms = [ConfigSynonym(row.name, topic[row.name], ConfigSource.TOPIC)] if row.name in topic else []
    if row.broker_settings:
        if row.name in broker:
            synonyms.append(ConfigSynonym(row.broker_settings[0], broker[row.name], ConfigSource.STATIC_BROKER))
        synonyms.append(ConfigSynonym(row.broker_settings[0], row.default, ConfigSource.DEFAULT))
    return tuple(synonyms)


def describe_broker(configs: Mapping[str, BrokerConfig], with_synonyms: bool, with_documentation: bool) -> list[DescribedConfig]:
    """Every config of this broker, all read-only."""
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
