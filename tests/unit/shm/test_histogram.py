from __future__ import annotations

import math
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from appliance.base.layout import BoxLayout
from appliance.shm.counters import HISTOGRAMS, LABEL_BYTES, Counters, read_counters
from appliance.shm.histogram import (
    BUCKETS,
    EMPTY_READING,
    ERROR_MAX,
    MICROSECONDS_BITS,
    Histogram,
    add_readings,
    bucket_bounds_us,
    bucket_of,
)

NAME = "acceptor@0"
LABEL = "produce.latency_us"
LAST_US = (1 << MICROSECONDS_BITS) - 1

DURATIONS_US = st.one_of(st.integers(0, 40), st.integers(0, 10_000), st.integers(0, LAST_US), st.integers(0, 26).map(lambda exponent: 1 << exponent))


def filled(durations_us: list[int], extra_ns: int = 0) -> Histogram:
    made = Histogram(memoryview(bytearray(BUCKETS * 8)).cast("Q"))
    for duration_us in durations_us:
        made.record(duration_us * 1000 + extra_ns)
    return made


def exact_percentile(values: list[int], percent: float) -> int:
    """Nearest rank, from all values."""
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


@given(st.lists(DURATIONS_US, min_size=1, max_size=200), st.sampled_from([0.0, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0]), st.integers(0, 999))
@example([LAST_US], 50.0, 999)
@example([4095, 4096, 4095 << 10, 4096 << 10], 100.0, 0)
def test_a_percentile_is_off_by_at_most_an_eighth(durations_us: list[int], percent: float, extra_ns: int) -> None:
    exact = exact_percentile(durations_us, percent)
    found = filled(durations_us, extra_ns).read().percentile_us(percent)
    assert found is not None and abs(found - exact) <= ERROR_MAX * exact


@given(DURATIONS_US)
def test_the_table_knows_every_duration_s_bucket(duration_us: int) -> None:
    bucket = filled([duration_us]).read().buckets.index(1)
    low, last = bucket_bounds_us(bucket)
    assert bucket == bucket_of(duration_us) and low <= duration_us <= last


def test_buckets_follow_one_another_without_a_gap() -> None:
    bounds = [bucket_bounds_us(bucket) for bucket in range(BUCKETS)]
    assert bounds[0][0] == 0 and bounds[-1][1] == LAST_US
    assert [low for low, _ in bounds[1:]] == [last + 1 for _, last in bounds[:-1]]


def test_what_takes_longer_than_the_last_bucket_is_counted_there() -> None:
    assert filled([LAST_US * 50]).read().buckets[BUCKETS - 1] == 1


def test_nothing_recorded_has_no_percentile() -> None:
    assert (EMPTY_READING.samples, EMPTY_READING.percentile_us(50)) == (0, None)


@given(st.lists(DURATIONS_US, max_size=50), st.lists(DURATIONS_US, max_size=50))
def test_two_readings_tell_of_the_time_between_them(before: list[int], after: list[int]) -> None:
    assert filled(before + after).read().since(filled(before).read()) == filled(after).read()


def test_counts_of_a_histogram_that_restarted_at_zero_are_taken_whole() -> None:
    assert filled([7]).read().since(filled([7, 7, 9]).read()) == filled([7]).read()
    assert filled([7]).read().since(None) == filled([7]).read()


@given(st.lists(st.lists(DURATIONS_US, max_size=20), max_size=4))
def test_several_processes_are_one_histogram(parts: list[list[int]]) -> None:
    assert add_readings(filled(part).read() for part in parts) == filled([value for part in parts for value in part]).read()


def test_any_process_reads_what_the_owner_recorded_and_the_next_incarnation_continues(layout: BoxLayout) -> None:
    dead = Counters.create_or_adopt(layout, NAME, 5)
    dead.counter("a").add(3)
    dead.histogram(LABEL).record(5_000)
    dead.histogram("other").record(0)
    dead.close()
    heir = Counters.create_or_adopt(layout, NAME, 6)
    heir.histogram(LABEL).record(5_999)
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and snapshot.values == {"a": 3}
    assert {label: reading.samples for label, reading in snapshot.histograms.items()} == {LABEL: 2, "other": 1}
    assert snapshot.histograms[LABEL].percentile_us(100) == 5.0
    heir.close()


def test_histograms_beyond_the_last_place_share_it_and_harm_no_other(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, NAME, 5)
    for index in range(HISTOGRAMS + 3):
        counters.histogram(f"h{index}").record(index * 1000)
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and len(snapshot.histograms) == HISTOGRAMS
    assert snapshot.histograms["counters.overflow"].samples == 4
    assert all(snapshot.histograms[f"h{index}"].samples == 1 for index in range(HISTOGRAMS - 1))
    counters.close()


def test_a_label_that_is_too_long_is_the_same_histogram_in_the_next_incarnation(layout: BoxLayout) -> None:
    label = "é" * LABEL_BYTES
    for life in (5, 6):
        counters = Counters.create_or_adopt(layout, NAME, life)
        counters.histogram(label).record(1)
        counters.close()
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None and [reading.samples for reading in snapshot.histograms.values()] == [2]


def test_reading_leaves_nothing_mapped(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, NAME, 5)
    counters.histogram(LABEL).record(1)
    maps, name = Path("/proc/self/maps"), layout.shared_memory_name("counters", NAME)
    mappings = maps.read_text().count(name)
    read_counters(layout, NAME)
    assert mappings == maps.read_text().count(name) == 1
    counters.close()
