"""What moves in each topic, from two readings of the partition tables and of the acceptors' counters; pure.

What comes in costs nothing to count: rows hold end offsets and the size of the active segment. What goes out is counted in bytes by the acceptors; records
are estimated from those by the topic's mean record size (`records_out_per_s`). Weak spot: where a segment was rolled between the readings,
the bytes that went into the old one are estimated the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from appliance.cluster.metadata_image import MetadataImage
from appliance.shm.counters import LABEL_BYTES
from appliance.shm.partition_table import Row

OUT_LABEL = 'fetch.topic_bytes{{topic="{topic}"}}'
"""As `services/acceptor/fetch/topic_traffic.py` makes it; a test holds both together."""

Rows = Mapping[tuple[bytes, int], Row]
"""(topic id, partition) → row"""


class TopicActivity(NamedTuple):
    """One topic, per second."""

    name: str
    partitions: int
    records_in_per_s: float
    bytes_in_per_s: float
    records_out_per_s: float
    bytes_out_per_s: float

    @property
    def moves(self) -> bool:
        return bool(self.bytes_in_per_s or self.bytes_out_per_s or self.records_in_per_s)


def describe_traffic(
    image: MetadataImage, before: Rows, after: Rows, bytes_out_before: Mapping[str, int], bytes_out_after: Mapping[str, int], seconds: float
) -> list[TopicActivity]:
    """Every topic of the image: the busiest first, then by name. `bytes_out_*` are counters by label, summed over acceptors."""
    described = []
    for name, topic in image.topics.items():
        keys = [(bytes(topic.topic_id), partition) for partition in range(len(topic.partitions))]
        records = size_bytes = 0.0
        for key in keys:
            added = _added(before.get(key), after.get(key))
            records += added[0]
            size_bytes += added[1]
        label = OUT_LABEL.format(topic=name).encode()[:LABEL_BYTES].decode(errors="ignore")
        out_bytes = max(bytes_out_after.get(label, 0) - bytes_out_before.get(label, 0), 0)
        mean = mean_record_bytes(after[key] for key in keys if key in after)
        rates = (records, size_bytes, out_bytes / mean if mean else 0.0, float(out_bytes))
        described.append(TopicActivity(name, len(topic.partitions), *(round(rate / seconds, 1) for rate in rates)))
    return sorted(described, key=lambda topic: (-topic.bytes_in_per_s - topic.bytes_out_per_s, topic.name))


def _added(before: Row | None, after: Row | None) -> tuple[int, float]:
    """Records and bytes that one partition took in between; nothing where it was not there before (it moved, or was recovered)."""
    if before is None or after is None or after.log_end_offset <= before.log_end_offset:
        return 0, 0.0
    records = after.log_end_offset - before.log_end_offset
    if after.active_base_offset == before.active_base_offset:
        return records, float(max(after.active_position - before.active_position, 0))
    in_active = min(after.log_end_offset - after.active_base_offset, records)
    mean = mean_record_bytes([before]) or mean_record_bytes([after])
    return records, after.active_position * in_active / max(after.log_end_offset - after.active_base_offset, 1) + (records - in_active) * mean


def mean_record_bytes(rows: Iterable[Row]) -> float:
    """Bytes a record, batch headers and compression included, of active segments; 0 when those are empty."""
    records = size_bytes = 0
    for row in rows:
        records += max(row.log_end_offset - row.active_base_offset, 0)
        size_bytes += row.active_position
    return size_bytes / records if records else 0.0
