"""Which topics a mirror copies, what they are called in the target, and what a position says. Pure.

Loops: a position in the target has the ids of all clusters that its topic came from, this source and
what the source's own positions say. A topic that came from the target is not copied back, however many
mirrors are between. Rejected: a header in each record, because a mirror would have to open and compress
every batch. Weak spots: two clusters cannot merge what both write into topics of the same name; a
mirror that is gone counts until its group on the source is deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from appliance.base.model import NO_TOPIC_ID, TopicId, topic_name_problem

COPIED_SETTINGS: Final = frozenset(
    (
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    )
)
"""Settings of Kafka that say how a log is kept. Others say something about one cluster (replicas, tables in its directories,
remote storage), or would change or refuse what is copied (`message.timestamp.*`), and must not come from a right to alter topics of a source."""
_METADATA_BYTES_MAX: Final = 4096
"""Kafka's offset.metadata.max.bytes."""


class CopiedTopic(NamedTuple):
    source: str
    target: str


class LeftOut(NamedTuple):
    topic: str
    reason: str


def is_selected(name: str, topics: Iterable[re.Pattern[str]], exclude: Iterable[re.Pattern[str]]) -> bool:
    """Return whether the patterns, which are for whole names, select a topic; names with `__` are internal."""
    return not name.startswith("__") and any(each.fullmatch(name) for each in topics) and not any(each.fullmatch(name) for each in exclude)


def self_copy_problem(selected: Sequence[str], prefix: str, topics: Sequence[re.Pattern[str]], exclude: Sequence[re.Pattern[str]]) -> str | None:
    """Return why a cluster cannot be its own target: without a prefix, or if what is copied would be copied again."""
    if not prefix:
        return "it is the target itself; give it a prefix"
    again = [prefix + name for name in sorted(selected) if is_selected(prefix + name, topics, exclude)]
    return f"it is the target itself, and its copies would be copied, too ({again[0]}); exclude them ({re.escape(prefix)}.*)" if again else None


def plan_topics(
    names: Iterable[str], prefix: str, target_cluster_id: str | None, origins: Mapping[str, Mapping[str, str]]
) -> tuple[list[CopiedTopic], list[LeftOut]]:
    """Return which of the selected topics are copied, and which are not and why.

    `origins`: for topics of the source that are copies, the clusters that they came from, and the group that says so.
    """
    copied, left_out = [], []
    for name in sorted(names):
        group = origins.get(name, {}).get(target_cluster_id or "")
        if group is not None:
            reason = f"it comes from the target (group {group!r} on the source); copying it back would be a loop. If that mirror is gone, delete the group"
            left_out.append(LeftOut(name, reason))
        elif (problem := topic_name_problem(prefix + name)) is not None:
            left_out.append(LeftOut(name, problem))
        else:
            copied.append(CopiedTopic(name, prefix + name))
    return copied, left_out


def settings_to_set(source: Mapping[str, str], target: Mapping[str, str], known: frozenset[str] | None = None) -> dict[str, str]:
    """Return the settings of a source topic that differ on the target; `known`: names that the target has."""
    return {name: value for name, value in source.items() if name in COPIED_SETTINGS and target.get(name) != value and (known is None or name in known)}


# ---- what is committed with a position


class PositionNote(NamedTuple):
    """The metadata of a committed position."""

    topic_id: TopicId = NO_TOPIC_ID
    origins: tuple[str, ...] = ()
    """ids of clusters, the source first"""
    runs: tuple[tuple[int, int, int], ...] = ()
    """`OffsetRuns.sample` of the partition, so that offsets of groups are translated after a restart, too"""


def write_note(note: PositionNote) -> str:
    """Return the note as JSON; the farthest origins are dropped if it would be too long."""
    origins = list(note.origins)
    while True:
        text = json.dumps({"id": bytes(note.topic_id).hex(), "from": origins, "runs": note.runs}, separators=(",", ":"))
        if len(text) <= _METADATA_BYTES_MAX or not origins:
            return text
        origins.pop()


def read_note(metadata: str) -> PositionNote:
    """Return what `write_note` wrote; an empty note for anything else."""
    try:
        document = json.loads(metadata)
        origins, runs = document["from"], [(first, there, count) for first, there, count in document["runs"]]
        if (
            not isinstance(origins, list)
            or not all(isinstance(each, str) for each in origins)
            or not all(type(number) is int for run in runs for number in run)
        ):
            return PositionNote()
        return PositionNote(TopicId(bytes.fromhex(document["id"])), tuple(origins), tuple(runs))
    except (ValueError, KeyError, TypeError):
        return PositionNote()


def chain_of(cluster_id: str | None, origins: Sequence[str]) -> tuple[str, ...]:
    """Return the origins of what is copied from a topic of cluster `cluster_id` that itself came from `origins`."""
    return tuple(dict.fromkeys([cluster_id or "", *sorted(origins)]))


# ---- where a partition goes on

RECREATED: Final = "the source topic was deleted and created anew"


class Resumption(NamedTuple):
    """`offset` -1: at the configured start. `problem`: what changed in the source, to be reported; None: nothing did."""

    offset: int
    problem: str | None = None


def plan_resumption(committed: int | None, note: PositionNote, topic_id: TopicId | None) -> Resumption:
    """Return where to go on with a partition of the topic that has `topic_id` now (None: the broker is older than ids)."""
    if committed is None:
        return Resumption(-1)
    if topic_id is not None and note.topic_id not in (NO_TOPIC_ID, topic_id):
        return Resumption(0, RECREATED)
    return Resumption(committed)


def plan_out_of_range(position: int, log_start: int, log_end: int) -> Resumption:
    """Return where to go on if the source has no record at `position` any more."""
    if position < log_start:
        return Resumption(log_start, f"{log_start - position} offsets from {position} on are deleted in the source")
    return Resumption(
        min(position, log_end), f"the source ends at {log_end}, before position {position}: its log was truncated" if position > log_end else None
    )
