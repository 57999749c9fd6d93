"""All figures of a sample by metric name and labels, except for partitions: the input of `/metrics`
and of the alarms. Pure.

Shared counters follow their rows (`metric_rows`): name, unit, labels. Figures that no counter has
(states, ages, costs, lag) are computed here. Weak: a label value with a quote is cut there.

Topics of the metadata image compared with the partitions that are open on this box. Pure.

Weak: of a topic with replicas elsewhere only those on this box are counted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from appliance.cluster.metadata_image import PartitionImage
from appliance.cluster.replication_figures import count_replication
from appliance.shm.histogram import HistogramReading, add_readings
from appliance.shm.partition_table import ROLE_LEADER
from services.console.box_sample import PROCESS_STATES, SERVING, BoxSample
from services.console.console_groups import GroupsSample
from services.console.disk_sample import DOWN, HUNG, STATES, SampledPartition
from services.console.metric_row import HISTOGRAM, MetricRow
from services.console.metric_rows import BY_SOURCE, UNLISTED


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
    """Return the figures of all topics in the metadata image."""
    held: dict[tuple[bytes, int], tuple[str, SampledPartition]] = {}
    for disk, look in sample.disks.items():
        for partition in look.partitions:
            if sample.image.is_in_place(disk, partition.row.topic_id, partition.row.partition):
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


KAFKA_LISTENER = "kafka"
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')

Labels = tuple[str, ...]
Values = dict[Labels, float]


class Figures(NamedTuple):
    """Values by metric name, then by the values of the row's labels."""

    values: dict[str, Values]
    histograms: dict[str, dict[Labels, HistogramReading]]


def gather(sample: BoxSample, groups: GroupsSample) -> Figures:
    """Return all figures of one sample, by metric name and labels."""
    found = {
        **_box(sample),
        **_processes(sample),
        **_disks(sample),
        **_topics(sample),
        **_replication(sample),
        **_groups(groups),
        **_senders(sample),
        **_tables(sample),
    }
    figures = Figures({f"millrace_{name}": values for name, values in found.items()}, {})
    for process, snapshot in sample.counters.items():
        for label, value in snapshot.values.items():
            row, labels = placed(process, label)
            values = figures.values.setdefault(row.name, {})
            values[labels] = values.get(labels, 0) + value * row.scale
        for label, reading in snapshot.histograms.items():
            row, labels = placed(process, label)
            if row.kind == HISTOGRAM:
                readings = figures.histograms.setdefault(row.name, {})
                readings[labels] = add_readings((readings[labels], reading)) if labels in readings else reading
    return figures


@lru_cache(maxsize=20_000)
def placed(process: str, label: str) -> tuple[MetricRow, Labels]:
    """Return the row of a process's counter, and the values of its labels."""
    source, _, rest = label.partition("{")
    row = BY_SOURCE.get(source)
    if row is None:
        return UNLISTED, (process, label)
    given: dict[str, str] = {"process": process, "disk": process.partition("@")[2], "listener": KAFKA_LISTENER}
    for name, value in _LABEL.findall(rest):
        given[name] = value
    return row, tuple(given.get(name, "") for name in row.labels)


def _box(sample: BoxSample) -> dict[str, Values]:
    box = sample.box
    return {
        "box": {(box.box, str(box.broker_id), box.cluster_id or sample.image.cluster_id): 1},
        "box_start_time_seconds": {(): box.started_wall_ms / 1000},
        "box_ready": {(): float(not sample.missing)},
    }


def _processes(sample: BoxSample) -> dict[str, Values]:
    living = [process for process in sample.processes if process.pid]
    return {
        "process_serving": {(process.name,): float(process.state == SERVING) for process in sample.processes},
        "process_state": {(process.name, state): float(process.state == state) for process in sample.processes for state in PROCESS_STATES},
        "process_start_time_seconds": {(process.name,): process.started_wall_ms / 1000 for process in living},
        "process_heartbeat_age_seconds": {(process.name,): max(sample.monotonic_ns - process.heartbeat_ns, 0) / 1e9 for process in living},
    }


def _disks(sample: BoxSample) -> dict[str, Values]:
    looks = sample.disks.items()
    return {
        "disk_state": {(name, state): float(look.state == state) for name, look in looks for state in STATES},
        "disk_fenced": {(name,): float(look.is_fenced) for name, look in looks},
        "disk_partitions": {(name,): len(look.partitions) for name, look in looks},
        "disk_probe_age_seconds": {(name,): look.probe_age_ns / 1e9 for name, look in looks if look.probe_age_ns is not None},
        "disk_recovery_done_bytes": {(name,): look.recovery_done_bytes for name, look in looks},
        "disk_recovery_bytes": {(name,): look.recovery_total_bytes for name, look in looks},
    }


def _topics(sample: BoxSample) -> dict[str, Values]:
    known = topic_figures(sample)
    return {
        "topic_partitions": {(topic.name,): topic.partitions for topic in known},
        "topic_partitions_not_served": {(topic.name,): topic.not_served for topic in known},
    }


def _replication(sample: BoxSample) -> dict[str, Values]:
    image = sample.image
    rows = {
        (held.row.topic_id, held.row.partition): held.row
        for disk, look in sample.disks.items()
        for held in look.partitions
        if image.is_in_place(disk, held.row.topic_id, held.row.partition)
    }
    found = count_replication(image, rows, sample.box.broker_id)
    return {
        "cluster_boxes": {(): len(image.brokers)},
        "cluster_has_controller": {(): float(image.controller_id in image.brokers)},
        "replication_leaders": {(): found.leaders},
        "replication_followers": {(): found.followers},
        "replication_under_replicated_partitions": {(): found.under_replicated},
        "replication_under_min_isr_partitions": {(): found.under_min_isr},
        "replication_preferred_imbalance": {(): found.not_preferred},
        "replication_unreplicated_records": {(): found.unreplicated_records_max},
    }


def _senders(sample: BoxSample) -> dict[str, Values]:
    return {"ingest_senders": {(): sample.senders.known}, "ingest_silent_senders": {(): sample.senders.silent}}


_TABLE_KEYS = {
    "table_commits": "commits",
    "table_records": "records",
    "table_bad_records": "bad_records",
    "table_lost_records": "lost_records",
    "table_written_bytes": "written_bytes",
    "table_compacted_files": "compacted_files",
    "table_failures": "failures",
    "table_conflicts": "conflicts",
    "table_failing": "failing",
    "table_lag_records": "lag",
    "table_last_commit_seconds": "last_commit_ms",
}


def _tables(sample: BoxSample) -> dict[str, Values]:
    found: dict[str, Values] = {name: {(table["topic"],): float(table.get(key) or 0) for table in sample.tables} for name, key in _TABLE_KEYS.items()}
    found["table_last_commit_seconds"] = {labels: ms / 1000 for labels, ms in found["table_last_commit_seconds"].items()}
    return found


def _groups(groups: GroupsSample) -> dict[str, Values]:
    lags = [lag for group in groups.groups for lag in group.topics]
    return {
        "consumer_group_lag_records": {(lag.group, lag.topic): lag.records for lag in lags},
        "consumer_group_partitions": {(lag.group, lag.topic): lag.partitions for lag in lags},
        "consumer_groups": {(state,): count for state, count in groups.states.items()},
    }
