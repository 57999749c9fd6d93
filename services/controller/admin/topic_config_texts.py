"""The meaning of each topic config for DescribeConfigs, and which of them this appliance
implements.

Weak: maintained by hand beside `topic_configs`; a test compares the names.
"""

from __future__ import annotations

from typing import Final

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
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "cleanup.policy",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
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
