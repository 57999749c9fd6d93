"""How a topic's settings follow from its own and the box's: Kafka's topic-level names and the broker settings behind them.

A value set on the topic wins, then the box's setting, then Kafka's default. Weak spot: only settings that this box has rows for are
listed; others keep Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping

BROKER_SYNONYMS = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.insync.replicas": "min.insync.replicas",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.ms": "log.roll.ms",
}


def effective_topic_config(overrides: Mapping[str, str], box_settings: Mapping[str, object]) -> dict[str, str]:
    """Every topic-level setting that the box knows, as text, with the topic's own values in place."""
    config = {name: str(box_settings[synonym]) for name, synonym in BROKER_SYNONYMS.items() if synonym in box_settings}
    config.update(overrides)
    return config
