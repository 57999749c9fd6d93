"""Topics of the target: made, grown and set like those of a source; and which topics of a cluster are copies.

Owned by the one thread of the mirror. A topic that the target refuses is reported, left out and tried again
at the next turn. Settings that only one cluster understands, or that speak of its brokers, are not copied
(`topic_rules.py`). Weak spot: a setting that the source's topic loses stays on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client.admin import TopicSettings, add_partitions, alter_topic_settings, create_topic, settings_of_topics
from appliance.client.cluster import ClusterClient, ClusterMetadata
from appliance.client.groups import MIRROR_PREFIX, CommittedOffset, committed_offsets, list_groups
from services.mirror.mirror_file import MirrorOptions
from services.mirror.topic_rules import CopiedTopic, LeftOut, read_note, settings_to_set

NO_SETTINGS = TopicSettings(frozenset(), {})


class TopicChanges(NamedTuple):
    """Topics that can be copied, those that cannot, and sentences about what was changed, and what the target keeps as it is."""

    usable: list[CopiedTopic]
    refused: list[LeftOut]
    notices: list[str]
    kept: list[str]


def prepare_topics(target: ClusterClient, options: MirrorOptions, settings: Mapping[str, TopicSettings], found: ClusterMetadata,
                   topics: Sequence[CopiedTopic], on_progress: Callable[[], None]) -> TopicChanges:  # fmt: skip
    """Let the target have each topic with at least the source's partitions, and its settings. `on_progress` is called for
    each topic: thousands take minutes. Raises ClientFailed."""
    changes = TopicChanges([], [], [], [])
    if not topics:
        return changes
    there = target.metadata([each.target for each in topics]).topics
    theirs = settings_of_topics(target, [name for name, topic in there.items() if topic.error == ErrorCode.NONE]) if options.copies_settings else {}
    for topic in topics:
        on_progress()
        count = len(found.topics[topic.source].partitions)
        own = settings.get(topic.source, NO_SETTINGS).own
        existing, existing_settings = there.get(topic.target), theirs.get(topic.target, NO_SETTINGS)
        try:
            if existing is None or existing.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                _create(target, topic, count, options.replication_factor, own)
                changes.notices.append(f"topic {topic.target!r} created with {count} partitions")
            elif existing.error != ErrorCode.NONE:
                raise RequestRefused(existing.error, f"the target's topic {topic.target!r} cannot be used ({existing.error.name})")
            else:
                if len(existing.partitions) < count:
                    add_partitions(target, topic.target, count)
                    changes.notices.append(f"topic {topic.target!r} grown to {count} partitions")
                _set(target, topic, settings_to_set(own, existing_settings.own, existing_settings.names), changes)
        except RequestRefused as error:
            changes.refused.append(LeftOut(topic.source, error.message))
        else:
            changes.usable.append(topic)
    return changes


def _create(target: ClusterClient, topic: CopiedTopic, count: int, replication_factor: int | None, own: Mapping[str, str]) -> None:
    configs = settings_to_set(own, {})
    try:
        create_topic(target, topic.target, partitions=count, replication_factor=replication_factor, configs=configs)
    except RequestRefused as error:
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        if error.code != ErrorCode.INVALID_CONFIG or not configs:
            raise
        create_topic(target, topic.target, partitions=count, replication_factor=replication_factor)  # the next turn sets what the target knows
    target.topic(topic.target, is_new=True)


def _set(target: ClusterClient, topic: CopiedTopic, values: Mapping[str, str], changes: TopicChanges) -> None:
    """A setting that the target refuses must not keep the records away: it is reported."""
    for name, value in values.items():
        try:
            alter_topic_settings(target, topic.target, {name: value}, ())
            changes.notices.append(f"topic {topic.target!r} got {name}={value}")
        except RequestRefused as error:
            changes.kept.append(f"topic {topic.target!r} keeps its {name}: {error.message}")


def read_origins(cluster: ClusterClient, on_progress: Callable[[], None]) -> dict[str, dict[str, str]]:
    """Return the topics of a cluster that mirrors copied into it: where from, and which group says so. `on_progress` is called for each group."""
    found: dict[str, dict[str, str]] = {}
    for listed in list_groups(cluster):
        on_progress()
        if listed.group_id.startswith(MIRROR_PREFIX):
            for partition, position in committed_offsets(cluster, listed.group_id).items():
                for origin in read_note(position.metadata).origins:
                    found.setdefault(partition.topic, {}).setdefault(origin, listed.group_id)
    return found


def read_positions(target: ClusterClient, group_id: str) -> dict[TopicPartition, CommittedOffset]:
    """Return the positions when no transaction that changes them is open."""
    return committed_offsets(target, group_id, require_stable=True)
