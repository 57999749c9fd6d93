"""`/metrics`: a sample of the box in Prometheus's text format, by a collector of
`prometheus_client` and the lines of partitions.

Partitions bypass the library, which would take 60 ms for their 8,000 samples (`PartitionLines`).
Owned by the console's loop. Weak: the sum of a histogram is computed from the middles of its
buckets, so a mean is right within 12.5 %.

The metrics of partitions as Prometheus's text: 10,000 lines of 2,000 partitions in 6 ms.

The text before a value stays the same while the partition stays on its disk, and is built once.
Owned by the console's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.shm.histogram import BUCKETS, HistogramReading, bucket_bounds_us, bucket_center_us
from appliance.shm.partition_table import ROLE_LEADER
from services.console.alarm import AlarmSample
from services.console.box_sample import BoxSample
from services.console.console_groups import GroupsSample
from services.console.disk_sample import SampledPartition
from services.console.figures import Figures, Labels, gather
from services.console.metric_row import COUNTER, MetricRow
from services.console.metric_rows import PARTITIONS, ROWS

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
        """Return the lines of all partitions of a sample."""
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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CENTERS = [bucket_center_us(bucket) for bucket in range(BUCKETS)]
_ENDS_US = [bucket_bounds_us(bucket)[1] + 1 for bucket in range(BUCKETS)]
"""The first whole microsecond after each bucket."""
EXPOSED = tuple(
    (f"{end_us / 1e6:f}".rstrip("0").rstrip("."), bucket) for bucket, end_us in enumerate(_ENDS_US) if end_us.bit_count() == 1 and 1 << 6 <= end_us <= 1 << 26
)
"""(upper bound in seconds, bucket): each power of two from 64 µs to 67 s. Finer ones are not
exposed: a box with six disks would have 6,000 series of them."""
assert len(EXPOSED) == 21 and EXPOSED[0][0] == "0.000064" and EXPOSED[-1][0] == "67.108864"


class BoxCollector(Collector):
    """Collects one scrape. `more` are values by name that are not in a sample."""

    def __init__(self, figures: Figures, more: Mapping[str, Mapping[Labels, float]]) -> None:
        self._figures = figures
        self._more = more

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of a sample in the order of `ROWS`."""
        values, histograms = self._figures
        for row in ROWS:
            if row.name in histograms:
                yield _histogram_family(row, histograms[row.name])
            elif found := self._more.get(row.name) or values.get(row.name):
                yield _family(row, found)


class Exposition:
    """Writes scrapes; keeps what the next one needs."""

    def __init__(self, version: str, monotonic_ns: Callable[[], int]) -> None:
        self._version = version
        self._monotonic_ns = monotonic_ns
        self._partitions = PartitionLines()
        self._took_seconds = 0.0

    def text(self, sample: BoxSample, groups: GroupsSample, alarms: Iterable[AlarmSample], shows_release: bool = True) -> bytes:
        """Return the body of one scrape, UTF-8."""
        began_ns = self._monotonic_ns()
        more: dict[str, Mapping[Labels, float]] = {
            "millrace_build": {(self._version if shows_release else "",): 1.0},
            "millrace_alarm": {(look.alarm.name, look.alarm.severity): float(look.is_firing) for look in alarms},
            "millrace_console_scrape_seconds": {(): self._took_seconds},
        }
        text = generate_latest(BoxCollector(gather(sample, groups), more)) + self._partitions.text(sample).encode()
        self._took_seconds = (self._monotonic_ns() - began_ns) / 1e9
        return text


def _family(row: MetricRow, values: Mapping[Labels, float]) -> Metric:
    family = (CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily)(row.name, row.meaning, labels=row.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram_family(row: MetricRow, readings: Mapping[Labels, HistogramReading]) -> Metric:
    family = HistogramMetricFamily(row.name, row.meaning, labels=row.labels)
    for labels, reading in readings.items():
        totals = list(accumulate(reading.buckets))
        sum_us = sum(count * center for count, center in zip(reading.buckets, _CENTERS) if count)
        family.add_metric(labels, [*((bound, totals[bucket]) for bound, bucket in EXPOSED), ("+Inf", totals[-1])], sum_us / 1e6)
    return family
