"""The metrics of partitions as Prometheus's text: 10,000 lines of 2,000 partitions in 6 ms.

The text before a value stays the same while the partition stays on its disk, and is built once.
Owned by the console's loop.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.shm.partition_table import ROLE_LEADER
from services.console.box_sample import BoxSample
from services.console.disk_sample import SampledPartition
from services.console.metric_rows import PARTITIONS

_FIGURES: dict[str, Callable[[SampledPartition], int | None]] = {
    "millrace_partition_log_start_offset": lambda held: held.row.log_start_offset,
    "millrace_partition_log_end_offset": lambda held: held.row.log_end_offset,
    "millrace_partition_high_watermark": lambda held: held.row.high_watermark,
    "millrace_partition_size_bytes": lambda held: held.size_bytes,
    "millrace_partition_in_sync_replicas": lambda held: held.row.isr_size if held.row.role == ROLE_LEADER else None,
}
assert [row.name for row in PARTITIONS] == list(_FIGURES)

_Key = tuple[str, str, int]
"""Topic, disk, partition."""


class PartitionLines:
    """Writes the lines of a sample; caches labels as long as their partitions exist."""

    def __init__(self) -> None:
        self._labels: dict[_Key, str] = {}

    def text(self, sample: BoxSample) -> str:
        escaped = {disk: _escaped(disk) for disk in sample.disks}
        names = {bytes(topic.topic_id): name for name, topic in sample.image.topics.items()}
        known, labels = self._labels, {}
        held: list[tuple[str, SampledPartition]] = []
        for disk, look in sample.disks.items():
            for partition in look.partitions:
                topic = names.get(partition.row.topic_id)
                if topic is None:
                    continue  # being added or removed
                key = topic, disk, partition.row.partition
                label = known.get(key) or f'{{disk="{escaped[disk]}",partition="{partition.row.partition}",topic="{topic}"}} '
                labels[key] = label
                held.append((label, partition))
        self._labels = labels
        parts = []
        for row in PARTITIONS:
            figure = _FIGURES[row.name]
            parts.append(f"# HELP {row.name} {row.meaning}\n# TYPE {row.name} {row.kind}\n")
            parts += [f"{row.name}{label}{value}\n" for label, partition in held if (value := figure(partition)) is not None]
        return "".join(parts)


def _escaped(value: str) -> str:
    """Escape a label value: directories may have any name."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
