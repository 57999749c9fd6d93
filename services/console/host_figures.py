"""Turns two readings of the machine into records about the interval between them. Pure.

Weak: a new device is reported from the next interval on.

Reads what the kernel counts about the machine, by psutil and /proc.

It touches no file system: the kernel answers /proc and /sys, and free space comes from the counters
of log-writers, so a hung disk blocks nothing. Only the console imports it: psutil costs 1.2 MB.
Weak: kernel counters that wrap or are reset look like a negative difference, which counts as 0
(`host_figures`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psutil

from services.console.host_schema import CPU, DISK, LOG_DIRECTORY, MEMORY, NETWORK

_MEMINFO_FIELDS = {"Dirty": "dirty_bytes", "Writeback": "writeback_bytes"}


class DiskCounts(NamedTuple):
    """Counters of a block device since the start of the machine."""

    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    read_ms: int
    write_ms: int
    busy_ms: int


class NetworkCounts(NamedTuple):
    """Counters of an interface, in psutil's order."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    receive_errors: int
    send_errors: int
    receive_drops: int
    send_drops: int


class HostReading(NamedTuple):
    """The kernel's counters and figures at one moment; counters since the start of the machine."""

    monotonic_ns: int
    cpu_seconds: dict[str, float]
    cpu_count: int
    load: tuple[float, float, float]
    memory: dict[str, int]
    disks: dict[str, DiskCounts]
    networks: dict[str, NetworkCounts]


def read_host(monotonic_ns: int) -> HostReading:
    """Return a reading; takes one or two milliseconds."""
    return HostReading(
        monotonic_ns,
        dict(psutil.cpu_times()._asdict()),
        psutil.cpu_count() or 1,
        os.getloadavg(),
        _read_memory(),
        _read_disks(),
        {name: NetworkCounts(*counts) for name, counts in psutil.net_io_counters(pernic=True).items()},
    )


def _read_memory() -> dict[str, int]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    figures = {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "page_cache_bytes": memory.cached,
        "shared_memory_bytes": memory.shared,
        "swap_used_bytes": swap.used,
    }
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _MEMINFO_FIELDS:
            figures[_MEMINFO_FIELDS[name]] = int(value.split()[0]) * 1024
    return figures


def _read_disks() -> dict[str, DiskCounts]:
    """Return the whole devices that were ever used, without their partitions."""
    whole = set(os.listdir("/sys/block")) if os.path.isdir("/sys/block") else set()
    counts = {}
    for name, count in psutil.disk_io_counters(perdisk=True).items():
        if name in whole and (count.read_count or count.write_count):
            counts[name] = DiskCounts(
                count.read_count, count.write_count, count.read_bytes, count.write_bytes, count.read_time, count.write_time, count.busy_time
            )
    return counts


def devices_of(paths: dict[str, str], mountinfo: str | None = None) -> dict[str, str]:
    """Return the block device of each directory, by the longest matching mount point in the
    kernel's list.

    Paths are compared as text and not touched; directories on no block device (tmpfs, network) are
    left out.
    """
    mounts = []
    for line in (Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo).splitlines():
        fields = line.split()
        mounts.append((fields[4].replace("\\040", " "), fields[2]))
    found = {}
    for name, path in paths.items():
        under = [(point, number) for point, number in mounts if path == point or path.startswith(point.rstrip("/") + "/")]
        under.sort(key=lambda mount: len(mount[0]))  # of several mounts at one point, the last one is visible
        if under and (device := _whole_device(under[-1][1])) is not None:
            found[name] = device
    return found


def _whole_device(number: str) -> str | None:
    """Return `sdb` for `8:17`: the device itself, or the one that it is a partition of."""
    try:
        place = os.readlink(f"/sys/dev/block/{number}")
    except OSError:
        return None
    parts = place.split("/")
    return parts[-2] if os.path.exists(f"/sys/dev/block/{number}/partition") else parts[-1]


Figures = dict[str, Any]
_CPU_SHARES = {
    "user_percent": ("user", "nice"),
    "system_percent": ("system", "irq", "softirq"),
    "iowait_percent": ("iowait",),
    "steal_percent": ("steal",),
    "idle_percent": ("idle",),
}
_NO_DISKS = ("loop", "ram", "zram")
"""Virtual devices, which are reported only if a log directory is on them."""


class LogDirectorySpace(NamedTuple):
    """A log directory, its device if it has one, and its space as its log-writer reported it."""

    name: str
    path: str
    device: str | None
    free_bytes: int | None
    size_bytes: int | None


def host_records(before: HostReading, after: HostReading, directories: Iterable[LogDirectorySpace], wall_ms: int, host: str, broker_id: int) -> list[bytes]:
    """Return JSON documents in the order cpu, memory, disks, log directories, networks."""
    seconds = max((after.monotonic_ns - before.monotonic_ns) / 1e9, 1e-3)
    time = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    common: Figures = {"time": time, "host": host, "broker_id": broker_id}
    directories = list(directories)
    figures: list[tuple[str, str, Figures]] = [(CPU, "all", _cpu(before, after)), (MEMORY, "all", dict(after.memory))]
    for name, counts in after.disks.items():
        on_it = ",".join(sorted(directory.name for directory in directories if directory.device == name))
        if name in before.disks and (on_it or not name.startswith(_NO_DISKS)):
            figures.append((DISK, name, {"log_directories": on_it} | _disk(before.disks[name], counts, seconds)))
    for directory in directories:
        if directory.size_bytes:
            space = {"path": directory.path, "free_bytes": directory.free_bytes or 0, "size_bytes": directory.size_bytes}
            figures.append((LOG_DIRECTORY, directory.name, space))
    for name, network in after.networks.items():
        if name in before.networks and (network.received_packets or network.sent_packets):
            figures.append((NETWORK, name, _network(before.networks[name], network, seconds)))
    head = {"interval_seconds": round(seconds, 3)}
    return [orjson.dumps(common | {"kind": kind, "device": device} | head | values) for kind, device, values in figures]


def _cpu(before: HostReading, after: HostReading) -> Figures:
    spent = {name: max(value - before.cpu_seconds.get(name, 0.0), 0.0) for name, value in after.cpu_seconds.items()}
    # The time of guests is included in "user".
    total = sum(value for name, value in spent.items() if not name.startswith("guest")) or 1.0
    shares = {field: round(100 * sum(spent.get(name, 0.0) for name in names) / total, 2) for field, names in _CPU_SHARES.items()}
    loads = {f"load_{minutes}m": round(load, 2) for minutes, load in zip((1, 5, 15), after.load)}
    return {"cpu_count": after.cpu_count} | shares | loads


def _disk(before: DiskCounts, after: DiskCounts, seconds: float) -> Figures:
    change = DiskCounts(*(max(new - old, 0) for old, new in zip(before, after)))
    return {
        "read_bytes_per_second": round(change.read_bytes / seconds, 1),
        "write_bytes_per_second": round(change.write_bytes / seconds, 1),
        "reads_per_second": round(change.reads / seconds, 2),
        "writes_per_second": round(change.writes / seconds, 2),
        "read_milliseconds": round(change.read_ms / change.reads, 3) if change.reads else 0.0,
        "write_milliseconds": round(change.write_ms / change.writes, 3) if change.writes else 0.0,
        "busy_percent": round(min(100 * change.busy_ms / (seconds * 1000), 100.0), 2),
    }


def _network(before: NetworkCounts, after: NetworkCounts, seconds: float) -> Figures:
    change = NetworkCounts(*(max(new - old, 0) for old, new in zip(before, after)))
    return {
        "received_bytes_per_second": round(change.received_bytes / seconds, 1),
        "sent_bytes_per_second": round(change.sent_bytes / seconds, 1),
        "received_packets_per_second": round(change.received_packets / seconds, 2),
        "sent_packets_per_second": round(change.sent_packets / seconds, 2),
        "receive_errors": change.receive_errors,
        "send_errors": change.send_errors,
        "receive_drops": change.receive_drops,
        "send_drops": change.send_drops,
    }
