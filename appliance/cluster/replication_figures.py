"""Count how well this box's partitions are replicated, under Kafka's names: the image against the
rows. Pure.

Used by the console and by `millrace status`. Each partition is counted by its leader's box, so that
the figures of several boxes may be added. Weak: no row says how far a follower outside the in-sync
set lags; the leader's row has the lag of the slowest in-sync replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.cluster.metadata_image import MetadataImage, PartitionImage
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, Row


class ReplicationFigures(NamedTuple):
    """Counts of partitions, and records. `offline` is counted by the controller, and by each box
    while there is none.
    """

    leaders: int = 0
    followers: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    offline: int = 0
    not_preferred: int = 0
    """Led by another box although this one is the preferred leader."""
    unreplicated_records_max: int = 0
    """The largest lag of an in-sync replica, over all led partitions."""


def count_replication(image: MetadataImage, rows: dict[tuple[bytes, int], Row], broker_id: int) -> ReplicationFigures:
    """Count. `rows` are this box's, by topic id and partition."""
    counts_offline = image.controller_id == broker_id or image.controller_id not in image.brokers
    leaders = followers = under_replicated = under_min_isr = offline = not_preferred = behind = 0
    for wanted, row in _partitions(image, rows):
        offline += counts_offline and wanted.leader < 0
        not_preferred += wanted.replicas[:1] == (broker_id,) and wanted.leader not in (-1, broker_id)
        if row is None:
            continue
        followers += row.role == ROLE_FOLLOWER
        if row.role == ROLE_LEADER:
            leaders += 1
            under_replicated += is_under_replicated(wanted, row)
            under_min_isr += row.isr_size < row.min_insync_replicas
            behind = max(behind, unreplicated_records(row))
    return ReplicationFigures(leaders, followers, under_replicated, under_min_isr, offline, not_preferred, behind)


def _partitions(image: MetadataImage, rows: dict[tuple[bytes, int], Row]) -> Iterator[tuple[PartitionImage, Row | None]]:
    for topic in image.topics.values():
        topic_id = bytes(topic.topic_id)
        for number, wanted in enumerate(topic.partitions):
            yield wanted, rows.get((topic_id, number))


def is_under_replicated(wanted: PartitionImage, led: Row) -> bool:
    """Whether an assigned replica is out of sync, according to the leader."""
    return led.isr_size < len(wanted.replicas)


def unreplicated_records(led: Row) -> int:
    """Return the records that consumers cannot read yet: an in-sync replica, or a flush, is behind."""
    return max(led.log_end_offset - led.high_watermark, 0)
