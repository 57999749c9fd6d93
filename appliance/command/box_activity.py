"""Rates and latencies of a box, from two samples: `take_sample` reads, `activity_between` is pure.

No process is asked and no log disk is read; sampling costs the box nothing. Records in come from end offsets and segment
sizes in the partition tables. Acceptors count bytes out; records out are estimated by the topic's mean record size.
Weak spots: a process that restarted between the samples loses its earlier CPU time, not its counts; the bytes of a segment
that was rolled between them are estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.cluster.metadata_image import MetadataImage
from appliance.command.box_status import DiskStatus, ProcessStatus, Reading, describe_disks, read_shared_memory, rows_in_place
from appliance.runtime.process_cost import read_cost, read_pss_bytes
from appliance.shm.counters import LABEL_BYTES
from appliance.shm.histogram import EMPTY_READING, HistogramReading, add_readings
from appliance.shm.partition_table import Row


class ProcessUsage(NamedTuple):
    """`pss_bytes` None: not asked, or not allowed."""

    cpu_seconds: float
    pss_bytes: int | None


def read_usage(pid: int, with_memory: bool = True) -> ProcessUsage | None:
    """None when there is no such process."""
    cost = read_cost(pid)
    return None if cost is None else ProcessUsage(cost.cpu_seconds, read_pss_bytes(pid) if with_memory else None)


def cpu_percent(before: ProcessUsage | None, after: ProcessUsage | None, seconds: float) -> float | None:
    """Of one core. None when either reading is missing; a process that was started in between counts from zero on."""
    if before is None or after is None or seconds <= 0:
        return None
    spent = after.cpu_seconds - before.cpu_seconds
    return round(100 * (spent if spent >= 0 else after.cpu_seconds) / seconds, 1)


OUT_LABEL = 'fetch.topic_bytes{{topic="{topic}"}}'
"""As `services/acceptor/handlers/fetch.py` makes it; a test holds both together."""

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


class Sample(NamedTuple):
    """One look at everything that moves."""

    reading: Reading
    usages: dict[int, ProcessUsage]
    """by pid"""


class Latency(NamedTuple):
    """Microseconds, each within 12.5 %; None where nothing was timed."""

    p50_us: float | None
    p99_us: float | None
    p999_us: float | None
    max_us: float | None


class ProcessActivity(NamedTuple):
    name: str
    pid: int | None
    state: str
    cpu_percent: float | None
    pss_bytes: int | None
    restarts: int | None


class DiskActivity(NamedTuple):
    """`append` is a round of the log-writer: descriptors taken, batches written, completions published."""

    name: str
    state: str
    free_bytes: int | None
    bytes_per_s: float
    appends_per_s: float
    append: Latency


class RequestActivity(NamedTuple):
    """One kind of work. `per_s` counts what was asked, `latency` times what was answered."""

    name: str
    per_s: float
    latency: Latency


class SyslogActivity(NamedTuple):
    """The ledger of all ingest processes since the box started: received = stored + duplicate + counted + in flight. What the kernel dropped was never
    received."""

    lines_per_s: float
    received: int
    stored: int
    counted: int
    in_flight: int
    resent: int
    kernel_drops: int
    duplicate: int = 0


class Activity(NamedTuple):
    seconds: float
    processes: list[ProcessActivity]
    disks: list[DiskActivity]
    topics: list[TopicActivity]
    requests: list[RequestActivity]
    syslog: SyslogActivity
    connections: int
    parked: int

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "seconds": round(self.seconds, 3),
            "processes": [process._asdict() for process in self.processes],
            "disks": [disk._asdict() | {"append": disk.append._asdict()} for disk in self.disks],
            "topics": [topic._asdict() for topic in self.topics],
            "requests": {request.name: {"per_s": request.per_s, **request.latency._asdict()} for request in self.requests},
            "syslog": self.syslog._asdict(),
            "connections": self.connections,
            "parked": self.parked,
        }


def take_sample(layout: BoxLayout, disk_names: list[str], processes: list[ProcessStatus], clock: Clock, with_memory: bool = True) -> Sample:
    reading = read_shared_memory(layout, disk_names, clock)
    usages = {}
    for process in processes:
        if process.pid and (usage := read_usage(process.pid, with_memory)) is not None:
            usages[process.pid] = usage
    return Sample(reading, usages)


def activity_between(box: dict[str, Any], image: MetadataImage, processes: list[ProcessStatus], before: Sample, after: Sample) -> Activity:
    """What happened between two samples."""
    seconds = max(after.reading.monotonic_ms - before.reading.monotonic_ms, 1) / 1000
    return Activity(
        seconds,
        [_process(process, before, after, seconds) for process in processes],
        [_disk(disk, before.reading, after.reading, seconds) for disk in describe_disks(box["disks"], after.reading)],
        describe_traffic(
            image,
            rows_in_place(image, before.reading.rows),
            rows_in_place(image, after.reading.rows),
            _labels(before.reading, "acceptor@"),
            _labels(after.reading, "acceptor@"),
            seconds,
        ),
        [_request(name, counter, histogram, before.reading, after.reading, seconds) for name, (counter, histogram) in REQUESTS.items()],
        _syslog(before.reading, after.reading, seconds),
        total(after.reading, "acceptor.connections"),
        total(after.reading, "acceptor.parked"),
    )


REQUESTS = {
    "produce": ("produce.requests", "produce.latency_us"),
    "fetch": ("fetch.requests", "fetch.latency_us"),
    "fetch with wait": ("fetch.requests", "fetch.latency_with_wait_us"),
    "log look-up": ("log_reader.answers", "log_reader.answer_us"),
    "syslog batch": ("ingest.batches", "ingest.batch_us"),
}
"""Kind of work → its counter and its histogram, each summed over processes and label values."""


def _process(process: ProcessStatus, before: Sample, after: Sample, seconds: float) -> ProcessActivity:
    pid = process.pid or 0
    usage = after.usages.get(pid)
    percent = cpu_percent(before.usages.get(pid), usage, seconds)
    return ProcessActivity(process.name, process.pid, process.state, percent, usage.pss_bytes if usage else None, process.restarts)


def _disk(disk: DiskStatus, before: Reading, after: Reading, seconds: float) -> DiskActivity:
    name = f"log-writer@{disk.name}"
    rates = [rise(before, after, counter, name) / seconds for counter in ("log_writer.bytes", "log_writer.append_calls")]
    latency = latency_of(histogram_between(before, after, "log_writer.append_round_us", name))
    return DiskActivity(disk.name, disk.state, disk.free_bytes, round(rates[0], 1), round(rates[1], 1), latency)


def _request(name: str, counter: str, histogram: str, before: Reading, after: Reading, seconds: float) -> RequestActivity:
    return RequestActivity(name, round(rise(before, after, counter) / seconds, 1), latency_of(histogram_between(before, after, histogram)))


def _syslog(before: Reading, after: Reading, seconds: float) -> SyslogActivity:
    names = ("received", "stored", "counted", "resent", "kernel_drops", "duplicate")
    received, stored, counted, resent, dropped, duplicate = (total(after, f"ingest.{counter}") for counter in names)
    in_flight = max(received - stored - duplicate - counted, 0)
    return SyslogActivity(round(rise(before, after, "ingest.received") / seconds, 1), received, stored, counted, in_flight, resent, dropped, duplicate)


def _labels(reading: Reading, kind: str) -> dict[str, int]:
    """Counters of all processes of one kind, summed by label."""
    summed: dict[str, int] = {}
    for name, snapshot in reading.counters.items():
        if name.startswith(kind):
            for label, value in snapshot.values.items():
                summed[label] = summed.get(label, 0) + value
    return summed


def total(reading: Reading, counter: str, process: str = "") -> int:
    """A counter's sum over its label values, of one process or of all."""
    return sum(
        value
        for name, snapshot in reading.counters.items()
        if process in ("", name)
        for label, value in snapshot.values.items()
        if label.partition("{")[0] == counter
    )


def rise(before: Reading, after: Reading, counter: str, process: str = "") -> int:
    return max(total(after, counter, process) - total(before, counter, process), 0)


def histogram_between(before: Reading, after: Reading, histogram: str, process: str = "") -> HistogramReading:
    """What was recorded between two readings, over label values, of one process or of all."""
    risen = []
    for name, snapshot in after.counters.items():
        if process in ("", name):
            earlier = before.counters.get(name)
            for label, reading in snapshot.histograms.items():
                if label.partition("{")[0] == histogram:
                    risen.append(reading.since(earlier.histograms.get(label) if earlier else EMPTY_READING))
    return add_readings(risen)


def latency_of(reading: HistogramReading) -> Latency:
    return Latency(*(reading.percentile_us(percent) for percent in (50, 99, 99.9, 100)))
