"""Which processes serve, judged by their counters."""

from __future__ import annotations

import pytest

from appliance.base.clock import ManualClock
from appliance.shm.counters import CounterSnapshot
from appliance.shm.mapping import unlink
from lab.pretended_box import PretendedBox
from services.console.box_sample import BoxReader, Readiness, judge_process


def snapshot(state: str = "serving", heartbeat_ns: int = 0, pid: int = 1) -> CounterSnapshot:
    return CounterSnapshot("x", pid, 0, heartbeat_ns, state, {})


@pytest.mark.parametrize(
    ("seen", "alive", "reason"),
    [
        (None, False, "not started"),
        (snapshot(), False, "dead"),
        (snapshot("recovering"), True, "recovering"),
        (snapshot(""), True, "starting"),
        (snapshot(heartbeat_ns=100), True, None),
        (snapshot(heartbeat_ns=99), True, "hung"),
    ],
)
def test_a_process_serves_if_it_runs_reports_serving_and_beats(seen: CounterSnapshot | None, alive: bool, reason: str | None) -> None:
    assert judge_process(seen, alive, now_ns=1100, silence_ns_max=1000) == reason


def test_every_process_of_the_box_is_looked_at_and_the_supervisor_is_not_asked_for(box: PretendedBox, clock: ManualClock) -> None:
    reader = BoxReader(box.layout, box.box, clock)
    assert reader.read().readiness == Readiness(len(box.box.process_names()), {})
    unlink(box.layout.shared_memory_name("counters", "controller"))
    unlink(box.layout.shared_memory_name("counters", "supervisor"))
    box.counters["log-writer@d1"].set_state("recovering")
    assert reader.read().readiness.missing == {"controller": "not started", "log-writer@d1": "recovering"}
    clock.advance_ms(box.box.integer("watchdog.timeout.ms") + 1)
    assert set(reader.read().readiness.missing.values()) == {"not started", "recovering", "hung"}
    reader.close()
