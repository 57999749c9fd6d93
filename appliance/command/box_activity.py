"""What a box is doing now: rates and latencies from two samples some time apart. Sampling (`take_sample`) is apart from judging (`activity_between`, pure).

No process is asked and no log disk is touched; looking costs the box nothing. Weak spot: a process whose next life began between the samples
loses what its CPU time was, not its counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.cluster.metadata_image import MetadataImage
from appliance.command.box_status import DiskStatus, ProcessStatus, Reading, describe_disks, read_shared_memory
from appliance.command.process_usage import ProcessUsage, cpu_percent, read_usage
from appliance.command.topic_activity import TopicActivity, describe_traffic
from appliance.shm.histogram import EMPTY_READING, HistogramReading, add_readings


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
            image, _rows(before.reading), _rows(after.reading), _labels(before.reading, "acceptor@"), _labels(after.reading, "acceptor@"), seconds
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


def _rows(reading: Reading) -> dict[tuple[bytes, int], Any]:
    return {(bytes(row.topic_id), row.partition): row for _, row in reading.rows}


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
