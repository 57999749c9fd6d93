"""Ranges are split as Spark's Kafka connector splits them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.pipeline.offset_range import OffsetRange, split_ranges

SIZES = st.lists(st.integers(0, 10_000), min_size=1, max_size=8)


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 5, 5 + size) for number, size in enumerate(sizes)]


def test_without_options_every_partition_is_one_range_and_empty_ones_are_none() -> None:
    assert split_ranges(ranges(10, 0, 3)) == [OffsetRange("t", 0, 5, 15), OffsetRange("t", 2, 5, 8)]


def test_none_is_longer_than_was_asked() -> None:
    assert [each.size for each in split_ranges(ranges(10, 3), max_records=4)] == [3, 3, 4, 3]


def test_more_tasks_are_made_of_the_longer_ranges() -> None:
    """The example of the connector's own tests: a short range stays whole, and takes nothing from the share of the others."""
    assert [each.size for each in split_ranges(ranges(1, 10_000), min_partitions=4)] == [1, 3333, 3333, 3334]
    assert [each.size for each in split_ranges(ranges(100, 100), min_partitions=3)] == [50, 50, 50, 50]
    assert split_ranges(ranges(4, 4), min_partitions=2) == ranges(4, 4)


@given(SIZES, st.integers(1, 40) | st.none(), st.integers(1, 500) | st.none())
def test_whatever_is_asked_every_offset_is_in_exactly_one_range(sizes: list[int], least: int | None, most: int | None) -> None:
    whole = ranges(*sizes)
    found = split_ranges(whole, least, most)
    for number, size in enumerate(sizes):
        mine = [each for each in found if each.partition == number]
        assert [offset for each in mine for offset in (each.start, each.end)] == sorted(offset for each in mine for offset in (each.start, each.end))
        assert sum(each.size for each in mine) == size
        assert all(each.size > 0 and 5 <= each.start and each.end <= 5 + size for each in mine)
        assert most is None or all(each.size <= most for each in mine)
