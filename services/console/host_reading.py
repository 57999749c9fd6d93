"""Reads what the kernel counts about the machine, by psutil and /proc.

It touches no file system: the kernel answers /proc and /sys, and free space comes from the counters
of log-writers, so a hung disk blocks nothing. Only the console imports it: psutil costs 1.2 MB.
Weak: kernel counters that wrap or are reset look like a negative difference, which counts as 0
(`host_figures`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import psutil

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
    """The machine at one moment."""

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
