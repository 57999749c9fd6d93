"""The points of the page's charts: one every two seconds for a quarter of an hour, in arrays of
fixed size.

Owned by the console's loop. Weak: it is empty after a restart.
"""

from __future__ import annotations

from array import array
from math import isnan, nan
from typing import Any

from services.console.activity import Between

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
    """The last points, oldest first."""

    def __init__(self) -> None:
        self._times: array[float] = array("d")
        self._series: dict[str, array[float]] = {name: array("d") for name in SERIES}
        self._disks: dict[str, array[float]] = {}

    def add(self, between: Between) -> None:
        """Add the point of the interval that has just ended; figures that were not measured are
        left out."""
        self._times.append(between.after.wall_ms)
        measured = (
            between.rate("log_writer.bytes"),
            between.rate("fetch.range_bytes"),
            between.rate("log_writer.records"),
            between.rate("ingest.received"),
            _milliseconds(between.latency("produce.latency_us").p99_us),
            _milliseconds(between.latency("fetch.latency_us").p99_us),
            _milliseconds(between.latency("ingest.batch_us").p99_us),
            between.cpu_percent_of_all(),
        )
        for name, value in zip(SERIES, measured, strict=True):
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


def _milliseconds(microseconds: float | None) -> float:
    return nan if microseconds is None else microseconds / 1000


def _rounded(value: float) -> float | None:
    return None if isnan(value) else round(value, 3)
