"""The runner, stepped by hand with a clock that the test owns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.runtime.agent import ServiceContext
from appliance.runtime.runner import STOP_MS, Runner
from appliance.shm.counters import Counters, read_counters
from lab.scratch_layout import scratch_layout
from tests.unit.base.test_settings import make_box


class RecordingPoller:
    """Stands for the kernel: waiting takes the clock's time."""

    def __init__(self, clock: ManualClock) -> None:
        self.waits: list[float] = []
        self._clock = clock

    def poll(self, timeout_ms: float) -> int:
        self.waits.append(timeout_ms)
        self._clock.advance_ms(int(timeout_ms))
        return 0


class ScriptedAgent:
    """Has so much work in each turn; stops when it is allowed to."""

    def __init__(self, work: list[int], stops: bool = True) -> None:
        self.work = work
        self.stops = stops
        self.calls: list[str] = []
        self.parkable = True

    def do_work(self) -> int:
        return self.work.pop(0) if self.work else 0

    def may_park(self) -> bool:
        self.calls.append("may_park")
        return self.parkable

    def unpark(self) -> None:
        self.calls.append("unpark")

    def park_ms(self) -> int:
        return 100

    def begin_stop(self) -> None:
        self.calls.append("begin_stop")

    def stopped(self) -> bool:
        return self.stops and not self.work

    def close(self) -> None:
        self.calls.append("close")

    def status_line(self) -> str:
        return "two batches under way"


class Silent:
    def ready(self) -> None: ...

    def status(self, text: str) -> None: ...


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


def make_runner(
    layout: BoxLayout, agent: ScriptedAgent, collects: bool = False, may_stop: Callable[[], bool] | None = None
) -> tuple[Runner, RecordingPoller, ManualClock, int]:
    clock = ManualClock()
    poller = RecordingPoller(clock)
    reading, writing = os.pipe2(os.O_NONBLOCK)
    counters = Counters.create_or_adopt(layout, "x", 1)
    context = ServiceContext(layout, make_box(), clock, counters, poller, "x", "", 1, Silent(), Logger("x", descriptor=writing), {})  # type: ignore[arg-type]
    return Runner(agent, context, collects, may_stop=may_stop), poller, clock, reading


def test_a_busy_agent_is_not_parked_and_an_idle_one_is(layout: BoxLayout) -> None:
    agent = ScriptedAgent([3, 0])
    runner, poller, _, _ = make_runner(layout, agent)
    assert (runner.turn(), runner.turn()) == (3, 0)
    assert poller.waits == [0, 100]
    assert agent.calls == ["may_park", "unpark"]


def test_work_that_comes_while_parking_is_not_waited_for(layout: BoxLayout) -> None:
    agent = ScriptedAgent([])
    agent.parkable = False
    runner, poller, _, _ = make_runner(layout, agent)
    runner.turn()
    assert poller.waits == [0] and agent.calls == ["may_park"]


def test_every_turn_beats_the_heart(layout: BoxLayout) -> None:
    runner, _, clock, _ = make_runner(layout, ScriptedAgent([1, 1]))
    for _ in range(2):
        clock.advance_ms(7)
        runner.turn()
        snapshot = read_counters(layout, "x")
        assert snapshot is not None and snapshot.heartbeat_ns == clock.monotonic_ns()


def test_a_stop_finishes_what_is_under_way_and_then_closes(layout: BoxLayout) -> None:
    agent = ScriptedAgent([1, 1])
    runner, _, _, _ = make_runner(layout, agent)
    runner.request_stop()
    runner.run()
    assert agent.work == [] and agent.calls == ["begin_stop", "close"]
    snapshot = read_counters(layout, "x")
    assert snapshot is not None and snapshot.state == "stopping"


def test_a_stop_that_takes_too_long_is_cut_off_and_said(layout: BoxLayout) -> None:
    agent = ScriptedAgent([], stops=False)
    runner, _, clock, reading = make_runner(layout, agent)
    before_ms = clock.monotonic_ms()
    runner.request_stop()
    runner.run()
    assert clock.monotonic_ms() - before_ms == STOP_MS
    assert b"gave up on a clean stop" in os.read(reading, 1000) and agent.calls[-1] == "close"


def test_an_agent_that_dies_is_closed_all_the_same(layout: BoxLayout) -> None:
    class Dying(ScriptedAgent):
        def do_work(self) -> int:
            raise ZeroDivisionError

    agent = Dying([])
    with pytest.raises(ZeroDivisionError):
        make_runner(layout, agent)[0].run()
    assert agent.calls == ["close"]


def test_garbage_is_collected_once_when_idle_after_work_and_counted(layout: BoxLayout) -> None:
    runner, _, _, _ = make_runner(layout, ScriptedAgent([1]), collects=True)
    for _ in range(60):
        runner.turn()
    snapshot = read_counters(layout, "x")
    assert snapshot is not None and snapshot.values["runtime.gc_collections"] == 1


def test_a_process_with_a_stop_request_continues_until_it_may_stop(layout: BoxLayout) -> None:
    agent = ScriptedAgent([])
    answers = [False, False, True]
    runner, poller, _, _ = make_runner(layout, agent, may_stop=lambda: answers.pop(0))
    runner.request_stop()
    runner.run()
    assert agent.calls == ["may_park", "unpark"] * 2 + ["begin_stop", "close"] and poller.waits == [100, 100]
