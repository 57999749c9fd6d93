"""Latency histograms of fixed size in the shared counters, written by one process and readable by
all.

Log-linear buckets like HdrHistogram and Prometheus's native histograms: four per power of two of
microseconds. A percentile is off by at most 12.5 %, from 1 µs to two minutes, in 104 words. A
sample costs one look-up and one increment (80 ns).

    microseconds   0  1  2  3 | 4  5  6  7 | 8-9  10-11  12-13  14-15 | 16-19  20-23  24-27  28-31 | …
    bucket         0  1  2  3 | 4  5  6  7 | 8    9      10     11    | 12     13     14     15    | …

Counts only rise, so the difference of two readings gives percentiles and rate of an interval
(`since`). No sum, number of samples or maximum is stored: readers derive them, because each would
cost another 40 ns per sample, and a maximum has no value for an interval. Weak: longer durations
count as two minutes; a reader may see only a part of a burst.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

SUB_BUCKETS_BITS = 2
SUB_BUCKETS = 1 << SUB_BUCKETS_BITS
MICROSECONDS_BITS = 27
"""Durations of up to this many bits have their own buckets (134 s)."""
BUCKETS = SUB_BUCKETS * (MICROSECONDS_BITS - SUB_BUCKETS_BITS + 1)
ERROR_MAX = 1 / (2 * SUB_BUCKETS)
"""Largest error of a percentile, as a share of its value."""
assert BUCKETS == 104

_LAST_US = (1 << MICROSECONDS_BITS) - 1


def bucket_of(microseconds: int) -> int:
    """Return the bucket of a duration by its definition; `record` uses a table."""
    microseconds = min(microseconds, _LAST_US)
    exponent = max(microseconds.bit_length() - SUB_BUCKETS_BITS - 1, 0)
    return SUB_BUCKETS * exponent + (microseconds >> exponent)


def bucket_bounds_us(bucket: int) -> tuple[int, int]:
    """Return the first and last whole microsecond of a bucket."""
    exponent = max(bucket // SUB_BUCKETS - 1, 0)
    low = (bucket - SUB_BUCKETS * exponent) << exponent
    return low, low + (1 << exponent) - 1


# The pattern repeats ten bits further up, forty buckets later: a table of 4 KiB covers all
# durations up to 4 s.
_TABLE_BITS = 12
_STEP_BITS = 10
_STEP_BUCKETS = SUB_BUCKETS * _STEP_BITS
_TABLE_END = 1 << _TABLE_BITS
_SECOND_END = _TABLE_END << _STEP_BITS
_TABLE = b"".join(bytes((bucket,)) * (last - first + 1) for bucket in range(bucket_of(_TABLE_END)) for first, last in (bucket_bounds_us(bucket),))
assert len(_TABLE) == _TABLE_END and bucket_of(_TABLE_END) == bucket_of(_TABLE_END >> _STEP_BITS) + _STEP_BUCKETS


class Histogram:
    """The writer's side: `BUCKETS` words. Not shared between threads."""

    __slots__ = ("_buckets",)

    def __init__(self, buckets: memoryview) -> None:
        self._buckets = buckets

    def record(self, elapsed_ns: int) -> None:
        """Count one duration in nanoseconds of a monotonic clock (never negative)."""
        microseconds = elapsed_ns // 1000
        if microseconds < _TABLE_END:
            self._buckets[_TABLE[microseconds]] += 1
        elif microseconds < _SECOND_END:
            self._buckets[_TABLE[microseconds >> _STEP_BITS] + _STEP_BUCKETS] += 1
        else:
            self._buckets[bucket_of(microseconds)] += 1

    def read(self) -> HistogramReading:
        return HistogramReading(tuple(self._buckets))


class HistogramReading(NamedTuple):
    """Counts at one moment, or (by `since`) of an interval."""

    buckets: tuple[int, ...]

    @property
    def samples(self) -> int:
        return sum(self.buckets)

    def since(self, earlier: HistogramReading | None) -> HistogramReading:
        """Return the samples after `earlier` (None: all). If counts fell, another incarnation
        created the object: all samples count."""
        if earlier is None or any(now < before for now, before in zip(self.buckets, earlier.buckets, strict=True)):
            return self
        return HistogramReading(tuple(now - before for now, before in zip(self.buckets, earlier.buckets, strict=True)))

    def percentile_us(self, percent: float) -> float | None:
        """Return the duration in µs that `percent` of the samples do not exceed (nearest rank),
        within ERROR_MAX; None without samples."""
        return self._percentile_us(percent) if any(self.buckets) else None

    def _percentile_us(self, percent: float) -> float:
        totals = list(accumulate(self.buckets))
        rank = max(1, -int(-totals[-1] * percent // 100))
        return bucket_center_us(next(bucket for bucket, total in enumerate(totals) if total >= rank))


EMPTY_READING = HistogramReading((0,) * BUCKETS)


def bucket_center_us(bucket: int) -> float:
    low, last = bucket_bounds_us(bucket)
    return (low + last) / 2


def add_readings(readings: Iterable[HistogramReading]) -> HistogramReading:
    """Return the samples of several processes as one reading."""
    columns: Sequence[tuple[int, ...]] = [reading.buckets for reading in readings]
    return HistogramReading(tuple(map(sum, zip(*columns, strict=True)))) if columns else EMPTY_READING
