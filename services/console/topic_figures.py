"""Topics of the metadata image compared with the partitions that are open on this box. Pure.

Weak: of a topic with replicas elsewhere only those on this box are counted.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.cluster.metadata_image import PartitionImage
from appliance.shm.partition_table import ROLE_LEADER
from services.console.box_sample import BoxSample
from services.console.disk_sample import DOWN, HUNG, SampledPartition


class TopicFigures(NamedTuple):
    """One topic. `records` are those that consumers may read; `end_offsets` is the sum over its
    partitions, whose rise is the rate of records in."""

    name: str
    partitions: int
    not_served: int
    records: int
    size_bytes: int
    end_offsets: int


def topic_figures(sample: BoxSample) -> list[TopicFigures]:
    """Return all topics of the image."""
    held: dict[tuple[bytes, int], tuple[str, SampledPartition]] = {}
    for look in sample.disks.values():
        for partition in look.partitions:
            held[partition.row.topic_id, partition.row.partition] = look.state, partition
    return [
        _figures(name, topic.partitions, [held.get((bytes(topic.topic_id), number)) for number in range(len(topic.partitions))], sample.box.broker_id)
        for name, topic in sample.image.topics.items()
    ]


def _figures(name: str, wanted: tuple[PartitionImage, ...], here: list[tuple[str, SampledPartition] | None], broker_id: int) -> TopicFigures:
    records = size_bytes = end_offsets = 0
    for found in here:
        if found is not None:
            row, size = found[1]
            records += max(row.high_watermark - row.log_start_offset, 0)
            size_bytes += size
            end_offsets += row.log_end_offset
    not_served = sum(_is_not_served(partition, found, broker_id) for partition, found in zip(wanted, here, strict=True))
    return TopicFigures(name, len(wanted), not_served, records, size_bytes, end_offsets)


def _is_not_served(wanted: PartitionImage, found: tuple[str, SampledPartition] | None, broker_id: int) -> bool:
    if wanted.leader != broker_id:
        return wanted.leader < 0
    return found is None or found[0] in (DOWN, HUNG) or found[1].row.role != ROLE_LEADER
