"""How well this box's partitions are replicated, under the names that people know from Kafka: what the image wants beside what the rows say. Pure.

Of a partition its leader's box speaks, so that figures of several boxes may be added. Weak spot: how far a follower outside the ISR is behind no row says; the
leader's row tells how far the slowest member of the ISR is. Owned by nobody; used by the console and by `millrace status`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from appliance.cluster.metadata_image import MetadataImage, PartitionImage
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER, Row


class ReplicationFigures(NamedTuple):
    """Counts of partitions, and records. `offline` is the controller's to tell, and everybody's while there is none."""

    leaders: int = 0
    followers: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    offline: int = 0
    not_preferred: int = 0
    """Others lead what this box should, as the first of the replicas."""
    unreplicated_records_max: int = 0
    """Of the led partition with the most records that a member of the ISR has still to fetch."""


def count_replication(image: MetadataImage, rows: dict[tuple[bytes, int], Row], broker_id: int) -> ReplicationFigures:
    """`rows` of this box, by topic id and partition."""
    tells_offline = image.controller_id == broker_id or image.controller_id not in image.brokers
    leaders = followers = under_replicated = under_min_isr = offline = not_preferred = behind = 0
    for wanted, row in _partitions(image, rows):
        offline += tells_offline and wanted.leader < 0
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
    """As its leader sees it: an assigned replica is not in sync."""
    return led.isr_size < len(wanted.replicas)


def unreplicated_records(led: Row) -> int:
    """What consumers do not see yet, because a member of the ISR has not fetched it (or a flush is awaited)."""
    return max(led.log_end_offset - led.high_watermark, 0)
