"""Deadlines: fired in order and once, moved without cost, cancelled for good."""

from __future__ import annotations

from functools import partial

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.runtime.timers import STALE_ENTRIES_MIN, Timers


def test_timers_fire_once_in_the_order_of_their_times_and_receive_the_time() -> None:
    timers = Timers()
    fired: list[tuple[str, int]] = []
    for name, deadline_ms in (("late", 30), ("early", 10), ("middle", 20)):
        timers.schedule(deadline_ms, lambda now_ms, name=name: fired.append((name, now_ms)))  # type: ignore[misc]
    assert timers.next_deadline_ms() == 10
    assert timers.fire_due(9, 10) == 0
    assert timers.fire_due(25, 10) == 2
    assert timers.fire_due(25, 10) == 0
    assert fired == [("early", 25), ("middle", 25)]
    assert timers.next_deadline_ms() == 30 and len(timers) == 1


def test_a_timer_that_moves_later_fires_at_its_new_time_only() -> None:
    timers = Timers()
    fired: list[int] = []
    timer = timers.schedule(10, fired.append)
    for deadline_ms in range(20, 200, 10):
        timers.move(timer, deadline_ms)
    assert timers.next_deadline_ms() == 190
    assert timers.fire_due(189, 10) == 0
    assert timers.fire_due(190, 10) == 1
    assert fired == [190] and timers.next_deadline_ms() is None


def test_a_timer_that_moves_earlier_fires_then_and_not_again() -> None:
    timers = Timers()
    fired: list[int] = []
    timer = timers.schedule(100, fired.append)
    timers.move(timer, 10)
    assert timers.next_deadline_ms() == 10
    assert timers.fire_due(200, 10) == 1
    assert fired == [200] and not timer.is_live


def test_a_cancelled_timer_never_fires_and_cancelling_again_is_nothing() -> None:
    timers = Timers()
    timer = timers.schedule(10, lambda now_ms: pytest.fail("a cancelled timer fired"))
    for _ in range(2):
        timers.cancel(timer)
    timers.cancel(None)
    assert timers.fire_due(100, 10) == 0 and timers.next_deadline_ms() is None and len(timers) == 0


def test_a_timer_that_is_over_cannot_be_moved() -> None:
    timers = Timers()
    timer = timers.schedule(10, lambda now_ms: None)
    timers.fire_due(10, 1)
    with pytest.raises(InvariantViolation):
        timers.move(timer, 20)


def test_a_turn_fires_no_more_than_its_limit_and_what_is_left_is_due_at_once() -> None:
    timers = Timers()
    fired: list[int] = []
    for _ in range(10):
        timers.schedule(5, fired.append)
    assert timers.fire_due(7, 4) == 4
    assert len(fired) == 4 and timers.next_deadline_ms() == 5


def test_a_timer_may_be_made_by_one_that_fires() -> None:
    timers = Timers()
    fired: list[int] = []

    def again(left: int, now_ms: int) -> None:
        fired.append(now_ms)
        if left:
            timers.schedule(now_ms + 10, partial(again, left - 1))

    timers.schedule(10, partial(again, 2))
    for now_ms in (10, 20, 30, 40):
        timers.fire_due(now_ms, 10)
    assert fired == [10, 20, 30]


def test_the_heap_does_not_grow_with_timers_that_were_cancelled() -> None:
    timers = Timers()
    kept = timers.schedule(1_000_000, lambda now_ms: None)
    for deadline_ms in range(10_000):
        timers.cancel(timers.schedule(deadline_ms, lambda now_ms: None))
    assert timers.heap_entries <= 2 + STALE_ENTRIES_MIN
    assert kept.is_live and timers.next_deadline_ms() == 1_000_000


def test_the_heap_does_not_grow_with_moves_to_and_fro() -> None:
    timers = Timers()
    timer = timers.schedule(1_000_000, lambda now_ms: None)
    for _ in range(1_000):
        timers.move(timer, 10)
        timers.move(timer, 1_000_000)
    assert timers.heap_entries <= 3 + STALE_ENTRIES_MIN
    assert timers.next_deadline_ms() == 1_000_000
