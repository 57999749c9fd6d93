from __future__ import annotations

from appliance.base.clock import ManualClock
from services.controller.zookeeper.operation import Pauses


def test_a_pause_ends_when_its_time_has_come_and_is_waited_for_no_longer() -> None:
    clock = ManualClock()
    pauses = Pauses(clock.monotonic_ms)
    ended: list[str] = []
    pauses.pause(50, lambda _: ended.append("long"))
    pauses.pause(10, lambda _: ended.append("short"))
    assert pauses.park_ms(clock.monotonic_ms(), 100) == 10
    clock.advance_ms(9)
    assert pauses.do_work(clock.monotonic_ms()) == 0
    clock.advance_ms(1)
    assert pauses.do_work(clock.monotonic_ms()) == 1 and ended == ["short"]
    assert pauses.park_ms(clock.monotonic_ms(), 100) == 40
    clock.advance_ms(1000)
    assert pauses.park_ms(clock.monotonic_ms(), 100) == 0
    assert pauses.do_work(clock.monotonic_ms()) == 1 and ended == ["short", "long"]
    assert pauses.park_ms(clock.monotonic_ms(), 100) == 100


def test_a_resumed_operation_may_pause_again() -> None:
    clock = ManualClock()
    pauses = Pauses(clock.monotonic_ms)
    ended: list[int] = []

    def again(_: None) -> None:
        ended.append(clock.monotonic_ms())
        pauses.pause(5, again)

    pauses.pause(5, again)
    for _ in range(20):
        clock.advance_ms(1)
        pauses.do_work(clock.monotonic_ms())
    assert len(ended) == 4
