"""Which segments go: Kafka's rules by time, size and log start offset, and the disk's reserve of free space. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.storage.log_config import LogConfig
from appliance.storage.retention import (
    TIMELESS_POLICIES,
    TOPIC_POLICIES,
    FreeSpaceReserve,
    LogFacts,
    LogStartOffsetRetention,
    RetentionPolicy,
    SegmentFacts,
    SizeRetention,
    TimeRetention,
    plan_retention,
)

NOW = 1_000_000
MIB = 1 << 20


def log(*sizes: int, start: int = 0, watermark: int | None = None, **config: int | str) -> LogFacts:
    """Segments of ten offsets each; the last one is active."""
    segments = tuple(SegmentFacts(10 * number, 10 * number + 10, size, number == len(sizes) - 1) for number, size in enumerate(sizes))
    return LogFacts(segments, start, 10 * len(sizes) if watermark is None else watermark, LogConfig()._replace(**config))  # type: ignore[arg-type]


def written(*times: int) -> dict[int, int]:
    """Base offset → largest timestamp."""
    return {10 * number: time for number, time in enumerate(times)}


def count(policy: RetentionPolicy, facts: LogFacts, times: dict[int, int] | None = None) -> int:
    return policy.count(facts, lambda segment: (times or {}).get(segment.base_offset, NOW), NOW)


def test_by_time_segments_go_up_to_the_first_that_is_young_enough() -> None:
    times = written(NOW - 101, NOW - 102, NOW - 100, NOW - 500, NOW)
    assert count(TimeRetention(), log(1, 1, 1, 1, 1, retention_ms=100), times) == 2
    assert count(TimeRetention(), log(1, 1, 1, 1, 1, retention_ms=-1), times) == 0


def test_nothing_above_the_high_watermark_goes() -> None:
    old = written(0, 0, 0)
    for policy in (TimeRetention(), SizeRetention()):
        facts = log(5, 5, 5, retention_ms=1, retention_bytes=0)
        assert [count(policy, facts._replace(high_watermark=mark), old) for mark in (0, 9, 10, 19, 20, 29, 30)] == [0, 0, 1, 1, 2, 2, 3]


def test_when_every_record_is_too_old_the_active_segment_goes_too_and_a_new_one_is_rolled_first() -> None:
    plan = plan_retention(log(5, 5, retention_ms=10), TOPIC_POLICIES, lambda _: 0, NOW)
    assert plan is not None and (plan.gone, plan.end_offset, plan.rolls) == (2, 20, True)


def test_an_empty_active_segment_stays() -> None:
    facts = log(5, 0, retention_ms=10, retention_bytes=0, watermark=20)
    plan = plan_retention(facts, TOPIC_POLICIES, lambda _: 0, NOW)
    assert plan is not None and (plan.gone, plan.end_offset, plan.rolls) == (1, 10, False)
    assert plan_retention(log(0, retention_ms=10), TOPIC_POLICIES, lambda _: 0, NOW) is None


def test_by_size_a_log_stays_at_least_as_large_as_its_limit() -> None:
    sizes = (100, 100, 100, 50)
    limits = (351, 350, 251, 250, 249, 150, 50, 0)
    assert [count(SizeRetention(), log(*sizes, retention_bytes=limit)) for limit in limits] == [0, 0, 0, 1, 1, 2, 3, 4]
    assert count(SizeRetention(), log(*sizes, retention_bytes=-1)) == 0


def test_segments_wholly_below_the_log_start_offset_go_whatever_the_policy_is_but_never_the_active_one() -> None:
    for policy in ("delete", "compact", "compact,delete"):
        starts = (0, 9, 10, 25, 30)
        assert [count(LogStartOffsetRetention(), log(1, 1, 1, start=start, cleanup_policy=policy)) for start in starts] == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(("policy", "goes"), [("compact", 0), ("delete", 2), ("compact,delete", 2)])
def test_a_topic_that_is_only_compacted_loses_nothing_by_time_or_size(policy: str, goes: int) -> None:
    facts = log(5, 5, retention_ms=1, retention_bytes=0, cleanup_policy=policy)
    assert count(TimeRetention(), facts, written(0, 0)) == goes and count(SizeRetention(), facts) == goes


def test_while_the_clocks_disagree_size_still_counts() -> None:
    facts = log(5, 5, 5, retention_ms=1, retention_bytes=10)
    plan = plan_retention(facts, TIMELESS_POLICIES, lambda _: 0, NOW)
    assert plan is not None and plan.reasons == (("size", 1, 5),)


def test_a_segment_is_booked_on_the_first_policy_that_asks_for_it() -> None:
    facts = log(5, 6, 7, 8, start=10, retention_bytes=15, retention_ms=10)
    plan = plan_retention(facts, TOPIC_POLICIES, lambda segment: 0 if segment.base_offset < 30 else NOW, NOW)
    assert plan is not None and plan.reasons == (("log_start_offset", 1, 5), ("size", 1, 6), ("time", 1, 7))


def test_the_reserve_is_a_share_of_small_disks() -> None:
    reserve = FreeSpaceReserve(1024 * MIB, 5)
    assert [reserve.reserve_bytes(total) // MIB for total in (40 * MIB, 1 << 40)] == [2, 1024]
    assert [reserve.missing_bytes(1 << 40, free) for free in (2048 * MIB, 1000 * MIB)] == [0, 24 * MIB]
    assert FreeSpaceReserve(0, 5).missing_bytes(1 << 40, 0) == 0


def test_for_the_reserve_the_oldest_of_all_partitions_go_but_no_active_one_and_nothing_of_a_compacted_topic() -> None:
    logs = [log(10, 10, 10), log(10, 10, 10), log(10, 10, cleanup_policy="compact"), log(10)]
    times = [written(5, 6, 0), written(1, 9, 0), written(0, 0), written(0)]

    def plans(missing: int) -> dict[int, int]:
        found, _ = FreeSpaceReserve(1, 5).plan(logs, missing, lambda place, segment: times[place][segment.base_offset], lambda *_: NOW, NOW)
        assert not any(plan.rolls for plan in found.values())
        return {place: plan.end_offset for place, plan in found.items()}

    assert plans(1) == {1: 10}
    assert plans(11) == {0: 10, 1: 10}
    assert plans(25) == {0: 20, 1: 10}
    assert plans(10_000) == {0: 20, 1: 20}


def test_the_reserve_takes_nothing_that_is_younger_than_its_topic_protects() -> None:
    logs = [log(10, 10, 10, 10, millrace_retention_protected_ms=5), log(10, 10, 10)]
    times = [written(NOW - 9, NOW - 5, NOW - 4, 0), written(NOW - 1, NOW, 0)]

    def time_of(place: int, segment: SegmentFacts) -> int:
        return times[place][segment.base_offset]

    def plans(now_ms: int) -> tuple[dict[int, int], dict[int, int]]:
        found, youngest = FreeSpaceReserve(1, 5).plan(logs, 10_000, time_of, time_of, now_ms)
        return {place: plan.end_offset for place, plan in found.items()}, youngest

    assert plans(NOW) == ({0: 20, 1: 20}, {0: NOW - 5, 1: NOW})
    assert plans(0) == ({1: 20}, {1: NOW}), "while the clocks disagree, all of it is protected"


@pytest.mark.parametrize(("appended", "protected"), [(NOW - 9, False), (NOW - 1, True)])
@pytest.mark.parametrize("timestamp", [0, NOW, 2**62])
def test_no_timestamp_of_a_producer_protects_a_segment_or_takes_its_protection(timestamp: int, appended: int, protected: bool) -> None:
    logs = [log(10, 10, millrace_retention_protected_ms=5)]
    found, _ = FreeSpaceReserve(1, 5).plan(logs, 10, lambda *_: timestamp, lambda *_: appended, NOW)
    assert (found == {}) is protected


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8),
    st.integers(0, 80),
    st.integers(0, 80),
    st.integers(-1, 60),
    st.integers(-1, 120),
)
def test_what_stays_is_a_log_and_the_policies_hold_for_it(
    segments: list[tuple[int, int]], start: int, watermark: int, retention_ms: int, retention_bytes: int
) -> None:
    facts = log(*(size for size, _ in segments), start=start, retention_ms=retention_ms, retention_bytes=retention_bytes)
    facts = facts._replace(high_watermark=min(watermark, 10 * len(segments)))
    times = written(*(age for _, age in segments))
    plan = plan_retention(facts, TOPIC_POLICIES, lambda segment: times[segment.base_offset], 60)
    gone = plan.gone if plan else 0
    assert all(segment.end_offset <= facts.high_watermark for segment in facts.segments[:gone])
    assert gone < len(segments) or (plan is not None and plan.rolls)
    if plan is not None:
        assert sum(segments for _, segments, _ in plan.reasons) == plan.gone
    if retention_bytes >= 0 and gone and plan is not None and all(name == "size" for name, _, _ in plan.reasons):
        assert sum(segment.size_bytes for segment in facts.segments[gone:]) >= retention_bytes
