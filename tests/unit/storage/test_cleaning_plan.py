"""Which log is compacted, from where to where, into which segments; and the map of keys. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.storage.cleaner import SLOT_BYTES, OffsetMap, slots_for
from appliance.storage.cleaning_plan import (
    CleanableSegment,
    CleaningCandidate,
    CleaningPlan,
    GroupLimits,
    SegmentFigures,
    filthiest,
    group_segments,
    plan_cleaning,
)
from appliance.storage.log_config import LogConfig

NOW_MS = 1_000_000
COMPACT = LogConfig(cleanup_policy="compact")
SEGMENTS = tuple(CleanableSegment(base, base + 10, 100, NOW_MS - 500 + base, NOW_MS - 400 + base) for base in range(0, 50, 10))


def plan(first_dirty: int = 0, uncleanable: int = 50, config: LogConfig = COMPACT, now_ms: int = NOW_MS) -> CleaningPlan | None:
    return plan_cleaning(CleaningCandidate(SEGMENTS, first_dirty, uncleanable, config), now_ms)


def must(made: CleaningPlan | None) -> CleaningPlan:
    assert made is not None
    return made


def test_only_whole_segments_below_the_first_uncleanable_offset_are_taken() -> None:
    assert must(plan(uncleanable=39)).end_offset == 30
    assert must(plan(uncleanable=40)).end_offset == 40
    assert plan(uncleanable=9) is None


def test_a_log_is_due_when_its_dirty_share_is_above_the_ratio() -> None:
    assert must(plan(first_dirty=20)).dirty_ratio == 0.6 and must(plan(first_dirty=20)).is_due
    assert not must(plan(first_dirty=30)).is_due
    assert must(plan(first_dirty=30, config=COMPACT._replace(min_cleanable_dirty_ratio=0.3))).is_due
    assert plan(first_dirty=50) is None


def test_what_is_younger_than_the_least_lag_waits_and_with_it_what_follows() -> None:
    lag = COMPACT._replace(min_compaction_lag_ms=385)
    assert must(plan(config=lag)).end_offset == 20
    assert must(plan(first_dirty=10, config=lag, now_ms=NOW_MS + 100)).end_offset == 50
    assert plan(config=COMPACT._replace(min_compaction_lag_ms=401)) is None


def test_what_is_older_than_the_greatest_lag_makes_a_log_due_whatever_its_ratio() -> None:
    lazy = COMPACT._replace(min_cleanable_dirty_ratio=1.0)
    assert not must(plan(first_dirty=40, config=lazy)).is_due
    assert must(plan(first_dirty=40, config=lazy._replace(max_compaction_lag_ms=459))).is_due
    assert not must(plan(first_dirty=40, config=lazy._replace(max_compaction_lag_ms=460))).is_due


def test_of_the_logs_that_are_due_the_dirtiest_comes_first() -> None:
    plans = [(1, must(plan(first_dirty=30))), (2, must(plan(first_dirty=10))), (3, must(plan(first_dirty=20)))]
    assert filthiest(plans) == plans[1]
    assert filthiest(plans[:1]) is None


def test_the_greatest_compaction_lag_closes_segments_in_time() -> None:
    assert LogConfig.from_topic_config({"cleanup.policy": "compact,delete", "max.compaction.lag.ms": "1000"}).segment_ms == 1000
    assert LogConfig.from_topic_config({"cleanup.policy": "delete", "max.compaction.lag.ms": "1000"}).segment_ms == 604_800_000
    assert LogConfig.from_topic_config({"min.cleanable.dirty.ratio": "0.25"}).min_cleanable_dirty_ratio == 0.25


SIZES = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 90), st.integers(0, 90), st.integers(1, 2**30)), min_size=1, max_size=20)


@given(SIZES)
def test_groups_hold_every_segment_once_in_order_and_none_is_larger_than_a_segment_may_be(sizes: list[tuple[int, int, int, int]]) -> None:
    segments, base = [], 0
    for size_bytes, index_bytes, time_index_bytes, offsets in sizes:
        segments.append(SegmentFigures(base, base + offsets, size_bytes, index_bytes, time_index_bytes))
        base += offsets
    groups = group_segments(segments, GroupLimits(200, 150))
    assert [segment for group in groups for segment in group] == segments
    for group in groups:
        fits = sum(one.size_bytes for one in group) <= 200 and group[-1].end_offset - 1 - group[0].base_offset <= 2**31 - 1
        fits = fits and sum(one.index_bytes for one in group) <= 150 and sum(one.time_index_bytes for one in group) <= 150
        assert fits or len(group) == 1


@given(st.lists(st.binary(max_size=3), max_size=60), st.integers(2, 40))
def test_the_map_knows_the_newest_offset_of_each_key_until_it_is_full(keys: list[bytes], slots: int) -> None:
    offsets, model = OffsetMap(slots), dict[bytes, int]()
    for offset, key in enumerate(keys):
        has_room = key in model or len(model) < offsets.keys_max
        assert offsets.put(key, offset) == has_room
        if has_room:
            model[key] = offset
    assert offsets.count == len(model)
    assert all(offsets.get(key) == model.get(key, -1) for key in [*keys, b"never put"])


def test_the_map_is_no_larger_than_its_range_needs_and_never_larger_than_it_may_be() -> None:
    assert slots_for(1 << 20, 90) * SLOT_BYTES < 2500
    assert slots_for(1 << 20, 10**9) == (1 << 20) // SLOT_BYTES
    assert OffsetMap(slots_for(1 << 20, 90)).keys_max >= 90
