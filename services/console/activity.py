"""Rates and latencies of the box between two samples. Pure.

`Slim` is the part of a sample that this needs: sums of counters by name, histograms, end offsets by
topic. Weak: counters that were lost with a box start at zero again; a rate is never negative.

The points of the page's charts: one every two seconds for a quarter of an hour, in arrays of
fixed size.

Owned by the console's loop. Weak: it is empty after a restart.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import isnan, nan
from typing import Any, NamedTuple

from appliance.shm.histogram import EMPTY_READING, HistogramReading, add_readings
from services.console.box_sample import BoxSample
from services.console.figures import TopicFigures, topic_figures

TIMED = ("produce.latency_us", "fetch.latency_us", "ingest.batch_us")
"""Kinds of work whose latency is shown for the whole box."""
DISK_TIMED = {"append": "log_writer.append_round_us", "probe": "disk.probe_us", "read": "log_reader.read_us"}
_DISK_PROCESSES = ("log-writer@", "log-reader@")


class Slim(NamedTuple):
    """`sums` over processes and label values; `disk_bytes` appended by disk; `cpu_seconds` by
    (process, pid)."""

    monotonic_ns: int
    wall_ms: int
    sums: Mapping[str, int]
    topic_bytes: Mapping[str, int]
    disk_bytes: Mapping[str, int]
    cpu_seconds: Mapping[tuple[str, int], float]
    timings: Mapping[str, HistogramReading]
    disk_timings: Mapping[tuple[str, str], HistogramReading]
    topics: Mapping[str, TopicFigures]


class LatencySummary(NamedTuple):
    """Latencies in microseconds, each within 12.5 %; None if nothing was timed."""

    p50_us: float | None
    p99_us: float | None


def slim(sample: BoxSample) -> Slim:
    """Return the part of a sample that rates and latencies need."""
    sums: dict[str, int] = {}
    topic_bytes: dict[str, int] = {}
    timings: dict[str, list[HistogramReading]] = {}
    disk_timings = {}
    for process, snapshot in sample.counters.items():
        for label, value in snapshot.values.items():
            name, _, rest = label.partition("{")
            sums[name] = sums.get(name, 0) + value
            if name == "fetch.topic_bytes":
                topic = rest.partition('"')[2].rpartition('"')[0]
                topic_bytes[topic] = topic_bytes.get(topic, 0) + value
        for label, reading in snapshot.histograms.items():
            timings.setdefault(label.partition("{")[0], []).append(reading)
            if process.startswith(_DISK_PROCESSES):
                disk_timings[process.partition("@")[2], label] = reading
    return Slim(
        sample.monotonic_ns,
        sample.wall_ms,
        sums,
        topic_bytes,
        {disk: _value(sample, f"log-writer@{disk}", "log_writer.bytes") for disk in sample.disks},
        {(process.name, process.pid): process.cost.cpu_seconds for process in sample.processes if process.cost is not None},
        {name: add_readings(timings[name]) for name in TIMED if name in timings},
        disk_timings,
        {topic.name: topic for topic in topic_figures(sample)},
    )


def _value(sample: BoxSample, process: str, counter: str) -> int:
    snapshot = sample.counters.get(process)
    return 0 if snapshot is None else snapshot.values.get(counter, 0)


class Between:
    """Rates and latencies of the interval from sample `before` to sample `after`."""

    def __init__(self, before: Slim, after: Slim) -> None:
        self.before = before
        self.after = after
        self.seconds = max(after.monotonic_ns - before.monotonic_ns, 1_000_000) / 1e9

    def rate(self, counter: str) -> float:
        """Return the rate of a counter's sum per second."""
        return self._per_second(self.before.sums.get(counter, 0), self.after.sums.get(counter, 0))

    def disk_rate(self, disk: str) -> float:
        """Return the bytes per second that were appended to a disk."""
        return self._per_second(self.before.disk_bytes.get(disk, 0), self.after.disk_bytes.get(disk, 0))

    def topic_rates(self, topic: str) -> tuple[float, float, float]:
        """Return records in, bytes in (as far as segments show it) and bytes out per second; zeros
        for a topic that is new."""
        before, after = self.before.topics.get(topic), self.after.topics[topic]
        sent = self._per_second(self.before.topic_bytes.get(topic, 0), self.after.topic_bytes.get(topic, 0))
        if before is None:
            return 0.0, 0.0, sent
        return self._per_second(before.end_offsets, after.end_offsets), self._per_second(before.size_bytes, after.size_bytes), sent

    def cpu_percent(self, process: str, pid: int) -> float | None:
        """Return the percentage of one core; None if the process did not run at both ends."""
        key = process, pid
        if key not in self.before.cpu_seconds or key not in self.after.cpu_seconds:
            return None
        return 100 * (self.after.cpu_seconds[key] - self.before.cpu_seconds[key]) / self.seconds

    def cpu_percent_of_all(self) -> float:
        """Return the percentage of one core for all processes; one that was started in between
        counts from zero."""
        return 100 * sum(max(spent - self.before.cpu_seconds.get(key, 0.0), 0.0) for key, spent in self.after.cpu_seconds.items()) / self.seconds

    def latency(self, name: str) -> LatencySummary:
        """Return the latency of a kind of work, over all processes."""
        return _latency(self.after.timings.get(name, EMPTY_READING), self.before.timings.get(name))

    def disk_latency(self, disk: str, name: str) -> LatencySummary:
        """Return the latency of one kind of operation (`DISK_TIMED`) on a disk."""
        return _latency(self.after.disk_timings.get((disk, name), EMPTY_READING), self.before.disk_timings.get((disk, name)))

    def _per_second(self, before: int, after: int) -> float:
        return max(after - before, 0) / self.seconds


def _latency(after: HistogramReading, before: HistogramReading | None) -> LatencySummary:
    reading = after.since(before)
    return LatencySummary(reading.percentile_us(50), reading.percentile_us(99))


EVERY_MS = 2_000
POINTS = 450
SERIES = (
    "received_bytes_per_s",
    "sent_bytes_per_s",
    "records_per_s",
    "syslog_lines_per_s",
    "produce_p99_ms",
    "fetch_p99_ms",
    "syslog_p99_ms",
    "cpu_percent",
)


class History:
    """The last `POINTS` points of the charts, oldest first."""

    def __init__(self) -> None:
        self._times: array[float] = array("d")
        self._series: dict[str, array[float]] = {name: array("d") for name in SERIES}
        self._disks: dict[str, array[float]] = {}

    def add(self, between: Between) -> None:
        """Add the point of the interval that has just ended; figures that were not measured are
        left out."""
        self._times.append(between.after.wall_ms)
        for name, value in zip(SERIES, measured(between), strict=True):
            self._series[name].append(value)
        known = len(self._times) - 1
        for disk in between.after.disk_bytes.keys() - self._disks.keys():
            self._disks[disk] = array("d", [nan]) * known
        for disk in self._disks.keys() - between.after.disk_bytes.keys():
            del self._disks[disk]
        for disk, points in self._disks.items():
            points.append(between.disk_rate(disk))
        for points in (self._times, *self._series.values(), *self._disks.values()):
            del points[:-POINTS]

    def document(self, since_ms: int) -> dict[str, Any]:
        """Return the points after `since_ms` as JSON."""
        first = next((index for index, time in enumerate(self._times) if time > since_ms), len(self._times))
        return {
            "time_ms": [int(time) for time in self._times[first:]],
            **{name: [_rounded(value) for value in points[first:]] for name, points in self._series.items()},
            "disks": {disk: [_rounded(value) for value in points[first:]] for disk, points in sorted(self._disks.items())},
        }


def measured(between: Between) -> tuple[float, ...]:
    """Return the figures of an interval in the order of `SERIES`; NaN where nothing was timed."""
    return (
        between.rate("log_writer.bytes"),
        between.rate("fetch.range_bytes"),
        between.rate("log_writer.records"),
        between.rate("ingest.received"),
        _milliseconds(between.latency("produce.latency_us").p99_us),
        _milliseconds(between.latency("fetch.latency_us").p99_us),
        _milliseconds(between.latency("ingest.batch_us").p99_us),
        between.cpu_percent_of_all(),
    )


def _milliseconds(microseconds: float | None) -> float:
    return nan if microseconds is None else microseconds / 1000


def _rounded(value: float) -> float | None:
    return None if isnan(value) else round(value, 3)
